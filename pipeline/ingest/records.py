"""Records of one file, streamed: JSON lines, JSON values, CSV, Parquet, event streams, YAML cassettes; told by content.

What comes out is (row from 1, record). A row that cannot be read comes as a `RowRefused` in place of its record; a file
that is none of these, or is cut, ends in an `InputError`. Memory holds a buffer and one record. Knows no log format.
"""

import codecs
import csv
import io
import json
import re
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.ingest.files import BUFFER, LIMIT, opened
from pipeline.ingest.generation import RowRefused, shown_name
from schemas.errors import InputError

_HEAD = 1 << 16
_BATCH_ROWS = 256

_decode = msgspec.json.Decoder().decode
_HALF_PAIR = re.compile(r"\\u[dD][89a-fA-F]")

Records = Iterator[tuple[int, Any]]


def records(path: Path) -> Records:
    """(row from 1, record or RowRefused) of a file.

    Raises:
        InputError: the file is empty, cut, damaged, or none of the shapes a log has.
    """
    try:
        with path.open("rb") as file:
            parquet = file.read(4) == b"PAR1"
    except OSError:
        parquet = False  # `opened` says what is wrong
    if parquet:
        yield from _parquet(path)
        return
    with opened(path) as stream:
        head = stream.peek(_HEAD)[:_HEAD]
        if head.startswith(codecs.BOM_UTF8):
            stream.read(3)
            head = head[3:]
        yield from _reader(path, head)(path, stream)


def _reader(path: Path, head: bytes):
    """Which shape the file has, by its first bytes."""
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) or b"\x00" in head[:2]:
        raise InputError(f"{path}: not UTF-8 text (UTF-16 or binary); convert it to UTF-8")
    start = head.lstrip()
    if not start:
        return _lines
    if start[:1] == b"[":
        return _values
    if start[:1] == b"{":
        return _lines if _is_lines(start) else _values
    if start.startswith((b"data:", b"event:", b": ")):
        return _events
    if re.search(rb"^interactions:", head, re.MULTILINE):
        return _yaml
    if re.match(rb"[^\x00-\x08\x0e-\x1f<]+$", start[:512].splitlines()[0]) and re.search(
        rb"[,;\t]", start.splitlines()[0]
    ):
        return _csv
    raise InputError(f"{path}: not a log: neither JSON, CSV, Parquet, an event stream nor a cassette")


def _is_lines(start: bytes) -> bool:
    """Whether `{` begins JSON lines rather than one object spread over many lines."""
    first, _, rest = start.partition(b"\n")
    if not rest.strip():
        return True
    try:
        _decode(first)
    except (msgspec.MsgspecError, RecursionError):
        return first.strip() != b"{" and rest[:1] == b"{"
    return True


def _lines(path: Path, stream: io.BufferedReader) -> Records:
    for row, line in enumerate(iter(partial(stream.readline, LIMIT), b""), 1):
        if len(line) == LIMIT:
            raise InputError(f"{path}: line {row} is longer than {LIMIT >> 20} MiB; write one record per line")
        if line.isspace():
            continue
        try:
            yield row, _decode(line)
        except (msgspec.MsgspecError, RecursionError):
            yield row, _slow_decode(line)


def _slow_decode(line: bytes) -> Any:
    """What Python's own writer puts out and JSON does not know (NaN), or a refusal that says what is wrong."""
    if b"\x00" in line:
        return RowRefused("(row)", "holds NUL bytes (a log cut by a crash?)")
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError:
        return RowRefused("(row)", "not valid UTF-8")
    try:
        record = json.loads(text)
    except (ValueError, RecursionError):
        return RowRefused("(row)", "not valid JSON")
    return _whole_characters(record, text)


