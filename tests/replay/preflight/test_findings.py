"""What findings come to: exit codes, one line, equal lines together."""

import pytest

from replay.preflight.findings import ENVIRONMENT, Finding, error, merged
from schemas.errors import EnvironmentProblem, InputError

OK = Finding("memory", None, "ok", "fits", figures={"tokens": 3})
WARNING = Finding("vocabulary", "a", "warning", "differs", "mind it")
OURS = Finding("settings", "a", "refusal", "k = 0", "set it")
MACHINE = Finding(ENVIRONMENT, None, "refusal", "no vllm")


@pytest.mark.parametrize(
    ("findings", "kind", "line"),
    [
        ([], None, ""),
        ([OK, WARNING], None, ""),
        ([WARNING, OURS], InputError, "settings: proposer 'a': k = 0; set it"),
        ([MACHINE, OK], EnvironmentProblem, "environment: no vllm"),
        (
            [MACHINE, OURS],
            InputError,
            "settings: proposer 'a': k = 0; set it (and 1 more: `specreplay preflight` shows all)",
        ),
    ],
)
def test_what_the_refusals_come_to(findings, kind, line):
    found = error(findings)
    assert (type(found) if found else None, str(found or "")) == (kind, line)


def test_equal_lines_of_several_proposers_are_one():
    lines = [Finding("memory", name, "ok", "no weights") for name in ("a", "b")]
    groups = merged([lines[0], OK, lines[1], WARNING])
    assert [(f.check, names) for f, names in groups] == [("memory", ["a", "b"]), ("memory", []), ("vocabulary", ["a"])]


def test_json_keys():
    assert OURS.as_dict() == {
        "check": "settings",
        "proposer": "a",
        "level": "refusal",
        "found": "k = 0",
        "remedy": "set it",
    }
    assert OK.as_dict()["figures"] == {"tokens": 3}
