"""NaN and infinities in JSON, which has no numbers for them."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edl_ckpt.cli.terminal.output import Output
from edl_ckpt.cli.terminal.quantities import parse_duration, parse_size
from edl_ckpt.core import Table, save_checkpoint
from edl_ckpt.core.base.errors import UsageError
from edl_ckpt.core.operations.metric_series import read_series
from program import edl, inside

TEXTS = ["NaN", "Infinity", "-Infinity"]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Return a location with two versions: finite numbers in the first, NaN and infinities in the second."""
    odd = np.array([math.nan, math.inf, -math.inf], np.float32)
    for number, row in ((1, np.ones(3, np.float32)), (2, odd)):
        tables = {"t": Table(np.arange(2), np.stack([row, np.ones(3, np.float32)]))}
        save_checkpoint(str(tmp_path / "run"), number, 2, variables={"v": row}, tables=tables)
    return tmp_path / "run"


def test_documents(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In the JSON of each command NaN and infinities are the texts of protobuf's JSON, not null."""
    assert inside(capsys, "get", f"{run}@2", "--table", "t", "--id", "0")["rows"] == [{"id": 0, "vector": TEXTS}]
    assert inside(capsys, "get", f"{run}@2", "--variable", "v")["values"] == TEXTS
    assert inside(capsys, "diff", f"{run}@1", f"{run}@2", "--top", "1", code=3)["variables"][0]["max_abs"] == "NaN"
    assert inside(capsys, "diff", f"{run}@1", f"{run}@1", "--tolerance", "inf")["tolerance"] == "Infinity"
    shown = inside(capsys, "metrics", "set", f"{run}@2", "a=nan", "b=inf", "c=-inf")
    assert shown["versions"][0]["metrics"] == {"a": "NaN", "b": "Infinity", "c": "-Infinity"}
    assert inside(capsys, "list", run)["locations"][0]["versions"][1]["metrics"]["a"] == "NaN"


def test_a_metric_that_has_no_best_value(run: Path) -> None:
    """Where NaN is its only value no version is the best; only what neither its name nor the user says is asked for."""
    done = edl("metrics", "set", f"{run}@1", "loss=nan", "ctr=nan", "odd=nan")
    assert done.returncode == 0
    assert "for ctr, odd?" in edl("metrics", "show", run).stdout
    assert "for odd?" in edl("metrics", "mode", run, "ctr", "max").stdout


def test_null_stays_null(capsys: pytest.CaptureFixture[str]) -> None:
    """Null still means that there is no number; finite numbers, texts and truth values stay as they are."""
    document: dict[str, Any] = {"a": [None, 1.5, 2, True, "x", (math.nan, {"b": -math.inf})]}
    Output().print_json(document)
    assert json.loads(capsys.readouterr().out) == {"a": [None, 1.5, 2, True, "x", ["NaN", {"b": "-Infinity"}]]}


def test_json_lines(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`export` writes the same texts into JSON lines."""
    inside(capsys, "export", f"{run}@2", tmp_path / "t.jsonl", "--table", "t")
    lines = [json.loads(line) for line in (tmp_path / "t.jsonl").read_text(encoding="utf-8").splitlines()]
    assert lines == [{"id": 0, "vector": TEXTS}, {"id": 1, "vector": [1.0, 1.0, 1.0]}]


def test_read_back(tmp_path: Path) -> None:
    """`metrics import` takes the texts in JSON lines for the numbers that they stand for."""
    (tmp_path / "m.jsonl").write_text('{"step": 1, "a": "NaN", "b": "Infinity", "c": "-Infinity"}\n', encoding="utf-8")
    found = read_series(str(tmp_path / "m.jsonl")).steps[1]
    assert math.isnan(found["a"])
    assert (found["b"], found["c"]) == (math.inf, -math.inf)


@pytest.mark.parametrize("digits", [308, 400])
def test_options(digits: int) -> None:
    """No option becomes infinite: a size or duration too large for a number is a usage error."""
    with pytest.raises(UsageError, match="is not a size"):
        parse_size("9" * digits + "PB")
    with pytest.raises(UsageError, match="is not a duration"):
        parse_duration("9" * digits + "w")
