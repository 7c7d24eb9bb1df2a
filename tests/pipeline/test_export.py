"""What is exported, read back by another reader, is what the step tuples count and what the views say."""

import csv
import os
import subprocess
import sys
from pathlib import Path

import duckdb
import pyarrow.parquet as pq
import pytest
from logged_runs import commit, random_run

from pipeline import export as module
from pipeline.export import export
from pipeline.views import connect, query
from pipeline.warehouse import Warehouse
from schemas.errors import EnvironmentProblem, InputError
from schemas.tables import RUN_TABLES

RUN = random_run(3, requests=12, live=True)


@pytest.fixture(scope="module")
def house(tmp_path_factory) -> Warehouse:
    warehouse = Warehouse(tmp_path_factory.mktemp("made") / "wh 'quoted'")
    commit(warehouse, "first", RUN)
    commit(warehouse, "second", random_run(4, requests=7))
    return warehouse


def counted() -> dict[tuple[str, str], tuple[int, int]]:
    """(verified steps, real candidates) by proposer and workload of the first run, from the tuples."""
    out: dict[tuple[str, str], tuple[int, int]] = {}
    for proposer, requests in RUN.requests.items():
        for r in requests:
            steps = r.emitted if proposer == "none" else len(r.verified)
            before = out.get((proposer, r.workload), (0, 0))
            out[proposer, r.workload] = (before[0] + steps, before[1] + sum(s.proposed for s in r.verified))
    return out


def test_parquet(house, tmp_path):
    made = export(house, tmp_path / "out.parquet", views=["workload_summary"])
    rows = [r for r in pq.read_table(made.dest).to_pylist() if r["run"] == "first"]
    assert {(r["proposer"], r["workload"]): (r["steps"], r["drafted"]) for r in rows} == counted()
    assert made.rows == {"workload_summary": pq.read_table(made.dest).num_rows}


def test_csv(house, tmp_path):
    made = export(house, tmp_path / "out.CSV", views=["workload_summary"])
    with made.dest.open(newline="", encoding="utf-8") as file:
        rows = [r for r in csv.DictReader(file) if r["run"] == "first"]
    assert {(r["proposer"], r["workload"]): (int(r["steps"]), int(r["drafted"])) for r in rows} == counted()
    nothing = [r for r in rows if r["proposer"] == "none"]
    assert {(r["coverage"], r["acceptance_rate"]) for r in nothing} == {("0.0", "")}  # no drafts: no rate, not 0


def test_integers_keep_their_digits(house, tmp_path):
    made = export(house, tmp_path / "out.csv", views=["request_summary"])
    assert "9007199254740993," in made.dest.read_text("utf-8")


def test_a_duckdb_file_holds_every_view_and_needs_the_warehouse_no_more(house, tmp_path):
    made = export(house, tmp_path / "out.duckdb")
    con = connect(house)
    views = query(con, "SELECT view_name FROM duckdb_views() WHERE schema_name = 'main' AND NOT internal")
    assert set(made.rows) == set(views.column(0).to_pylist())
    with duckdb.connect(str(made.dest), read_only=True) as file:
        file.execute("SET TimeZone = 'UTC'")
        assert file.execute("SELECT count(*) FROM duckdb_views() WHERE NOT internal").fetchall() == [(0,)]
        for name, rows in made.rows.items():
            ours = query(con, f'SELECT * FROM "{name}"').to_pylist()
            theirs = file.sql(f'SELECT * FROM "{name}"').to_arrow_table().to_pylist()
            assert len(ours) == rows
            assert sorted(map(repr, theirs)) == sorted(map(repr, ours))
    assert [path.name for path in tmp_path.iterdir()] == ["out.duckdb"]


def test_tables_are_as_committed(house, tmp_path):
    made = export(house, tmp_path / "out.parquet", tables=["decode_steps"])
    rows = pq.read_table(made.dest)
    assert rows.column_names == ["run", *RUN_TABLES["decode_steps"].names]
    assert rows.num_rows == sum(pq.read_metadata(path).num_rows for path in house.files("decode_steps"))
    both = export(house, tmp_path / "out.duckdb", tables=["decode_steps"], views=["decode_steps"])
    assert set(both.rows) == {"decode_steps", "files_decode_steps"}


