"""Are two outputs the same, and where do they part? Token ids in, positions out; knows no engine and no file."""

from dataclasses import dataclass

import numpy as np

from replay.requests import Tokens

ENDED = -1
"""Stands for the token of an output that ends where the other one goes on."""


@dataclass(frozen=True)
class Differences:
    """Where outputs part, one entry per request that differs, int64 arrays in request order.

    request: index. position: of the first different token in the output, from 0. baseline_token, token: what the two
    put out there, `ENDED` for the one that had ended.
    """

    request: np.ndarray
    position: np.ndarray
    baseline_token: np.ndarray
    token: np.ndarray

    def __len__(self) -> int:
        return len(self.request)


def first_differences(outputs: Tokens, baseline: Tokens) -> Differences:
    """The first different token of every request whose outputs differ.

    >>> found = first_differences(Tokens.of([[1, 2], [1, 3, 4], [5]]), Tokens.of([[1, 2], [1, 2, 4], [5, 6]]))
    >>> found.request.tolist(), found.position.tolist(), found.baseline_token.tolist(), found.token.tolist()
    ([1, 2], [1, 1], [2, 6], [3, -1])

    Args:
        outputs: of the proposer.
        baseline: of the same requests, in the same order, without speculation.

    Raises:
        ValueError: not the same number of requests.
    """
    found = []
    for i, (mine, theirs) in enumerate(zip(outputs, baseline, strict=True)):
        shorter = min(len(mine), len(theirs))
        unequal = np.flatnonzero(mine[:shorter] != theirs[:shorter])
        if not len(unequal) and len(mine) == len(theirs):
            continue
        at = int(unequal[0]) if len(unequal) else shorter
        found.append((i, at, *(ids[at] if at < len(ids) else ENDED for ids in (theirs, mine))))
    return Differences(*np.array(found, np.int64).reshape(-1, 4).T)
