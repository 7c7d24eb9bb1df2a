"""Forward passes of a draft over recorded ids, many sequences at once, and the runs of agreement they give.

As long as candidates are accepted, a draft's own context *is* the recorded text. At a history of h tokens candidate i
(from 0) is the argmax of the logits at position h - 1 + i, read after `ids[: h + i]`; it is accepted if it and all
before it equal `ids[h + i]`. So with `agrees[p] = (argmax at p - 1 == ids[p])` the accepted length at h is the run of
agreement that starts at p = h, cut at k, for every h and k at once.

Where the two best tokens are nearly tied, another dtype, kernel or batch can choose the other one. Knows sequences of
ids; knows no settings, limits of a config or steps.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from replay.recorded.vocabulary import Vocabulary
from replay.recorded.walk import Progress, Sequence
from replay.requests import Requests

BATCH_TOKENS = 8192
"""Tokens of one forward, padding included; a longer sequence is a batch of its own."""

HEAD_ROWS = 1024
"""Positions whose logits exist at once (times the vocabulary: 600 MB at 150,000 ids in float32)."""


@dataclass(frozen=True)
class Draft:
    """A transformers causal LM, and how its ids map to the target's (None: they are the same)."""

    model: Any
    vocabulary: Vocabulary | None = None

    def read(self, ids: np.ndarray) -> np.ndarray:
        """The target's ids as the draft reads them, int64."""
        ids = ids.astype(np.int64)
        return ids if self.vocabulary is None else self.vocabulary.to_draft[ids]

    def best(self, hidden: Any) -> np.ndarray:
        """The target's id (int64) of the best token at each of [n, hidden size] hidden rows."""
        import torch

        head = self.model.get_output_embeddings()
        hidden = hidden.to(head.weight.dtype)
        if self.vocabulary is None:
            return torch.cat([head(part).argmax(-1) for part in hidden.split(HEAD_ROWS)]).cpu().numpy()
        foreign = torch.from_numpy(~self.vocabulary.shared).to(hidden.device)
        parts = [head(part).masked_fill(foreign, float("-inf")).argmax(-1) for part in hidden.split(HEAD_ROWS)]
        return self.vocabulary.to_target[torch.cat(parts).cpu().numpy()]


def agreement_runs(draft: Draft, requests: Requests, limit: int, progress: Progress | None = None) -> list[np.ndarray]:
    """For each request, how many recorded tokens in a row the draft's argmax equals.

    Returns:
        One int16 array per request: entry j counts from position prompt + 1 + j of prompt + output + tail on. It ends
        with the record or with position `limit`, whichever comes first; it is empty below two output tokens.
    """
    runs = [np.zeros(0, np.int16) for _ in range(len(requests))]
    for batch in batches(requests, limit, progress):
        for sequence, agrees in zip(batch, _agreements(draft, batch, limit), strict=True):
            runs[sequence.index] = _run_lengths(agrees)
    return runs


def batches(requests: Requests, limit: int, progress: Progress | None) -> Iterator[list[Sequence]]:
    """The requests that have decode steps below `limit`, like lengths together: little padding.

    Tells `progress` of a batch when the next one is asked for, and of the requests without decode steps first.
    """
    sequences = [Sequence(requests, i) for i in range(len(requests))]
    walked = [s for s in sequences if s.end - s.start >= 2 and s.start < limit]
    told = len(sequences) - len(walked)
    batch: list[Sequence] = []
    for sequence in sorted(walked, key=lambda s: len(s.ids)):
        if batch and (len(batch) + 1) * len(sequence.ids) > BATCH_TOKENS:
            yield batch
            told += len(batch)
            if progress is not None:
                progress(told)
            batch, told = [], 0
        batch.append(sequence)
    if batch:
        yield batch
    if progress is not None and told + len(batch):
        progress(told + len(batch))


def padded(draft: Draft, batch: list[Sequence], ends: list[int]) -> Any:
    """`ids[:end]` of each sequence as the draft reads them: a long tensor [sequences, longest end] on its device.

    Padding stands on the right, where causal attention keeps it from what is read.
    """
    import torch

    rows = torch.zeros(len(batch), max(ends), dtype=torch.long)
    for row, sequence, end in zip(rows, batch, ends, strict=True):
        row[:end] = torch.from_numpy(draft.read(sequence.ids[:end]))
    return rows.to(draft.model.device)


def greedy_candidates(draft: Draft, contexts: list[np.ndarray], k: int) -> np.ndarray:
    """What a greedy draft says behind each context, every candidate read after the ones before it.

    Args:
        draft: the model.
        contexts: the target's ids, int32, one token at least each.
        k: candidates of a round.

    Returns:
        int64 [contexts, k], in the target's ids.
    """
    import torch

    said = np.zeros((len(contexts), k), np.int64)
    at_once = max(1, BATCH_TOKENS // (max(map(len, contexts), default=1) + k))
    for low in range(0, len(contexts), at_once):
        some, out = contexts[low : low + at_once], said[low : low + at_once]
        for i in range(k):
            last = torch.tensor([len(ids) + i - 1 for ids in some])
            rows = torch.zeros(len(some), int(last.max()) + 1, dtype=torch.long)
            for row, ids, own in zip(rows, some, out, strict=True):
                row[: len(ids) + i] = torch.from_numpy(draft.read(np.concatenate([ids, own[:i]])))
            with torch.inference_mode():
                hidden = draft.model.base_model(rows.to(draft.model.device), use_cache=False).last_hidden_state
                out[:, i] = draft.best(hidden[torch.arange(len(some)), last])
    return said


def _agreements(draft: Draft, batch: list[Sequence], limit: int) -> list[np.ndarray]:
    """Per sequence whether argmax agrees with the record, at positions prompt + 1 up to its end or `limit`."""
    import torch

    ends = [min(len(s.ids) - 1, limit) for s in batch]  # the last id is compared, never read
    with torch.inference_mode():
        hidden = draft.model.base_model(padded(draft, batch, ends), use_cache=False).last_hidden_state
        # The head runs on output positions only: prompts are long and logits are wide.
        best = draft.best(torch.cat([h[s.start : end] for h, s, end in zip(hidden, batch, ends, strict=True)]))
    cuts = np.cumsum([end - s.start for s, end in zip(batch, ends, strict=True)])[:-1]
    told = [s.ids[s.start + 1 : end + 1] for s, end in zip(batch, ends, strict=True)]
    return [a == b for a, b in zip(np.split(best, cuts), told, strict=True)]


def _run_lengths(agrees: np.ndarray) -> np.ndarray:
    """How many True follow in a row from each place on; int16, as a step's counts are.

    >>> _run_lengths(np.array([True, True, False, True])).tolist()
    [2, 1, 0, 1]
    """
    at = np.arange(len(agrees))
    stops = np.where(agrees, len(agrees), at)
    runs = np.minimum.accumulate(stops[::-1])[::-1] - at
    return np.minimum(runs, 2**15 - 1).astype(np.int16)
