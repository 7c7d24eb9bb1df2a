"""Traces in the warehouse: canonical rows in immutable Parquet parts and one commit object written last.

A trace is named once: the same rows under the same name are a no-op, other rows are refused. Rows are addressed by
position (source order). Knows nothing of runs and of where rows came from.
"""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import chain, islice
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline import commit, parquet, remote, seen
from schemas.errors import InputError
from schemas.tables import SCHEMA_VERSION, TRACE, TRACE_WITH_TEXT

GROUP_ROWS = 1024
"""Rows per row group: what a unit of work has to read at least, some MB of ids."""
PART_GROUPS = 64
"""Row groups per file."""


@dataclass(frozen=True)
class TraceInfo:
    """What the commit object of a trace says. `…_tokens` are sums of lengths."""

    name: str
    fingerprint: str
    """Hash over the rows' content and order, whatever files hold them."""
    requests: int
    with_prompts: int
    """Requests that hold prompt ids."""
    with_outputs: int
    """Requests that hold output ids."""
    with_tails: int
    """Requests that hold what the target would have said past the end."""
    prompt_tokens: int
    output_tokens: int
    files: tuple[dict, ...]
    """{path (below the warehouse), sha256, rows} of each part, in row order."""
    origin: str | None = None
    """What made it, where that was stated: the same origin need not be made again."""


def write(root: Path, name: str, batches: Iterable[pa.Table], origin: str | None = None) -> TraceInfo:
    """Commit canonical rows as trace `name`; memory holds one row group at a time.

    Args:
        root: folder of the warehouse.
        name: letters, digits, dot, dash, underscore.
        batches: tables with the columns of `schemas.tables.TRACE` (or, all of them, `TRACE_WITH_TEXT`), in row order.
        origin: see `TraceInfo`.

    Raises:
        InputError: the name holds other rows already, a request id comes twice, a needed value is NULL, or no rows.
        EnvironmentProblem: the disk is full or refuses.
    """
    folder = root / "traces" / commit.safe_name("trace", name)
    commit.sweep(folder)
    batches = iter(batches)
    ahead = list(islice(batches, 1))
    schema = TRACE_WITH_TEXT if ahead and "prompt_text" in ahead[0].column_names else TRACE
    tally = _Tally(schema)
    files: list[dict] = []
    groups = tally.over(_regroup(chain(ahead, batches), schema, GROUP_ROWS))
    try:
        while (first := next(groups, None)) is not None:
            part = parquet.write_parquet(
                folder, f"part-{len(files):05d}", _part(first, groups), schema, delta={"source_row"}
            )
            files.append({"path": str(part.path.relative_to(root)), "sha256": part.sha256, "rows": part.rows})
    except BaseException:
        commit.drop(root, files, commit.read_json(root / _commit_name(name)))
        raise
    if not files:
        raise InputError(f"trace {name}: no rows to write")
    info = TraceInfo(name=name, fingerprint=tally.fingerprint(), files=tuple(files), origin=origin, **tally.counts)
    document = {"schema_version": SCHEMA_VERSION, **asdict(info), "files": files}
    there = commit.create_json(root, _commit_name(name), document)
    if there is None:
        return info
    commit.drop(root, files, there)
    if there["fingerprint"] != info.fingerprint:
        raise InputError(
            f"trace {name} exists with other content ({there['requests']} requests; these are {info.requests}): "
            "take another name"
        )
    return _info(there)


def info(root: Path, name: str) -> TraceInfo:
    """The trace's commit object.

    Raises:
        InputError: no such trace; lists those that exist.
    """
    document = commit.read_known(root / _commit_name(commit.safe_name("trace", name)))
    if document is None:
        there = [trace.name for trace in infos(root)]
        known = f"there are: {', '.join(there)}" if there else "the warehouse holds none yet; ingest one first"
        raise InputError(f"no trace {name!r} in {remote.shown(root)}; {known}")
    return _info(document)


def infos(root: Path) -> list[TraceInfo]:
    """All traces, by name."""
    documents = (commit.read_known(path) for path in sorted(root.glob("_commits/trace=*/trace.json")))
    return [_info(document) for document in documents if document is not None]


