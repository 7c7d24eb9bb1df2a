"""Where an n-gram lookup would copy from, for every output position and every window at once. Compiled.

Both rules look for the longest window of at most `prompt_lookup_max` tokens that occurred before; they differ in which
of its occurrences they take: the *first* (V1) or the *last* one (V2). Neither depends on the rounds, so one pass over
a request's ids answers for all settings: `prompt_lookup_min` only says which answers count, and k only how much of
one is used. A position is named by its end (exclusive), as in `ngram`.

- first: as `ngram` finds it, read off at each maximum on the way up.
- last: level by level. A window's name is its first end; positions that share a name share the window, and the one
  before in the list is the last match. The next level's name is (name, token before). Only windows that occur again
  and in the output go up a level, so a level costs what repeats in it, and the largest maximum costs little.

Knows ids; nothing of rounds and candidates.
"""

from itertools import pairwise

import numpy as np
from numba import njit

from replay.recorded import ngram, walk
from replay.recorded.compiled import cached_njit
from replay.recorded.ngram import _base_key, _copy, _first_seen, _shared_ends, _table_size
from replay.requests import Requests

LONGEST_WINDOW = (1 << 17) - 1
"""Largest prompt_lookup_max that an entry has room for."""

_LENGTH_BITS, _DISTANCE_BITS = 15, 31
_LONGEST = (1 << _LENGTH_BITS) - 1  # also the largest num_speculative_tokens
_LAST_STAMP = 1 << 30  # of the hash table: its slots hold a stamp in 31 bits


def index(requests: Requests, tops: list[int], *, base: int, last: bool, depth: int) -> np.ndarray:
    """The source of every output position, for each maximum.

    Args:
        requests: with recorded outputs.
        tops: the distinct `prompt_lookup_max`, ascending, each at least `base` and at most LONGEST_WINDOW.
        base: the shortest window that is looked up; a `prompt_lookup_min` below it is out of reach.
        last: take the last occurrence, not the first.
        depth: how many tokens behind a match are compared with the record; the largest num_speculative_tokens.

    Returns:
        int64 array of shape (tops, output tokens). Entry [c, outputs.offsets[i] + j] is for request i and the history
        of its prompt and first j outputs, 1 ≤ j < T; see `window`, `distance` and `agreement`; 0 = no match.
    """
    prompts, outputs, tails = requests.prompts, requests.outputs, requests.tails
    longest = int((prompts.lengths + outputs.lengths + tails.lengths).max(initial=1))
    table = np.zeros((_table_size(longest), 2), np.int64)
    scratch = [np.empty(longest, np.int32) for _ in range(4)]
    entries = np.zeros((len(tops), len(outputs.flat)), np.int64)
    find, maxima, stamp = _find_last if last else _find_first, np.array(tops, np.int64), 1
    for i, (low, high) in enumerate(pairwise(outputs.offsets.tolist())):
        if high - low > 1:
            stamp = find(
                prompts[i], outputs[i], tails[i], maxima, base, depth, table, stamp, *scratch, entries, low
            )  # fmt: skip
        if stamp > _LAST_STAMP:
            table[:], stamp = 0, 1
    return entries


@njit
def window(entry):
    """Length of the longest window that matches, at most the maximum; 0 = none."""
    return entry >> (_LENGTH_BITS + _DISTANCE_BITS)


@njit
def distance(entry):
    """How many tokens behind the match's end the history has: the candidates there are."""
    return entry & ((1 << _DISTANCE_BITS) - 1)


@njit
def agreement(entry):
    """How many tokens behind the match equal those behind the history, at most `depth`; past the record none does."""
    return entry >> _DISTANCE_BITS & _LONGEST


@cached_njit(walk, ngram)
def _find_first(prompt, output, tail, tops, base, depth, table, stamp, ids, ends, _names, _counts, entries, at):
    """Fill the entries from column `at` on; return the next free stamp."""
    start, end, known = _record(prompt, output, tail, ids)
    mask = _mask(end)
    matched, lowest = np.zeros((len(tops), 2), np.int64), np.array([base], np.int64)
    for j in range(_shared_ends(ids, start, end, base, ends)):
        t = ends[j]
        _first_of_each(ids, abs(t), base, tops if t > 0 else lowest, table, mask, stamp, matched)
    for t in range(start + 1, end):
        _first_of_each(ids, t, base, tops, table, mask, stamp, matched)
        for c in range(len(tops)):
            entries[c, at + t - start] = _entry(matched[c, 1], t - matched[c, 0])
    _compare(ids, start, end, known, depth, entries, at)
    return stamp + min(tops[-1], end) + 1


