"""The local tree of a request: its prompt, ahead of the output, at as little cost as is exact (compiled).

The record is known, so a prompt's tree can leave out what no step of the request will touch; and where a request
begins with all of the one before, that one's tree is kept and lengthened. Knows records; knows no draft and no step.
"""

import numpy as np
from numba import njit

from replay.recorded import suffix_tree as trees
from replay.recorded.suffix_sequences import buffer, fed, insert_suffix, open_sequence
from replay.recorded.suffix_tree import borrowing, inlined

_GRAMS = 8  # longest run of tokens that the pruning filter knows
_WHOLE_COST = 4  # of a whole tree, per prompt token, over that of a pruned one


@njit
def start_local(local, record, start, end, bounds, prompt_ids, prompt_at, output_ids, output_at, i, heads):
    """The local tree of a prompt: the one before lengthened, or a whole new one, or only what can matter.

    `record` holds prompt and output up to `end`; `heads` int32 is scratch, -1 throughout, one more than `local.root`.
    """
    held = _held(local, record, start)
    if held == 0:
        trees.clear(local)
        open_sequence(local)
        if not _chain_pays(prompt_ids, prompt_at, output_ids, output_at, i):
            return _pruned(local, record, start, end, bounds, heads)
    return fed(local, record, held, start)


@borrowing
def _held(local, record, start):
    """How many tokens the local tree holds already; 0 if it is not whole or not of the beginning of this prompt."""
    held = local.size[trees.END]
    if local.size[trees.PRUNED] or held > start:
        return 0
    for at in range(held):
        if local.ids[at] != record[at]:
            return 0
    return held


@borrowing
def _chain_pays(prompt_ids, prompt_at, output_ids, output_at, i):
    """Whether enough requests from here on begin with all of the one before to be worth a whole tree.

    It costs more per token than pruned ones, but each token enters it once.
    """
    length = pruned = prompt_at[i + 1] - prompt_at[i]
    while i + 2 < len(prompt_at):
        output = output_at[i + 1] - output_at[i]
        if prompt_at[i + 2] - prompt_at[i + 1] < length + output:
            break
        a, b = prompt_at[i + 1], prompt_at[i]
        if not _same(prompt_ids, a, prompt_ids, b, length):
            break
        if not _same(prompt_ids, a + length, output_ids, output_at[i], output):
            break
        i += 1
        length = prompt_at[i + 1] - prompt_at[i]
        pruned += length
    return _WHOLE_COST * length < pruned


@borrowing
def _same(one, a, other, b, length):
    for j in range(length):  # noqa: SIM110
        if one[a + j] != other[b + j]:
            return False
    return True


@njit
def _pruned(local, record, start, end, bounds, heads):
    """A local tree without what no step of this request can touch.

    A context lies in the *zone*: the prompt's last tokens and the output. If the first h tokens of a prompt's suffix
    occur there, but not the first h + 1, then it is met by contexts of up to h tokens, and by the drafts behind them.
    Which occur is told by a filter of bits; a false positive costs time only.
    """
    depth = len(local.act) - 1
    zone = max(0, start + 1 - depth)
    deep = _depths(bounds)
    shift = 14
    while shift < 24 and 1 << (shift - 5) < end - zone:
        shift += 1
    bits = np.zeros(1 << (shift - 6), np.uint64)
    _mark(bits, shift, record, zone, end - 1, len(deep) - 1)
    buffer(local, record, start)
    # Suffixes that begin with the same token one after the other: they share nodes, and those stay in the cache.
    following, depths, begun = np.empty(start, np.int32), np.empty(start, np.int32), np.empty(start, np.int32)
    other, n = len(heads) - 1, 0
    for at in range(start - 1, -1, -1):
        most = depth if at >= zone else deep[_common(bits, shift, record, at, start, len(deep) - 1)]
        if most:
            token = min(np.uint32(record[at]), np.uint32(other))
            if heads[token] < 0:
                begun[n] = token
                n += 1
            following[at], depths[at] = heads[token], most
            heads[token] = at
    for j in range(n):
        token = np.uint32(begun[j])
        at = heads[token]
        heads[token] = -1
        while at >= 0:
            if trees.short_of_room(local):
                local = trees.grown(local)
            insert_suffix(local, np.int64(at), np.int64(depths[at]))
            at = following[at]
    return local


@njit
def _depths(bounds):
    """How deep a suffix matters of whose first tokens h = 0 … occur in the zone; the last h stands for "or more"."""
    depth = bounds.shape[1]
    deep = np.zeros(min(_GRAMS, depth) + 1, np.int64)
    for h in range(1, len(deep)):
        deep[h] = deep[h - 1]
        for c in range(len(bounds)):
            if h < depth:
                deep[h] = max(deep[h], h + bounds[c, h])
    deep[-1] = depth
    return deep


@borrowing
def _mark(bits, shift, record, zone, end, most):
    for at in range(zone, end):
        h = np.uint64(0)
        for j in range(at, min(at + most, end)):
            h = _mixed(h, record[j])
            bits[h >> np.uint64(70 - shift)] |= np.uint64(1) << (h >> np.uint64(64 - shift) & np.uint64(63))


@inlined
def _common(bits, shift, record, at, end, most):
    """How many tokens from `at` on occur in the zone, up to `most`; too many now and then."""
    h = np.uint64(0)
    for j in range(at, min(at + most, end)):
        h = _mixed(h, record[j])
        if not bits[h >> np.uint64(70 - shift)] >> (h >> np.uint64(64 - shift) & np.uint64(63)) & np.uint64(1):
            return j - at
    return min(most, end - at)


@inlined
def _mixed(h, token):
    return (h + np.uint64(token) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
