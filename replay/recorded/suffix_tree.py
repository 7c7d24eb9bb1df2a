"""A suffix tree over token ids with counts, compiled: the state behind suffix decoding.

Holds every substring of at most `depth` tokens of the sequences put into it, how often each occurs, and the order in
which arctic-inference 0.3.0 would list a node's children (by count; ties by its rules for a count that rises or falls).
A draft follows the first child, so that order decides what is proposed. Knows tokens and counts; knows no request,
no acceptance and no step.

Arctic keeps runs of nodes with one child as one edge. Here a node is one token: within an edge all counts are equal,
so no probability differs. What saves the memory instead is that a suffix which occurred once is a *lazy leaf*: one node
that says where in the token buffer it goes on, and gives up one token to a child when a second suffix walks into it.
Only one sequence grows at a time, which lets the growing sequence's own leaves lengthen without being touched.

A tree is a tuple of arrays; functions change it in place, and `grown` returns a larger one where space is short.
"""

from collections import namedtuple

import numpy as np
from numba import njit

Tree = namedtuple("Tree", "node group table root ids act size")
"""Arrays of a tree:

node uint32 (n, 8), row 0 the root, fields below; group uint32 (n, 2), first and last of the siblings with one count;
table int64 (slots, 2), (parent << 32 | token) -> (epoch << 32 | child), for parents with two or more children;
root int64 (tokens,), token -> (epoch << 32 | child), ids beyond it are kept in `table`; ids int32, ring of tokens, -1
behind each sequence, the growing one included; act uint32 (depth + 1,), node of the last m tokens; size int64 (14,).
"""

TOKEN, COUNT, HEAD, TAIL, PREV, NEXT, GROUP, REF = range(8)
"""Fields of `node`: first and last child, siblings, group (0 = none); REF, where a lazy leaf goes on, else NOT_LAZY."""

NODES, FREE_NODE, GROUPS, FREE_GROUP, ENTRIES, FIRST, END, LONGEST, CACHED, PRUNED = range(10)
MASK, SMALLEST_MASK, TABLE_EPOCH, ROOT_EPOCH = range(10, 14)
"""Fields of `size`. FIRST and END: live part of the ring, as positions that only rise. LONGEST: longest suffix of the
growing sequence that occurs twice, so that `act[:LONGEST + 1]` are its nodes. CACHED: sequences held. PRUNED: 1 if
suffixes were left out."""

ROOT = 0
NOT_LAZY = 0xFFFFFFFF
POSITION = 0x7FFFFFFF  # REF keeps the low bits of a position: enough for the ring, whose length is a power of two
_LOW = 0xFFFFFFFF
_DIRECT = 1 << 18  # ids looked up without hashing: any real vocabulary

borrowing = njit(_nrt=False)
"""For functions that allocate nothing: counting references to the caller's arrays would cost more than their work."""

inlined = njit(_nrt=False, forceinline=True)
"""The same for the small ones on the hot path: handing seven arrays to a call costs more than a visit to a node."""


def new_tree(depth: int, largest_id: int, tokens: int = 1024) -> Tree:
    """An empty tree.

    Args:
        depth: longest substring held, in tokens.
        largest_id: of the token ids to come; a larger one is only slower.
        tokens: room in the token buffer.
    """
    size = np.zeros(14, np.int64)
    size[NODES] = size[GROUPS] = size[TABLE_EPOCH] = size[ROOT_EPOCH] = 1
    slots = 1 << max(10, (8 * depth).bit_length())
    size[MASK] = size[SMALLEST_MASK] = slots - 1
    return Tree(
        np.zeros((max(1024, 4 * depth), 8), np.uint32),
        np.zeros((max(1024, 4 * depth), 2), np.uint32),
        np.zeros((slots, 2), np.int64),
        np.zeros(min(largest_id + 1, _DIRECT), np.int64),
        np.full(1 << max(4, (tokens - 1).bit_length()), -1, np.int32),
        np.zeros(depth + 1, np.uint32),
        size,
    )


def used_bytes(tree: Tree) -> int:
    """Bytes in use: nodes, groups, hash slots up to the mask, live tokens and root entries."""
    size = tree.size
    tokens = int(size[END] - size[FIRST])
    return int(size[NODES]) * 32 + int(size[GROUPS]) * 8 + (int(size[MASK]) + 1) * 16 + tokens * 4 + tree.root.nbytes


@borrowing
def clear(tree):
    """Forget everything; costs nothing, as older entries carry an older epoch."""
    size = tree.size
    size[:MASK] = 0
    size[NODES] = size[GROUPS] = 1
    size[MASK] = size[SMALLEST_MASK]
    size[TABLE_EPOCH] += 1
    size[ROOT_EPOCH] += 1


