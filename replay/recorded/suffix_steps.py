"""The walk along recorded ids, compiled: what is looked up at each step, and which draft wins.

Knows tokens, trees and settings as numbers; knows no table and no config.
"""

import numpy as np
from numba import njit

from replay.recorded import suffix_prompt, suffix_sequences
from replay.recorded import suffix_tree as trees
from replay.recorded.compiled import cached_njit
from replay.recorded.suffix_tree import CACHED, COUNT, HEAD, LONGEST, REF, TOKEN, borrowing, inlined

_INSIDE = 1 << 31  # in a tree's `act`: not a node but a position inside a lazy leaf


@cached_njit(trees, suffix_sequences, suffix_prompt)
def walk(
    low, high, prompt_ids, prompt_at, output_ids, output_at, tail_ids, tail_at,
    k, bounds, least, limit, cached, local, shared, steps, rows, scores, ids, stopped,
):  # fmt: skip
    """Requests low to high; returns both trees, grown or not, and how many requests were evicted.

    Args:
        k, bounds, least: per setting: int64 (c,), int64 (c, depth), most candidates by context length, float32 (c,).
        limit: max_model_len.
        cached: requests that the global tree may hold; 0 = it is off.
        local, shared: both trees.
        steps, rows, scores, ids: filled: int32 (c, n, 4), request, history, drafted and accepted of each step; int64
            (c,), steps so far; float32 (c, n); int32 (n, k), candidates of the only setting, or (0, k).
        stopped: int64 (c, high - low), filled with the history from which on vLLM does not ask the proposer.
    """
    evicted = 0
    record = np.zeros(1, np.int32)
    history = np.zeros(len(k), np.int64)
    heads = np.full(len(local.root) + 1, -1, np.int32)
    for i in range(low, high):
        start = prompt_at[i + 1] - prompt_at[i]
        end = start + output_at[i + 1] - output_at[i]
        known = end + tail_at[i + 1] - tail_at[i]
        if known > len(record):
            record = np.zeros(2 * known, np.int32)
        at = _copied(record, 0, prompt_ids, prompt_at, i)
        at = _copied(record, at, output_ids, output_at, i)
        _copied(record, at, tail_ids, tail_at, i)
        if not _begins(i, low, start, end, k, limit, history, stopped):
            continue
        if cached:
            evicted += _make_place(shared, cached)
            if trees.short_of_room(shared):
                shared = trees.grown(shared)
            suffix_sequences.open_sequence(shared)
        local = suffix_prompt.start_local(
            local, record, start, end, bounds, prompt_ids, prompt_at, output_ids, output_at, i, heads
        )
        at, reach = start, start + 1
        while at < reach:
            stop = _next_look(history, at, reach)
            until = min(stop, end)
            done = suffix_sequences.feed(local, record, at, until)
            if done < until:
                local = suffix_sequences.fed(local, record, done, until)
            if cached:
                at = suffix_sequences.feed(shared, record, at, stop)
                if at < stop:
                    shared = suffix_sequences.fed(shared, record, at, stop)
            at = stop
            if at < end:
                reach = _look(
                    i, low, record, start, at, end, known, reach,
                    k, bounds, least, limit, cached, local, shared, history, steps, rows, scores, ids, stopped,
                )  # fmt: skip
        if cached:
            suffix_sequences.close_sequence(shared)
    return local, shared, evicted


@njit
def _copied(record, at, ids, offsets, i):
    for j in range(offsets[i], offsets[i + 1]):
        record[at] = ids[j]
        at += 1
    return at


@borrowing
def _begins(i, low, start, end, k, limit, history, stopped):
    """Whether vLLM asks the proposer about this request at all; sets where each setting looks first."""
    if end == start:
        return False
    asked = False
    for c in range(len(k)):
        history[c] = start + 1
        if start + k[c] <= limit:
            asked = True
        elif start + 1 < end:
            stopped[c, i - low] = start + 1
    return asked and start + 1 < limit


@borrowing
def _make_place(shared, cached):
    if shared.size[CACHED] < cached:
        return 0
    suffix_sequences.evict(shared)
    return 1


@borrowing
def _next_look(history, at, reach):
    for c in range(len(history)):
        if history[c] > at:
            reach = min(reach, history[c])
    return reach


