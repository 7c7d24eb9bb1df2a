"""One unit of live work: a vLLM engine in this process, requests in order or on schedule, `concurrency` at once.

Token ids go in and out, never text. Returns what the engine put out and what the recorder in its worker saw; knows
nothing of steps, coverage or files.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from replay.live.settings import engine_config, fill_seeds, last_words, sampling_params, size_kv_cache
from replay.requests import Tokens
from schemas.errors import EnvironmentProblem, InputError

COUNTERS = {
    "num_drafts": "vllm:spec_decode_num_drafts",
    "num_draft_tokens": "vllm:spec_decode_num_draft_tokens",
    "num_accepted_tokens": "vllm:spec_decode_num_accepted_tokens",
    "num_accepted_tokens_per_pos": "vllm:spec_decode_num_accepted_tokens_per_pos",
    "generation_tokens": "vllm:generation_tokens",
    "prompt_tokens": "vllm:prompt_tokens",
    "preemptions": "vllm:num_preemptions",
}
"""vLLM's Prometheus counters that are read before and after."""

_WARM_UP_PROMPT, _WARM_UP_TOKENS = 16, 8
_NAP_S = 0.02
"""Longest sleep until the next request is due, so that we still show signs of life."""


@dataclass
class Sequence:
    """What became of one request. `ids` is all that was put out, cut or tail not yet told apart."""

    ids: list[int] = field(default_factory=list)
    due: float = 0.0
    submitted: float = 0.0
    first: float = 0.0
    finished: float = 0.0
    finish_reason: str = ""
    cached_tokens: int = 0
    engine_id: str = ""
    drafted: list[int] | None = None
    accepted: list[int] | None = None
    end: int | None = None


@dataclass
class UnitResult:
    """All of a unit: sequences in request order, the recorder's arrays, counters since the warm-up, engine facts."""

    sequences: list[Sequence]
    record: dict
    steps: np.ndarray
    """[engine steps, 2] float64: start and end by perf_counter."""
    counters: dict
    facts: dict
    grammar: list[int]
    """Requests under a structured-output grammar, which cuts candidates."""
    greedy: list[bool]
    """Per request, whether it is sampled greedily: its output can then be compared token for token."""


def run_unit(
    prompts: Tokens, rows: list[dict], ids: list[str], spec: dict, done: Callable[[int], None], beat: Callable[[], None]
) -> UnitResult:
    """Start the engine, warm it up, run every request, shut it down.

    Args:
        prompts: prompt ids per request.
        rows: per request `sampling` and `output_tokens` (see `settings.sampling_params`), and `scheduled_us`: when it
            is sent, since the first one is; None for all = as soon as one before it has finished.
        ids: request ids as in the trace, for errors.
        spec: see `replay.live.launch`.
        done: called with the number of finished requests.
        beat: called when the engine has started, after every iteration, and often while nothing is due.

    Raises:
        InputError: a setting or a request that vLLM refuses.
        EnvironmentProblem: the engine cannot start, or dies.
    """
    from vllm.sampling_params import SamplingType

    config = engine_config(spec)
    params = sampling_params(rows, ids, prompts, spec, config)
    seeds = fill_seeds(params, ids, spec["seed"])
    limit = config.model_config.max_model_len
    tail = spec["tail_tokens"]
    lengths = [min(limit, len(prompts[i]) + p.max_tokens + tail) for i, p in enumerate(params)]
    sized_by = size_kv_cache(config, lengths, spec["concurrency"])
    engine, runner = _start(config)
    replaced = None
    if config.speculative_config is not None and any(seeds.values()):
        replaced = engine.collective_rpc("mend_sampler")[0]
    beat()
    _warm_up(engine, spec["concurrency"], limit, beat)
    engine.collective_rpc("start_step_log")
    engine.reset_prefix_cache()
    before = _counters(engine)
    loop = (_TailLoop if tail else _Loop)(engine, prompts, params, ids, limit, tail)
    schedule = None if any(row["scheduled_us"] is None for row in rows) else [row["scheduled_us"] for row in rows]
    sequences, steps = loop.run(spec["concurrency"], done, beat, schedule)
    beat()
    after = _counters(engine)
    record = engine.collective_rpc("take_step_log")[0]
    facts = _facts(config, runner, sized_by) | {"seeds": seeds, "replaced": replaced}
    beat()
    engine.engine_core.shutdown()
    beat()
    grammar = [i for i, p in enumerate(params) if p.structured_outputs is not None]
    greedy = [p.sampling_type == SamplingType.GREEDY for p in params]
    return UnitResult(sequences, record, steps, _difference(after, before), facts, grammar, greedy)