@inlined
def short_of_room(tree):
    """Whether one more token might not fit: it takes at most two nodes, groups and entries at each depth."""
    size, most = tree.size, 2 * len(tree.act)
    return (
        size[NODES] + most > len(tree.node)
        or size[GROUPS] + most > len(tree.group)
        or 2 * (size[ENTRIES] + most) > size[MASK]
        or size[END] - size[FIRST] + 2 > len(tree.ids)
    )


@njit
def grown(tree):
    """The same tree with more room."""
    node, group, table, ids, size = tree.node, tree.group, tree.table, tree.ids, tree.size
    most = 2 * len(tree.act)
    if size[NODES] + most > len(node):
        node = _doubled(node)
    if size[GROUPS] + most > len(group):
        group = _doubled(group)
    if size[END] - size[FIRST] + 2 > len(ids):
        ids = np.empty(2 * len(ids), np.int32)
        for at in range(size[FIRST], size[END] + 1):
            ids[at & (len(ids) - 1)] = tree.ids[at & (len(tree.ids) - 1)]
    if 2 * (size[ENTRIES] + most) > size[MASK]:
        table = _rehashed(table, size)
    return Tree(node, group, table, tree.root, ids, tree.act, size)


@njit
def _doubled(rows):
    out = np.empty((2 * rows.shape[0], rows.shape[1]), np.uint32)
    for i in range(rows.shape[0]):
        for j in range(rows.shape[1]):
            out[i, j] = rows[i, j]
    return out


@njit
def _rehashed(table, size):
    """The live entries under a mask of one bit more; in the same array while that is long enough."""
    live = np.empty((size[ENTRIES], 2), np.int64)
    n = 0
    for slot in range(size[MASK] + 1):
        if table[slot, 1] >> 32 == size[TABLE_EPOCH]:
            live[n, 0], live[n, 1] = table[slot, 0], table[slot, 1] & _LOW
            n += 1
    size[MASK] = 2 * size[MASK] + 1
    size[TABLE_EPOCH] += 1
    size[ENTRIES] = 0
    if size[MASK] >= len(table):
        table = np.zeros((size[MASK] + 1, 2), np.int64)
    for j in range(n):
        _remember(table, size, live[j, 0], live[j, 1])
    return table


# The hash table: open addressing, and removal that moves later entries up, so that it never fills with dead slots.


@inlined
def _slot(key, mask):
    return np.int64(np.uint64(key) * np.uint64(0x9E3779B97F4A7C15) >> np.uint64(32)) & mask & _LOW


@inlined
def _find(table, size, key):
    """The slot that holds the key, or the free one where it would go."""
    mask, epoch = size[MASK], size[TABLE_EPOCH]
    slot = _slot(key, mask)
    while table[slot, 1] >> 32 == epoch and table[slot, 0] != key:
        slot = slot + 1 & mask
    return slot


@inlined
def _remember(table, size, key, child):
    slot = _find(table, size, key)
    if table[slot, 1] >> 32 != size[TABLE_EPOCH]:
        size[ENTRIES] += 1
    table[slot, 0] = key
    table[slot, 1] = size[TABLE_EPOCH] << 32 | child


@borrowing
def forget(table, size, key):
    """Take a key out; nothing happens if it is not there."""
    mask, epoch = size[MASK], size[TABLE_EPOCH]
    hole = _find(table, size, key)
    if table[hole, 1] >> 32 != epoch:
        return
    size[ENTRIES] -= 1
    slot = hole
    while True:
        slot = slot + 1 & mask
        if table[slot, 1] >> 32 != epoch:
            break
        if slot - _slot(table[slot, 0], mask) & mask >= slot - hole & mask:
            table[hole, 0], table[hole, 1] = table[slot, 0], table[slot, 1]
            hole = slot
    table[hole, 1] = 0


@inlined
def child_of(tree, parent, token):
    """The child of a node by token; 0 = none."""
    node, size = tree.node, tree.size
    if parent == ROOT:
        if token < len(tree.root):
            held = tree.root[np.uint32(token)]
            return held & _LOW if held >> 32 == size[ROOT_EPOCH] else 0
    else:
        head = np.int64(node[parent, HEAD])
        if head == 0 or node[head, TOKEN] == token:
            return head
        if node[head, NEXT] == 0:
            return 0
    slot = _find(tree.table, size, np.int64(parent) << 32 | np.int64(token))
    held = tree.table[slot, 1]
    return held & _LOW if held >> 32 == size[TABLE_EPOCH] else 0


# Siblings: a list in falling order of count; those of one count are a group. An only child needs no group.


@inlined
def _new_group(tree, first, last):
    size, group = tree.size, tree.group
    g = size[FREE_GROUP]
    if g:
        size[FREE_GROUP] = group[g, 0]
    else:
        g = size[GROUPS]
        size[GROUPS] += 1
    group[g, 0], group[g, 1] = first, last
    return g