@njit
def _first_of_each(ids, t, base, tops, table, mask, stamp, matched):
    """Index position t; write to `matched` per maximum the first end and the length of its longest window, 0 = none.

    The walk up the levels is that of `ngram._match`.
    """
    for c in range(len(tops)):
        matched[c, 1] = 0
    if t < base:
        return
    e = _first_seen(table, mask, stamp, _base_key(ids, t, base), base, t)
    if e == t:
        return
    m, c = base, 0
    while c < len(tops):
        if m >= tops[c]:
            matched[c, 0], matched[c, 1] = e, m
            c += 1
            continue
        if m >= t:
            break
        before = ids[t - m - 1]
        if m < e and ids[e - m - 1] == before:
            m += 1
            continue
        further = _first_seen(table, mask, stamp, np.int64(e) << 31 | np.int64(before), m + 1, t)
        if further == t:
            break
        e, m = further, m + 1
    for d in range(c, len(tops)):
        matched[d, 0], matched[d, 1] = e, m


@cached_njit(walk, ngram)
def _find_last(prompt, output, tail, tops, base, depth, table, stamp, ids, ends, names, counts, entries, at):
    """Fill the entries from column `at` on; return the next free stamp."""
    start, end, known = _record(prompt, output, tail, ids)
    mask = _mask(end)
    latest = np.empty(end, np.int32)
    alive = _shared_ends(ids, start, end, base, ends)
    ends[:alive] = np.abs(ends[:alive])
    for t in range(max(start + 1, base), end):
        ends[alive] = t
        alive += 1
    m = base
    while alive > 0 and m <= tops[-1]:
        low = 0
        while tops[low] < m:
            low += 1
        for a in range(alive):
            t = ends[a]
            key = _base_key(ids, t, base) if m == base else np.int64(names[a]) << 31 | np.int64(ids[t - m])
            name = _first_seen(table, mask, stamp, key, 0, t)
            names[a] = name
            if name == t:
                counts[name] = 0
            elif t > start:
                for c in range(low, len(tops)):
                    entries[c, at + t - start] = _entry(m, t - latest[name])
            latest[name] = t
            if t > start:
                counts[name] |= 2  # it is in the output
            if name != t:
                counts[name] |= 1  # it occurs again
        kept = 0
        for a in range(alive):
            if counts[names[a]] == 3 and ends[a] > m:
                ends[kept], names[kept] = ends[a], names[a]
                kept += 1
        alive = kept
        m += 1
        stamp += 1  # the slots of the level below are free
    _compare(ids, start, end, known, depth, entries, at)
    return stamp


@njit
def _record(prompt, output, tail, ids):
    """Put prompt, output and tail together in `ids`; the lengths of prompt, prompt + output, and all."""
    start, end = len(prompt), len(prompt) + len(output)
    _copy(prompt, 0, start, ids, 0)
    _copy(output, 0, len(output), ids, start)
    _copy(tail, 0, len(tail), ids, end)
    return start, end, end + len(tail)


@njit
def _mask(end):
    """As much of the hash table as a history of `end` tokens needs."""
    mask = 15
    while mask + 1 < 2 * end:
        mask = 2 * mask + 1
    return mask


@njit
def _entry(m, away):
    return np.int64(m) << (_LENGTH_BITS + _DISTANCE_BITS) | np.int64(away) if m > 0 else np.int64(0)


@njit
def _compare(ids, start, end, known, depth, entries, at):
    """Add the agreements, from the end backwards: a match that goes on from the one before knows the rest."""
    for c in range(len(entries)):
        away_after, agreed_after = 0, 0
        for t in range(end - 1, start, -1):
            j = at + t - start
            entry = entries[c, j]
            away, agreed = distance(entry), 0
            if entry != 0 and ids[t - away] == ids[t]:
                if away == away_after:
                    agreed = min(depth, 1 + agreed_after)
                elif c > 0 and away == distance(entries[c - 1, j]):
                    agreed = agreement(entries[c - 1, j])
                else:
                    agreed = 1
                    while agreed < depth and t + agreed < known and ids[t + agreed - away] == ids[t + agreed]:
                        agreed += 1
            entries[c, j] = entry | np.int64(agreed) << _DISTANCE_BITS
            away_after, agreed_after = away, agreed
