"""Errors that end a command: each carries the exit code a script can rely on and one line a person can act on."""


class SpecreplayError(Exception):
    """Base of every error shown without a traceback. `str(error)` is the one line shown; it never holds content."""

    exit_code = 1


class InputError(SpecreplayError):
    """The user's input or config is wrong. The message names file, row, column, value and what to do."""

    exit_code = 2


class UnitsFailedError(SpecreplayError):
    """Some units failed; the others are committed and the same command finishes the rest."""

    exit_code = 3


class EnvironmentProblem(SpecreplayError):
    """The machine is not fit: no engine, no disk space, a missing package."""

    exit_code = 4


class ReconciliationError(SpecreplayError):
    """A step log does not add up to the engine's own counters. The message names the counter."""

    exit_code = 5


class LockedError(SpecreplayError):
    """Another process holds this run or trace."""

    exit_code = 6


class GateError(SpecreplayError):
    """A gate found a regression."""

    exit_code = 10
