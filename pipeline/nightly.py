"""One day's part of a trace, replayed: the same day again is the same run, resumed or done. Never asks for "now"."""

from datetime import date

from pipeline.preflight import Warn
from pipeline.run import Report, RunOutcome, replay
from pipeline.warehouse import Warehouse
from schemas.config import ReplayConfig


def nightly(
    config: ReplayConfig,
    warehouse: Warehouse,
    day: date,
    *,
    progress: Report | None = None,
    warn: Warn | None = None,
) -> RunOutcome:
    """Replay the requests that arrived on `day` (UTC); the config's own dates are set aside.

    A day without requests is an error, not a quiet success: most often the day's log was not ingested. `progress` and
    `warn` are those of `run.replay`.

    Raises:
        InputError: no request arrived that day (names the days there are), or as `run.replay`.
        EnvironmentProblem, UnitsFailedError, LockedError: as `run.replay`.
    """
    section = config.trace.model_copy(update={"date_from": day, "date_to": day})
    return replay(config.model_copy(update={"trace": section}), warehouse, progress=progress, warn=warn)
