"""Rows on stdout in each format: what a reader of that format gets back is what the query said."""

import csv
import io
import json

import duckdb
import pyarrow.parquet as pq
import pytest

from pipeline.output import print_table, write
from schemas.errors import InputError


def rows(sql):
    return duckdb.sql(sql).to_arrow_table()


def test_columns_of_one_name_keep_their_own_values(capsys):
    table = rows("SELECT 1 AS a, 2 AS a, 3 AS a_1, 4 AS a")
    write(table, "json")
    assert list(json.loads(capsys.readouterr().out)[0].values()) == [1, 2, 3, 4]
    write(table, "csv")
    names, values = csv.reader(io.StringIO(capsys.readouterr().out))
    assert values == ["1", "2", "3", "4"] and len(set(names)) == 4
    for format_ in ("table", "markdown"):
        write(table, format_)
        assert [word for word in capsys.readouterr().out.split() if word.isdigit()] == ["1", "2", "3", "4"]


def test_json_has_no_nan(capsys):
    write(rows("SELECT 'NaN'::DOUBLE AS n, ['inf'::DOUBLE, 1.5] AS l, {'x': '-inf'::DOUBLE} AS s"), "json")

    def refuse(word):
        raise AssertionError(f"{word} is no JSON")

    assert json.loads(capsys.readouterr().out, parse_constant=refuse) == [
        {"n": None, "l": [None, 1.5], "s": {"x": None}}
    ]


def test_parquet_is_whole_or_one_line(capfdbinary, monkeypatch):
    write(rows("SELECT 1 AS a, 2 AS a"), "parquet")
    read = pq.read_table(io.BytesIO(capfdbinary.readouterr().out))
    assert list(read.to_pylist()[0].values()) == [1, 2]
    with pytest.raises(InputError, match=r"parquet: .*cast the column"):
        write(rows("SELECT INTERVAL 1 DAY AS i"), "parquet")
    assert capfdbinary.readouterr().out == b""


def test_a_name_stays_on_its_line_and_cannot_speak_to_the_terminal(capsys):
    table = rows("SELECT 'a' || chr(10) || '|b' || chr(27) || '[31m' AS name, 1 AS n")
    for format_ in ("table", "markdown"):
        write(table, format_)
        said = capsys.readouterr().out
        assert "\x1b" not in said and len(said.strip().splitlines()) == {"table": 2, "markdown": 3}[format_]
        assert "a\\n" in said and "b\\x1b[31m" in said
    write(table, "csv")
    assert list(csv.reader(io.StringIO(capsys.readouterr().out)))[1] == ["a\n|b\x1b[31m", "1"]


@pytest.mark.parametrize("count", [0, 1, 9_999, 10_000, 10_001, 30_000])
def test_rows_are_written_in_pieces_as_one(capsys, count):
    table = rows(f"SELECT range AS a, 'x' AS b FROM range({count})")
    wanted = [{"a": i, "b": "x"} for i in range(count)]
    write(table, "json")
    assert json.loads(capsys.readouterr().out) == wanted
    write(table, "csv")
    assert [{**row, "a": int(row["a"])} for row in csv.DictReader(io.StringIO(capsys.readouterr().out))] == wanted


def test_a_narrow_terminal_cuts_no_number(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "20")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    row = {"position": 1_234_567, "candidates": "1130 338 548 299", "name": "x" * 60}
    print_table(row, [row])
    shown = capsys.readouterr().out
    assert "1,234,567" in shown
    assert {word for word in shown.split() if word.isdigit()} == {"1130", "338", "548", "299"}
    plain = [line for line in shown.splitlines() if "\x1b" not in line]
    assert max(map(len, plain)) <= 9 + 10 + 24 + 4  # long words are still cut
