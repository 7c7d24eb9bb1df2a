"""Kills replays and runs them again. A program of its own, since it forks: started by test_kill.py.

    python kill_driver.py operations FOLDER           before and after every write, sync, rename and commit
    python kill_driver.py moments FOLDER COUNT SEED   until COUNT moments drawn at random have hit

A parent that has imported and compiled everything forks one child per trial. It starts no thread itself: Arrow's pools
and obstore's runtime are born in the children.
"""

import functools
import itertools
import json
import os
import random
import shutil
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import obstore
import pyarrow.parquet as pq
from small_traces import NGRAM, config, contents, rows, table

from pipeline.fsck import fsck
from pipeline.run import replay
from pipeline.warehouse import Warehouse
from replay.recorded.engine import replay_recorded
from replay.requests import Requests

CONFIG = config({}, NGRAM, shard_size=12)
REQUESTS = 20
PROPOSERS = 2


def main() -> None:
    mode, folder, *numbers = sys.argv[1:]
    root = Path(folder)
    replay_recorded(Requests.from_table(table(rows(4))), NGRAM)  # compiled once, here
    expect(0, in_child(lambda: Warehouse(root / "start").write_trace("small", [table(rows(REQUESTS))])))
    shutil.copytree(root / "start", root / "whole")
    expect(0, in_child(lambda: run(root / "whole")))
    whole = contents(root / "whole")
    assert sum(name.startswith("requests/") for name in whole) == 2 * PROPOSERS
    if mode == "operations":
        kill_at_operations(root, whole, *map(int, numbers))
    else:
        kill_at_moments(root, whole, *map(int, numbers))


def kill_at_operations(root: Path, whole: dict) -> None:
    seen = root / "seen"
    kills: Counter = Counter()
    for when in ("before", "half", "after"):
        for at in itertools.count():
            here = fresh(root)
            seen.unlink(missing_ok=True)
            status = in_child(lambda here=here, at=at, when=when: (hook(at, when, seen), run(here)))
            if not seen.exists():  # past the last operation
                expect(0, status)
                break
            expect(-signal.SIGKILL, status)
            kind = seen.read_text()
            kills[f"{when} {kind}"] += 1
            check(here, whole, f"{when} operation {at} ({kind})")
    kills["data files"] = sum("/run=" in name and name.endswith(".parquet") for name in whole)
    print(json.dumps(kills))


def kill_at_moments(root: Path, whole: dict, count: int, seed: int) -> None:
    rng = random.Random(seed)
    started = time.perf_counter()
    expect(0, in_child(lambda: run(fresh(root))))
    lasts = time.perf_counter() - started
    killed = 0
    for trial in range(5 * count):
        here, moment = fresh(root), rng.uniform(0, lasts)
        if in_child(lambda here=here: run(here), kill_after=moment) == -signal.SIGKILL:
            killed += 1
        else:  # it was done before: the machine is less busy than when it was timed
            lasts *= 0.9
        check(here, whole, f"moment {trial}: after {moment:.4f} of {lasts:.4f} s", mended=True)
        if killed == count:
            break
    print(json.dumps({"killed": killed}))


def check(here: Path, whole: dict, what: str, mended: bool = False) -> None:
    """After a kill: readers see whole shards only. After the same command again: as if never killed.

    `mended`: fsck can repair whatever is left before, and finds nothing after.
    """
    expect(0, in_child(lambda: readable(here)))
    if mended:
        expect(0, in_child(lambda: fsck(Warehouse(here), repair=True).raise_for_status()))
        expect(0, in_child(lambda: readable(here)))
    expect(0, in_child(lambda: run(here)))
    if mended:
        expect(0, in_child(lambda: sound(here)))
    again = contents(here)
    if again != whole:
        differ = sorted(name for name in again.keys() | whole.keys() if again.get(name) != whole.get(name))
        raise AssertionError(f"killed {what}: differs in {differ}")


def run(root: Path) -> None:
    outcome = replay(CONFIG, Warehouse(root))
    outcome.raise_for_status()
    assert outcome.status == "complete"


def readable(root: Path) -> None:
    warehouse = Warehouse(root)
    seen = set()
    for path in warehouse.files("requests"):
        read = pq.read_table(path, partitioning=None, columns=["proposer", "request"]).to_pylist()
        pairs = {(row["proposer"], row["request"]) for row in read}
        assert len(pairs) == len(read) and not pairs & seen, "a request is there twice"
        seen |= pairs
    for path in warehouse.files("decode_steps"):
        pq.read_table(path, partitioning=None)
    for record in warehouse.runs():
        assert record.status == "unfinished" or len(seen) == REQUESTS * PROPOSERS


def sound(root: Path) -> None:
    found = fsck(Warehouse(root)).findings
    assert not found, found


def hook(at: int, when: str, seen: Path) -> None:
    """Die at the `at`-th write, sync, rename or commit: before it, after it, or (a write) half way through."""
    count = -1

    def wrap(kind: str, call: Callable) -> Callable:
        @functools.wraps(call)
        def wrapped(*args, **kwargs):
            nonlocal count
            count += kind == "write" or when != "half"
            if count != at or (when == "half" and kind != "write"):
                return call(*args, **kwargs)
            seen.write_text(kind)
            if when == "half":
                call(args[0], args[1][: len(args[1]) // 2])
            elif when != "before":
                call(*args, **kwargs)
            os.kill(os.getpid(), signal.SIGKILL)
            raise AssertionError("unreachable")

        return wrapped

    for name in ("write", "fsync", "replace"):
        setattr(os, name, wrap(name, getattr(os, name)))
    setattr(obstore, "put", wrap("put", obstore.put))  # noqa: B010


def fresh(root: Path) -> Path:
    here = root / "here"
    shutil.rmtree(here, ignore_errors=True)
    shutil.copytree(root / "start", here)
    return here


def in_child(work: Callable, kill_after: float | None = None) -> int:
    """Exit code of a forked child that does `work`; minus the signal that ended it."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    if kill_after is not None:
        time.sleep(kill_after)
        os.kill(pid, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def expect(wanted: int, status: int) -> None:
    if status != wanted:
        raise AssertionError(f"a child ended with {status}, not {wanted}")


if __name__ == "__main__":
    main()
