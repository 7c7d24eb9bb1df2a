"""Spec-Bench and MT-bench: questions in one file, a model's answers in another, joined by `question_id`.

A later turn's prompt holds the answers before it, those of the same model and sample. Questions without any answers
file become prompts to be captured (first turns only: the later ones need an answer first).
"""

from collections.abc import Iterator
from typing import Any

from pipeline.ingest.generation import Generation, RowRefused, labels, text_field
from pipeline.ingest.times import moment
from schemas.errors import InputError


def matches(record: dict[str, Any]) -> bool:
    """Whether a row is of this format: a question, or an answer."""
    return "question_id" in record and (is_question(record) or is_answer(record))


def is_question(record: dict[str, Any]) -> bool:
    """Whether a row is a question."""
    return "question_id" in record and isinstance(record.get("turns"), list)


def is_answer(record: dict[str, Any]) -> bool:
    """Whether a row holds a model's answers."""
    choices = record.get("choices")
    return isinstance(choices, list) and bool(choices) and isinstance(choices[0], dict) and "turns" in choices[0]


class Questions:
    """The questions of all files, read before any answer. They are benchmark questions: hundreds, not millions."""

    def __init__(self) -> None:
        self._asked: dict[str, dict[str, Any]] = {}
        self._models: dict[tuple[str, str | None], str | None] = {}
        self._answered: set[str] = set()

    def add(self, record: dict[str, Any]) -> None:
        """Take in one question; the same id again must be the same question.

        Raises:
            RowRefused: two questions have one id.
        """
        key = text_field(record, "question_id") or ""
        first = self._asked.setdefault(key, record)
        if first["turns"] != record["turns"]:
            raise RowRefused("question_id", "two questions have this id")

    def of(self, record: dict[str, Any]) -> dict[str, Any]:
        """The question an answer belongs to.

        Raises:
            RowRefused: it is not there.
            InputError: another model has answered it in the same trace and tenant.
        """
        key, model = text_field(record, "question_id") or "", text_field(record, "model_id", "model")
        if key not in self._asked:
            raise RowRefused("question_id", "its question is not there: give the question file too")
        first = self._models.setdefault((key, text_field(record, "tenant")), model)
        if first != model:
            raise InputError(
                f"two models answer the same questions ({first} and {model}), and one history would let one draft for "
                "the other: ingest each as a trace of its own, or keep them apart with --map tenant=model_id"
            )
        self._answered.add(key)
        return self._asked[key]

    @property
    def unanswered(self) -> int:
        """Questions that no answer was given to."""
        return len(self._asked.keys() - self._answered)


def generations(record: dict[str, Any], fallback_id: str) -> Iterator[Generation | RowRefused]:
    """The generations of an answer that `run` has joined with its question (under `question`), or a question's prompt.

    Raises:
        RowRefused: the answer has more turns than its question, or a turn is no text.
    """
    question = record.get("question", record)
    names = labels(record)
    names["workload"] = names["workload"] or text_field(question, "category")
    names["model"] = names["model"] or text_field(record, "model_id")
    asked = question["turns"]
    if not asked or not all(isinstance(t, str) for t in asked):
        raise RowRefused("turns", "expected a list of texts")
    if not is_answer(record):
        names["session_id"] = names["session_id"] or text_field(record, "question_id")
        left = [f"later turns of questions without answers: left out ({len(asked) - 1})"] if len(asked) > 1 else []
        yield Generation(
            f"{names['session_id']}/0", **names, turn=0, messages=[{"role": "user", "content": asked[0]}], notes=left
        )
        return
    identity = text_field(record, "answer_id") or f"{text_field(record, 'question_id')}/{names['model']}"
    for position, choice in enumerate(record["choices"]):
        index = choice.get("index") if isinstance(choice.get("index"), int) else position
        session = identity if len(record["choices"]) == 1 else f"{identity}/{index}"
        yield from _choice(
            choice, index, asked, names | {"session_id": names["session_id"] or session}, session, record
        )


def _choice(
    choice: dict, index: int, asked: list[str], names: dict, session: str, record: dict
) -> Iterator[Generation | RowRefused]:
    said = choice.get("turns")
    if isinstance(said, str):
        said = [said]
    if not isinstance(said, list) or len(said) > len(asked) or not all(isinstance(t, str) for t in said):
        yield RowRefused(f"choices[{index}].turns", "expected one text per turn of the question")
        return
    history: list[dict[str, Any]] = []
    for turn, (question, answer) in enumerate(zip(asked, said, strict=False)):
        history.append({"role": "user", "content": question})
        spoken = {"role": "assistant", "content": answer}
        counted = _counted(choice, turn)
        yield Generation(
            f"{session}/{turn}",
            **names,
            turn=turn,
            sample=index,
            arrival=moment(record, "tstamp"),
            messages=list(history),
            answer=spoken,
            logged_output_tokens=counted.get("new_tokens"),
            extra=counted,
        )
        history.append(spoken)


def _counted(choice: dict[str, Any], turn: int) -> dict[str, Any]:
    """What the other tool counted for this turn. `accept_lengths` is one list over all turns, a step each, and counts
    the target's own token too: accepted = length − 1.
    """
    out: dict[str, Any] = {}
    steps = choice.get("decoding_steps")
    for key in ("new_tokens", "decoding_steps", "wall_time"):
        values = choice.get(key)
        if isinstance(values, list) and turn < len(values) and isinstance(values[turn], int | float):
            out[key] = values[turn]
    lengths = choice.get("accept_lengths")
    if isinstance(lengths, list) and isinstance(steps, list) and len(lengths) == sum(steps) and turn < len(steps):
        start = sum(steps[:turn])
        mine = lengths[start : start + steps[turn]]
        out |= {"accept_lengths": mine, "accepted": sum(mine) - len(mine)}
    return out
