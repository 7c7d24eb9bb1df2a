"""The step log: every decode step of every request, and the counts that follow from it.

Definitions (all per request): S `steps`, R `rounds`, D `drafted`, C `accepted`, E `emitted`, T `output_tokens`.
`proposed = drafted - filler` and `accepted_proposed = min(accepted, proposed)`: filler stands behind the real
candidates, so an accepted count up to `proposed` is all real. R, D and C count real candidates; the engine's own
figures, filler included, are kept beside them as `engine_*`.
"""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from schemas.tables import DECODE_STEPS, MISS_REASONS

NOT_VERIFIED = -1
"""`accepted` of a step whose candidates were scheduled but never verified; NULL in the table."""


@dataclass(frozen=True)
class StepLog:
    """Decode steps as arrays of equal length, sorted by (request, step).

    request int32, from 0; step int32, from 1; drafted, filler, accepted, overrun int16 (accepted -1 = not verified);
    miss_reason int8, a code into MISS_REASONS (0 where something was proposed); engine_step int32 (-1 = none).
    `prefill_filler` int32 is per request: placeholders on its very first iteration.
    """

    request: np.ndarray
    step: np.ndarray
    drafted: np.ndarray
    filler: np.ndarray
    accepted: np.ndarray
    overrun: np.ndarray
    miss_reason: np.ndarray
    engine_step: np.ndarray
    prefill_filler: np.ndarray

    def __len__(self) -> int:
        return len(self.request)

    @classmethod
    def of(
        cls, requests: int, request, step, drafted, accepted, overrun, miss_reason,
        filler=None, engine_step=None, prefill_filler=None,
    ) -> "StepLog":  # fmt: skip
        """Build from array-likes; what is None is zero (or "none" for engine_step)."""
        n = len(request)
        return cls(
            np.asarray(request, np.int32),
            np.asarray(step, np.int32),
            np.asarray(drafted, np.int16),
            np.zeros(n, np.int16) if filler is None else np.asarray(filler, np.int16),
            np.asarray(accepted, np.int16),
            np.asarray(overrun, np.int16),
            np.asarray(miss_reason, np.int8),
            np.full(n, -1, np.int32) if engine_step is None else np.asarray(engine_step, np.int32),
            np.zeros(requests, np.int32) if prefill_filler is None else np.asarray(prefill_filler, np.int32),
        )

    @property
    def emitted(self) -> np.ndarray:
        """Tokens each step really put out, int32: accepted + 1 - overrun; 0 where not verified."""
        verified = self.accepted != NOT_VERIFIED
        return np.where(verified, self.accepted.astype(np.int32) + 1 - self.overrun, 0)

    def counts(self) -> dict[str, np.ndarray]:
        """Counts per request, int32 arrays of one entry per request.

        Keys: steps, rounds, drafted, accepted, engine_rounds, engine_drafted, engine_accepted, overrun, emitted,
        unverified, prefill_filler.
        """
        verified = self.accepted != NOT_VERIFIED
        proposed = self.drafted.astype(np.int32) - self.filler
        columns = {
            "steps": verified,
            "rounds": verified & (proposed > 0),
            "drafted": np.where(verified, proposed, 0),
            "accepted": np.where(verified, np.minimum(self.accepted, proposed), 0),
            "engine_rounds": verified & (self.drafted > 0),
            "engine_drafted": np.where(verified, self.drafted, 0),
            "engine_accepted": np.where(verified, self.accepted, 0),
            "overrun": self.overrun,
            "emitted": self.emitted,
            "unverified": ~verified,
        }
        n = len(self.prefill_filler)
        sums = {k: np.bincount(self.request, v, minlength=n).astype(np.int32) for k, v in columns.items()}
        return sums | {"prefill_filler": self.prefill_filler}

    def table(self, proposer: str, concurrency: int, first_request: int = 0) -> pa.Table:
        """The log as a `decode_steps` table; `first_request` is the position of request 0 in the run."""
        n = len(self)
        reasons = pa.DictionaryArray.from_arrays(
            pa.array(self.miss_reason, mask=self.miss_reason == 0), pa.array([r or "" for r in MISS_REASONS])
        )
        columns = {
            "proposer": pa.repeat(proposer, n),
            "concurrency": pa.repeat(pa.scalar(concurrency, pa.int32()), n),
            "request": self.request + np.int32(first_request),
            "step": self.step,
            "drafted": self.drafted,
            "filler": self.filler,
            "accepted": pa.array(self.accepted, mask=self.accepted == NOT_VERIFIED),
            "overrun": self.overrun,
            "miss_reason": reasons.cast(pa.string()),
            "engine_step": pa.array(self.engine_step, mask=self.engine_step < 0),
        }
        return pa.table(columns, schema=DECODE_STEPS)
