"""Ingest: sources in, one canonical trace out, and what was refused and why. Streams; nothing is guessed.

Files are read in order; each row becomes generations by its format; a batch of generations is tokenised at a time.
Nothing depends on batches, threads, zone or day: the same input gives the same bytes.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from pipeline.ingest import FORMATS, openai_stream, question_answers
from pipeline.ingest.columns import OURS, digest, hasher, kind, lengths, table, weight
from pipeline.ingest.files import Source, sources
from pipeline.ingest.generation import Generation, RowRefused, shown_name
from pipeline.ingest.mapping import PLAIN, Mapping
from pipeline.ingest.records import first_records, records
from pipeline.ingest.report import IngestReport
from pipeline.ingest.times import Placer
from pipeline.ingest.tokenise import Tokeniser, needs
from pipeline.seen import Seen, key
from pipeline.warehouse import Warehouse
from schemas.errors import InputError

_SNIFFED = 50
"""Records of a file that are looked at to tell whether it is a trace at all."""

_BATCH_ROWS, _BATCH_CHARS = 512, 8_000_000

AGAIN = "told again: counted once"


def ingest(
    given: Sequence[Path],
    warehouse: Warehouse,
    name: str,
    *,
    tokenizer: str | Path | None = None,
    format_: str = "auto",
    fields: Sequence[str] = (),
    keep_text: bool = False,
    timezone: str | None = None,
    hash_ids: str | None = None,
    strict: bool = False,
) -> IngestReport:
    """Read logs into the canonical trace `name`.

    Args:
        given: files, folders (walked, hive partitions taken as columns) or patterns.
        tokenizer: folder (or hub name) of the target's tokenizer; needed for text only.
        format_: a name of `pipeline.ingest.FORMATS`; "auto" = by content.
        fields: `field=path` mappings (see `mapping`).
        keep_text: keep prompt and output text beside the ids.
        timezone: IANA name for times without a zone.
        hash_ids: key; request, session and tenant names become keyed hashes.
        strict: stop at the first row that cannot be taken.

    Raises:
        InputError: a source is missing or no trace, no row could be taken, text without a tokenizer, or (strict) a row
            is refused. Nothing is written then.
        EnvironmentProblem: no tokenizer library, or the disk is full or refuses.
        LockedError: another process writes this trace.
    """
    if format_ not in ("auto", *FORMATS):
        raise InputError(f"--format {format_!r}: choose one of auto, {', '.join(FORMATS)}")
    found, passed = sources(given)
    work = _Ingest(
        IngestReport(passed_over=passed),
        Mapping(fields),
        format_,
        tokenizer,
        Placer(timezone),
        hash_ids,
        keep_text,
        strict,
    )
    try:
        return _run(work, found, given, warehouse, name)
    finally:
        work.report.refused.close()


def _run(work: "_Ingest", found: list[Source], given: Sequence[Path], warehouse: Warehouse, name: str) -> IngestReport:
    report = work.report
    taken = work.survey(found)
    report.files = len(found) - len(report.bad_files)
    rows = work.tables(work.generations(taken))
    first = next(rows, None)
    if first is None:
        if len(report.refused) or report.bad_files:
            raise InputError(_nothing_taken(given, report))
        return report
    report.trace = warehouse.write_trace(name, _chain(first, rows))
    report.notes.update({f"--map {pair}: no row has it": 1 for pair in sorted(work.mapping.unfound)})
    report.rejects_file = report.refused.commit(warehouse.root, name)
    return report


def _chain(first: pa.Table, rest: Iterator[pa.Table]) -> Iterator[pa.Table]:
    yield first
    yield from rest


def _nothing_taken(given: Sequence[Path], report: IngestReport) -> str:
    if report.bad_files:
        return report.bad_files[0] + (f" (and {len(report.bad_files) - 1} more)" if report.bad_files[1:] else "")
    names, bad = ", ".join(str(s) for s in given), report.refused.first[0]
    return f"{names}: none of {report.rows} rows could be taken; row {bad['row']}: {bad['column']}: {bad['reason']}"


@dataclass
class _Ingest:
    """One ingest under way."""

    report: IngestReport
    mapping: Mapping
    format: str
    model: str | Path | None
    placer: Placer
    hash_key: str | None
    keep_text: bool
    strict: bool
    tokeniser: Tokeniser | None = None
    questions: question_answers.Questions = field(default_factory=question_answers.Questions)
    answers: bool = False
    seen: Seen = field(default_factory=Seen)

    # Which files are traces

    def survey(self, found: list[Source]) -> list[Source]:
        """The files to read, those that are no trace told apart by their first records; questions are read already.

        Raises:
            InputError: a file given by name is no trace.
        """
        taken, asked = [], []
        for source in found:
            try:
                formats = self._sniff(source)
            except InputError as error:
                if source.named or self.strict:
                    raise
                self.report.bad_files.append(str(error))
                self.report.refused.add(source.label, None, RowRefused("(file)", "no trace", _without(error, source)))
                continue
            (asked if formats == "question" else taken).append(source)
            self.answers |= formats == "answer"
        if not self.answers:
            return taken + asked
        for source in asked:
            for row, record in records(source.path):
                self.report.rows += 1
                try:
                    if isinstance(record, RowRefused):
                        raise record
                    self.questions.add(self._dressed(record, source))
                except RowRefused as refused:
                    self._refuse(source, row, refused)
        return taken

    def _sniff(self, source: Source) -> str | None:
        """What the file holds: "question", "answer", or None for anything else that is a trace."""
        keys: list[str] = []
        read = first_records(source.path, _SNIFFED)
        for record in read:
            if not isinstance(record, dict):
                continue
            try:
                dressed = self._dressed(record, source)
            except RowRefused:
                continue
            keys = keys or list(record)
            module = self._module(dressed)
            if module is question_answers:
                return "question" if question_answers.is_question(dressed) else "answer"
            if module is not None or openai_stream.is_chunk(record):
                return None
        if keys:
            names = ", ".join(map(shown_name, keys[:8]))
            raise InputError(
                f"{source.path}: not a trace: none of its first {len(read)} rows is of a known format "
                f"(columns: {names}); name the columns with --map, for example --map prompt=PATH --map output=PATH"
            )
        return None

    def _dressed(self, record: Any, source: Source) -> dict[str, Any]:
        if not isinstance(record, dict):
            raise RowRefused("(row)", "not an object with columns")
        if source.partitions:
            record = source.partitions | {
                k: v for k, v in record.items() if v is not None or k not in source.partitions
            }
        return self.mapping.overlay(record) if self.mapping else record

    def _module(self, record: dict[str, Any]) -> Any:
        names = [self.format] if self.format != "auto" else PLAIN if self.mapping.plain else FORMATS
        return next((FORMATS[n] for n in names if FORMATS[n].matches(record)), None)

    # Rows to generations

    def generations(self, taken: list[Source]) -> Iterator[tuple[Generation | RowRefused, Source, int]]:
        """(generation or refusal, file, row) of all files, in order."""
        for source in taken:
            for row, record in openai_stream.fold(records(source.path)):
                self.report.rows += 1
                try:
                    if isinstance(record, RowRefused):
                        raise record
                    dressed = self._dressed(record, source)
                    module = self._module(dressed)
                    if module is None:
                        raise RowRefused(
                            "(row)", "of no known format" if self.format == "auto" else f"not {self.format}"
                        )
                    if module is question_answers and question_answers.is_answer(dressed):
                        dressed = dressed | {"question": self.questions.of(dressed)}
                    for made in module.generations(dressed, f"{source.label}:{row}"):
                        yield made, source, row
                except RowRefused as refused:
                    yield refused, source, row
                except (TypeError, AttributeError, KeyError, IndexError, ValueError) as error:
                    # A shape nobody foresaw costs its row, not the run.
                    yield RowRefused("(row)", "of an unexpected shape", type(error).__name__), source, row

    # Generations to tables

    def tables(self, made: Iterator[tuple[Generation | RowRefused, Source, int]]) -> Iterator[pa.Table]:
        """Rows of the canonical trace, a batch at a time; refusals and notes go to the report."""
        held: list[tuple[Generation, Source, int]] = []
        characters = 0
        for one, source, row in made:
            if isinstance(one, RowRefused):
                if self.strict and held:
                    yield from self._flush(held)  # an earlier row may be refused only now
                self._refuse(source, row, one)
                continue
            held.append((one, source, row))
            characters += weight(one)
            if len(held) == _BATCH_ROWS or characters >= _BATCH_CHARS:
                yield from self._flush(held)
                held, characters = [], 0
        yield from self._flush(held)
        if unanswered := self.answers and self.questions.unanswered:
            self.report.notes["questions without an answer: left out"] = unanswered

    def _flush(self, held: list[tuple[Generation, Source, int]]) -> Iterator[pa.Table]:
        if self.tokeniser is None:
            wanting = next(((s, row) for g, s, row in held if needs(g)), None)
            if self.model is None and wanting is not None:
                raise InputError(
                    f"{wanting[0].path}: row {wanting[1]} holds text: pass --tokenizer with the target model's folder"
                )
            if self.model is not None and held:
                self.tokeniser = Tokeniser(self.model)
        refusals = self.tokeniser.fill([g for g, _, _ in held]) if self.tokeniser else [None] * len(held)
        kept = []
        for (generation, source, row), refused in zip(held, refusals, strict=True):
            try:
                if refused is not None:
                    raise refused
                if self._finish(generation):
                    kept.append((generation, source.label, row))
            except RowRefused as reason:
                self._refuse(source, row, reason)
        if kept:
            fingerprint = self.tokeniser.fingerprint if self.tokeniser else None
            yield table(kept, fingerprint, self.keep_text, hasher(self.hash_key))

    def _finish(self, g: Generation) -> bool:
        """Place and count a generation; False when it was told before.

        Raises:
            RowRefused: another one has its name, or its prompt's length is unknown.
        """
        _, output = lengths(g)
        first = self.seen.setdefault(key(g.request_id), content := digest(g))
        if first is not None:
            if first != content:
                raise RowRefused("request_id", "another request of this trace has the same")
            self.report.notes[AGAIN] += 1
            return False
        arrival, offset, note = self.placer.place(g.arrival)
        g.arrival = arrival
        g.arrival_offset_us = offset if g.arrival_offset_us is None else g.arrival_offset_us
        if self.hash_key is not None:
            g.extra = {k: v for k, v in g.extra.items() if k in OURS}  # a number may be somebody's name
        self.report.notes.update([*g.notes, note] if note else g.notes)
        self.report.counts[kind(g, output)] += 1
        for side, ids, logged in (
            ("prompt", g.prompt_token_ids, g.logged_prompt_tokens),
            ("output", g.output_token_ids, g.logged_output_tokens),
        ):
            if ids is not None and logged is not None and logged != len(ids):
                self.report.notes[
                    f"{side} length as logged differs from the ids: another tokenizer, or text not logged"
                ] += 1
        return True

    def _refuse(self, source: Source, row: int, refused: RowRefused) -> None:
        if self.strict:
            raise InputError(f"{source.path}: row {row}: {refused}") from None
        self.report.refused.add(source.label, row, refused)


def _without(error: InputError, source: Source) -> str:
    """What is wrong with a file, without where it lies."""
    return str(error).removeprefix(f"{source.path}: ")