@inlined
def _look(
    i, low, record, start, at, end, known, reach,
    k, bounds, least, limit, cached, local, shared, history, steps, rows, scores, ids, stopped,
):  # fmt: skip
    """The step of every setting whose history ends at `at`; returns up to where tokens are put out by now."""
    context = min(len(local.act) - 1, at) - 1
    longest = -1
    for c in range(len(k)):
        if history[c] != at:
            continue
        most = min(k[c], limit - at - 1)
        deepest = min(local.size[LONGEST], context)
        score, drafted, accepted, m = _best(
            local, deepest, bounds[c], most, least[c], np.float32(0.0), record, at, known
        )
        row = rows[c]
        if drafted and len(ids):
            _draft(local, m, drafted, least[c], record, at, known, ids[row])
        if cached:
            if longest < 0:
                longest = _reach(shared, record, at, at - start, context)
            score, n, matched, m = _best(shared, longest, bounds[c], most, least[c], score, record, at, known)
            if n:
                drafted, accepted = n, matched
                if len(ids):
                    _draft(shared, m, drafted, least[c], record, at, known, ids[row])
        steps[c, row, 0], steps[c, row, 1], steps[c, row, 2], steps[c, row, 3] = i, at, drafted, accepted
        scores[c, row] = score
        rows[c] = row + 1
        new = at + accepted + 1
        history[c] = min(new, end)
        if at + drafted + k[c] > limit:  # vLLM asks no more
            if new < end:
                stopped[c, i - low] = new
        elif new < limit:
            reach = max(reach, min(new, known))
    return reach


@borrowing
def _reach(tree, record, at, response, context):
    """Longest context in the global tree. Those beyond the response span the prompt: find them, keep them in `act`."""
    longest = min(tree.size[LONGEST], context)
    if tree.size[LONGEST] < response:
        return longest
    ids, mask = tree.ids, len(tree.ids) - 1
    while longest < context:
        m = longest + 1
        n, ref = np.int64(0), np.int64(-1)
        for j in range(at - m, at):
            if ref >= 0:
                if ids[ref & mask] != record[j]:
                    return longest
                ref += 1
                continue
            n = np.int64(trees.child_of(tree, n, record[j]))
            if n == 0:
                return longest
            ref = _lazy(tree.node[n, REF])
        # Inside a lazy leaf all that counts is where it goes on; it is told from a node by the highest bit.
        tree.act[m] = n if ref < 0 else _INSIDE | (ref & trees.POSITION)
        longest = m
    return longest


@inlined
def _lazy(ref):
    """Where a lazy leaf goes on; -1 for another node."""
    return np.int64(ref) if ref <= trees.POSITION else np.int64(-1)


@borrowing
def _best(tree, longest, bound, most, least, floor, record, at, known):
    """The best draft over contexts of 1 … longest tokens: (score, drafted, accepted, context length).

    Contexts are taken in falling order of the most tokens they may propose, longer ones first, until none can still
    win. `floor`: a score that must be beaten.
    """
    best, drafted, accepted, chosen = floor, 0, 0, 0
    peak = longest
    while peak > 1 and min(bound[peak - 1], most) > min(bound[peak], most):
        peak -= 1
    down, up = peak, peak + 1
    while True:
        if up <= longest and (down < 1 or bound[up] >= bound[down]):
            m = up
            up += 1
        elif down >= 1:
            m = down
            down -= 1
        else:
            break
        room = min(bound[m], most)
        if room <= 0 or room < best or (room == best and m < chosen):
            break
        score, n, matched = _draft(tree, m, room, least, record, at, known, record[:0])
        if score > best or (score == best and m > chosen and chosen > 0):
            best, drafted, accepted, chosen = score, n, matched, m
    return best, drafted, accepted, chosen


@inlined
def _draft(tree, m, room, least, record, at, known, out):
    """Follow the first children from the node of the last m tokens: (score, candidates, how many match the record)."""
    node, ids, mask = tree.node, tree.ids, len(tree.ids) - 1
    n = np.int64(tree.act[m])
    ref = n & trees.POSITION if n & _INSIDE else _lazy(node[n, REF])
    prob, score = np.float32(1.0), np.float32(0.0)
    drafted, matched, matching = 0, 0, True
    while drafted < room and prob >= least:
        if ref >= 0:
            token = ids[ref & mask]
            if token < 0:
                break
            ref += 1
        else:
            child = np.int64(node[n, HEAD])
            if child == 0:
                break
            prob *= np.float32(node[child, COUNT]) / np.float32(node[n, COUNT])
            if prob < least:
                break
            n = child
            token = node[n, TOKEN]
            ref = _lazy(node[n, REF])
        if drafted < len(out):
            out[drafted] = token
        matching = matching and at + drafted < known and token == record[at + drafted]
        if matching:
            matched += 1
        drafted += 1
        score += prob
    return score, drafted, matched
