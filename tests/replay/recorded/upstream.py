"""The oracle: one sequence through vLLM's own proposers, scheduled as its V1 scheduler and runner do it.

Written from vLLM 0.32.0 (v1/core/sched/scheduler.py, v1/worker/gpu_model_runner.py) in the engine's own quantities,
apart from the code under test. The proposers are vLLM's functions and classes themselves.
"""

from types import SimpleNamespace

import numpy as np

FAR = 10**6


def serve(prompt, output, tail, k, propose, max_model_len=FAR, drafter_len=FAR):
    """Decode steps of one request as (drafted, filler, accepted, emitted).

    `propose(tokens, sampled)` is called where the runner calls its proposer; `sampled` is not yet cut.
    `drafter_len` is the draft model's own maximal length.
    """
    record = [*prompt, *output, *tail]
    end = len(prompt) + len(output)
    tokens, computed, spec, placeholders = list(prompt), 0, [], False
    steps = []
    while True:
        new = min(len(tokens) + len(spec) - computed, max_model_len - computed - 1)
        scheduled = spec[: max(0, new + computed - len(tokens))]
        max_seq_len = computed + new
        accepted = 0
        while accepted < len(scheduled) and scheduled[accepted] == _at(record, len(tokens) + accepted):
            accepted += 1
        sampled = record[len(tokens) : len(tokens) + accepted + 1]
        computed += new - (len(scheduled) - accepted)
        row = len(scheduled), len(scheduled) * placeholders, accepted
        untrimmed = tokens + sampled
        placeholders = max_seq_len + k > min(max_model_len, drafter_len)
        spec = [0] * k if placeholders else list(propose(untrimmed, sampled))
        emitted = min(accepted + 1, end - len(tokens))
        if tokens != list(prompt):
            steps.append((*row, emitted))
        tokens = untrimmed[: len(tokens) + emitted]
        if len(tokens) == end:
            return steps


def _at(record, i):
    return record[i] if i < len(record) else None


def ngram(find, min_n, max_n, k, max_model_len=FAR):
    """vLLM's n-gram function (`find`) as NgramProposer calls it."""

    def propose(tokens, sampled):
        if len(tokens) >= max_model_len:
            return []
        ids = np.array(tokens, np.int32)
        return find(origin_tokens=ids, min_ngram=min_n, max_ngram=max_n, max_model_len=max_model_len, k=k).tolist()

    return propose


class Suffix:
    """vLLM's SuffixDecodingProposer, one sequence in its batch at a time."""

    def __init__(self, config, max_model_len=FAR):
        from vllm.v1.spec_decode.suffix_decoding import SuffixDecodingProposer

        self.k = config["num_speculative_tokens"]
        self.proposer = SuffixDecodingProposer(
            SimpleNamespace(
                speculative_config=SimpleNamespace(**config), model_config=SimpleNamespace(max_model_len=max_model_len)
            )
        )

    def of(self, name, prompt):
        """The `propose` of one request."""

        def propose(tokens, sampled):
            batch = SimpleNamespace(
                req_ids=[name],
                req_id_to_index={name: 0},
                num_tokens_no_spec=np.array([len(tokens)]),
                num_prompt_tokens=np.array([len(prompt)]),
                token_ids_cpu=np.array([tokens], np.int32),
            )
            return self.proposer.propose(self.k, batch, [sampled])[0]

        return propose


def logged(log, request=0):
    """A request's rows of a step log, as `serve` gives them."""
    rows = log.request == request
    columns = (log.drafted, log.filler, log.accepted, log.emitted)
    return list(zip(*(column[rows].tolist() for column in columns), strict=True))
