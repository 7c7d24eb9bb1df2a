"""What a check of a warehouse found, as data. Knows no file and no warehouse."""

from dataclasses import dataclass, field
from typing import Any

from schemas.errors import EnvironmentProblem


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong: the file (below the warehouse), what it is, what was or should be done."""

    path: str
    problem: str
    action: str
    repaired: bool = False

    def __str__(self) -> str:
        return f"{self.path}: {self.problem}; {self.action}"


@dataclass
class FsckReport:
    """What a check came to."""

    files: int = 0
    """Committed data files that were read whole."""
    bytes: int = 0
    findings: list[Finding] = field(default_factory=list)
    in_use: list[str] = field(default_factory=list)
    """Runs and traces that another process is writing: only their committed files were checked."""

    @property
    def left(self) -> list[Finding]:
        """What is still wrong."""
        return [finding for finding in self.findings if not finding.repaired]

    def as_dict(self) -> dict[str, Any]:
        """JSON types only."""
        found = [vars(finding) for finding in self.findings]
        return {"files": self.files, "bytes": self.bytes, "findings": found, "in_use": self.in_use}

    def raise_for_status(self) -> None:
        """Do nothing when the warehouse is whole (or is again).

        Raises:
            EnvironmentProblem: something is still wrong.
        """
        if self.left:
            raise EnvironmentProblem(f"{len(self.left)} of {len(self.findings)} problems are left; see the lines above")
