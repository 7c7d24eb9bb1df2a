"""A parallel draft (PARD) along recorded ids: all candidates of a round from one reading, at mask tokens.

At a history of h tokens vLLM 0.32.0 (vllm/v1/spec_decode/llm_base_proposer.py, `set_inputs_first_pass`) lets the draft
read the history and behind it k - 1 mask tokens at positions h to h + k - 2. Candidate 0 is the argmax at the last
real token, candidate i at the i-th mask. Masks see the history and the masks before them, never candidates; what an
earlier round left in the KV cache past its accepted tokens is written over before it is read. So the candidates
depend on the history alone.

Here the masks of all histories of a sequence are read at once, behind one reading of the record: two to three times
as many masks as the rounds need, and no forward per round. Knows ids and masks; knows no settings and no steps.
"""

from typing import Any

import numpy as np

from replay.recorded.draft_forward import Draft, batches, padded
from replay.recorded.walk import Progress, Sequence
from replay.requests import Requests
from schemas.errors import InputError

MASK_CELLS = 1 << 24
"""Entries of one attention mask (sequences x mask tokens x tokens they may see); bounds memory at any length."""


def mask_token(config: Any, name: str) -> int:
    """The id of the mask token, from where vLLM takes it in the draft's config.json.

    Raises:
        InputError: the config names none, or its attention is not full in every layer.
    """
    nested = getattr(config, "dflash_config", None) or {}
    own = [getattr(config, k, None) for k in ("mask_token_id", "dspark_noise_token_id", "pard_token", "ptd_token_id")]
    found = next((token for token in (nested.get("mask_token_id"), *own) if token is not None), None)
    if found is None:
        raise InputError(
            f"parallel_drafting: config.json of {name!r} names no mask token (pard_token or mask_token_id)"
        )
    layers = set(getattr(config.get_text_config(), "layer_types", None) or ["full_attention"])
    if layers != {"full_attention"}:
        raise InputError(f"parallel_drafting: {name!r} has layers with {min(layers - {'full_attention'})}; use vLLM")
    return int(found)


def parallel_runs(
    draft: Draft, mask: int, k: int, requests: Requests, limit: int, progress: Progress | None = None
) -> list[np.ndarray]:
    """For each request and history, how many of the k candidates in a row equal the record.

    Args:
        draft: the model.
        mask: id of its mask token (in its own vocabulary).
        k: candidates of a round.
        requests: with recorded outputs.
        limit: the longest sequence the draft may read, in tokens.
        progress: told of requests done.

    Returns:
        One int16 array per request: entry j is for the history of prompt + 1 + j tokens. It ends with the output, or
        where the last mask would stand past `limit`.
    """
    runs = [np.zeros(0, np.int16) for _ in range(len(requests))]
    for batch in batches(requests, limit, progress):
        for sequence, candidates in zip(batch, candidates_of(draft, mask, k, batch, limit), strict=True):
            wanted = np.full(len(sequence.ids) + k, -1, np.int64)  # past the record nothing agrees
            wanted[: len(sequence.ids)] = sequence.ids
            history = sequence.start + 1 + np.arange(len(candidates))
            agrees = candidates == wanted[history[:, None] + np.arange(k)]
            runs[sequence.index] = np.logical_and.accumulate(agrees, axis=1).sum(1).astype(np.int16)
    return runs


def candidates_of(draft: Draft, mask: int, k: int, batch: list[Sequence], limit: int) -> list[np.ndarray]:
    """Per sequence the candidates (int64, in the target's ids) at its histories: [histories, k].

    Row j is for the history of prompt + 1 + j tokens; arguments as for `parallel_runs`, `batch` has decode steps.
    """
    import torch

    # Of histories start + 1 to end - 1, those whose last mask, at h + k - 2, is still within the limit.
    counts = [max(0, min(s.end - 1, limit - k + 1) - s.start) for s in batch]
    ends = [s.start + max(1, count) for s, count in zip(batch, counts, strict=True)]
    with torch.inference_mode():
        read = draft.model.base_model(padded(draft, batch, ends), use_cache=True)
        first = torch.cat(
            [h[s.start : s.start + n] for h, s, n in zip(read.last_hidden_state, batch, counts, strict=True)]
        )
        columns = [np.split(draft.best(first)[:, None], np.cumsum(counts)[:-1])] if len(first) else []
        if not columns:
            return [np.zeros((0, k), np.int64) for _ in batch]
        if k > 1:
            columns.append(_at_masks(draft, mask, k - 1, batch, counts, read.past_key_values))
    return [np.concatenate(parts, axis=1) for parts in zip(*columns, strict=True)]


def _at_masks(
    draft: Draft, mask: int, masks: int, batch: list[Sequence], counts: list[int], cache: Any
) -> list[np.ndarray]:
    """The best tokens at `masks` mask tokens behind each history; `cache` holds the record and is left as it was."""
    import torch

    device, dtype = draft.model.device, draft.model.dtype
    length = cache.get_seq_length()
    at_once = max(1, MASK_CELLS // (len(batch) * masks * (length + masks)))
    at_once = min(at_once, max(1, int(MASK_CELLS**0.5) // masks), max(counts))
    start = torch.tensor([s.start for s in batch], device=device)[:, None]
    last = start + torch.tensor(counts, device=device)[:, None]
    place, step = torch.arange(length, device=device), torch.arange(masks, device=device)
    among = torch.block_diag(*[torch.ones(masks, masks, device=device).tril()] * at_once).bool()
    out: list[list[np.ndarray]] = [[] for _ in batch]
    for low in range(0, max(counts), at_once):
        history = (start + 1 + low + torch.arange(at_once, device=device)).minimum(last)  # repeats are left out below
        position = (history[..., None] + step).flatten(1)
        sees = torch.cat(
            (
                place < history.repeat_interleave(masks, 1)[..., None],
                among.expand(len(batch), -1, -1),
            ),
            dim=-1,
        )
        blind = torch.zeros(sees.shape, dtype=dtype, device=device).masked_fill_(~sees, torch.finfo(dtype).min)
        hidden = draft.model.base_model(
            input_ids=torch.full(position.shape, mask, device=device),
            position_ids=position,
            attention_mask=blind[:, None],
            past_key_values=cache,
            use_cache=True,
        ).last_hidden_state
        cache.crop(-position.shape[1])
        for row, n, parts in zip(hidden, counts, out, strict=True):
            kept = row[: max(0, min(n - low, at_once)) * masks]
            if len(kept):
                parts.append(draft.best(kept).reshape(-1, masks))
    return [np.concatenate(parts) if parts else np.zeros((0, masks), np.int64) for parts in out]
