"""How much of what a lookup that fills up to k proposed was found, and how much is filler: the rule, run again.

Under the V2 runner (and "ngram_gpu" under V1) n-gram lookup hands over k candidates whatever it finds, and ids alone
do not tell them apart: the filler is the last sampled token, which a match may hold as well. The rule depends on the
ids of the sequence alone, so it is run again on them. Pure: arrays in, array out; knows no engine.
"""

from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from replay.live.record import ROW_FIELDS
from replay.requests import Requests, Tokens


def fills_up(config: Mapping, runner: str) -> bool:
    """Whether this proposer's lookup fills up to k.

    Args:
        config: effective `speculative_config`.
        runner: "v1" or "v2".
    """
    return config["method"] == "ngram_gpu" or (config["method"], runner) == ("ngram", "v2")


def found(rows: np.ndarray, prompts: Tokens, put_out: Tokens, config: Mapping, runner: str) -> np.ndarray:
    """How many tokens the lookup finds at the history each row starts from, up to num_speculative_tokens.

    Args:
        rows: int32 [rows, ROW_FIELDS] in time order, slot = request index.
        prompts, put_out: ids by request, as the engine took them in and handed them out.
        config: effective `speculative_config` of method "ngram" or "ngram_gpu".
        runner: "v1" (the longest window's first match) or "v2" (its last match).

    Returns:
        int64, one per row; 0 = no match, and where there is no history of prompt and output to look up (prefill, or
        past the output's end).
    """
    from replay.recorded.ngram_index import distance, index, window  # compiles: only when used

    column = dict(zip(ROW_FIELDS, rows.T.astype(np.int64), strict=True))
    order = np.argsort(column["slot"], kind="stable")
    sampled, slot = column["sampled"][order], column["slot"][order]
    before = np.cumsum(sampled) - sampled
    first = np.searchsorted(slot, np.arange(len(put_out)))
    history = before - before[np.minimum(first, max(0, len(rows) - 1))][slot]

    low, top = config["prompt_lookup_min"], config["prompt_lookup_max"]
    requests = Requests(prompts, put_out, Tokens.of([[] for _ in range(len(put_out))]), pa.table({}))
    entries = index(requests, [top], base=1 if low == 1 else 2, last=runner == "v2", depth=0)[0]
    looked = (history >= 1) & (history < put_out.lengths[slot])
    entry = np.zeros(len(rows), np.int64)
    entry[looked] = entries[(put_out.offsets[slot] + history)[looked]]
    real = np.where(window.py_func(entry) >= low, distance.py_func(entry), 0)
    out = np.empty(len(rows), np.int64)
    out[order] = np.minimum(real, config["num_speculative_tokens"])
    return out
