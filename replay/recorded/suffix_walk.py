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
from typing import NamedTuple

import numpy as np
from numba import njit

from replay.recorded import suffix_tree as trees
from replay.recorded.suffix_tree import COUNT, END, FIRST, HEAD, LONGEST, REF, TOKEN, Tree, borrowing, inlined
from replay.recorded.walk import LENGTH_LIMIT, NO_LIMIT, NO_MATCH, PROPOSED, SKIPPED, settle
from replay.requests import Requests
from replay.steps import StepLog

_CHUNK_TOKENS = (
    100_000  # output tokens per compiled call: bounds the buffers, and the time between two `progress` calls
)

_INSIDE = 1 << 31
_GRAMS = 8  # longest run of tokens that the pruning filter knows
_WHOLE_COST = 4  # of a whole tree, per prompt token, over that of a pruned one


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
    """The step log of each setting, all from one pass over the requests where their trees are the same.

    >>> requests = Requests.from_lists(prompts=[[5, 6, 7, 8, 5, 6]], outputs=[[7, 8, 5, 6, 9]])
    >>> (log,) = walk_suffix(requests, [Setting()], SuffixCache())
    >>> log.drafted.tolist(), log.accepted.tolist()
    ([3, 4], [3, 0])

    Args:
        requests: with recorded outputs, in serving order.
        settings: one log each.
        cache: the global tree, read and filled; keeps the tokens of these requests afterwards.
        max_model_len: limit of prompt + output in tokens; None = no limit.
        progress: called with how many more requests are done.

    Where `requests` have tails, or come within 2 k tokens of max_model_len, what enters the global tree depends on
    the setting; then more than one setting is refused (ValueError): walk them one by one, each with its own cache.
    """
    if len(settings) > 1 and not shares_trees(requests, settings, max_model_len):
        raise ValueError("these settings do not share their trees on these requests")
    logs, _, _ = _walk_all(requests, settings, cache, max_model_len, progress, False)
    return logs


def shares_trees(requests: Requests, settings: Sequence[Setting], max_model_len: int | None = None) -> bool:
    """Whether all settings feed the global tree the same tokens: no tails, and no request near max_model_len."""
    longest = int((requests.prompts.lengths + requests.outputs.lengths).max(initial=0))
    k = max(s.num_speculative_tokens for s in settings)
    return not len(requests.tails.flat) and (max_model_len is None or longest + 2 * k <= max_model_len)


def proposals(
    requests: Requests, setting: Setting, cache: SuffixCache, *, max_model_len: int | None = None
) -> tuple[StepLog, list[list[int]], np.ndarray]:
    """The step log, the ids proposed at each step, and their float32 scores, for looking into single steps.

    Steps that vLLM does not ask the proposer for (near max_model_len) hold no ids and score 0.
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
    pieces: list[list[tuple]] = [[] for _ in settings]
    said, scored = [], []
    cuts = outputs.offsets[1:] // _CHUNK_TOKENS
    cuts = [0, *(np.flatnonzero(np.diff(cuts)) + 1).tolist(), len(requests)]
    for low, high in zip(cuts, cuts[1:], strict=False):
        room = int(outputs.offsets[high] - outputs.offsets[low])
        steps, rows = np.empty((len(settings), room, 4), np.int32), np.zeros(len(settings), np.int64)
        scores = np.zeros((len(settings), room), np.float32)
        ids = np.zeros((room if keep_ids else 0, max(1, min(depth, int(k.max())))), np.int32)
        stopped = np.full((len(settings), high - low), -1, np.int64)
        local, cache.tree, evicted = _walk(
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
    logs = [StepLog.of(len(requests), *np.concatenate(piece).T) for piece in pieces] if pieces[0] else []
    return logs, said, np.concatenate(scored) if scored else np.zeros(0, np.float32)


def _bounds(setting: Setting, depth: int) -> np.ndarray:
    """Most tokens that a context of m tokens may propose, m = 0 … depth - 1, int64; arctic's own float arithmetic."""
    m = np.arange(max(depth, 1))
    with np.errstate(over="ignore"):
        most = (m.astype(np.float32) * np.float32(setting.max_spec_factor)).astype(np.float64) + 1e-6
    most[~(most < 2**31)] = 0  # arctic's cast to int overflows to a negative number
    return np.minimum(np.minimum(most.astype(np.int64), setting.num_speculative_tokens), depth - m)


def _counted(steps, stopped, low, requests, k, limit, ends):
    """Rows (request, history, drafted, accepted) as columns of a StepLog: request, step, drafted, …, filler; int64.

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
    return table


@njit(cache=True)
def _walk(
    low, high, prompt_ids, prompt_at, output_ids, output_at, tail_ids, tail_at,
    k, bounds, least, limit, cached, local, shared, steps, rows, scores, ids, stopped,
):  # fmt: skip
    """Requests low to high; returns both trees, grown or not, and how many requests were evicted."""
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
            trees.open_sequence(shared)
        local = _start_local(local, record, start, end, bounds, prompt_ids, prompt_at, output_ids, output_at, i, heads)
        at, reach = start, start + 1
        while at < reach:
            stop = _next_look(history, at, reach)
            until = min(stop, end)
            done = trees.feed(local, record, at, until)
            if done < until:
                local = _fed(local, record, done, until)
            if cached:
                at = trees.feed(shared, record, at, stop)
                if at < stop:
                    shared = _fed(shared, record, at, stop)
            at = stop
            if at < end:
                reach = _look(
                    i, low, record, start, at, end, known, reach,
                    k, bounds, least, limit, cached, local, shared, history, steps, rows, scores, ids, stopped,
                )  # fmt: skip
        if cached:
            trees.close_sequence(shared)
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
    if shared.size[trees.CACHED] < cached:
        return 0
    trees.evict(shared)
    return 1


@borrowing
def _next_look(history, at, reach):
    for c in range(len(history)):
        if history[c] > at:
            reach = min(reach, history[c])
    return reach


@borrowing
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


@njit
def _start_local(local, record, start, end, bounds, prompt_ids, prompt_at, output_ids, output_at, i, heads):
    """The local tree of a prompt: the one before lengthened, or a whole new one, or only what can matter."""
    held = _held(local, record, start)
    if held == 0:
        trees.clear(local)
        trees.open_sequence(local)
        if not _chain_pays(prompt_ids, prompt_at, output_ids, output_at, i):
            return _pruned(local, record, start, end, bounds, heads)
    return _fed(local, record, held, start)


@njit
def _fed(tree, record, at, stop):
    """The tree with `record[at:stop]` behind it."""
    while True:
        at = trees.feed(tree, record, at, stop)
        if at == stop:
            return tree
        tree = trees.grown(tree)


@borrowing
def _held(local, record, start):
    """How many tokens the local tree holds already; 0 if it is not whole or not of the beginning of this prompt."""
    held = local.size[END]
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
    for j in range(length):
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
    trees.buffer(local, record, start)
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
            trees.insert_suffix(local, np.int64(at), np.int64(depths[at]))
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
