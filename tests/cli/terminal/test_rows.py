"""Rows for other programs, results that come as soon as they are known, and what a terminal gets of very many rows."""

from __future__ import annotations

import csv
import io
import json
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import numpy as np
import pytest

from edl_ckpt.cli.render import get as render_get
from edl_ckpt.cli.render import listing as render_list
from edl_ckpt.cli.render import shared_tables
from edl_ckpt.cli.render import verify as render_verify
from edl_ckpt.cli.terminal import tables
from edl_ckpt.cli.terminal.csv_rows import as_csv
from edl_ckpt.cli.terminal.output import Output
from edl_ckpt.cli.terminal.tables import Column, Table
from edl_ckpt.core import list_versions, look_up, save_checkpoint, verify_version
from edl_ckpt.core.commit.repair.recovery import location_lock
from edl_ckpt.core.operations.save import Table as Rows
from edl_ckpt.core.storage import Location
from program import PROGRAM, document, edl

BOTH = ("--csv", "--jsonl")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Return a location with versions 10, 20 and 30; a shard of 20 is missing."""
    for number in (10, 20, 30):
        tables = {"t": Rows(np.arange(9), np.full((9, 2), number, np.float32))}
        save_checkpoint(str(tmp_path / "run"), number, 3, variables={"v": np.array([1.0, 0.0])}, tables=tables)
    (tmp_path / "run/version_20").joinpath(os.listdir(tmp_path / "run/version_20")[0]).unlink()
    return tmp_path / "run"


def as_text(key: str, value: Any) -> str:
    """Return a value of JSON as it stands in CSV."""
    if isinstance(value, list):
        return {"reasons": "; ", "shape": "x"}.get(key, " ").join(map(str, value))
    return "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def rows_of(*words: str | Path, code: int = 0) -> list[dict[str, Any]]:
    """Return the rows of a command, after a comparison of both forms."""
    found = []
    for option in BOTH:
        done = edl(*words, option)
        assert done.returncode == code, done.stderr
        found.append(done.stdout)
    lines = [json.loads(line) for line in found[1].splitlines()]
    read = list(csv.DictReader(io.StringIO(found[0])))
    texts = [{key: as_text(key, value) for key, value in row.items()} for row in lines]
    plain = {"NaN": "nan", "Infinity": "inf", "-Infinity": "-inf"}
    assert [{k: plain.get(v, v) for k, v in row.items()} for row in texts] == read
    return lines


def test_every_plan_and_listing(place: Path) -> None:
    """inspect, prune and copy print their rows as CSV and as JSON lines."""
    tensors = rows_of("inspect", f"{place}@10", "--stats")
    assert [(row["kind"], row["name"], row["shape"], row["zeros"]) for row in tensors] == [
        ("variable", "v", [2], 1),
        ("table", "t", [9, 2], 0),
    ]
    plan = rows_of("prune", place, "--keep", "1", "--dry-run")
    assert {(row["version"], row["action"]) for row in plan} == {(10, "delete"), (20, "keep"), (30, "keep")}
    assert all(isinstance(row["reasons"], list) for row in plan)
    listed = rows_of("list", place)
    assert [(row["missing"], row["tags"], row["uuid"]) for row in listed] == [
        ([], [], None),
        (ANY, [], None),
        ([], [], None),
    ]
    assert len(listed[1]["missing"]) == 1
    assert [(row["sealed"], row["fault"]) for row in listed] == [(True, None), (False, None), (True, None)]
    assert [r["version"] for r in rows_of("prune", place, "--keep", "1", "--dry-run", "--list", "deleted")] == [10]
    copied = rows_of("copy", f"{place}@10", place.parent / "new", "--dry-run")
    assert [(row["skipped"], row["to"]) for row in copied] == [(False, f"{place.parent / 'new'}@10")]
    done = edl("copy", f"{place}@10", place.parent / "new", "--jsonl")
    assert json.loads(done.stdout)["fingerprint"] == list_versions(str(place)).versions[0].fingerprint


def test_metadata_and_imported_metrics(place: Path, tmp_path: Path) -> None:
    """Metadata is a row for each key, its value JSON in CSV; an import of metrics is one for each value."""
    values = {"beta": [0.9, 0.999], "lr": 0.05, "on": True, "owner": "ads, search", "void": None}
    words = [f"{key}={json.dumps(value)}" for key, value in values.items()]
    assert edl("metadata", "set", f"{place}@10", *words).returncode == 0
    lines = [json.loads(line) for line in edl("metadata", "show", f"{place}@10", "--jsonl").stdout.splitlines()]
    assert lines == [{"ref": f"{place}@10", "version": 10, "key": k, "value": v} for k, v in values.items()]
    read = csv.DictReader(io.StringIO(edl("metadata", "show", f"{place}@10", "--csv").stdout))
    assert {row["key"]: json.loads(row["value"]) for row in read} == values

    (tmp_path / "metrics.csv").write_text("version,metric,value\n10,auc,0.75\n30,auc,0.5\n30,loss,2\n")
    assert edl("metrics", "set", f"{place}@30", "loss=9").returncode == 0
    rows = rows_of("metrics", "import", tmp_path / "metrics.csv", place, "--dry-run")
    assert [[row[key] for key in ("version", "step", "metric", "value", "replaced")] for row in rows] == [
        [10, 10, "auc", 0.75, None],
        [30, 30, "auc", 0.5, None],
        [30, 30, "loss", 2.0, 9.0],
    ]


def test_one_format(place: Path) -> None:
    """Two formats on the command line are a usage error; one there wins over the environment."""
    for first, second in (("--json", "--csv"), ("--csv", "--jsonl"), ("--json", "--jsonl")):
        done = edl("list", place, second, first)
        assert (done.returncode, done.stdout) == (2, "")
        assert f"{second} cannot be used with {first}" in done.stderr
    assert edl("list", place, "--csv", EDL_CKPT_JSON="1").stdout.startswith("location,version,")
    assert "schema" in json.loads(edl("list", place, "--json", EDL_CKPT_CSV="1").stdout)


def test_findings(place: Path) -> None:
    """`verify --csv` prints a row for each finding; `--jsonl` the document of each version."""
    found = list(csv.DictReader(io.StringIO(edl("verify", place, "--all", "--csv").stdout)))
    codes = {"missing-shard", "checksum-mismatch"}
    assert {(row["ref"], row["code"]) for row in found} == {(f"{place}@20", code) for code in codes}
    done = edl("verify", place, "--all", "--jsonl", "--deep")
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(line["schema"], line["ref"], line["ok"]) for line in lines] == [
        ("edl-ckpt/verify/1", f"{place}@{number}", number != 20) for number in (10, 20, 30)
    ]
    assert done.returncode == 3
    whole = document("verify", place, "--all", "--deep", code=3)
    timed = [{key: value for key, value in line.items() if key not in {"schema", "checks"}} for line in lines]
    assert timed == [{key: value for key, value in each.items() if key != "checks"} for each in whole["results"]]


def test_versions_that_cannot_be_verified(place: Path) -> None:
    """A version that cannot be verified is a line of its own, and the others follow."""
    seal = next(place.rglob("10.seal.json"))
    seal.write_text('{"schema": "edl-ckpt/seal/9"}')
    done = edl("verify", place, "--all", "--jsonl", "--seal")
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(lines) == 3
    failed = [line for line in lines if line["schema"] == "edl-ckpt/verify-failed/1"]
    assert all(set(line) == {"schema", "ref", "code", "id", "message"} for line in failed)
    assert done.returncode in {3, 15}


def test_results_stream(tmp_path: Path) -> None:
    """The line of a version is in the pipe while the next one is still waiting: here for a lock that we hold."""
    run = tmp_path / "run"
    for number in (1, 2):
        save_checkpoint(str(run), number, 1, variables={"v": np.ones(3)}, tables={})
    next(run.rglob("2.seal.json")).unlink()
    command = [*PROGRAM, "verify", str(run), "--all", "--seal", "--jsonl", "--lock-wait", "60s"]
    with location_lock(Location(str(run)), "a test"):
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["ref"] == f"{run}@1"
        assert process.poll() is None
    second = json.loads(process.stdout.readline())
    assert (second["ref"], second["sealed"]) == (f"{run}@2", True)
    assert process.wait(300) == 0
    process.stdout.close()


def test_a_reader_that_goes_away(tmp_path: Path) -> None:
    """`verify --all --jsonl | head -1` ends quietly."""
    for number in range(1, 6):
        save_checkpoint(str(tmp_path), number, 1, variables={"v": np.ones(3)}, tables={})
    words = " ".join(map(repr, [*PROGRAM, "verify", str(tmp_path), "--all", "--jsonl"]))
    # The reader has gone before the first line: beside it, so few of them may be written before `head` has begun.
    script = f"exec 3> >(head -c 0); wait $!; {words} >&3; exit $?"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (141, "", "")


def printed(human: Iterable[Any], capsys: pytest.CaptureFixture[str]) -> str:
    """Return what a terminal of 100 columns gets."""
    Output(no_color=True).print_human(human)
    return capsys.readouterr().out


def test_a_terminal_gets_the_first_rows(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One rule for all: 2,000 rows of a table, of versions the newest, and how many more there are; a pipe gets all."""
    assert tables.MOST_ROWS == 2000
    for module in (tables, shared_tables):
        monkeypatch.setattr(module, "MOST_ROWS", 2)
    listing = list_versions(str(place))
    found = look_up(f"{place}@10", "t", range(9))
    broken = verify_version(listing.versions[1])
    many = type(broken)(**{f: getattr(broken, f) for f in broken.__slots__} | {"findings": broken.findings * 5})
    for is_terminal in (False, True):
        monkeypatch.setattr(sys.stdout, "isatty", lambda is_terminal=is_terminal: is_terminal, raising=False)
        every = Output().shows_all(False)
        text = printed(render_list.human([listing], 0, every=every), capsys)
        assert ("and 1 more version; a pipe gets them too" in text) == is_terminal
        assert ("  10  " in text, "  30  " in text) == (not is_terminal, True)
        text = printed(render_verify.human([many], every=every), capsys)
        assert ("and 8 more findings; a pipe gets them too" in text) == is_terminal
        text = printed(render_get.human(found), capsys)
        assert ("and 7 more rows; a pipe gets them too" in text) == is_terminal
        assert ("\n  8  " in text) == (not is_terminal)


def test_a_whole_table() -> None:
    """A table that says so is drawn whole on a terminal too."""
    table = Table(Column("a", "number"), Column("b"))
    for number in range(5):
        table.add(str(number), "x")
    assert len(list(table.lines(80))) == 8
    assert len(list(table.lines(80, most=2))) == 6


@pytest.mark.parametrize("text", ["=HYPERLINK(A1)", "+1+1", "-2+3", "@SUM(A1)", "\t=1", "\r=1"])
def test_no_cell_is_a_formula(text: str) -> None:
    """A name of somebody else's is a text in a spreadsheet, and numbers are numbers."""
    (row,) = csv.reader(io.StringIO(as_csv([[text, -1, -0.5, "-Infinity", "1e-3"]]), newline=""))
    assert row == [f"'{text}", "-1", "-0.5", "-Infinity", "1e-3"]
