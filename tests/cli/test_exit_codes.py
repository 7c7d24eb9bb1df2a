"""The command as a shell sees it: exit codes, one line on stderr, data on stdout."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def specreplay(*args, cwd=ROOT):
    return subprocess.run(
        [sys.executable, "-m", "pipeline.cli", *map(str, args)], capture_output=True, text=True, cwd=cwd, timeout=120
    )


@pytest.fixture(scope="module")
def warehouse(tmp_path_factory):
    """A folder with a config, and a warehouse with a small token-id trace and one recorded n-gram run."""
    folder = tmp_path_factory.mktemp("cli")
    rows = [
        {
            "request_id": f"r{i}",
            "prompt_token_ids": [1, 2, 3, 4, 5, i],
            "output_token_ids": [1, 2, 3, 4, 5, 6, 7, i],
            "arrival": f"2026-11-2{3 + i % 2}T10:00:0{i}Z",
            "workload": "copy",
            "tenant": "acme" if i % 2 else None,
        }
        for i in range(6)
    ]
    (folder / "rows.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    (folder / "replay.toml").write_text(
        '[trace]\nname = "t"\n[[proposer]]\n'
        'config = { method = "ngram", num_speculative_tokens = 3, prompt_lookup_min = 2, prompt_lookup_max = 3 }\n'
    )
    house = folder / "house"
    done = specreplay("ingest", folder / "rows.jsonl", "--trace", "t", "--warehouse", house)
    assert done.returncode == 0, done.stderr
    done = specreplay("replay", folder / "replay.toml", "--warehouse", house)
    assert done.returncode == 0, done.stderr
    return folder


def test_replay_report_and_sql(warehouse):
    house = ("--warehouse", warehouse / "house")
    first = specreplay("replay", warehouse / "replay.toml", "--json", *house)
    assert first.returncode == 0, first.stderr
    result = json.loads(first.stdout.splitlines()[-1])
    again = specreplay("replay", warehouse / "replay.toml", "--json", *house)
    assert again.returncode == 0 and json.loads(again.stdout.splitlines()[-1]) == result
    report = specreplay("report", "--format", "csv", *house)
    assert report.returncode == 0 and "coverage" in report.stdout.splitlines()[0]
    rows = specreplay("sql", "SELECT requests, steps, rounds FROM proposer_summary", "--format", "json", *house)
    assert rows.returncode == 0, rows.stderr
    assert json.loads(rows.stdout)[0]["requests"] == 6
    one = specreplay("nightly", warehouse / "replay.toml", "--date", "2026-11-23", "--json", *house)
    assert one.returncode == 0, one.stderr


@pytest.mark.parametrize(
    ("args", "code", "says"),
    [
        (("replay", "none.toml"), 2, "no such config file"),
        (("report", "no-such-run"), 2, "no-such-run"),
        (("report", "--format", "xml"), 2, "xml"),
        (("sql", "SELEC 1"), 2, "SELEC"),
        (("sql", "SELECT * FROM nowhere"), 2, "nowhere"),
        (("sql",), 2, "give a statement"),
        (("ingest", "none.jsonl", "--trace", "x"), 2, "none.jsonl"),
        (("nightly", "{dir}/replay.toml", "--date", "yesterday"), 2, "yesterday"),
        (("nightly", "{dir}/replay.toml", "--date", "2020-01-01"), 2, "2020-01-01"),
    ],
)
def test_what_is_wrong_is_one_line_and_a_code(warehouse, args, code, says):
    done = specreplay(*(a.replace("{dir}", str(warehouse)) for a in args), "--warehouse", warehouse / "house")
    assert done.returncode == code, done.stderr
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert done.stdout == ""


def test_counters_need_no_warehouse(tmp_path):
    done = specreplay("counters", tmp_path / "none.txt")
    assert done.returncode == 2 and "no such file" in done.stderr


def test_a_warehouse_that_is_none(tmp_path):
    done = specreplay("report", "--warehouse", tmp_path / "nowhere")
    assert done.returncode == 2 and "nowhere" in done.stderr
    assert not (tmp_path / "nowhere").exists()


def test_doctor_and_help():
    done = specreplay("doctor", "--json")
    found = {f["subject"]: f for f in json.loads(done.stdout)}
    assert done.returncode == 0 and found.keys() >= {"python", "vllm", "gpu"}
    if "CPU build" in found["vllm"]["detail"]:
        assert "Triton" in found["runner v2"]["detail"] and found["runner v2"]["state"] == "limited"
    assert specreplay("--help").returncode == 0
    assert specreplay("no-such-command").returncode == 2


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
@pytest.mark.parametrize(
    "args", [("report",), ("report", "--json"), ("trace", "list"), ("sql", "SELECT 1"), ("doctor",)]
)
def test_a_full_disk_behind_stdout_is_one_line(warehouse, args):
    house = () if args == ("doctor",) else ("--warehouse", warehouse / "house")
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "pipeline.cli", *map(str, (*args, *house))],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            timeout=120,
        )
    assert (done.returncode, done.stderr) == (4, "specreplay: No space left on device\n")


def test_a_closed_stdout_loses_the_table_and_nothing_else(warehouse):
    command = [sys.executable, "-m", "pipeline.cli", "report", "--warehouse", str(warehouse / "house")]
    done = subprocess.run(
        ["sh", "-c", 'exec "$@" >&-', "sh", *command], stderr=subprocess.PIPE, text=True, cwd=ROOT, timeout=120
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_the_last_statement_of_a_shell_needs_no_semicolon(warehouse):
    done = subprocess.run(
        [sys.executable, "-m", "pipeline.cli", "sql", "--shell", "--format", "csv"]
        + ["--warehouse", str(warehouse / "house")],
        input="SELECT 1 AS a;\nSELECT x;\nSELECT 2 AS b",
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=120,
    )
    assert done.returncode == 0
    assert done.stdout == "a\n1\nb\n2\n"
    assert len(done.stderr.splitlines()) == 1 and '"x"' in done.stderr


def test_a_terminated_command_ends_in_order_with_143(warehouse):
    command = [sys.executable, "-m", "pipeline.cli", "sql", "--shell", "--warehouse", str(warehouse / "house")]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT
    )
    assert process.stdin and process.stdout
    process.stdin.write("SELECT 1;\n")
    process.stdin.flush()
    assert process.stdout.read(1)  # it runs: it has answered
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 143
    assert process.communicate()[1] == ""
