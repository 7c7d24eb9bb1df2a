"""Suffix decoding along recorded ids, compiled: what arctic-inference 0.3.0 proposes, as vLLM 0.32.0 asks it.

Follows vllm/v1/spec_decode/suffix_decoding.py with one sequence at a time. Each request has a *local* tree of its
prompt and output; the *global* tree holds the outputs of the last `max_cached_requests` requests. At every step the
last m tokens are looked up in both, for every m, and the draft with the highest score wins.

The trees depend on the tokens alone, not on what is proposed, so settings of one depth and cache size are walked
together. And as the record is known ahead, the local tree leaves out the parts of a prompt that no later context or
draft can touch, or is kept where a request begins with all of the one before it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from replay.recorded import suffix_tree as trees
from replay.recorded.suffix_steps import walk
from replay.recorded.suffix_tree import END, FIRST, Tree
from replay.recorded.walk import LENGTH_LIMIT, NO_LIMIT, NO_MATCH, PROPOSED, SKIPPED, settle
from replay.requests import Requests
from replay.steps import StepLog

_CHUNK_TOKENS = 100_000  # output tokens per compiled call: bounds the buffers and the time between two `progress`


class Setting(NamedTuple):
    """What may differ between settings that share their trees; names as in vLLM's config."""

    num_speculative_tokens: int = 24
    max_spec_factor: float = 1.0
    min_token_prob: float = 0.1


@dataclass
class SuffixCache:
    """The global tree, kept from one walk to the next.

    `max_cached_requests` 0 turns it off. Counters are totals since it was made.
    """

    max_tree_depth: int = 24
    max_cached_requests: int = 10000
    tree: Tree | None = field(default=None, repr=False)
    evictions: int = 0
    requests: int = 0

    def memory(self) -> "SuffixMemory":
        """What the global tree holds now."""
        if self.tree is None:
            return SuffixMemory(0, 0, 0, 0, 0, self.evictions)
        size, node = self.tree.size, self.tree.node
        free, n = size[trees.FREE_NODE], int(size[trees.NODES]) - 1
        while free:
            n, free = n - 1, node[free, trees.NEXT]
        cached = int(size[trees.CACHED])
        tokens = int(size[END] - size[FIRST]) - cached
        held = sum(a.nbytes for a in self.tree)
        return SuffixMemory(cached, tokens, n, trees.used_bytes(self.tree), held, self.evictions)


@dataclass(frozen=True)
class SuffixMemory:
    """Size of a global tree: requests and tokens cached, nodes, bytes in use and allocated, evictions so far."""

    cached_requests: int
    cached_tokens: int
    nodes: int
    used_bytes: int
    allocated_bytes: int
    evictions: int

    @property
    def bytes_per_cached_token(self) -> float | None:
        """Bytes in use per cached token; None with nothing cached."""
        return self.used_bytes / self.cached_tokens if self.cached_tokens else None


