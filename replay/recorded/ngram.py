"""N-gram lookup by the V1 rule, compiled: the longest window, then its earliest match.

The rule of vLLM 0.32.0 (vllm/v1/spec_decode/ngram_proposer.py): the last m tokens of the history, m as large as
possible within [prompt_lookup_min, prompt_lookup_max], are looked for earlier in the history (overlap allowed); the
candidates are the up to k tokens behind the earliest match, cut at the history's end.

vLLM searches the whole history in every round. Here every position is indexed once, at amortised constant cost:
"where did the m tokens that end at t first end?" depends on the ids alone, not on the rounds. A position is named by
its end (exclusive). `first(t, m) = e < t` is found level by level:

- the base level (2 tokens, or 1 if max is 1 or min is 1) is one probe of a hash table keyed by the tokens;
- from m to m + 1: if the first match e reaches one token further back, it is also the first match of the longer
  window, with no probe. Otherwise the longer window's first match is kept in the table under (e, m, token before).
- a window not seen before is stored, and the longer ones are not: they are implied by its first match.

So a position stores one entry at most. Only windows of the output are ever asked for, so the prompt is indexed only
where its base window occurs in the output too, and above the base level only where the window one longer does.
Knows ids and lengths, no model and no file.
"""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numba import njit

from replay.recorded import walk
from replay.recorded.compiled import cached_njit
from replay.recorded.walk import NO_LIMIT, NO_MATCH, PROPOSED, TOO_SHORT, Limits, Progress
from replay.requests import Requests
from replay.steps import StepLog

_settle = njit(walk.settle)
_fits = njit(walk.fits)

_CHUNK_TOKENS = 2_000_000  # tokens between two calls of `progress`
_FILTER_BITS = 16  # 8 KiB of bits: stays in the first-level cache


def replay_ngram(requests: Requests, config: dict, limits: Limits, progress: Progress | None) -> StepLog:
    """Replay with n-gram lookup.

    Args:
        requests: with recorded outputs.
        config: effective `speculative_config` (`schemas.speculative.effective`).
        limits: see `walk.Limits`.
        progress: told of requests done, every few million tokens.
    """
    return replay_with_sources(requests, config, limits, progress)[0]


def replay_with_sources(
    requests: Requests, config: dict, limits: Limits, progress: Progress | None = None
) -> tuple[StepLog, np.ndarray]:
    """The step log, and for each step the position (int32) its candidates were copied from; -1 = nothing proposed.

    The real candidates of a step are `ids[source : source + drafted]` of prompt + output.
    """
    prompts, outputs, tails = requests.prompts, requests.outputs, requests.tails
    longest = int((prompts.lengths + outputs.lengths + tails.lengths).max(initial=1))
    table = np.zeros((_table_size(longest), 2), np.int64)
    scratch = np.empty(longest, np.int32), np.empty(longest, np.int32)
    rows = int(np.maximum(outputs.lengths - 1, 0).sum())
    columns = [
        np.empty(rows, t) for t in (np.int32, np.int32, np.int16, np.int16, np.int16, np.int8, np.int16, np.int32)
    ]
    settings = tuple(config[key] for key in ("prompt_lookup_min", "prompt_lookup_max", "num_speculative_tokens"))
    row = 0
    tokens = np.cumsum(prompts.lengths + outputs.lengths) // _CHUNK_TOKENS
    cuts = [0, *(np.flatnonzero(np.diff(tokens)) + 1).tolist(), len(requests)]
    for low, high in pairwise(cuts):
        row = _walk(
            low, high, prompts.flat, prompts.offsets, outputs.flat, outputs.offsets, tails.flat, tails.offsets,
            *settings, limits.model, limits.drafter, table, *scratch, row, *columns,
        )  # fmt: skip
        if progress is not None:
            progress(high - low)
    *steps, source = (column[:row] for column in columns)
    return StepLog.of(len(requests), *steps), source


def propose(history: Sequence[int], config: dict, max_model_len: int | None = None) -> np.ndarray:
    """What vLLM's n-gram function proposes at a history: up to k ids (int32), empty where it finds nothing.

    >>> from schemas.speculative import effective
    >>> config = effective({"method": "ngram", "prompt_lookup_max": 2, "num_speculative_tokens": 3})
    >>> propose([7, 8, 1, 7, 8, 2, 7, 8], config).tolist()
    [1, 7, 8]

    Args:
        history: prompt and outputs so far, in tokens.
        config: effective `speculative_config` of method "ngram".
        max_model_len: limit of prompt + output; the function keeps to it, the scheduler then verifies one fewer.
    """
    ids = np.ascontiguousarray(history, np.int32)
    room = (NO_LIMIT if max_model_len is None else max_model_len) - len(ids)
    source = _source(
        ids, config["prompt_lookup_min"], config["prompt_lookup_max"], np.zeros((_table_size(len(ids)), 2), np.int64)
    )
    k = min(config["num_speculative_tokens"], room)
    return ids[source : source + k] if source >= 0 and k > 0 else ids[:0]


def _table_size(positions: int) -> int:
    """A power of two at least twice the entries that `positions` positions store."""
    return 1 << max(4, (2 * positions - 1).bit_length())


