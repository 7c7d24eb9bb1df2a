"""Ask vLLM about a whole live replay before the first engine starts: the parent's half of `replay.live.ask`.

Imports no vLLM. One child process imports it once, builds its configs and sampling settings, and starts no engine.
"""

import json
from collections.abc import Sequence

import numpy as np

from replay.live import launch
from replay.live.process import run_child
from replay.preflight.findings import ENVIRONMENT, Finding
from replay.preflight.lengths import Lengths
from replay.requests import Requests
from schemas.config import EngineSection, Proposer
from schemas.errors import EnvironmentProblem, InputError


def check_live(
    requests: Requests,
    engine: EngineSection,
    proposers: Sequence[Proposer],
    lengths: Lengths,
    *,
    max_model_len: int | None,
    device_memory: int | None = None,
) -> list[Finding]:
    """What vLLM says of every proposer's settings and every request, and what memory they would take.

    Args:
        requests, engine, max_model_len: as for `replay.live.launch.run_live`; of several concurrencies the highest is
            asked about, which asks most of the engine.
        proposers: all of the run.
        lengths: of the requests.
        device_memory: bytes of the device to plan for; None = this machine's.

    Returns:
        Findings; refusals among them where a model's folder, a setting or a request cannot work.

    Raises:
        EnvironmentProblem: the child process failed; one line with its last words.
    """
    at = engine.at(max(engine.concurrencies))
    findings, asked = [], []
    for proposer in proposers:
        refused = _refused(at, proposer)
        if refused is None:
            asked.append(proposer)
        elif refused not in findings:
            findings.append(refused)
    if not asked:
        return findings
    with launch._workdir(requests, [launch._spec(at, p, max_model_len, 0) for p in asked]) as workdir:
        np.savez(workdir / "lengths.npz", prompt=lengths.prompt, output=lengths.output, ids=requests.outputs.flat)
        more = {"proposers": [p.model_dump(mode="json") for p in asked], "runner": engine.runner}
        (workdir / "ask.json").write_text(json.dumps(more | {"device_memory": device_memory}))
        try:
            run_child(workdir, None, "preflight", "--check", runner=engine.runner)
        except EnvironmentProblem as error:
            raise EnvironmentProblem(str(error).replace("proposer 'preflight'", "preflight", 1)) from error
        return findings + [Finding(**found) for found in json.loads((workdir / "findings.json").read_text())]


def _refused(engine: EngineSection, proposer: Proposer) -> Finding | None:
    """What needs no vLLM to see."""
    name = None if proposer.method == "none" else proposer.name
    try:
        launch._check(engine, proposer, 0)
    except (InputError, EnvironmentProblem) as error:
        said = str(error).removeprefix(f"proposer {proposer.name!r}: ")
        check = "settings" if isinstance(error, InputError) else ENVIRONMENT
        whole = said.startswith("[engine]") or check == ENVIRONMENT
        return Finding(check, None if whole else name, "refusal", said)
    return None
