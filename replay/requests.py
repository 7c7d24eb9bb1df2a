"""Requests to replay: flat token arrays, as compiled code and the engine want them. Knows ids, never text."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from schemas.errors import InputError
from schemas.tables import TRACE


@dataclass(frozen=True)
class Tokens:
    """Ragged token ids: sequence i is `flat[offsets[i]:offsets[i + 1]]` (int32; offsets int64, one longer)."""

    flat: np.ndarray
    offsets: np.ndarray

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, i: int) -> np.ndarray:
        return self.flat[self.offsets[i] : self.offsets[i + 1]]

    def __iter__(self) -> Iterator[np.ndarray]:
        return (self[i] for i in range(len(self)))

    @property
    def lengths(self) -> np.ndarray:
        """Length of each sequence, int64."""
        return np.diff(self.offsets)

    @classmethod
    def of(cls, sequences: Sequence[Sequence[int] | np.ndarray]) -> "Tokens":
        """Pack lists of ids.

        Raises:
            InputError: an id is not an integer from 0 to 2**31 - 1; names the sequence and the position.
        """
        offsets = np.zeros(len(sequences) + 1, np.int64)
        np.cumsum([len(s) for s in sequences], out=offsets[1:])
        flat = np.empty(offsets[-1], np.int32)
        for i, sequence in enumerate(sequences):
            ids = np.asarray(sequence)
            if len(ids) and (ids.dtype.kind not in "iu" or ids.min() < 0 or ids.max() > 2**31 - 1):
                at, value = next(
                    (j, v) for j, v in enumerate(sequence) if not isinstance(v, int | np.integer) or not 0 <= v < 2**31
                )
                raise InputError(f"sequence {i}, position {at}: {value!r} is no token id (0 to 2**31-1)")
            flat[offsets[i] : offsets[i + 1]] = ids
        return cls(flat, offsets)

    @classmethod
    def of_column(cls, column: pa.ChunkedArray) -> "Tokens":
        """A list<int32> column as flat arrays; NULL becomes an empty sequence."""
        array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
        lengths = array.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
        offsets = np.zeros(len(array) + 1, np.int64)
        np.cumsum(lengths, out=offsets[1:])
        return cls(array.flatten().to_numpy(zero_copy_only=False).astype(np.int32, copy=False), offsets)

    def column(self) -> pa.ListArray:
        """The sequences as a list<int32> column."""
        return pa.ListArray.from_arrays(pa.array(self.offsets, pa.int32()), pa.array(self.flat, pa.int32()))


@dataclass(frozen=True)
class Requests:
    """A list of requests in replay order.

    `meta` holds the trace's columns without token ids, one row per request, same order. `outputs` is empty for a
    prompt-only request; `tails` is what the target would have said past the end, empty where unknown.
    """

    prompts: Tokens
    outputs: Tokens
    tails: Tokens
    meta: pa.Table

    def __len__(self) -> int:
        return len(self.prompts)

    @classmethod
    def from_table(cls, trace: pa.Table) -> "Requests":
        """Rows of a canonical trace (see `schemas.tables.TRACE`), order kept."""
        tokens = ["prompt_token_ids", "output_token_ids", "tail_token_ids"]
        return cls(*(Tokens.of_column(trace.column(name)) for name in tokens), trace.drop_columns(tokens))

    @classmethod
    def from_lists(
        cls,
        prompts: Sequence[Sequence[int]],
        outputs: Sequence[Sequence[int]],
        tails: Sequence[Sequence[int]] | None = None,
    ) -> "Requests":
        """Plain lists of ids, for notebooks: request ids are "0", "1", …

        Raises:
            InputError: the lists differ in length, or hold something that is no token id.
        """
        tails = tails if tails is not None else [[] for _ in prompts]
        if not len(prompts) == len(outputs) == len(tails):
            raise InputError(f"{len(prompts)} prompts, {len(outputs)} outputs, {len(tails)} tails: one each is needed")
        packed = Tokens.of(prompts), Tokens.of(outputs), Tokens.of(tails)
        n = len(prompts)
        columns = {
            "request_id": [str(i) for i in range(n)],
            "sample": [0] * n,
            "prompt_tokens": packed[0].lengths,
            "output_tokens": packed[1].lengths,
        }
        schema = pa.schema([f for f in TRACE if not f.name.endswith("_token_ids")])
        meta = pa.table({f.name: pa.array(columns.get(f.name, [None] * n), f.type) for f in schema}, schema=schema)
        return cls(*packed, meta)

    def take(self, indices: Sequence[int]) -> "Requests":
        """The requests at `indices`, in that order."""
        parts = [
            Tokens.of([t[i] for i in indices]) if len(indices) else Tokens.of([])
            for t in (self.prompts, self.outputs, self.tails)
        ]
        return Requests(*parts, self.meta.take(pa.array(indices, pa.int64())))