def test_delta(house, tmp_path):
    deltalake = pytest.importorskip("deltalake")
    made = export(house, tmp_path / "out", views=["workload_summary"], format_="delta")
    rows = [r for r in deltalake.DeltaTable(made.dest).to_pyarrow_table().to_pylist() if r["run"] == "first"]
    assert {(r["proposer"], r["workload"]): (r["steps"], r["drafted"]) for r in rows} == counted()
    for name in RUN_TABLES:
        again = export(house, tmp_path / "out", tables=[name], format_="delta")  # a new version, other columns
        table = deltalake.DeltaTable(made.dest).to_pyarrow_table()
        assert table.num_rows == again.rows[name]
        assert table.column_names == ["run", *RUN_TABLES[name].names]
    export(house, tmp_path / "info", views=["run_info"], format_="delta")
    runs = deltalake.DeltaTable(tmp_path / "info").to_pyarrow_table().column("run").to_pylist()
    assert sorted(runs) == ["first", "second"]


def test_delta_is_an_option(house, tmp_path, monkeypatch):
    monkeypatch.setattr(module.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(
        EnvironmentProblem, match=r"^--format delta needs deltalake: pip install 'specreplay\[delta\]'$"
    ):
        export(house, tmp_path / "out", views=["run_info"], format_="delta")


def test_an_export_is_replaced_whole(house, tmp_path):
    dest = tmp_path / "out.parquet"
    export(house, dest, views=["run_info"])
    export(house, dest, views=["workload_summary"])
    assert "workload" in pq.read_table(dest).column_names
    assert [path.name for path in tmp_path.iterdir()] == ["out.parquet"]


@pytest.mark.parametrize(
    ("dest", "asked", "says"),
    [
        ("out.xlsx", {}, r"end it with \.parquet, \.csv, \.duckdb, or give --format \(parquet, csv, duckdb, delta\)"),
        ("out.csv", {}, r"csv holds one table: give one --view \(.*proposer_summary.*\) or one --table \(decode_steps"),
        ("out.csv", {"views": ["run_info"], "tables": ["requests"]}, "csv holds one table"),
        ("out.csv", {"views": ["nope"]}, "no view 'nope'; there are: .*cost_summary"),
        ("out.csv", {"tables": ["proposer_summary"]}, "no table 'proposer_summary'; there are: decode_steps"),
        ("out.csv", {"format_": "avro"}, "--format 'avro': choose one of parquet, csv, duckdb, delta"),
        ("folder.csv", {"views": ["run_info"]}, "there is a folder of that name"),
    ],
)
def test_what_cannot_be_exported(house, tmp_path, dest, asked, says):
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(InputError, match=says):
        export(house, tmp_path / dest, **asked)
    assert [path.name for path in tmp_path.rglob("*")] == ["folder.csv"]


def test_not_into_the_warehouse(house):
    before = sorted(house.root.rglob("*"))
    with pytest.raises(InputError, match="lies in the warehouse"):
        export(house, house.root / "decode_steps" / "out.parquet", views=["run_info"])
    assert sorted(house.root.rglob("*")) == before


def test_a_damaged_file_is_one_line_and_no_export(tmp_path):
    house = Warehouse(tmp_path / "wh")
    commit(house, "r", random_run(4, requests=7))
    Path(house.files("requests")[0]).unlink()
    (tmp_path / "out").mkdir()
    with pytest.raises((InputError, EnvironmentProblem)) as said:
        export(house, tmp_path / "out" / "x.duckdb")
    assert "\n" not in str(said.value)
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize("name", ["out.parquet", "out.csv", "out.duckdb", "out"])
def test_a_full_disk(house, tmp_path, name):
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", disk], capture_output=True).returncode:
        pytest.skip("needs the right to mount a tmpfs")
    (disk / "ballast").write_bytes(bytes(12 << 10))
    try:
        asked = {"views": ["decode_steps"], "format_": "delta" if name == "out" else None}
        with pytest.raises(EnvironmentProblem, match=r"^no space left on disk while writing .*; free some and run"):
            export(house, disk / name, **asked)
        assert [path.name for path in disk.iterdir()] == ["ballast"]
    finally:
        subprocess.run(["umount", disk], check=True)


@pytest.mark.parametrize("kind", ["pipe", "link"])
def test_what_is_no_file_is_not_replaced(house, tmp_path, kind):
    place, real = tmp_path / "out.csv", tmp_path / "real.csv"
    if kind == "pipe":
        os.mkfifo(place)
        with pytest.raises(InputError, match="device or pipe"):
            export(house, place, views=["run_info"])
        assert place.is_fifo()
    else:
        place.symlink_to(real)
        export(house, place, views=["run_info"])
        assert place.is_symlink() and len(real.read_text().splitlines()) == 3


def test_the_command(house, tmp_path):
    command = [sys.executable, "-m", "pipeline.cli", "export", str(tmp_path / "out.csv"), "--view", "run_info"]
    done = subprocess.run(
        [*command, "--warehouse", str(house.root), "--json"],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])},
        check=True,
    )
    assert '"rows": {"run_info": 2}' in done.stdout
