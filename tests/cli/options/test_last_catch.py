"""Any error of the system ends as an error of ours with its code, whichever call it comes from."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from checkpoints import save_small
from edl_ckpt.cli import app
from edl_ckpt.core.base import memory
from edl_ckpt.core.base.errors import UsageError
from edl_ckpt.core.catalog import listing as catalog
from edl_ckpt.core.operations.metric_series import read_series
from edl_ckpt.core.operations.prune.plan_file import read_plan
from forked import run_forked
from mutants import limit_memory
from places import GOLDEN
from program import PROGRAM, edl, inside
from waiting import wait_until

ERRORS: dict[str, tuple[BaseException, int, str]] = {
    "input/output": (OSError(errno.EIO, "Input/output error", "here"), 1, "here: input/output error"),
    "no path": (OSError(errno.EBADF, "Bad file descriptor"), 1, "input/output error: Bad file descriptor"),
    "permission": (OSError(errno.EPERM, "Operation not permitted", "here"), 12, "here: permission denied"),
    "read-only": (OSError(errno.EROFS, "Read-only file system", "here"), 12, "here: read-only filesystem"),
    "no space": (OSError(errno.ENOSPC, "No space left on device", "here"), 14, "here: No space left on device"),
    "two names": (OSError(errno.EXDEV, "Invalid cross-device link", "a", None, "here"), 15, "here: the file system"),
    "stale": (OSError(errno.ESTALE, "Stale file handle", b"here"), 11, "here: the file was replaced"),
    "memory": (MemoryError(), 1, "there is not enough memory"),
    "recursion": (RecursionError("maximum recursion depth exceeded"), 1, "an input is nested too deeply"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_every_error(name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """An error that no code has translated has a code and a message, and no traceback unless asked for."""
    error, code, message = ERRORS[name]

    def failing(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(catalog, "list_versions", failing)
    found = inside(capsys, "list", "run", code=code)
    assert found["message"].startswith(message)
    assert found["path"] in {"here", None}
    with pytest.raises(SystemExit):
        app.run(["list", "run", "--verbose"])
    assert "Traceback" in capsys.readouterr().err


def test_before_a_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The same before a command begins."""
    from edl_ckpt.cli.options import program

    def failing(*_: Any) -> None:
        raise OSError(errno.EIO, "Input/output error", "config.toml")

    monkeypatch.setattr(program, "config_files", failing)
    with pytest.raises(SystemExit) as end:
        app.main(["list", "run", "--json"])
    assert end.value.code == 1
    assert json.loads(capsys.readouterr().err)["path"] == "config.toml"


@pytest.fixture
def plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """Return the file of a plan."""
    save_small(tmp_path / "run", 1, 2, 3, sealed=False)
    inside(capsys, "prune", tmp_path / "run", "--keep", "1", "--dry-run", "--plan-out", tmp_path / "plan.json")
    return tmp_path / "plan.json"


WRONG = ("NaN", "1e999", "-1e999", "null", "true", '"x"', "[]", "{}", "[[]]", '[{"a": 1}]', "1" * 4500, "[" * 100_000)


def test_plan_files(plan: Path) -> None:
    """Whatever stands for a value in a plan, reading it ends with UsageError, or with values of their types."""
    whole = json.loads(plan.read_text())
    places = [[key] for key in whole]
    places += [["entries", 0, key] for key in whole["entries"][0]]
    read = 0
    for path in places:
        for text in WRONG:
            document = json.loads(plan.read_text())
            at = document
            for step in path[:-1]:
                at = at[step]
            at[path[-1]] = "@@"
            plan.with_name("other.json").write_text(json.dumps(document).replace('"@@"', text))
            try:
                result = read_plan(str(plan.with_name("other.json")))
            except UsageError:
                continue
            read += 1
            assert {type(e.version) for e in result.entries} | {type(n) for n in result.guards.delete} <= {int}
    assert 0 < read < len(places) * 3
    assert len(read_plan(str(plan)).entries) == 3


def test_plan_files_are_bounded(plan: Path) -> None:
    """A plan of a gigabyte is not read whole."""
    os.truncate(plan, 1 << 40)

    def read() -> None:
        limit_memory(1 << 28)
        with pytest.raises(UsageError, match="more than"):
            read_plan(str(plan))

    assert run_forked(read) == 0


def test_long_lines(tmp_path: Path) -> None:
    """A line of 200 MB is skipped in pieces: it takes no more memory than a short one; the others are read."""
    place = tmp_path / "m.jsonl"
    with place.open("wb") as file:
        file.write(b'{"version": 1, "auc": 0.5}\n')
        file.seek(200 << 20, os.SEEK_CUR)
        file.write(b'\n{"version": 2, "auc": 0.75}\n')

    def read() -> None:
        before = memory.peak_memory_bytes()
        series = read_series(str(place))
        assert series.steps == {1: {"auc": 0.5}, 2: {"auc": 0.75}}
        assert series.skipped == ("line 2: it has more than 262144 characters",)
        assert memory.peak_memory_bytes() - before < 16 << 20

    assert run_forked(read) == 0
    with pytest.raises(UsageError, match="no metrics found"):
        read_series(str(place), "csv")


def test_many_bad_lines(tmp_path: Path) -> None:
    """Of very many lines that cannot be read a bounded number is named."""
    (tmp_path / "m.jsonl").write_text('{"version": 1, "auc": 0.5}\n' + "x\n" * 5000)
    skipped = read_series(str(tmp_path / "m.jsonl")).skipped
    assert len(skipped) == 1001
    assert skipped[-1] == "and 4000 more places"


def test_signal_ends_an_import(tmp_path: Path) -> None:
    """SIGTERM ends the import of a file that seems to have no end."""
    with (tmp_path / "m.log").open("wb") as file:
        file.truncate(1 << 42)
    save_small(tmp_path / "run", 1, sealed=False)
    program = subprocess.Popen(
        [*PROGRAM, "metrics", "import", "m.log", "run"], cwd=tmp_path, stderr=subprocess.PIPE, text=True
    )
    wait_until(lambda: _read_bytes(program.pid) > 30 << 20, seconds=60)
    assert program.poll() is None
    program.send_signal(signal.SIGTERM)
    assert program.wait(timeout=60) == 143
    assert program.stderr is not None
    assert "Traceback" not in program.stderr.read()
    program.stderr.close()
    assert edl("metrics", "import", "/dev/zero", "run", cwd=tmp_path).returncode == 2


def _read_bytes(pid: int) -> int:
    """Return how many bytes a process has read."""
    return int(Path(f"/proc/{pid}/io").read_text().split()[1])


def test_more_than_the_machine_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A variable or rows that need more memory than there is are refused, before the kernel kills us."""
    shutil.copytree(GOLDEN / "multi", tmp_path / "run")
    name = inside(capsys, "inspect", f"{tmp_path / 'run'}@20")["variables"][0]["name"]
    monkeypatch.setattr(memory, "physical_memory_bytes", lambda: 1)
    error = inside(capsys, "get", f"{tmp_path / 'run'}@20", "--variable", name, code=1)
    assert "of memory; this machine has 1 B" in error["message"]
    error = inside(capsys, "get", f"{tmp_path / 'run'}@20", "--table", "e", "--id", "3", code=1)
    assert "1 row of table 'e' needs" in error["message"]
