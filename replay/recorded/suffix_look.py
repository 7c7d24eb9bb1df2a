"""The compiled suffix engine step by step, for a walk in Python: feed what was put out, look at a history.

The trees and the lookup are those of `suffix_walk`; which steps there are is the caller's to say, who may take other
candidates than these. Knows one sequence at a time; knows no floor and no second proposer.
"""

from collections.abc import Callable, Mapping

import numpy as np
from numba import njit

from replay.recorded import suffix_prompt, suffix_sequences, suffix_steps
from replay.recorded import suffix_tree as trees
from replay.recorded.compiled import cached_njit
from replay.recorded.suffix_steps import _best, _make_place, _reach
from replay.recorded.suffix_walk import Setting, _bounds
from replay.recorded.walk import NO_LIMIT, Sequence
from replay.requests import Requests

Found = tuple[int, int, int, float]


def suffix_look(
    requests: Requests, config: Mapping, max_model_len: int = NO_LIMIT
) -> tuple[Callable[[Sequence, int], Found], Callable[[Sequence, int, int], None]]:
    """`look` and `ingest` over an empty global tree.

    `look(sequence, history)` is what the proposer finds: candidates, how many of the first ones equal the record
    behind the history, length of the matched context in tokens, float32 score; all 0 where it proposes nothing.
    `ingest(sequence, old, new)` feeds `ids[old:new]`, as far as the record goes. The first one of a sequence starts at
    its `start` and takes in the prompt; the next ones follow without a gap, and a look is at where the last one ended.

    Args:
        requests: those that the sequences are made of (`walk.Sequence`), in serving order.
        config: effective settings of method "suffix".
        max_model_len: limit of prompt + output in tokens.
    """
    k, least = config["num_speculative_tokens"], np.float32(config["suffix_decoding_min_token_prob"])
    depth, cached = config["suffix_decoding_max_tree_depth"], config["suffix_decoding_max_cached_requests"]
    bounds = _bounds(Setting(k, config["suffix_decoding_max_spec_factor"]), depth)[None]
    prompts, outputs, tails = requests.prompts, requests.outputs, requests.tails
    largest = max((int(t.flat.max()) for t in (prompts, outputs, tails) if len(t.flat)), default=0)
    longest = int((prompts.lengths + outputs.lengths).max(initial=1))
    local, shared = trees.new_tree(depth, largest, longest + 2), trees.new_tree(depth, largest)
    flat = prompts.flat, prompts.offsets, outputs.flat, outputs.offsets
    heads = np.full(len(local.root) + 1, -1, np.int32)
    grows = -1  # index of the sequence that the trees are growing

    def ingest(sequence: Sequence, old: int, new: int) -> None:
        nonlocal local, shared, grows
        if sequence.index != grows:
            local, shared = _begin(
                local, shared, cached, grows >= 0, sequence.ids, sequence.start, sequence.end, bounds, *flat,
                sequence.index, heads,
            )  # fmt: skip
            grows = sequence.index
        local, shared = _feed(local, shared, cached, sequence.ids, old, min(new, len(sequence.ids)))

    def look(sequence: Sequence, history: int) -> Found:
        most = min(k, max_model_len - history - 1)
        if most <= 0:
            return 0, 0, 0, 0.0
        return _look(local, shared, cached, sequence.ids, sequence.start, history, bounds[0], most, least)

    return look, ingest


@cached_njit(trees, suffix_sequences, suffix_prompt, suffix_steps)
def _begin(
    local, shared, cached, another, record, start, end, bounds,
    prompt_ids, prompt_at, output_ids, output_at, i, heads,
):  # fmt: skip
    """Both trees at the start of a request; `another`: one was growing before."""
    if cached:
        if another:
            suffix_sequences.close_sequence(shared)
        _make_place(shared, cached)
        if trees.short_of_room(shared):
            shared = trees.grown(shared)
        suffix_sequences.open_sequence(shared)
    local = suffix_prompt.start_local(
        local, record, start, end, bounds, prompt_ids, prompt_at, output_ids, output_at, i, heads
    )
    return local, shared


@cached_njit(trees, suffix_sequences)
def _feed(local, shared, cached, record, at, stop):
    local = suffix_sequences.fed(local, record, at, stop)
    if cached:
        shared = suffix_sequences.fed(shared, record, at, stop)
    return local, shared


@njit
def _at(tree, record, at, longest, bound, most, least, floor):
    """`_best`, compiled once for both trees."""
    return _best(tree, longest, bound, most, least, floor, record, at, len(record))


@cached_njit(trees, suffix_steps)
def _look(local, shared, cached, record, start, at, bound, most, least):
    """(drafted, matched, context, score) of the better draft of the two trees, the local one at a tie."""
    context = min(len(local.act) - 1, at) - 1
    longest = min(local.size[trees.LONGEST], context)
    score, drafted, matched, m = _at(local, record, at, longest, bound, most, least, np.float32(0.0))
    if cached:
        longest = _reach(shared, record, at, at - start, context)
        better, n, hit, length = _at(shared, record, at, longest, bound, most, least, score)
        if n:
            score, drafted, matched, m = better, n, hit, length
    return drafted, matched, m, score
