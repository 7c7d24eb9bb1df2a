"""A proposer of our own by vLLM's interface for custom_class: what followed the last token the last time."""

WIDTH = 2


def follow(history: list[int], width: int = WIDTH) -> list[int]:
    """Up to `width` ids behind the latest earlier place of the last id; [] where it is new."""
    for at in range(len(history) - 2, -1, -1):
        if history[at] == history[-1]:
            return history[at + 1 : at + 1 + width]
    return []


class Continuing:
    """Built by vLLM from `speculative_config.model`, called by its model runner after every step."""

    def __init__(self, vllm_config) -> None:
        self.width = vllm_config.speculative_config.num_speculative_tokens

    def load_model(self, target_model) -> None:
        """Nothing to load, but the CPU runner asks."""

    def propose(self, sampled_token_ids, num_tokens_no_spec, token_ids_cpu, slot_mappings=None) -> list[list[int]]:
        """Candidates per sequence; none for one that has put out nothing in this step."""
        return [
            follow(token_ids_cpu[i, : num_tokens_no_spec[i]].tolist(), self.width) if sampled else []
            for i, sampled in enumerate(sampled_token_ids)
        ]