def walk_suffix(
    requests: Requests,
    settings: Sequence[Setting],
    cache: SuffixCache,
    *,
    max_model_len: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> list[StepLog]:
    """The step log of each setting, all from one pass over the requests.

    >>> requests = Requests.from_lists(prompts=[[5, 6, 7, 8, 5, 6]], outputs=[[7, 8, 5, 6, 9]])
    >>> (log,) = walk_suffix(requests, [Setting()], SuffixCache())
    >>> log.drafted.tolist(), log.accepted.tolist()
    ([3], [3])

    Args:
        requests: with recorded outputs, in serving order.
        settings: one log each.
        cache: the global tree, read and filled; keeps the tokens of these requests afterwards.
        max_model_len: limit of prompt + output in tokens; None = no limit.
        progress: called with how many more requests are done.

    Where `shares_trees` is false, more than one setting is a ValueError: their caches would differ. `walk_settings`
    takes both cases.
    """
    if len(settings) > 1 and not shares_trees(requests, settings, max_model_len):
        raise ValueError("these settings do not share their trees on these requests")
    logs, _, _ = _walk_all(requests, settings, cache, max_model_len, progress, False)
    return logs


def walk_settings(
    requests: Requests,
    settings: Sequence[Setting],
    *,
    max_tree_depth: int = 24,
    max_cached_requests: int = 10000,
    max_model_len: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> list[tuple[StepLog, SuffixMemory]]:
    """Step log and final memory of each setting, every one from an empty global tree.

    One pass for all where `shares_trees`, else one pass each (`progress` is then told of every pass).
    """
    groups = [list(settings)] if shares_trees(requests, settings, max_model_len) else [[s] for s in settings]
    results = []
    for group in groups:
        cache = SuffixCache(max_tree_depth, max_cached_requests)
        logs = walk_suffix(requests, group, cache, max_model_len=max_model_len, progress=progress)
        results += [(log, cache.memory()) for log in logs]
    return results


def shares_trees(requests: Requests, settings: Sequence[Setting], max_model_len: int | None = None) -> bool:
    """Whether all settings feed the global tree the same tokens.

    So it is without tails (the last step's tokens past the end enter it, and how many they are depends on the setting)
    and with no request near max_model_len (where vLLM stops asking).
    """
    longest = int((requests.prompts.lengths + requests.outputs.lengths).max(initial=0))
    k = max(s.num_speculative_tokens for s in settings)
    return not len(requests.tails.flat) and (max_model_len is None or longest + 2 * k <= max_model_len)


def proposals(
    requests: Requests, setting: Setting, cache: SuffixCache, *, max_model_len: int | None = None
) -> tuple[StepLog, list[list[int]], np.ndarray]:
    """The step log, and for each step that vLLM asks the proposer for, the ids proposed and their float32 score.

    For looking into single steps. Without max_model_len every step is asked for; near it some are not.
    """
    logs, ids, scores = _walk_all(requests, [setting], cache, max_model_len, None, True)
    return logs[0], ids, scores


def _walk_all(requests, settings, cache, max_model_len, progress, keep_ids):
    limit = NO_LIMIT if max_model_len is None else max_model_len
    prompts, outputs, tails = requests.prompts, requests.outputs, requests.tails
    depth = cache.max_tree_depth
    largest = max((int(t.flat.max()) for t in (prompts, outputs, tails) if len(t.flat)), default=0)
    if cache.tree is None:
        cache.tree = trees.new_tree(depth, largest)
    longest = int((prompts.lengths + outputs.lengths).max(initial=1))
    local = trees.new_tree(depth, largest, longest + 2)
    bounds = np.stack([_bounds(s, depth) for s in settings])
    k = np.array([s.num_speculative_tokens for s in settings], np.int64)
    least = np.array([s.min_token_prob for s in settings], np.float32)
    ends = prompts.lengths + outputs.lengths
    flat = (prompts.flat, prompts.offsets, outputs.flat, outputs.offsets, tails.flat, tails.offsets)
    pieces: list[list[list[np.ndarray]]] = [[] for _ in settings]
    said, scored = [], []
    cuts = outputs.offsets[1:] // _CHUNK_TOKENS
    cuts = [0, *(np.flatnonzero(np.diff(cuts)) + 1).tolist(), len(requests)]
    for low, high in pairwise(cuts):
        room = int(outputs.offsets[high] - outputs.offsets[low])
        steps, rows = np.empty((len(settings), room, 4), np.int32), np.zeros(len(settings), np.int64)
        scores = np.zeros((len(settings), room), np.float32)
        ids = np.zeros((room if keep_ids else 0, max(1, min(depth, int(k.max())))), np.int32)
        stopped = np.full((len(settings), high - low), -1, np.int64)
        local, cache.tree, evicted = walk(
            low, high, *flat, k, bounds, least, limit, cache.max_cached_requests, local, cache.tree,
            steps, rows, scores, ids, stopped,
        )  # fmt: skip
        cache.evictions += evicted
        for c, piece in enumerate(pieces):
            piece.append(_counted(steps[c, : rows[c]], stopped[c], low, requests, int(k[c]), limit, ends))
        if keep_ids:
            drafted = steps[0, : rows[0], 2]
            said += [ids[row, : drafted[row]].tolist() for row in range(rows[0])]
            scored.append(scores[0, : rows[0]])
        if progress is not None:
            progress(high - low)
    cache.requests += len(requests)
    logs = [StepLog.of(len(requests), *map(np.concatenate, zip(*piece, strict=True))) for piece in pieces]
    return logs, said, np.concatenate(scored) if scored else np.zeros(0, np.float32)


def _bounds(setting: Setting, depth: int) -> np.ndarray:
    """Most tokens that a context of m tokens may propose, m = 0 … depth - 1, int64; arctic's own float arithmetic."""
    m = np.arange(max(depth, 1))
    with np.errstate(over="ignore"):
        most = (m.astype(np.float32) * np.float32(setting.max_spec_factor)).astype(np.float64) + 1e-6
    most[~(most < 2**31)] = 0  # arctic's cast to int overflows to a negative number
    return np.minimum(np.minimum(most.astype(np.int64), setting.num_speculative_tokens), depth - m)


def _counted(steps, stopped, low, requests, k, limit, ends):
    """Rows (request, history, drafted, accepted) as the columns `StepLog.of` takes, request to filler.

    Requests that came too near the limit for vLLM to ask the proposer (`stopped` = the history from which on) are
    counted to their end here, by `walk.settle`.
    """
    request, history, drafted, accepted = steps.astype(np.int64).T
    overrun = np.maximum(0, history + accepted + 1 - ends[request])
    reason = np.where(drafted > 0, PROPOSED, np.where(history + 1 >= limit, LENGTH_LIMIT, NO_MATCH))
    columns = [request, history, drafted, accepted, overrun, reason, np.zeros_like(request)]
    unasked = []
    for i in np.flatnonzero(stopped >= 0) + low:
        ids = np.concatenate([requests.prompts[i], requests.outputs[i], requests.tails[i]])
        at = int(stopped[i - low])
        while at < ends[i]:
            counts = settle(ids, at, int(ends[i]), k, limit, False, 0, 0, SKIPPED)
            unasked.append((i, at, counts[0], counts[2], counts[3], counts[4], counts[1]))
            at += counts[2] + 1
    table = np.stack(columns, axis=1)
    if unasked:
        table = np.concatenate([table, np.array(unasked, np.int64)])
        table = table[np.lexsort((table[:, 1], table[:, 0]))]
    starts = np.searchsorted(table[:, 0], table[:, 0])
    table[:, 1] = np.arange(len(table)) - starts + 1
    types = np.int32, np.int32, np.int16, np.int16, np.int16, np.int8, np.int16
    return [column.astype(type_) for column, type_ in zip(table.T, types, strict=True)]
