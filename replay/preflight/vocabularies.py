"""Do target and draft mean the same by a token id? Maps, sizes, padding, end tokens, and the common part for TLI.

What vLLM 0.32.0 does: a draft model's candidate ids go to the target as they are, so an id that stands for another
token is a wrong candidate, lossless but wasted. Only the sizes are checked there. Knows vocabularies, not content:
the tokens shown are entries of a vocabulary.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from replay.preflight.findings import Finding

_SHOWN = 3
"""Examples per line."""

_FEW_COMMON = 100
"""vLLM itself warns of a common vocabulary below this."""


@dataclass(frozen=True)
class Comparison:
    """Two token → id maps compared id by id, up to the larger of both.

    same: ids that stand for the same token in both. other: ids that stand for another token, ascending. only_target,
    only_draft: ids that only one of them knows, ascending.
    """

    same: int
    other: list[int]
    only_target: list[int]
    only_draft: list[int]

    @property
    def mismatches(self) -> int:
        """Ids that do not stand for the same token in both."""
        return len(self.other) + len(self.only_target) + len(self.only_draft)


def compare(target: Mapping[str, int], draft: Mapping[str, int]) -> Comparison:
    """Compare two vocabularies, added and special tokens included.

    >>> compare({"a": 0, "b": 1, "c": 2}, {"a": 0, "c": 1, "d": 3})
    Comparison(same=1, other=[1], only_target=[2], only_draft=[3])
    """
    of_target, of_draft = ({id_: token for token, id_ in vocabulary.items()} for vocabulary in (target, draft))
    both = of_target.keys() & of_draft.keys()
    other = sorted(i for i in both if of_target[i] != of_draft[i])
    return Comparison(
        len(both) - len(other),
        other,
        sorted(of_target.keys() - of_draft.keys()),
        sorted(of_draft.keys() - of_target.keys()),
    )


def same_ids(
    proposer: str, target: Mapping[str, int], draft: Mapping[str, int], sizes: tuple[int | None, int | None]
) -> list[Finding]:
    """Judge a draft model whose ids vLLM takes as the target's.

    Args:
        proposer: its name.
        target, draft: token → id.
        sizes: rows of the output of target and draft by their configs, padding included; None = unknown.
    """
    if None not in sizes and sizes[0] != sizes[1]:
        return [
            Finding(
                "vocabulary",
                proposer,
                "refusal",
                f"the target's vocab_size is {sizes[0]:,}, the draft's {sizes[1]:,}: vLLM takes equal sizes only",
                "give a draft with the target's vocabulary, or set use_heterogeneous_vocab = true",
            )
        ]
    found = compare(target, draft)
    figures = {
        "same": found.same,
        "other": len(found.other),
        "only_target": len(found.only_target),
        "only_draft": len(found.only_draft),
    }
    padding = "" if sizes[0] is None else _padding(target, sizes[0])
    if not found.mismatches:
        said = f"all {found.same:,} token ids stand for the same token in both{padding}"
        return [Finding("vocabulary", proposer, "ok", said, figures=figures)]
    parts = []
    if found.other:
        parts.append(f"{_ids(len(found.other))} for another token ({_examples(found.other, target, draft)})")
    for ids, who, vocabulary in ((found.only_target, "target", target), (found.only_draft, "draft", draft)):
        if ids:
            parts.append(f"{_ids(len(ids))} for a token of the {who} only ({_examples(ids, vocabulary)})")
    total = found.same + found.mismatches
    said = f"of {total:,} token ids " + ", ".join(parts) + padding
    if len(found.other) * 2 > total:
        remedy = "the draft speaks another vocabulary: set use_heterogeneous_vocab = true"
        return [Finding("vocabulary", proposer, "refusal", said, remedy, figures)]
    remedy = "such candidates are never right; a draft with the target's tokenizer avoids that"
    return [Finding("vocabulary", proposer, "warning", said, remedy, figures)]


def common_part(
    proposer: str, shared: np.ndarray, to_draft_known: np.ndarray, outputs: np.ndarray, same: bool
) -> list[Finding]:
    """Judge a draft with a vocabulary of its own, under use_heterogeneous_vocab (TLI).

    Args:
        proposer: its name.
        shared: bool per draft id, whether the target knows the token: only these are proposed.
        to_draft_known: bool per target id, whether the draft knows the token.
        outputs: recorded output ids of the trace, flat int32; may be empty.
        same: whether the two tokenizers are equal id by id.
    """
    common, of_draft, of_target = int(shared.sum()), len(shared), len(to_draft_known)
    figures = {"common": common, "draft_vocab_size": of_draft, "target_vocab_size": of_target}
    said = (
        f"{common:,} tokens are common: {common / of_draft:.1%} of the draft's {of_draft:,}, "
        f"{common / of_target:.1%} of the target's {of_target:,}"
    )
    inside = outputs[outputs < of_target]
    if len(inside):
        reachable = float(to_draft_known[inside].mean())
        figures["output_tokens_common"] = int(to_draft_known[inside].sum())
        figures["output_tokens"] = len(inside)
        said += f"; {reachable:.1%} of the trace's output tokens are among them"
    if common == 0:
        return [Finding("vocabulary", proposer, "refusal", said, "take a draft that shares tokens", figures)]
    if common < _FEW_COMMON:
        remedy = "so few that it can hardly propose anything; take a draft that shares more"
        return [Finding("vocabulary", proposer, "warning", said, remedy, figures)]
    if same:
        remedy = "leave use_heterogeneous_vocab out: both have the same vocabulary"
        return [Finding("vocabulary", proposer, "warning", said, remedy, figures)]
    return [Finding("vocabulary", proposer, "ok", said, figures=figures)]


def special_tokens(
    proposer: str,
    target: Mapping[str, int | None],
    draft: Mapping[str, int | None],
    ends: tuple[frozenset[int], frozenset[int]],
    vocabulary: Mapping[str, int],
) -> list[Finding]:
    """Compare the ids that begin, end and pad a text, of a draft that shares the target's ids.

    Args:
        proposer: its name.
        target, draft: bos_token, eos_token, pad_token, unk_token → id, as the tokenizers name them; None = has none.
        ends: ids that end an output of target and draft: tokenizer, config.json and generation_config.json together.
        vocabulary: token → id of the target, for the words.
    """
    names = {id_: token for token, id_ in vocabulary.items()}

    def word(id_: int | None) -> str:
        return "none" if id_ is None else f"{id_} {shown(names[id_])}" if id_ in names else str(id_)

    differ = [
        f"{key} is {word(target[key])} in the target, {word(draft.get(key))} in the draft"
        for key in ("bos_token", "eos_token", "pad_token")
        if target.get(key) != draft.get(key)
    ]
    of_target, of_draft = ends
    if of_target != of_draft:
        lists = [", ".join(word(i) for i in sorted(of_one)) or "none" for of_one in ends]
        differ.append(f"outputs of the target end with {lists[0]}, of the draft with {lists[1]}")
    figures = {"target_end_ids": sorted(of_target), "draft_end_ids": sorted(of_draft)}
    if not differ:
        said = "the same; outputs end with " + (", ".join(word(i) for i in sorted(of_target)) or "no token")
        return [Finding("special tokens", proposer, "ok", said, figures=figures)]
    matters = of_target != of_draft
    remedy = "the draft may miss the end of an output" if matters and not of_target & of_draft else ""
    return [
        Finding("special tokens", proposer, "warning" if remedy else "ok", "; ".join(differ), remedy, figures),
    ]


def shown(token: str) -> str:
    r"""A vocabulary's entry as one printable word.

    >>> shown("a\n"), shown("x" * 40)
    ("'a\\n'", "'xxxxxxxxxxxxxxxxxxxxxxx…'")
    """
    return repr(token) if len(token) <= 24 else repr(token[:23])[:-1] + "…'"


def _examples(ids: list[int], *vocabularies: Mapping[str, int]) -> str:
    tables = [{id_: token for token, id_ in vocabulary.items()} for vocabulary in vocabularies]
    words = [f"{id_} " + " / ".join(shown(table[id_]) for table in tables) for id_ in ids[:_SHOWN]]
    return ", ".join(words) + (", …" if len(ids) > _SHOWN else "")


def _ids(count: int) -> str:
    return f"{count:,} {'stands' if count == 1 else 'stand'}"


def _padding(vocabulary: Mapping[str, int], size: int) -> str:
    known = set(vocabulary.values())
    empty = sum(1 for i in range(size) if i not in known)
    beyond = sum(1 for i in known if i >= size)
    said = f"; {empty:,} of the model's {size:,} are padding" if empty else ""
    return said + (f"; {beyond:,} lie beyond the model's {size:,}" if beyond else "")
