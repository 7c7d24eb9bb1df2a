"""Many n-gram settings over the same requests: one index, then one load per decode step and setting.

Knows the rules by which vLLM 0.32.0 turns a match into candidates, one per method and runner:

- "ngram" on V1: the first match's tokens, up to k, cut at the history's end; possibly none (`ngram`).
- "ngram_gpu" on V1: the same. The gap to k is taken off the step before the forward, in the scheduler's own object
  where it shares the worker's process (one GPU per engine), so that vLLM counts what was found. Over several GPUs the
  scheduler is not told and counts k. Read in the source and tried on vLLM's scheduler; run, it needs a GPU.
- "ngram" and "ngram_gpu" on V2: see `ngram_padded`.
"""

from collections.abc import Iterator, Sequence

import numpy as np
from numba import njit

from replay.recorded import ngram_index, walk
from replay.recorded.compiled import cached_njit
from replay.recorded.ngram_index import LONGEST_WINDOW, agreement, distance, index, window
from replay.recorded.walk import LENGTH_LIMIT, NO_MATCH, PROPOSED, TOO_SHORT, Limits
from replay.requests import Requests
from replay.steps import StepLog
from schemas.errors import InputError

_settle = njit(walk.settle)
_fits = njit(walk.fits)


def replay_grid(requests: Requests, configs: Sequence[dict], runner: str, limits: Limits) -> Iterator[StepLog]:
    """One step log per setting, in the order given, each equal to that setting's own replay.

    Memory: 8 bytes per output token and distinct prompt_lookup_max (and match rule), and one step log at a time.

    Args:
        requests: with recorded outputs.
        configs: effective settings of method "ngram" or "ngram_gpu".
        runner: "v1" or "v2".
        limits: see `walk.Limits`.

    Raises:
        InputError: a window too long for the index, or max_model_len too near for "ngram_gpu" on V1; before anything
            is computed.
    """
    if too_long := [c for c in configs if c["prompt_lookup_max"] > LONGEST_WINDOW]:
        raise InputError(f"prompt_lookup_max = {too_long[0]['prompt_lookup_max']} is above {LONGEST_WINDOW}")
    for config in configs:
        if (config["method"], runner) == ("ngram_gpu", "v1"):
            _check_room(requests, config["num_speculative_tokens"], limits)
    return _replay(requests, configs, runner, limits)


def _replay(requests: Requests, configs: Sequence[dict], runner: str, limits: Limits) -> Iterator[StepLog]:
    if not configs:
        return
    tops = sorted({c["prompt_lookup_max"] for c in configs})
    base = 1 if tops[0] == 1 or min(c["prompt_lookup_min"] for c in configs) == 1 else 2
    depth = max(c["num_speculative_tokens"] for c in configs)
    entries = index(requests, tops, base=base, last=runner == "v2", depth=depth)
    prompts, outputs, tails = requests.prompts, requests.outputs, requests.tails
    # what follows a prompt, as far as it is known
    if len(tails.flat):
        said = np.concatenate([part for i in range(len(requests)) for part in (outputs[i], tails[i])])
    else:
        said = outputs.flat
    said_at = outputs.offsets + tails.offsets
    rows = int(np.maximum(outputs.lengths - 1, 0).sum())
    for config in configs:
        request, step = np.empty((2, rows), np.int32)
        drafted, accepted = np.empty((2, rows), np.int16)
        overrun, filler = np.zeros((2, rows), np.int16)
        columns = request, step, drafted, accepted, overrun, np.empty(rows, np.int8), filler
        arrays = entries[tops.index(config["prompt_lookup_max"])], prompts.lengths, outputs.offsets, said, said_at
        settings = config["prompt_lookup_min"], config["num_speculative_tokens"], limits.model
        if (config["method"], runner) == ("ngram", "v1"):
            used = _walk(*arrays, *settings, limits.drafter, *columns)
        else:
            asynchronous = walk.scheduled_ahead(config, runner)
            used = _walk_padded(*arrays, *settings, runner == "v2", asynchronous, *columns)
        yield StepLog.of(len(requests), *(column[:used] for column in columns))


