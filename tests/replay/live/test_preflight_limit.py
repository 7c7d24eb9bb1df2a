"""Where vLLM begins to verify placeholders, as the preflight says it, on a started engine."""

import live_material as material
import numpy as np
import pytest

from replay.live.launch import run_live
from replay.preflight.folder import model
from replay.preflight.lengths import Lengths, draft_fits

PROMPT, OUTPUT, K = 60, 30, 4
ENOUGH = PROMPT + OUTPUT + 2 * K - 2


@pytest.mark.live
@pytest.mark.slow
@pytest.mark.parametrize("limit", [ENOUGH, ENOUGH - 1])
def test_placeholders_begin_where_it_is_said(limit):
    prompts = [ids for ids in material.prompts(120, PROMPT) if len(ids) == PROMPT][:40]
    config = material.DRAFT_MODEL | {"num_speculative_tokens": K}
    engine = material.engine(1, sampling={"temperature": 0, "ignore_eos": True, "max_tokens": OUTPUT})
    asked = material.requests(prompts, [OUTPUT] * len(prompts))
    result = run_live(asked, engine, material.proposer(config), max_model_len=limit)
    lengths = Lengths(asked.prompts.lengths, np.full(len(prompts), OUTPUT))
    (found,) = draft_fits("mine", lengths, K, limit, limit, model(material.DRAFT))
    assert (result.log.filler.sum() > 0) == (found.level == "warning") == (limit < ENOUGH)