def _whole_characters(record: Any, text: str) -> Any:
    """The record, unless it spells half a character."""
    if _HALF_PAIR.search(text):
        try:
            json.dumps(record, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            return RowRefused("(row)", "half a surrogate pair: not valid Unicode")
    return record


def _values(path: Path, stream: io.BufferedReader) -> Records:
    """JSON values one after the other, or the elements of one array."""
    scan = json.JSONDecoder().raw_decode
    decoder = codecs.getincrementaldecoder("utf-8")()
    text, at, row, end, array, closed = "", 0, 0, False, False, False
    size = BUFFER

    def more() -> None:
        nonlocal text, at, end, size
        if len(text) - at > LIMIT:
            raise InputError(f"{path}: element {row + 1} is longer than {LIMIT >> 20} MiB, or no JSON")
        data = stream.read(size)
        end = not data
        try:
            text, at = text[at:] + decoder.decode(data, end), 0
        except UnicodeDecodeError:
            raise InputError(f"{path}: not valid UTF-8 after element {row}") from None

    while True:
        while not (rest := _skip(text, at)) < len(text) and not end:
            at = rest
            more()
        at = rest
        if at >= len(text):
            break
        mark = text[at]
        if mark == "[" and not array and row == 0:
            array, at = True, at + 1
            continue
        if mark == "]" and array and not closed:
            closed, at = True, at + 1
            continue
        if mark == "," and row and array and not closed:
            at += 1
            continue
        if closed:
            raise InputError(f"{path}: something follows the end of the array, after element {row}")
        try:
            record, stop = scan(text, at)
        except (ValueError, RecursionError):
            if end:
                raise InputError(f"{path}: cut, or not valid JSON, in element {row + 1}") from None
            size = max(size, len(text) - at)
            more()
            continue
        row += 1
        size = BUFFER
        yield row, _whole_characters(record, text[at:stop]) if "\\u" in text[at:stop] else record
        at = stop
    if array and not closed:
        raise InputError(f"{path}: cut: the array has no end (after element {row})")


_DARK = re.compile(r"[^ \t\r\n]")


def _skip(text: str, at: int) -> int:
    dark = _DARK.search(text, at)
    return dark.start() if dark else len(text)


def _events(path: Path, stream: io.BufferedReader) -> Records:
    """The data of server-sent events."""
    for row, line in enumerate(iter(partial(stream.readline, LIMIT), b""), 1):
        data = line[5:].strip() if line.startswith(b"data:") else b""
        if not data or data == b"[DONE]":
            continue
        try:
            yield row, _decode(data)
        except (msgspec.MsgspecError, RecursionError):
            yield row, _slow_decode(data)


def _yaml(path: Path, stream: io.BufferedReader) -> Records:
    import yaml

    text = stream.read(LIMIT + 1)
    if len(text) > LIMIT:
        raise InputError(f"{path}: a cassette of more than {LIMIT >> 20} MiB")
    try:
        document = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except (yaml.YAMLError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        raise InputError(f"{path}: not valid YAML" + (f" (line {mark.line + 1})" if mark else "")) from None
    yield 1, document


def _csv(path: Path, stream: io.BufferedReader) -> Records:
    csv.field_size_limit(LIMIT)
    first = stream.peek(_HEAD).splitlines()[0]
    delimiter = max((",", ";", "\t"), key=lambda d: first.count(d.encode()))
    with io.TextIOWrapper(stream, "utf-8", errors="surrogateescape", newline="") as text:
        yield from _csv_rows(path, text, delimiter)


def _csv_rows(path: Path, text: io.TextIOWrapper, delimiter: str) -> Records:
    rows = csv.reader(text, delimiter=delimiter, strict=True)
    try:
        header = next(rows)
        _refuse_repeated(path, header)
        for row, cells in enumerate(rows, 1):
            if not cells:
                continue
            joined = "".join(cells)
            if len(cells) != len(header):
                yield row, RowRefused("(row)", "other than the header in its number of cells", f"{len(cells)}")
            elif "\x00" in joined:
                yield row, RowRefused("(row)", "holds NUL bytes (a log cut by a crash?)")
            elif not joined.isascii() and any("\udc80" <= c <= "\udcff" for c in joined):
                yield row, RowRefused("(row)", "not valid UTF-8")
            else:
                yield row, dict(zip(header, cells, strict=True))
    except csv.Error as error:
        raise InputError(f"{path}: cut, or not valid CSV, at line {rows.line_num} ({error})") from None


def _refuse_repeated(path: Path, names: list[str]) -> None:
    if twice := sorted({n for n in names if names.count(n) > 1}):
        raise InputError(f"{path}: two columns are called {shown_name(twice[0])!r}: which one is meant is not clear")


def _parquet(path: Path) -> Records:
    try:
        with pq.ParquetFile(path, page_checksum_verification=True, pre_buffer=False) as parquet:
            names = parquet.schema_arrow.names
            _refuse_repeated(path, names)
            row = 0
            for batch in parquet.iter_batches(_BATCH_ROWS):
                columns = [_column(array) for array in batch.columns]
                for values in zip(*columns, strict=True):
                    row += 1
                    yield row, dict(zip(names, values, strict=True))
    except (pa.ArrowException, OSError, ValueError, NotImplementedError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise InputError(f"{path}: not a readable Parquet file ({reason})") from None


def _column(array: pa.Array) -> list:
    """Values of a column; lists of numbers as numpy arrays, nanoseconds cut to microseconds."""
    kind = array.type
    if pa.types.is_timestamp(kind) and kind.unit == "ns":
        return array.cast(pa.timestamp("us", tz=kind.tz), safe=False).to_pylist()
    lists = pa.types.is_list(kind) or pa.types.is_large_list(kind)
    if lists and (pa.types.is_integer(kind.value_type) or pa.types.is_floating(kind.value_type)):
        flat = array.flatten()
        if not flat.null_count:
            numbers = flat.to_numpy(zero_copy_only=False)
            ends = np.cumsum(array.value_lengths().fill_null(0).to_numpy(zero_copy_only=False))
            starts = [0, *ends[:-1].tolist()]
            there = array.is_valid().to_pylist()
            return [numbers[a:b] if ok else None for a, b, ok in zip(starts, ends.tolist(), there, strict=True)]
    return array.to_pylist()


def first_records(path: Path, count: int) -> list[Any]:
    """The first records of a file, refusals left out.

    Raises:
        InputError: as `records`.
    """
    with closing(records(path)) as read:  # ty: ignore[invalid-argument-type]
        return [record for _, record in islice(read, count) if not isinstance(record, RowRefused)]
