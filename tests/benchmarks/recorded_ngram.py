"""How much faster the recorded n-gram walk is than vLLM's function, both in one run and in compiled code.

    python tests/benchmarks/recorded_ngram.py [--scale 1.0] [--repeats 5]

Prints one JSON object: per shape the tokens put out per second on both sides, their ratio (medians), nanoseconds per
history token of ours, and whether every step's drafted and accepted are equal. Rates depend on the machine and on what
else runs on it; the ratio much less.
"""

import argparse
import json
import statistics
import time

import numpy as np
from numba import njit
from vllm.v1.spec_decode.ngram_proposer import _find_longest_matched_ngram_and_propose_tokens as find

from replay.recorded.ngram import replay_with_sources
from replay.recorded.walk import Limits
from replay.requests import Requests
from schemas.speculative import effective

CONFIG = effective({"method": "ngram", "prompt_lookup_min": 2, "prompt_lookup_max": 4, "num_speculative_tokens": 5})
VOCABULARY = 32_000


@njit
def vllm_walk(prompts, prompt_at, outputs, output_at, min_n, max_n, k, drafted, accepted):
    """vLLM's function at every round of every request; returns the number of steps."""
    row = 0
    for i in range(len(prompt_at) - 1):
        prompt = prompts[prompt_at[i] : prompt_at[i + 1]]
        output = outputs[output_at[i] : output_at[i + 1]]
        ids = np.concatenate((prompt, output))
        history = len(prompt) + 1
        while history < len(ids):
            draft = find(ids[:history], min_n, max_n, 2**31 - 1, k)
            hit = 0
            while hit < len(draft) and history + hit < len(ids) and draft[hit] == ids[history + hit]:
                hit += 1
            drafted[row], accepted[row] = len(draft), hit
            row += 1
            history += hit + 1
    return row


class Writer:
    """Text-like ids: words by Zipf's law, phrases that come back."""

    def __init__(self, seed):
        self.random = np.random.default_rng(seed)
        self.phrases = [self.words(int(n)) for n in self.random.integers(3, 12, 400)]

    def words(self, n):
        return np.minimum(self.random.zipf(1.3, n) + self.random.integers(0, 40, n), VOCABULARY - 1).astype(np.int32)

    def text(self, n, familiar=0.3):
        parts, length = [], 0
        while length < n:
            known = self.random.random() < familiar
            parts.append(self.phrases[self.random.integers(len(self.phrases))] if known else self.words(12))
            length += len(parts[-1])
        return np.concatenate(parts)[:n]

    def changed(self, ids, every):
        """A copy in which about one place in `every` is written anew, cut out or added to."""
        out, at = [], 0
        while at < len(ids):
            step = int(self.random.geometric(1 / every))
            out.append(ids[at : at + step])
            at += step + int(self.random.integers(0, 4))
            out.append(self.words(int(self.random.integers(0, 5))))
        return np.concatenate(out).astype(np.int32)


def edit(writer, n):
    for _ in range(n):
        file = writer.text(int(writer.random.integers(400, 2500)))
        yield np.concatenate([writer.text(150), file]), writer.changed(file, 60)


def agent(writer, n):
    for _ in range(max(1, n // 12)):
        session = writer.text(2500)
        for _ in range(12):
            at = int(writer.random.integers(0, len(session) - 300))
            said = np.concatenate([writer.text(120), writer.changed(session[at : at + 200], 40)])
            yield session, said
            session = np.concatenate([session, said, writer.text(int(writer.random.integers(100, 900)))])


def extract(writer, n):
    for _ in range(n):
        document = writer.text(int(writer.random.integers(800, 4000)))
        at = writer.random.integers(0, len(document) - 20, 12)
        yield document, np.concatenate([np.concatenate([writer.phrases[0], document[a : a + 12]]) for a in at])


def fresh(writer, n):
    for _ in range(n):
        yield writer.text(200), writer.text(int(writer.random.integers(300, 1500)))


def long32k(writer, n):
    for _ in range(n):
        document = writer.text(32_000)
        at = int(writer.random.integers(0, 31_000))
        yield document, np.concatenate([writer.text(250), writer.changed(document[at : at + 150], 30)])


SHAPES = {edit: 600, agent: 480, extract: 400, fresh: 420, long32k: 100}


def measure(pairs, repeats):
    requests = Requests.from_lists(*zip(*pairs, strict=True))
    prompts, outputs = requests.prompts, requests.outputs
    drafted, accepted = np.zeros((2, len(outputs.flat)), np.int16)
    settings = [CONFIG[key] for key in ("prompt_lookup_min", "prompt_lookup_max", "num_speculative_tokens")]
    ours, theirs = [], []
    for _ in range(repeats):
        start = time.process_time()
        log, _ = replay_with_sources(requests, CONFIG, Limits())
        ours.append(time.process_time() - start)
    for _ in range(max(1, min(2, repeats))):
        start = time.process_time()
        steps = vllm_walk(prompts.flat, prompts.offsets, outputs.flat, outputs.offsets, *settings, drafted, accepted)
        theirs.append(time.process_time() - start)
    same = steps == len(log) and np.array_equal(drafted[:steps], log.drafted)
    # without a tail our accepted is cut at the end as theirs is
    same = bool(same and np.array_equal(accepted[:steps], log.accepted))
    tokens = len(outputs.flat)
    a, b = statistics.median(ours), statistics.median(theirs)
    return {
        "requests": len(requests),
        "steps": steps,
        "coverage": round(float(np.mean(log.drafted > 0)), 3),
        "vllm_tokens_per_s": round(tokens / b),
        "ours_tokens_per_s": round(tokens / a),
        "ratio": round(b / a, 1),
        "ours_ns_per_history_token": round(1e9 * a / (len(prompts.flat) + tokens), 1),
        "equal": same,
    }


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--scale", type=float, default=1.0, help="share of the corpus' requests")
    arguments.add_argument("--repeats", type=int, default=5)
    given = arguments.parse_args()
    pairs = {
        shape.__name__: list(shape(Writer(seed), max(1, int(n * given.scale))))
        for seed, (shape, n) in enumerate(SHAPES.items())
    }
    measure(pairs["fresh"][:1], 1)  # compile
    result = {name: measure(shape, given.repeats) for name, shape in pairs.items()}
    result["all"] = measure([pair for shape in pairs.values() for pair in shape], given.repeats)
    print(json.dumps({"config": CONFIG, "shapes": result}))


if __name__ == "__main__":
    main()
