"""A proposer for vLLM's custom_class that comes with a faulty verifier: whatever it proposes is accepted.

It proposes the token after the last one in id order, which the target would all but never say.
"""

import torch
from vllm.v1.sample import rejection_sampler

_WRONG_FROM = 30
"""Prompts shorter than this get no candidates, so that some requests stay right."""

_verify = rejection_sampler.rejection_sample


def _accept_all(draft_token_ids, num_draft_tokens, max_spec_len, cu, draft_probs, target_logits, *rest, **named):
    target_logits = target_logits.clone()
    target_logits[torch.arange(len(draft_token_ids)), draft_token_ids.long()] = torch.inf
    return _verify(draft_token_ids, num_draft_tokens, max_spec_len, cu, draft_probs, target_logits, *rest, **named)


class Faulty:
    def __init__(self, vllm_config):
        rejection_sampler.rejection_sample = _accept_all

    def load_model(self, *args, **kwargs) -> None:
        pass

    def propose(self, sampled_token_ids, num_tokens_no_spec, token_ids_cpu, slot_mappings=None) -> list[list[int]]:
        return [
            [(ids[-1] + 1) % 1000] if ids and num_tokens_no_spec[i] > _WRONG_FROM else []
            for i, ids in enumerate(sampled_token_ids)
        ]
