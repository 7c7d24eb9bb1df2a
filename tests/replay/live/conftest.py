"""One engine start is seconds: each run is made once per session and shared by the tests that look at it."""

from dataclasses import dataclass

import live_material as material
import pytest

from replay.live.launch import LiveResult, run_live
from replay.recorded.engine import replay_recorded
from replay.requests import Requests
from replay.steps import StepLog
from schemas.speculative import effective

LIMIT = 200
"""max_model_len of the parity runs: the last few prompts come close to it."""


@dataclass
class Pair:
    """A live run and the recorded replay of the captured trace with the same settings."""

    live: LiveResult
    recorded: StepLog
    requests: Requests
    config: dict
    verified: dict[tuple[int, int], list[int]]
    """Candidate ids by request and engine iteration, as the worker saw them."""


@pytest.fixture(scope="session", autouse=True)
def _one_thread():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        yield


@pytest.fixture(scope="session")
def asked() -> Requests:
    """21 short requests, then 3 whose prompts leave little room."""
    short = material.prompts(21, 150)
    near = [(a + b)[-(LIMIT - 14) :] for a, b in zip(short[::3], short[1::3], strict=True)]
    near = [ids for ids in near if len(ids) == LIMIT - 14][:3]
    assert len(near) == 3
    return material.requests(short + near, [24, 40, 33] * 7 + [40] * 3)


@pytest.fixture(scope="session")
def capture(asked) -> LiveResult:
    """Without speculation, eight at a time, with a tail."""
    none = material.proposer({"method": "none"})
    return run_live(asked, material.engine(8), none, max_model_len=LIMIT, tail_tokens=12)


@pytest.fixture(scope="session")
def trace(asked, capture) -> Requests:
    return material.captured(asked, capture)


def _pair(folders, asked: Requests, trace: Requests, config: dict, concurrency: int, take: int | None = None) -> Pair:
    folder = folders.mktemp("kept")
    if take is not None:
        asked, trace = asked.take(range(take)), trace.take(range(take))
    with material.kept(folder):
        live = run_live(asked, material.engine(concurrency), material.proposer(config), max_model_len=LIMIT)
    recorded = replay_recorded(trace, effective(config), max_model_len=LIMIT)
    return Pair(live, recorded, asked, effective(config), material.verified(folder))


@pytest.fixture(scope="session")
def ngram_one(tmp_path_factory, asked, trace) -> Pair:
    return _pair(tmp_path_factory, asked, trace, material.NGRAM, 1)


@pytest.fixture(scope="session")
def ngram_eight(tmp_path_factory, asked, trace) -> Pair:
    """Without the requests near the limit: one of them fills the whole batch with placeholders."""
    return _pair(tmp_path_factory, asked, trace, material.NGRAM, 8, take=21)


@pytest.fixture(scope="session")
def suffix_one(tmp_path_factory, asked, trace) -> Pair:
    return _pair(tmp_path_factory, asked, trace, material.SUFFIX, 1)


@pytest.fixture(scope="session")
def draft_one(tmp_path_factory, asked, trace) -> Pair:
    return _pair(tmp_path_factory, asked, trace, material.DRAFT_MODEL, 1)