def read(
    root: Path, name: str, columns: Sequence[str] | None = None, rows: Sequence[int] | np.ndarray | None = None
) -> pa.Table:
    """Rows of a trace with the types of `schemas.tables.TRACE`.

    Args:
        root: folder of the warehouse.
        name: of the trace.
        columns: names, in the order wanted; None = all.
        rows: positions, from 0, in the order wanted; only the row groups that hold them are read. None = all.

    Raises:
        InputError: no such trace, or one of its files is missing or damaged (names the file).
    """
    schema = TRACE if columns is None else pa.schema([TRACE_WITH_TEXT.field(c) for c in columns])
    wanted = None if rows is None else np.unique(np.asarray(rows, np.int64))
    parts, start = [], 0
    for file in info(root, name).files:
        try:
            opened = pq.ParquetFile(root / file["path"])
            for i in range(opened.num_row_groups):
                n = opened.metadata.row_group(i).num_rows
                if wanted is None:
                    parts.append(opened.read_row_group(i, columns=schema.names).select(schema.names))
                else:
                    low, high = np.searchsorted(wanted, [start, start + n])
                    if high > low:
                        group = opened.read_row_group(i, columns=schema.names).select(schema.names)
                        parts.append(group.take(pa.array(wanted[low:high] - start)))
                start += n
        except (OSError, pa.ArrowException) as error:
            problem = "is missing" if isinstance(error, FileNotFoundError) else f"is damaged ({type(error).__name__})"
            raise InputError(f"trace {name}: {root / file['path']} {problem}; ingest the trace again") from None
    table = pa.concat_tables([part.cast(schema) for part in parts]) if parts else schema.empty_table()
    if rows is None or wanted is None:
        return table
    return table.take(pa.array(np.searchsorted(wanted, np.asarray(rows, np.int64))))


def _commit_name(name: str) -> str:
    return f"_commits/trace={name}/trace.json"


def _info(document: dict) -> TraceInfo:
    fields: dict = {key: document.get(key) for key in TraceInfo.__dataclass_fields__}
    fields["files"] = tuple(fields["files"])
    return TraceInfo(**fields)


def _regroup(batches: Iterable[pa.Table], schema: pa.Schema, size: int) -> Iterator[pa.Table]:
    """Tables of exactly `size` rows (the last may be shorter), so that files do not depend on the batches."""
    held: list[pa.Table] = []
    count = 0
    for batch in batches:
        batch = _canonical(batch, schema)
        while batch.num_rows:
            piece = batch.slice(0, size - count)
            batch = batch.slice(piece.num_rows)
            held.append(piece)
            count += piece.num_rows
            if count == size:
                yield pa.concat_tables(held)
                held, count = [], 0
    if held:
        yield pa.concat_tables(held)


def _canonical(batch: pa.Table, schema: pa.Schema) -> pa.Table:
    table = batch.select(schema.names)
    for field in schema:
        if not field.nullable and table.column(field.name).null_count:
            row = table.column(field.name).is_null().to_pylist().index(True) + 1
            raise InputError(f"row {row} of the batch: {field.name} is missing")
    return table.cast(schema)


def _part(first: pa.Table, groups: Iterator[pa.Table]) -> Iterator[pa.Table]:
    yield first
    for _, group in zip(range(PART_GROUPS - 1), groups, strict=False):
        yield group


class _Tally:
    """Counts and fingerprint of rows as they pass: one running hash per column for NULLs, lengths and values."""

    def __init__(self, schema: pa.Schema) -> None:
        self.counts = dict.fromkeys(
            ("requests", "with_prompts", "with_outputs", "with_tails", "prompt_tokens", "output_tokens"), 0
        )
        self._hashes = {field.name: [hashlib.sha256() for _ in range(3)] for field in schema}
        self._seen = seen.Seen()

    def over(self, groups: Iterable[pa.Table]) -> Iterator[pa.Table]:
        for group in groups:
            self._count(group)
            for name, hashes in self._hashes.items():
                for running, piece in zip(hashes, _pieces(group.column(name).combine_chunks()), strict=True):
                    running.update(piece)
            yield group

    def fingerprint(self) -> str:
        whole = hashlib.sha256()
        for name, hashes in self._hashes.items():
            whole.update(name.encode())
            for running in hashes:
                whole.update(running.digest())
        return whole.hexdigest()[:16]

    def _count(self, group: pa.Table) -> None:
        for request_id in group.column("request_id").to_pylist():
            if self._seen.setdefault(seen.key(request_id)) is not None:
                raise InputError(f"request id {request_id!r} comes twice: ids must be unique within a trace")
        self.counts["requests"] += group.num_rows
        for key, column in (("with_prompts", "prompt"), ("with_outputs", "output"), ("with_tails", "tail")):
            ids = group.column(f"{column}_token_ids")
            self.counts[key] += len(ids) - ids.null_count
        for key in ("prompt_tokens", "output_tokens"):
            self.counts[key] += int(group.column(key).fill_null(0).to_numpy().sum(dtype=np.int64))


def _pieces(array: pa.Array) -> tuple[bytes, bytes, bytes]:
    """(which are there, lengths, values) as bytes that depend on content alone."""
    there = array.is_valid().cast(pa.uint8()).to_numpy(zero_copy_only=False).tobytes()
    if pa.types.is_list(array.type):
        lengths = array.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
        return there, lengths.astype("<i8").tobytes(), array.flatten().to_numpy(zero_copy_only=False).tobytes()
    if pa.types.is_string(array.type):
        values = [value.encode() for value in array.fill_null("").to_pylist()]
        return there, np.array([len(v) for v in values], "<i8").tobytes(), b"".join(values)
    numbers = array.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
    return there, b"", numbers.astype("<i8").tobytes()
