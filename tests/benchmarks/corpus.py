"""The benchmarks' traffic, generated: five shapes of request over the source text of Python's own library.

Real text with a word-level tokenizer of our own, so that no model and no download is needed; the same everywhere that
has the same Python. Shapes, with the mean tokens of their prompts and outputs: `edit` (a file comes back with small
changes; 2,200 and 2,200), `agent` (sessions of 12 turns, each prompt the whole session so far; 8,900 and 250),
`extract` (short quotes from a document, as JSON; 3,800 and 420), `fresh` (text that is not in the prompt; 320 and 950)
and `long` (a little of all that behind a prompt of `prompt_tokens`; 740 tokens of output). In the numbers of `MIX` that
is about 1,000 tokens of output and 5,000 of prompt per request.
"""

import random
import re
import sysconfig
from functools import cache
from pathlib import Path

import numpy as np

from replay.requests import Requests

MIX = {"edit": 600, "agent": 480, "extract": 400, "fresh": 420, "long": 100}
"""Requests per shape of the whole mix; benchmarks take a share of it."""
SHAPES = tuple(MIX)

_PIECES = re.compile(r" ?[A-Za-z]{1,6}|[0-9]{1,3}|\n *| +|[^\sA-Za-z0-9]")
_TURNS = 12


@cache
def _text() -> tuple[np.ndarray, dict[str, int]]:
    """The library as one array of ids, int32, and the vocabulary."""
    vocabulary: dict[str, int] = {}
    ids = []
    for file in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        pieces = _PIECES.findall(file.read_text("utf-8", errors="replace"))
        ids += [vocabulary.setdefault(piece, len(vocabulary)) for piece in pieces]
    return np.array(ids, np.int32), vocabulary


class _Writer:
    """Draws passages of the library text."""

    def __init__(self, seed: int):
        self.random = random.Random(seed)
        self.text, self.vocabulary = _text()

    def words(self, said: str) -> list[int]:
        """Ids of a phrase; a piece the library never uses becomes id 0."""
        return [self.vocabulary.get(piece, 0) for piece in _PIECES.findall(said)]

    def passage(self, tokens: int) -> list[int]:
        at = self.random.randrange(len(self.text) - tokens)
        return self.text[at : at + tokens].tolist()

    def some(self, source: list[int], tokens: int) -> list[int]:
        """A quote from `source`."""
        at = self.random.randrange(max(1, len(source) - tokens))
        return source[at : at + tokens]

    def edited(self, source: list[int], every: int) -> list[int]:
        """`source` with a few tokens changed about every `every` tokens."""
        out, at = [], 0
        while at < len(source):
            keep = max(1, int(self.random.expovariate(1 / every)))
            out += source[at : at + keep] + self.passage(self.random.randrange(1, 6))
            at += keep + self.random.randrange(4)
        return out

    def quotes(self, source: list[int], tokens: int) -> list[int]:
        """JSON-like lines that quote `source`."""
        out = self.words('[\n    {"')
        while len(out) < tokens:
            out += self.words('name": "') + self.some(source, self.random.randrange(3, 15))
            out += self.words('", "line": ') + [self.random.choice(self.words("0 1 2 3 4 5 6 7 8 9"))]
            out += self.words('},\n    {"')
        return out[:tokens]


def corpus(shape: str, requests: int, seed: int = 0, prompt_tokens: int = 32_000) -> Requests:
    """`requests` requests of one shape, in serving order; sessions of `agent` come one after the other.

    `prompt_tokens` is the length of the prompts of shape `long`.
    """
    w = _Writer(seed)
    ask = w.words("def main(self, name, value): please return the file with these changes\n")
    prompts, outputs = [], []
    while len(prompts) < requests:
        if shape == "edit":
            file = w.passage(w.random.randrange(1000, 3400))
            prompts.append(ask + file)
            outputs.append(w.edited(file, 60))
        elif shape == "agent":
            session = ask + w.passage(3000)
            for _ in range(min(_TURNS, requests - len(prompts))):
                said = w.some(session, 90) + w.passage(60) + w.quotes(session, 100)
                prompts.append(list(session))
                outputs.append(said)
                session += said + w.passage(470) + w.some(session, 350)
        elif shape == "extract":
            document = w.passage(w.random.randrange(2400, 5200))
            prompts.append(ask + document)
            outputs.append(w.quotes(document, w.random.randrange(250, 600)))
        elif shape == "fresh":
            prompts.append(ask + w.passage(300))
            outputs.append(w.passage(w.random.randrange(500, 1400)))
        else:
            document = w.passage(prompt_tokens)
            prompts.append(document + ask)
            outputs.append(w.quotes(document, 270) + w.passage(190) + w.edited(w.some(document, 270), 40))
    return Requests.from_lists(prompts, outputs)


def share(scale: float) -> dict[str, int]:
    """That share of `MIX`, one request of each shape at least."""
    return {shape: max(1, round(number * scale)) for shape, number in MIX.items()}


def mixed(parts: dict[str, int], seed: int = 0, prompt_tokens: int = 32_000) -> Requests:
    """So many requests of each shape, shuffled by blocks that keep the sessions of `agent` together."""
    blocks = []
    for shape, number in parts.items():
        part = corpus(shape, number, seed, prompt_tokens)
        step = _TURNS if shape == "agent" else 1
        blocks += [
            [(part.prompts[i].tolist(), part.outputs[i].tolist()) for i in range(at, min(at + step, number))]
            for at in range(0, number, step)
        ]
    random.Random(seed).shuffle(blocks)
    prompts, outputs = zip(*(pair for block in blocks for pair in block), strict=True)
    return Requests.from_lists(prompts, outputs)
