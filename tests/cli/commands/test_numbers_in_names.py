"""A number in a file's name is not a size: work and memory follow the files that exist."""

from __future__ import annotations

import json
import os
import resource
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from builders import write_checkpoint
from edl_ckpt.cli import app
from edl_ckpt.core import list_versions
from edl_ckpt.core.model.versions import MISSING_LISTED
from forked import run_forked
from oracle import Model, Table

HUGE = 10**9
FILES = 500
MEMORY_BYTES = 512 << 20
SECONDS = 60
COMMANDS = {
    "list run": {0},
    "list run --csv": {0},
    "inspect run@20": {4},
    "inspect run@30": {5},
    "verify run --all": {3},
    "verify run@20 --quick": {3},
    "verify run@50 --deep": {3},
    "diff run@10 run@20": {4},
    "get run@20 --table t --id 3": {4},
    "get run@20 --table t --id 3 --everywhere": {0},
    "get run@20 --variable v": {0},
    "get run@20 --variable none": {4},
    "reshard run@20 --ps 2": {4},
    "reshard run@50 --ps 2 --output other": {4},
    "export run@20 out.npz": {4},
    "copy run@20 other": {4},
    "import run/version-20/variables-0-of-1000000000.ckpt other@1 --ps 2 --layout elasticdl": {0, 2, 4, 5},
    "tag add run@20 partial": {16},
    "tag add run@20 partial --force": {0},
    "metrics set run@50 auc=0.5": {0},
    "metrics show run": {0},
    "note run@30 mixed": {0},
    "prune run --keep 1 --dry-run": {0},
    "prune run --keep 1 --incomplete --grace 0s": {0},
    "recover run": {0},
    "undo run": {10},
}
"""The commands in their order, and how each may end."""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Return a directory with a location whose names claim very much."""
    run = tmp_path / "run"
    for number in (10, 20):
        model = Model(number, {"v": ("float32", (1,), bytes(4))}, {"t": Table(1, "zeros", "float32", {3: bytes(4)})})
        write_checkpoint(run, model, 1, layout="elasticdl")
    (run / "version-20/variables-0-of-1.ckpt").rename(run / f"version-20/variables-0-of-{HUGE}.ckpt")
    for number in (30, 40, 50):
        (run / f"version-{number}").mkdir()
    for count in range(1, FILES + 1):
        (run / f"version-30/variables-0-of-{count}.ckpt").touch()
        (run / f"version-50/variables-{2 * count}-of-{10**18 - 1}.ckpt").touch()
    (run / "version-40/variables-5-of-2.ckpt").touch()
    (run / f"version-{'9' * 240}").mkdir()
    return tmp_path


def bounded(place: Path, words: str) -> int:
    """Run a command in a child with little memory and time; return its exit code."""

    def child() -> None:
        os.chdir(place)
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY_BYTES,) * 2)
        signal.alarm(SECONDS)
        os.dup2(os.open(place / "out", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 1)
        try:
            app.run([*words.split(), "--json"] if "--csv" not in words else words.split())
        except SystemExit as end:
            os._exit(int(end.code or 0))

    return run_forked(child)


def test_every_command(place: Path) -> None:
    """Every command ends soon, within a bound of memory, and prints no more than the files account for."""
    for words, codes in COMMANDS.items():
        begun = time.monotonic()
        code = bounded(place, words)
        assert code in codes, f"{words} ended with {code} after {time.monotonic() - begun:.1f} s"
        assert (place / "out").stat().st_size < 4_000_000, words


def test_counted(place: Path) -> None:
    """Missing shards are a count and gaps, at most one gap more than files; the list of them is bounded."""
    found = {v.version: v for v in list_versions(place / "run").versions}
    assert found[20].missing_count == HUGE - 1
    assert found[20].missing_ranges == (range(1, HUGE),)
    assert found[20].missing == tuple(range(1, MISSING_LISTED + 1))
    assert found[50].missing_count == 10**18 - 1 - FILES
    assert len(found[50].missing_ranges) == FILES + 1
    assert (found[30].ps_num, found[30].missing_count, found[30].missing_ranges) == (None, 0, ())
    assert 40 not in found  # variables-5-of-2.ckpt is the name of no shard, so its directory is no version
    assert len(str(found)) < 3_000_000


def test_small_counts_are_listed(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of a version that lacks a few shards each is listed, and is a finding of its own."""
    (place / "run/version-40/variables-5-of-2.ckpt").rename(place / "run/version-40/variables-1-of-5.ckpt")
    listed = run(capsys, "list", str(place / "run"))["locations"][0]["versions"][3]
    assert (listed["missing"], listed["missing_count"]) == ([0, 2, 3, 4], 4)
    findings = run(capsys, "verify", f"{place / 'run'}@40")["findings"]
    assert [f["subject"] for f in findings if f["code"] == "missing-shard"] == [
        f"variables-{i}-of-5.ckpt" for i in (0, 2, 3, 4)
    ]
    findings = run(capsys, "verify", f"{place / 'run'}@20", "--quick")["findings"]
    writing = " (the version changed a moment ago: a job may be writing it)"
    assert [(f["subject"], f["message"]) for f in findings if f["code"] == "missing-shard"] == [
        (
            f"variables-1-of-{HUGE}.ckpt to variables-{HUGE - 1}-of-{HUGE}.ckpt",
            f"shards 1 to {HUGE - 1} of {HUGE} (numbered 0 to {HUGE - 1}) are missing{writing}",
        )
    ]


def run(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    """Run a command in this process and return its document, whatever its exit code."""
    capsys.readouterr()
    with pytest.raises(SystemExit):
        app.run([*words, "--json"])
    return json.loads(capsys.readouterr().out)
