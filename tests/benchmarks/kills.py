"""Kill -9 at a hundred random moments of a replay: what is left is whole, mends, and ends as if never killed.

    python tests/benchmarks/kills.py [--kills 100] [--seed 1]

After each kill readers see whole shards only, `fsck --repair` leaves nothing wrong, and the same replay again gives the
bytes of one that was not killed, in which fsck finds nothing. Prints one JSON object: trials, and how many were killed
before they ended; anything else is an error and exit code 1.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve()
DRIVER = HERE.parents[1] / "pipeline" / "kill_driver.py"
ROUND = 25


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    environment = os.environ | {"PYTHONPATH": str(HERE.parents[2]), "OMP_NUM_THREADS": "1"}
    trials = killed = 0
    while killed < asked.kills:  # some replays end before their moment comes
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, str(DRIVER), "moments", folder, str(ROUND), str(asked.seed + trials)]
            done = subprocess.run(command, capture_output=True, text=True, env=environment)
        if done.returncode:
            sys.exit(done.stderr)
        trials += ROUND
        killed += json.loads(done.stdout.splitlines()[-1])["killed"]
    print(json.dumps({"trials": trials, "killed": killed}))


if __name__ == "__main__":
    main()
