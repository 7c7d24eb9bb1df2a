"""Token maps compared: the oracle is plain Python over the vocabularies of tokenizer.json."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from model_folders import DEMO, by_id, copy, shuffled, vocabulary, with_added

from replay.preflight import vocabularies
from replay.preflight.folder import model
from replay.preflight.pair import pair
from replay.preflight.templates import words
from schemas.config import Proposer

TARGET = DEMO / "target"
NO_IDS = np.zeros(0, np.int32)


def proposer(draft, **config) -> Proposer:
    settings = {"method": "draft_model", "model": str(draft), "num_speculative_tokens": 3} | config
    return Proposer(name="mine", config=settings, key="0")


def checked(draft, check: str, target=TARGET, outputs=NO_IDS, **config):
    found = pair(proposer(draft, **config), model(str(target)), model(str(draft)), outputs)
    (one,) = [finding for finding in found if finding.check == check]
    assert "\n" not in one.line
    return one


maps = st.dictionaries(st.text(min_size=1, max_size=2), st.integers(0, 8), max_size=8).map(
    lambda found: {token: id_ for id_, token in {id_: token for token, id_ in found.items()}.items()}
)


@given(maps, maps)
def test_every_id_is_counted_once(target, draft):
    found = vocabularies.compare(target, draft)
    of_target, of_draft = ({id_: token for token, id_ in v.items()} for v in (target, draft))
    kinds = {"same": 0, "other": 0, "target": 0, "draft": 0}
    for id_ in range(9):
        ours, theirs = of_target.get(id_), of_draft.get(id_)
        if ours is not None and theirs is not None:
            kinds["same" if ours == theirs else "other"] += 1
        elif ours is not None:
            kinds["target"] += 1
        elif theirs is not None:
            kinds["draft"] += 1
    assert list(kinds.values()) == [found.same, len(found.other), len(found.only_target), len(found.only_draft)]


def test_one_vocabulary():
    found = checked(DEMO / "draft", "vocabulary")
    assert (found.level, found.figures["same"]) == ("ok", len(vocabulary(TARGET))) == ("ok", 2048)
    assert "padding" not in found.found


def test_moved_ids_are_counted_and_shown(tmp_path):
    ids = [300, 301, 1999]
    draft = shuffled(copy(tmp_path / "draft"), ids)
    found = checked(draft, "vocabulary")
    ours, theirs = by_id(TARGET), by_id(draft)
    unlike = [i for i in range(2048) if ours[i] != theirs[i]]
    assert unlike == ids
    assert (found.level, found.figures["other"], found.figures["same"]) == ("warning", 3, 2045)
    for id_ in ids:
        assert f"{id_} {vocabularies.shown(ours[id_])} / {vocabularies.shown(theirs[id_])}" in found.found


def test_a_draft_of_another_vocabulary_is_refused(tmp_path):
    draft = shuffled(copy(tmp_path / "draft"), list(range(256, 2000)))
    found = checked(draft, "vocabulary")
    assert (found.level, found.figures["other"]) == ("refusal", 1744)
    assert "use_heterogeneous_vocab = true" in found.remedy
    assert [f.check for f in pair(proposer(draft), model(str(TARGET)), model(str(draft)), NO_IDS)] == ["vocabulary"]


def test_sizes_must_be_equal_without_tli(tmp_path):
    draft = copy(tmp_path / "draft", vocab_size=2176)
    found = checked(draft, "vocabulary")
    assert found.level == "refusal" and "2,048" in found.found and "2,176" in found.found
    assert "use_heterogeneous_vocab" in found.remedy


def test_padding_is_no_mismatch(tmp_path):
    target, draft = copy(tmp_path / "target", vocab_size=2176), copy(tmp_path / "draft", vocab_size=2176)
    found = checked(draft, "vocabulary", target)
    assert found.level == "ok"
    assert "128 of the model's 2,176 are padding" in found.found


def test_an_added_token_that_only_one_of_them_knows(tmp_path):
    target = with_added(copy(tmp_path / "target", of="target", vocab_size=2176), "<|think|>", 2048)
    draft = copy(tmp_path / "draft", vocab_size=2176)
    found = checked(draft, "vocabulary", target)
    assert found.level == "warning"
    assert "1 stands for a token of the target only (2048 '<|think|>')" in found.found
    assert "127 of the model's 2,176 are padding" in found.found
    assert checked(target, "vocabulary", draft).figures["only_draft"] == 1


def test_without_a_tokenizer_nothing_is_claimed(tmp_path):
    bare = copy(tmp_path / "draft", without=("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"))
    found = checked(bare, "vocabulary")
    assert found.level == "warning" and "holds no tokenizer" in found.found
    assert checked(bare, "vocabulary", use_heterogeneous_vocab=True).level == "refusal"


@pytest.fixture(scope="module")
def foreign(tmp_path_factory):
    pytest.importorskip("torch")
    from tests.replay.tiny_models import foreign_draft

    return foreign_draft(tmp_path_factory.mktemp("foreign") / "draft")


def common(target, draft) -> set[str]:
    """Tokens of both; both are byte-level, so they write a leading space in the same way."""
    return vocabulary(target).keys() & vocabulary(draft).keys()


def test_a_foreign_vocabulary_under_tli(foreign):
    shared = common(TARGET, foreign)
    ids = {vocabulary(TARGET)[token] for token in shared}
    outputs = np.array([*sorted(ids)[:30], *(i for i in range(2048) if i not in ids)][:40], np.int32)
    found = checked(foreign, "vocabulary", outputs=outputs, use_heterogeneous_vocab=True)
    assert found.level == "ok"
    assert (found.figures["common"], found.figures["draft_vocab_size"]) == (len(shared), 600)
    assert found.figures["output_tokens_common"] == sum(int(i) in ids for i in outputs) == 30
    assert f"{len(shared):,} tokens are common" in found.found and "75.0% of the trace's" in found.found
    assert checked(foreign, "vocabulary").level == "refusal"  # without TLI


def test_tli_between_equal_vocabularies_is_not_needed():
    found = checked(DEMO / "draft", "vocabulary", use_heterogeneous_vocab=True)
    assert found.level == "warning" and "leave use_heterogeneous_vocab out" in found.remedy


@pytest.mark.parametrize(("tokens", "level"), [(0, "refusal"), (60, "warning")])
def test_tli_with_little_in_common(tokens, level):
    shared, known = np.zeros(600, bool), np.zeros(2048, bool)
    shared[:tokens] = known[:tokens] = True
    (found,) = vocabularies.common_part("mine", shared, known, NO_IDS, same=False)
    assert (found.level, found.figures["common"]) == (level, tokens)


def test_special_tokens_of_one_family():
    found = checked(DEMO / "draft", "special tokens")
    assert found.level == "ok"
    assert found.figures["target_end_ids"] == [0, 2] == sorted(words(model(str(TARGET))).end_ids)


def test_a_draft_that_ends_otherwise(tmp_path):
    draft = copy(tmp_path / "draft", without=("generation_config.json",), eos_token_id=5)
    edit_config(draft, eos_token="<tool_response>")
    found = checked(draft, "special tokens")
    assert found.level == "warning"
    assert "eos_token is 2 '<|im_end|>' in the target, 5 '<tool_response>' in the draft" in found.found
    assert "of the draft with 5 '<tool_response>'" in found.found
    assert found.figures == {"target_end_ids": [0, 2], "draft_end_ids": [5]}


def test_an_end_in_common_is_enough(tmp_path):
    draft = copy(tmp_path / "draft", without=("generation_config.json",))
    found = checked(draft, "special tokens")
    assert (found.level, found.figures["draft_end_ids"]) == ("ok", [2])
    assert "outputs of the target end with 0" in found.found


def edit_config(folder, **more) -> None:
    from model_folders import edit

    edit(folder / "tokenizer_config.json", lambda found: found | more)


@pytest.mark.parametrize(
    ("token", "word"),
    [("a\nb", r"'a\nb'"), ("\x1b[31m", r"'\x1b[31m'"), ("Ġthe", "'Ġthe'"), ("a\u202eb", r"'a\u202eb'")],
)
def test_tokens_are_shown_as_printable_words(token, word):
    assert vocabularies.shown(token) == word
