"""All checks of one draft model against its target that files alone can answer. Starts nothing."""

import numpy as np

from replay.preflight.findings import ENVIRONMENT, Finding
from replay.preflight.folder import Model
from replay.preflight.templates import Words, templates, words
from replay.preflight.vocabularies import common_part, compare, same_ids, special_tokens
from schemas.config import Proposer
from schemas.errors import EnvironmentProblem, InputError

HEADS = frozenset({"eagle", "eagle3", "mtp", "medusa", "mlp_speculator", "dflash", "dspark", "extract_hidden_states"})
"""Methods whose draft lives on the target's hidden states and speaks its ids."""


def pair(proposer: Proposer, target: Model, draft: Model, outputs: np.ndarray) -> list[Finding]:
    """Compare vocabularies, special tokens and chat templates of a proposer's draft and its target.

    Args:
        proposer: of a method with a model.
        target, draft: by their files.
        outputs: recorded output ids of the trace, flat int32; may be empty.
    """
    name = proposer.name
    if proposer.method in HEADS:
        return []
    foreign = bool(proposer.config.get("use_heterogeneous_vocab"))
    sizes = target.vocab_size, draft.vocab_size
    if not foreign and None not in sizes and sizes[0] != sizes[1]:  # the tokenizers need not be read for this
        return same_ids(name, {}, {}, sizes)
    if None in (target.folder, draft.folder):
        gone = target if target.folder is None else draft
        return [Finding("vocabulary", name, "warning", f"{gone.name!r} is not on this machine: not compared")]
    try:
        ours, theirs = words(target), words(draft)
    except EnvironmentProblem as error:
        return [Finding("vocabulary", name, "warning", f"not compared: {error}")]
    except InputError as error:
        if foreign:
            return [Finding("vocabulary", name, "refusal", str(error), "put the tokenizer beside the weights")]
        said = f"not compared: {error}"
        return [Finding("vocabulary", name, "warning", said, "make sure that both mean the same by each id")]
    if foreign:
        out = _foreign(name, ours, theirs, outputs)
    else:
        out = same_ids(name, ours.vocabulary, theirs.vocabulary, sizes)
    if any(finding.level == "refusal" for finding in out):
        return out
    if not foreign:
        ends = ours.end_ids, theirs.end_ids
        out += special_tokens(name, ours.special, theirs.special, ends, ours.vocabulary)
    return out + templates(name, ours, theirs, by_ids=not foreign)


def _foreign(name: str, target: Words, draft: Words, outputs: np.ndarray) -> list[Finding]:
    from replay.recorded.vocabulary import between  # the recorded engine's mapping is vLLM's

    try:
        mapping = between(*(str(side.model.folder) for side in (target, draft)))
    except InputError as error:
        return [Finding("vocabulary", name, "refusal", str(error), "give the tokenizer an unknown or an end token")]
    except EnvironmentProblem as error:
        return [Finding(ENVIRONMENT, name, "refusal", str(error))]
    known = np.zeros(len(mapping.to_draft), bool)
    known[mapping.to_target[mapping.shared]] = True
    same = compare(target.vocabulary, draft.vocabulary).mismatches == 0
    return common_part(name, mapping.shared, known, outputs, same)