@cached_njit(walk)
def _walk(
    low, high, prompt_ids, prompt_at, output_ids, output_at, tail_ids, tail_at,
    min_n, max_n, k, model_limit, drafter_limit, table, ids, ends, row,
    request, step, drafted, accepted, overrun, reason, filler, source,
):  # fmt: skip
    """Requests low to high: fill the columns from `row` on; return the next free row."""
    base = 1 if min_n == 1 or max_n == 1 else 2
    stamp = 0  # entries of earlier requests have smaller stamps: the table is cleared once, not per request
    for j in range(len(table)):
        table[j, 1] = 0
    for i in range(low, high):
        start = prompt_at[i + 1] - prompt_at[i]
        end = start + output_at[i + 1] - output_at[i]
        known = end + tail_at[i + 1] - tail_at[i]
        if end - start < 2:
            continue
        _copy(prompt_ids, prompt_at[i], prompt_at[i + 1], ids, 0)
        _copy(output_ids, output_at[i], output_at[i + 1], ids, start)
        _copy(tail_ids, tail_at[i], tail_at[i + 1], ids, end)
        mask = 15
        while mask + 1 < 2 * end:
            mask = 2 * mask + 1
        stamp += min(max_n, end) + 1
        for j in range(_shared_ends(ids, start, end, base, ends)):
            t = ends[j]
            _match(ids, abs(t), base, max_n if t > 0 else base, table, mask, stamp)
        history, number, asked = start + 1, 0, _fits(start, k, drafter_limit)
        for t in range(start + 1, end):
            e, m = _match(ids, t, base, max_n, table, mask, stamp)
            if t != history:
                continue
            proposed, matched, why = 0, 0, NO_MATCH
            if t < min_n:
                why = TOO_SHORT
            elif m >= min_n:
                proposed, why = min(k, t - e), PROPOSED
                while matched < proposed and t + matched < known and ids[e + matched] == ids[t + matched]:
                    matched += 1
            counts = _settle(ids[:known], t, end, k, model_limit, asked, proposed, matched, why)
            number += 1
            request[row], step[row], source[row] = i, number, (e if counts[4] == PROPOSED else -1)
            drafted[row], filler[row], accepted[row], overrun[row], reason[row] = counts
            asked = _fits(t + counts[0], k, drafter_limit)
            history = t + counts[2] + 1
            row += 1
    return row


@njit
def _copy(source, low, high, target, at):
    for j in range(low, high):  # a slice would do the same and take a second longer to compile
        target[at + j - low] = source[j]


@cached_njit(walk)
def _source(ids, min_n, max_n, table):
    """Where the candidates at the history `ids` start; -1 = nowhere."""
    base = 1 if min_n == 1 or max_n == 1 else 2
    e, m = 0, 0
    for t in range(1, len(ids) + 1):
        e, m = _match(ids, t, base, max_n, table, len(table) - 1, 1)
    return e if m >= min_n else -1


@njit
def _match(ids, t, base, max_n, table, mask, stamp):
    """Index position t: `(e, m)`, first end e and length m of the longest window (≤ max_n) seen before; m = 0: none."""
    if t < base:
        return 0, 0
    e = _first_seen(table, mask, stamp, _base_key(ids, t, base), base, t)
    if e == t:
        return 0, 0
    m = base
    while m < max_n and m < t:
        before = ids[t - m - 1]
        if m < e and ids[e - m - 1] == before:
            m += 1
            continue
        further = _first_seen(table, mask, stamp, np.int64(e) << 31 | np.int64(before), m + 1, t)
        if further == t:
            break
        e, m = further, m + 1
    return e, m


@njit
def _base_key(ids, t, base):
    return np.int64(ids[t - 1]) if base == 1 else np.int64(ids[t - 2]) << 31 | np.int64(ids[t - 1])


@njit
def _hash(key):
    return np.int64(np.uint64(key) * np.uint64(0x9E3779B97F4A7C15) >> np.uint64(32))


@njit
def _first_seen(table, mask, stamp, key, m, t):
    """The position stored under (key, m); stores t first if there is none.

    A slot is key, (stamp + m) << 32 | position. Open addressing; slots of earlier requests (below `stamp`) are free.
    """
    tag = stamp + m
    slot = _hash(key) & mask
    while True:
        held = table[slot, 1]
        if held >> 32 < stamp:
            table[slot, 0], table[slot, 1] = key, tag << 32 | t
            return t
        if table[slot, 0] == key and held >> 32 == tag:
            return held & 0xFFFFFFFF
        slot = slot + 1 & mask


@njit
def _longer_key(ids, t, base):
    """Of the window one longer than the base; told apart well enough for a filter, not exact."""
    return _base_key(ids, t, base) ^ np.int64(ids[t - base - 1]) << 16


@njit
def _place(key):
    """Word and bit of a key in a filter."""
    h = _hash(key) & ((1 << _FILTER_BITS) - 1)
    return h >> 6, np.uint64(h & 63)


@njit
def _shared_ends(ids, start, end, base, ends):
    """Write to `ends` the prompt positions whose base window may occur in the output too; return how many.

    Negated where the window one longer surely does not; in a prompt that is long beside the output most are. By bit
    filters of hashes: a false positive costs one needless entry. Branch-free, since it reads the whole prompt.
    """
    one, long = np.uint64(1), start > 2 * (end - start)
    short, longer = np.zeros((2, 1 << (_FILTER_BITS - 6)), np.uint64)
    for t in range(start + 1, end):
        word, bit = _place(_base_key(ids, t, base))
        short[word] |= one << bit
        if long and t > base:
            word, bit = _place(_longer_key(ids, t, base))
            longer[word] |= one << bit
    found = 0
    for t in range(base, start + 1):
        word, bit = _place(_base_key(ids, t, base))
        ends[found] = t
        found += np.int64(short[word] >> bit & one)
    for j in range(found if long else 0):
        t = max(np.int64(ends[j]), base + 1)
        word, bit = _place(_longer_key(ids, t, base))
        goes_on = np.int64(longer[word] >> bit & one)
        ends[j] *= 2 * goes_on - 1
    return found
