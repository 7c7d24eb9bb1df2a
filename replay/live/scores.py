"""What the target thinks of given tokens: one forward over a context without speculation, in the engine's process.

Tells a near-tie, which another shape of a batch can flip, from a token that the target would never have put out.
Knows nothing of proposers or outputs.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from replay.live.settings import engine_config, last_words, size_kv_cache
from replay.requests import Tokens
from schemas.errors import EnvironmentProblem


def score(
    contexts: Tokens,
    tokens: Sequence[Sequence[int]],
    spec: dict,
    done: Callable[[int], None],
    beat: Callable[[], None],
) -> np.ndarray:
    """Log-probabilities of tokens as the next one after their context, from the raw logits (no penalties, no grammar).

    Args:
        contexts: ids before the token, one sequence per entry.
        tokens: per context, the ids to score; the same number for each.
        spec: as for `replay.live.engine.run_unit`, without speculation.
        done: called with the number of finished contexts.
        beat: called after every engine iteration.

    Returns:
        float64 [contexts, tokens per context], natural logarithm.

    Raises:
        EnvironmentProblem: the engine cannot start, or dies.
    """
    from vllm import SamplingParams
    from vllm.v1.engine.llm_engine import LLMEngine

    config = engine_config(spec)
    size_kv_cache(config, (contexts.lengths + 1).tolist(), spec["concurrency"])
    try:
        engine = LLMEngine.from_vllm_config(config)
    except Exception as error:
        raise EnvironmentProblem(f"the engine cannot start: {last_words(error)}") from error
    for i, ids in enumerate(tokens):
        params = SamplingParams(temperature=0.0, max_tokens=1, logprob_token_ids=list(ids), detokenize=False)
        engine.add_request(str(i), {"prompt_token_ids": contexts[i].tolist()}, params)
    scores = np.full((len(contexts), len(tokens[0]) if len(tokens) else 0), np.nan)
    finished = 0
    while engine.has_unfinished_requests():
        outputs: list[Any] = engine.step()
        beat()
        for output in outputs:
            if output.finished:
                i, said = int(output.request_id), output.outputs[0].logprobs[0]
                scores[i] = [said[token].logprob for token in tokens[i]]
                finished += 1
                done(finished)
    engine.engine_core.shutdown()
    return scores
