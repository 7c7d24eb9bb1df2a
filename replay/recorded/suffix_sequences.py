"""Sequences of tokens put into a suffix tree, lengthened, and taken out again (compiled).

Knows what happens to a tree's nodes; knows nothing of prompts, outputs or drafts.
"""

import numpy as np
from numba import njit

from replay.recorded.suffix_tree import (
    CACHED,
    COUNT,
    END,
    FIRST,
    FREE_NODE,
    GROUP,
    HEAD,
    LONGEST,
    NEXT,
    NOT_LAZY,
    POSITION,
    PRUNED,
    REF,
    ROOT,
    TOKEN,
    add_leaf,
    borrowing,
    child_of,
    decrement,
    forget,
    free_group,
    grown,
    increment,
    inlined,
    leave_group,
    short_of_room,
    unlink,
)  # fmt: skip


@inlined
def _enter(tree, parent, n, depth):
    """One more suffix goes through node n, which lies `depth` tokens deep."""
    node, ids = tree.node, tree.ids
    increment(tree, parent, n)
    at = node[n, REF]
    if at <= POSITION:
        node[n, REF] = NOT_LAZY
        token = ids[at & (len(ids) - 1)]
        if token >= 0 and depth < len(tree.act) - 1:
            add_leaf(tree, n, token, at + 1)


@borrowing
def open_sequence(tree):
    """Start a sequence; needs room (`short_of_room`)."""
    size = tree.size
    size[CACHED] += 1
    size[LONGEST] = 0
    tree.ids[size[END] & (len(tree.ids) - 1)] = -1


@borrowing
def close_sequence(tree):
    """End the growing sequence: the -1 behind it stays."""
    tree.size[END] += 1


@borrowing
def append(tree, token):
    """Lengthen the growing sequence by a token: every suffix of up to `depth` tokens goes one node deeper.

    A suffix at a lazy leaf lengthens by itself and stays there, as do all longer ones.
    """
    size, act, mask = tree.size, tree.act, len(tree.ids) - 1
    tree.ids[size[END] & mask] = token
    size[END] += 1
    tree.ids[size[END] & mask] = -1
    longest = -1
    for m in range(size[LONGEST], -1, -1):
        parent = np.int64(act[m])
        child = child_of(tree, parent, token)
        if child == 0:
            add_leaf(tree, parent, token, size[END])
            continue
        _enter(tree, parent, child, m + 1)
        act[m + 1] = child
        longest = max(longest, m)
    size[LONGEST] = min(longest + 1, len(act) - 2)


@inlined
def feed(tree, record, at, stop):
    """Append `record[at:stop]`, or as much of it as there is room for; returns where it stopped."""
    while at < stop and not short_of_room(tree):
        append(tree, record[at])
        at += 1
    return at


@njit
def fed(tree, record, at, stop):
    """The tree with `record[at:stop]` behind it."""
    while True:
        at = feed(tree, record, at, stop)
        if at == stop:
            return tree
        tree = grown(tree)


@borrowing
def buffer(tree, record, tokens):
    """Write the first tokens of an empty growing sequence to the ring without any suffix; it must be long enough."""
    for at in range(tokens):
        tree.ids[at] = record[at]
    tree.ids[tokens] = -1
    tree.size[END] = tokens
    tree.size[PRUNED] = 1


@inlined
def insert_suffix(tree, start, deep):
    """Put in the suffix of the buffered sequence that begins at `start`, down to `deep` tokens.

    Suffix after suffix gives the same tree as token after token: both come to a node's children in the order of their
    positions. The last `depth` - 1 suffixes must all be put in, the longest first: they are what `append` lengthens.
    """
    ids, act, end = tree.ids, tree.act, tree.size[END]
    parent = ROOT
    for d in range(min(deep, end - start)):
        token = ids[start + d]
        child = child_of(tree, parent, token)
        if child == 0:
            add_leaf(tree, parent, token, start + d + 1)
            return
        _enter(tree, parent, child, d + 1)
        parent = child
    if end - start < len(act) - 1:
        act[end - start] = parent
        tree.size[LONGEST] = max(tree.size[LONGEST], end - start)


@borrowing
def _remove(tree, parent, n):
    """Take out a node that occurred once, with the chain below it."""
    node, size = tree.node, tree.size
    if parent == ROOT:
        token = node[n, TOKEN]
        if token < len(tree.root):
            tree.root[token] = 0
        else:
            forget(tree.table, size, np.int64(token))
    else:
        if node[n, GROUP]:
            free_group(tree, leave_group(tree, n))
        unlink(tree, parent, n)
        forget(tree.table, size, parent << 32 | np.int64(node[n, TOKEN]))
    while n:
        below = np.int64(node[n, HEAD])
        if below:
            if node[below, GROUP]:
                free_group(tree, node[below, GROUP])
            forget(tree.table, size, n << 32 | np.int64(node[below, TOKEN]))
        node[n, NEXT] = size[FREE_NODE]
        size[FREE_NODE] = n
        n = below


@borrowing
def evict(tree):
    """Take the oldest sequence out again; none may be growing."""
    ids, node, size, mask = tree.ids, tree.node, tree.size, len(tree.ids) - 1
    start = size[FIRST]
    while ids[start & mask] >= 0:
        parent, at = ROOT, start
        while ids[at & mask] >= 0 and at - start < len(tree.act) - 1:
            child = child_of(tree, parent, ids[at & mask])
            if child == 0:
                break
            if node[child, COUNT] == 1:
                _remove(tree, parent, child)
                break
            decrement(tree, parent, child)
            parent = child
            at += 1
        start += 1
    size[FIRST] = start + 1
    size[CACHED] -= 1
