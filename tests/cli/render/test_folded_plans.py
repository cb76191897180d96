"""The plan of a prune for people: many versions that are treated alike share a row; programs get each of them."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest

from program import document, edl


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Return a location with the versions 0 to 29, of 2 bytes each."""
    for number in range(30):
        (tmp_path / f"run/version-{number}").mkdir(parents=True)
        (tmp_path / f"run/version-{number}/variables-0-of-1.ckpt").write_bytes(b"\x08\x01")
    return tmp_path / "run"


def test_runs_are_folded(run: Path) -> None:
    """A run of equal decisions is a row with its first and last version, size and count; a kept version ends it."""
    done = edl("prune", run, "--keep-every", "20", "--dry-run").stdout
    rows = [line.split() for line in done.splitlines()[2:-1]]
    assert rows[0] == ["1", "to", "19", "38", "B", "delete", "no", "rule", "keeps", "it:", "19", "versions"]
    assert rows[1] == ["21", "to", "28", "16", "B", "delete", "no", "rule", "keeps", "it:", "8", "versions"]
    assert [row[0] for row in rows[2:]] == ["0", "20", "29"]


def test_a_few_are_not(run: Path) -> None:
    """A few versions in a row keep their rows."""
    done = edl("prune", run, "--keep-every", "5", "--dry-run").stdout
    assert sum(" delete " in line for line in done.splitlines()) == 23


def test_programs_get_each(run: Path) -> None:
    """With -q, --csv and --json each version is in its own row."""
    call = ("prune", run, "--keep", "3", "--dry-run")
    assert sum("no rule keeps it" in line for line in edl(*call, "-q").stdout.splitlines()) == 27
    assert len([*csv.reader(io.StringIO(edl(*call, "--csv").stdout))]) == 31
    assert len(document(*call)["plan"]) == 30
    assert "0 to 26" in edl(*call).stdout