def _start(config):
    from vllm.v1.engine.llm_engine import LLMEngine

    try:
        engine = LLMEngine.from_vllm_config(config)
        return engine, engine.collective_rpc("start_step_log")[0]
    except Exception as error:
        raise EnvironmentProblem(f"the engine cannot start: {last_words(error)}") from error


def _warm_up(engine, concurrency: int, limit: int, beat: Callable[[], None]) -> None:
    """Run a few tokens, so that compilation on first use is in nobody's time. A repeating prompt makes drafts."""
    from vllm import SamplingParams

    prompt = max(1, min(_WARM_UP_PROMPT, limit // 2))
    tokens = max(1, min(_WARM_UP_TOKENS, limit - prompt))
    for i in range(min(concurrency, 8)):
        params = SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True, detokenize=False)
        engine.add_request(f"warm-up-{i}", {"prompt_token_ids": [1, 2] * (prompt // 2) or [1]}, params)
    while engine.has_unfinished_requests():
        engine.step()
        beat()


class _Loop:
    """Sends requests and takes their outputs in."""

    def __init__(self, engine, prompts: Tokens, params: list, ids: list[str], limit: int, tail: int) -> None:
        self.engine, self.prompts, self.params, self.ids = engine, prompts, params, ids
        self.limit, self.tail = limit, tail
        self.ends: dict[int, tuple] = {}
        self.sequences = [Sequence() for _ in params]

    def run(
        self, concurrency: int, done: Callable[[int], None], beat: Callable[[], None], schedule: list[int] | None = None
    ) -> tuple[list[Sequence], np.ndarray]:
        """All requests: on schedule (µs since now), or each as soon as fewer than `concurrency` are on their way.

        On schedule the engine runs `concurrency` at once and queues the rest itself, as a server's does.
        """
        clock, begin, requests = time.perf_counter, time.perf_counter(), len(self.params)
        submitted = finished = 0
        order = list(range(requests))
        if schedule is not None:
            order.sort(key=schedule.__getitem__)
            for sequence, offset in zip(self.sequences, schedule, strict=True):
                sequence.due = begin + offset / 1e6
        steps = []
        while finished < requests:
            while submitted < requests:
                i = order[submitted]
                if submitted - finished >= concurrency if schedule is None else clock() < self.sequences[i].due:
                    break
                self.submit(i)
                submitted += 1
            if submitted == finished:
                time.sleep(min(max(self.sequences[order[submitted]].due - clock(), 0), _NAP_S))
                beat()
                continue
            start = clock()
            outputs = self.engine.step()
            now = clock()
            steps.append((start, now))
            beat()
            for output in outputs:
                if self.receive(int(output.request_id), output, now):
                    finished += 1
                    done(finished)
        return self.sequences, np.array(steps).reshape(-1, 2)

    def submit(self, i: int) -> None:
        from vllm.exceptions import VLLMClientError

        sequence = self.sequences[i]
        sequence.submitted = time.perf_counter()
        sequence.due = sequence.due or sequence.submitted
        prompt = {"prompt_token_ids": self.prompts[i].tolist()}
        try:
            sequence.engine_id = self.engine.add_request(str(i), prompt, self.params[i])
        except (ValueError, VLLMClientError) as error:
            raise InputError(f"request {self.ids[i]!r}: vLLM refuses it: {last_words(error)}") from error

    def receive(self, i: int, output, now: float) -> bool:
        """Take one output in; True when the request is finished."""
        sequence, completion = self.sequences[i], output.outputs[0]
        if not sequence.ids:
            sequence.first = now
            sequence.cached_tokens = output.num_cached_tokens or 0
        sequence.ids.extend(completion.token_ids)
        if not output.finished:
            return False
        sequence.finished, sequence.finish_reason = now, completion.finish_reason
        if (metrics := completion.spec_decode_metrics) is not None:
            sequence.drafted, sequence.accepted = list(metrics.per_step_drafted), list(metrics.per_step_accepted)
        return True


class _TailLoop(_Loop):
    """Runs on past the end: the output ends where vLLM would end it, up to `tail` more ids follow."""

    def submit(self, i: int) -> None:
        wanted = self.params[i].clone()
        processor = self.engine.input_processor
        wanted.update_from_generation_config(processor.generation_config_fields, processor.renderer.get_eos_token_id())
        self.ends[i] = (wanted.eos_token_id, set(wanted.stop_token_ids or ()), wanted.max_tokens)
        run_on = self.params[i].clone()
        run_on.ignore_eos, run_on.stop_token_ids, run_on.max_tokens = True, [], wanted.max_tokens + self.tail
        self.params[i] = run_on
        super().submit(i)

    def receive(self, i: int, output, now: float) -> bool:
        sequence = self.sequences[i]
        finished = super().receive(i, output, now)
        eos, stops, max_tokens = self.ends[i]
        if sequence.end is None:  # the order of vLLM's check_stop: end token, stop ids, lengths
            last, put_out = sequence.ids[-1], len(sequence.ids)
            ended = last == eos or last in stops
            if ended or put_out >= max_tokens or len(self.prompts[i]) + put_out >= self.limit:
                sequence.end, sequence.finished = put_out, now
                sequence.finish_reason = "stop" if ended else "length"
        if not finished and sequence.end is not None and len(sequence.ids) >= sequence.end + self.tail:
            self.engine.abort_request([str(i)])
            finished = True
        return finished


def _counters(engine) -> dict:
    names = {v: k for k, v in COUNTERS.items()}
    out: dict = {}
    for metric in engine.get_metrics():
        if (key := names.get(metric.name)) is None:
            continue
        if hasattr(metric, "values"):
            out[key] = [a + b for a, b in zip(out.get(key, [0] * len(metric.values)), metric.values, strict=True)]
        else:
            out[key] = out.get(key, 0) + metric.value
    return out


def _difference(after: dict, before: dict) -> dict:
    out = {}
    for key, value in after.items():
        old = before.get(key, 0)
        out[key] = [a - b for a, b in zip(value, old, strict=True)] if isinstance(value, list) else value - old
    return out


def _facts(config, runner: str, sized_by: str) -> dict:
    import torch
    import vllm
    from vllm.platforms import current_platform

    cache = config.cache_config
    return {
        "vllm": vllm.__version__,
        "torch": torch.__version__,
        "runner": "v2" if config.use_v2_model_runner else "v1",
        "model_runner": runner,
        "device": current_platform.get_device_name(),
        "dtype": str(config.model_config.dtype).removeprefix("torch."),
        "max_model_len": config.model_config.max_model_len,
        "block_size": cache.block_size,
        "kv_cache_tokens": cache.kv_cache_size_tokens,
        "max_concurrency": cache.kv_cache_max_concurrency,
        "kv_cache_sized_by": sized_by,
        "prefix_caching": cache.enable_prefix_caching,
        "async_scheduling": config.scheduler_config.async_scheduling,
        "threads": torch.get_num_threads(),
    }