def _check_room(requests: Requests, k: int, limits: Limits) -> None:
    """The V1 runner's placeholders at the limit keep stale counts with "ngram_gpu": not followed."""
    longest = int((requests.prompts.lengths + requests.outputs.lengths).max(initial=0))
    if longest + 3 * k + 1 > limits.model:
        raise InputError(
            f"ngram_gpu under runner v1 is not followed near max_model_len = {limits.model}: a request has {longest} "
            f"tokens and k = {k}; set max_model_len to at least {longest + 3 * k + 1} or none"
        )


@cached_njit(walk, ngram_index)
def _walk(
    entries, prompt_tokens, output_at, said, said_at, min_n, k, model_limit, drafter_limit,
    request, step, drafted, accepted, overrun, reason, filler,
):  # fmt: skip
    """Fill the columns by the rule of "ngram" on V1; return the number of rows. Positions count from the prompt's end.

    `overrun` and `filler` come as zeros.

    A walk depends on distances alone, so the lengths are taken from the prompt's end too.
    """
    row = 0
    for i in range(len(prompt_tokens)):
        start, end = prompt_tokens[i], output_at[i + 1] - output_at[i]
        record = said[said_at[i] : said_at[i + 1]]
        history, number, asked = 1, 0, _fits(start, k, drafter_limit)
        if start + end + 2 * k <= min(model_limit, drafter_limit):  # far from any limit: nothing cut, nothing padded
            while history < end:
                entry = entries[output_at[i] + history]
                found = window(entry) >= min_n
                proposed = min(k, distance(entry)) if found else 0
                matched = min(proposed, agreement(entry))
                number += 1
                request[row], step[row], drafted[row], accepted[row] = i, number, proposed, matched
                reason[row] = PROPOSED if found else TOO_SHORT if start + history < min_n else NO_MATCH
                history += matched + 1
                row += 1
            if end > 1:
                overrun[row - 1] = history - end
            continue
        while history < end:
            entry = entries[output_at[i] + history]
            proposed, matched, why = 0, 0, NO_MATCH
            if start + history < min_n:
                why = TOO_SHORT
            elif window(entry) >= min_n:
                proposed, why = min(k, distance(entry)), PROPOSED
                matched = min(proposed, agreement(entry))
            counts = _settle(record, history, end, k, model_limit - start, asked, proposed, matched, why)
            number += 1
            request[row], step[row] = i, number
            drafted[row], filler[row], accepted[row], overrun[row], reason[row] = counts
            asked = _fits(start + history + counts[0], k, drafter_limit)
            history += counts[2] + 1
            row += 1
    return row


@cached_njit(walk, ngram_index)
def _walk_padded(
    entries, prompt_tokens, output_at, said, said_at, min_n, k, model_limit, verified, asynchronous,
    request, step, drafted, accepted, overrun, reason, filler,
):  # fmt: skip
    """The same by a rule that fills up to k.

    `verified`: filler is the last sampled token and goes through verification; if not, it is counted nowhere.
    `asynchronous`: the next step is
    scheduled before this one's rejections are known, so that the length limit counts all candidates as accepted.
    """
    row = 0
    for i in range(len(prompt_tokens)):
        limit, end = model_limit - prompt_tokens[i], output_at[i + 1] - output_at[i]
        record = said[said_at[i] : said_at[i + 1]]
        history, number, foreseen = 1, 0, 1
        while history < end:
            longest = foreseen if asynchronous and foreseen < limit else history
            entry = entries[output_at[i] + history]
            tokens = min(k, max(0, limit - longest - 1))  # one place is kept for the correction or bonus token
            proposed, why = 0, PROPOSED
            if window(entry) >= min_n:
                proposed = min(tokens, distance(entry))
            if tokens == 0:
                why = LENGTH_LIMIT
            elif proposed == 0:
                why = TOO_SHORT if prompt_tokens[i] + history < min_n else NO_MATCH
            hit = min(proposed, agreement(entry))
            if verified and hit == proposed:
                while hit < tokens and history + hit < len(record) and record[history + hit] == record[history - 1]:
                    hit += 1
            number += 1
            request[row], step[row] = i, number
            if verified:
                drafted[row], filler[row] = tokens, tokens - proposed
            else:
                drafted[row] = proposed
            accepted[row], overrun[row], reason[row] = hit, max(0, history + hit + 1 - end), why
            foreseen = history + tokens + 1
            history += hit + 1
            row += 1
    return row