@inlined
def free_group(tree, g):
    """Give a group's place back; 0 is none."""
    if g:
        tree.group[g, 0] = tree.size[FREE_GROUP]
        tree.size[FREE_GROUP] = g


@inlined
def leave_group(tree, n):
    """Take a node out of its group; returns the group if it is now empty, else 0."""
    node, group = tree.node, tree.group
    g = np.int64(node[n, GROUP])
    if group[g, 0] == n:
        if group[g, 1] == n:
            return g
        group[g, 0] = node[n, NEXT]
    elif group[g, 1] == n:
        group[g, 1] = node[n, PREV]
    return 0


@inlined
def unlink(tree, parent, n):
    """Take a node out of the list of siblings."""
    node = tree.node
    before, after = node[n, PREV], node[n, NEXT]
    if before:
        node[before, NEXT] = after
    else:
        node[parent, HEAD] = after
    if after:
        node[after, PREV] = before
    else:
        node[parent, TAIL] = before


@inlined
def _link(tree, parent, n, before, after):
    """Put a node between two neighbours, 0 = the end of the list."""
    node = tree.node
    node[n, PREV], node[n, NEXT] = before, after
    if before:
        node[before, NEXT] = n
    else:
        node[parent, HEAD] = n
    if after:
        node[after, PREV] = n
    else:
        node[parent, TAIL] = n


@inlined
def increment(tree, parent, n):
    """One more: behind the siblings that have the new count already; before them if it was the first of its own."""
    node, group = tree.node, tree.group
    count, before = node[n, COUNT], np.int64(node[n, PREV])
    node[n, COUNT] = count + 1
    if parent == ROOT or (before == 0 and node[n, NEXT] == 0):
        return
    if before and node[before, COUNT] == count:
        first = np.int64(group[node[n, GROUP], 0])
        leave_group(tree, n)
        unlink(tree, parent, n)
        before = np.int64(node[first, PREV])
        _link(tree, parent, n, before, first)
        if before and node[before, COUNT] == count + 1:
            node[n, GROUP] = node[before, GROUP]
            group[node[before, GROUP], 1] = n
        else:
            node[n, GROUP] = _new_group(tree, n, n)
    elif before and node[before, COUNT] == count + 1:
        free_group(tree, leave_group(tree, n))
        g = node[before, GROUP]
        first = np.int64(group[g, 0])
        unlink(tree, parent, n)
        _link(tree, parent, n, node[first, PREV], first)
        node[n, GROUP] = g
        group[g, 0] = n
    elif leave_group(tree, n) == 0:
        node[n, GROUP] = _new_group(tree, n, n)


@borrowing
def decrement(tree, parent, n):
    """One less: behind all siblings of its old count, before those of the new one."""
    node, group = tree.node, tree.group
    count = node[n, COUNT]
    node[n, COUNT] = count - 1
    if parent == ROOT or (node[n, PREV] == 0 and node[n, NEXT] == 0):
        return
    last = np.int64(group[node[n, GROUP], 1])
    empty = leave_group(tree, n)
    after = np.int64(node[last, NEXT])
    if last != n:
        unlink(tree, parent, n)
        _link(tree, parent, n, last, after)
    if after and node[after, COUNT] == count - 1:
        free_group(tree, empty)
        node[n, GROUP] = node[after, GROUP]
        group[node[after, GROUP], 0] = n
    elif empty == 0:
        node[n, GROUP] = _new_group(tree, n, n)


@inlined
def add_leaf(tree, parent, token, ref):
    """A new child that occurred once and goes on at `ref`; last of its siblings."""
    node, size = tree.node, tree.size
    n = size[FREE_NODE]
    if n:
        size[FREE_NODE] = node[n, NEXT]
    else:
        n = size[NODES]
        size[NODES] += 1
    node[n, TOKEN], node[n, COUNT], node[n, REF] = token, 1, ref & POSITION
    node[n, HEAD] = node[n, TAIL] = node[n, PREV] = node[n, NEXT] = node[n, GROUP] = 0
    if parent == ROOT:
        if token < len(tree.root):
            tree.root[np.uint32(token)] = size[ROOT_EPOCH] << 32 | n
        else:
            _remember(tree.table, size, np.int64(token), n)
        return
    last = np.int64(node[parent, TAIL])
    _link(tree, parent, n, last, 0)
    if last == 0:
        return
    key = np.int64(parent) << 32
    if node[last, PREV] == 0:  # it was an only child
        _remember(tree.table, size, key | np.int64(node[last, TOKEN]), last)
        if node[last, GROUP] == 0:
            node[last, GROUP] = _new_group(tree, last, last)
    _remember(tree.table, size, key | np.int64(token), n)
    if node[last, COUNT] == 1:
        node[n, GROUP] = node[last, GROUP]
        tree.group[node[n, GROUP], 1] = n
    else:
        node[n, GROUP] = _new_group(tree, n, n)
