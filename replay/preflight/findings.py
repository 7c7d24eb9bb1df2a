"""One line of the preflight: what was looked at, what was found, and what to do about it.

Knows no model and no engine.
"""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from schemas.errors import EnvironmentProblem, InputError, SpecreplayError

Level = Literal["ok", "warning", "refusal"]

ENVIRONMENT = "environment"
"""The check whose refusals the machine is to blame for, not the config."""


@dataclass(frozen=True)
class Finding:
    """What one check found.

    proposer: its name; None = the target, the trace or the machine, whatever the proposer. found, remedy: one line
    each; a remedy is "" where nothing has to be done. figures: the numbers behind the line, for machines; bytes and
    tokens as integers.
    """

    check: str
    proposer: str | None
    level: Level
    found: str
    remedy: str = ""
    figures: dict[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """JSON types only; `figures` is left out where there are none."""
        return {key: value for key, value in asdict(self).items() if key != "figures" or value}

    @property
    def line(self) -> str:
        """The whole of it in one line, for stderr."""
        who = "" if self.proposer is None else f"proposer {self.proposer!r}: "
        return f"{self.check}: {who}{self.found}" + (f"; {self.remedy}" if self.remedy else "")


def refusals(findings: Iterable[Finding]) -> list[Finding]:
    """Those that end a replay before it starts, in order."""
    return [finding for finding in findings if finding.level == "refusal"]


def error(findings: Sequence[Finding]) -> SpecreplayError | None:
    """The error that the refusals among `findings` come to, None if there is none.

    InputError (exit code 2) if the config or the trace is to blame for any of them, EnvironmentProblem (exit code 4)
    if it is the machine alone. It shows the first and counts the others.
    """
    refused = refusals(findings)
    if not refused:
        return None
    ours = [finding for finding in refused if finding.check != ENVIRONMENT]
    first = (ours or refused)[0]
    more = f" (and {len(refused) - 1} more: `specreplay preflight` shows all)" if len(refused) > 1 else ""
    return (InputError if ours else EnvironmentProblem)(first.line + more)


def merged(findings: Iterable[Finding]) -> list[tuple[Finding, list[str]]]:
    """For people: equal lines of several proposers once, with the names; the order of the first of each."""
    groups: dict[tuple, tuple[Finding, list[str]]] = {}
    for finding in findings:
        key = (finding.check, finding.level, finding.found, finding.remedy, finding.proposer is None)
        _, names = groups.setdefault(key, (finding, []))
        if finding.proposer is not None:
            names.append(finding.proposer)
    return list(groups.values())
