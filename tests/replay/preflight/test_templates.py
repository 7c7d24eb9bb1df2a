"""Chat templates compared on our own dialogues; the demo models' template is real, changed in one place each."""

import pytest
from model_folders import DEMO, copy

from replay.preflight.folder import model
from replay.preflight.templates import DIALOGUES, templates, words
from schemas.errors import InputError

TARGET = words(model(str(DEMO / "target")))


def draft(tmp_path, template: str | None):
    folder = copy(tmp_path / "draft", without=("chat_template.jinja",))
    if template is not None:
        (folder / "chat_template.jinja").write_text(template)
    return words(model(str(folder)))


def test_one_template():
    (found,) = templates("mine", TARGET, words(model(str(DEMO / "draft"))), by_ids=True)
    assert (found.level, found.found) == ("ok", "4 of 4 sample dialogues give the same ids")


def test_the_dialogues_reach_every_branch():
    """A system prompt, a second turn and a tool call must show in what the demo template makes."""
    rendered = {
        name: TARGET.tokenizer.apply_chat_template(d, tokenize=False, add_generation_prompt=True)
        for name, d in DIALOGUES.items()
    }
    assert "Answer in one word." in rendered["system prompt"]
    assert rendered["several turns"].count("<|im_start|>") == 4
    assert "<tool_call>" in rendered["tool call"] and "celsius" in rendered["tool call"]


def test_no_template_on_the_draft_is_fine(tmp_path):
    (found,) = templates("mine", TARGET, draft(tmp_path, None), by_ids=True)
    assert found.level == "ok" and "the draft has none" in found.found


def test_no_template_on_the_target_is_fine(tmp_path):
    (found,) = templates("mine", draft(tmp_path, None), TARGET, by_ids=True)
    assert found.level == "ok" and "the target has none" in found.found


@pytest.mark.parametrize("by_ids", [True, False])
def test_the_first_difference_is_shown(tmp_path, by_ids):
    text = (DEMO / "target" / "chat_template.jinja").read_text()
    other = draft(tmp_path, "{# no line break behind a role #}" + text.replace("'\\n'", "' '"))
    (found,) = templates("mine", TARGET, other, by_ids=by_ids)
    assert found.level == "warning"
    first = DIALOGUES["one question"]
    ours, theirs = (
        side.tokenizer.apply_chat_template(first, tokenize=by_ids, add_generation_prompt=True)
        for side in (TARGET, other)
    )
    if by_ids:
        ours, theirs = ours["input_ids"], theirs["input_ids"]
    at = next(i for i in range(len(ours)) if ours[i] != theirs[i])
    assert f"4 of 4 sample dialogues differ: 'one question' differs at position {at}:" in found.found
    if by_ids:
        assert f": {ours[at]} " in found.found and f", {theirs[at]} " in found.found


def test_a_dialogue_that_one_template_refuses(tmp_path):
    text = "{% if messages[0].role == 'system' %}{{ raise_exception('no system prompt') }}{% endif %}"
    (found,) = templates(
        "mine", TARGET, draft(tmp_path, text + (DEMO / "target" / "chat_template.jinja").read_text()), by_ids=True
    )
    assert found.level == "warning"
    assert "1 of 4 sample dialogues differ: 'system prompt' differs (the draft's template refuses it)" in found.found


def test_a_broken_tokenizer_is_one_line(tmp_path):
    folder = copy(tmp_path / "draft")
    (folder / "tokenizer.json").write_text('{"version": ')
    with pytest.raises(InputError) as error:
        words(model(str(folder)))
    assert "\n" not in str(error.value) and "no tokenizer can be loaded" in str(error.value)
