"""Versions with more shards than a process may have open files: every command works, and nothing is left open."""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from edl_ckpt.core import Table, open_checkpoint, restore, save_checkpoint, verify_version
from edl_ckpt.core.base.errors import NoSpaceError
from edl_ckpt.core.storage import descriptors
from edl_ckpt.core.storage.faults import storage_errors
from edl_ckpt.core.storage.files import PreallocatedFile
from edl_ckpt.core.storage.local import LocalReader
from program import PROGRAM

SHARDS = 600
LIMIT = 256
ROWS = 2000

COMMANDS: Sequence[Sequence[str]] = (
    ("inspect", "{run}@1"),
    ("verify", "{run}@1", "--deep"),
    ("verify", "{run}@1", "--deep", "--seal"),
    ("diff", "{run}@1", "{run}@1"),
    ("head", "{run}@1", "--table", "t"),
    ("du", "{run}@1"),
    ("copy", "{run}@1", "{out}copy"),
    ("export", "{run}@1", "{out}.npz"),
    ("export", "{run}@1", "{out}dcp", "--format", "dcp", "--ranks", "600"),
    ("import", "{out}.npz", "{out}new@1", "--ps", "600"),
    ("reshard", "{run}@1", "--ps", "601", "--output", "{out}more"),
    ("reshard", "{run}@1", "--ps", "300"),
    ("verify", "{run}@1", "--deep"),
)
"""In this order: some read what one before has written."""


def limited() -> None:
    """Let a process have few open files, and not raise the limit."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (LIMIT, LIMIT))


def test_every_command_works_with_few_open_files(tmp_path: Path) -> None:
    """600 shards, and 256 open files: the rest is opened for each use."""
    rows = Table(np.arange(ROWS), np.arange(ROWS * 4, dtype=np.float32).reshape(ROWS, 4))
    version = save_checkpoint(tmp_path / "run", 1, SHARDS, variables={"w": np.ones(3)}, tables={"t": rows})
    words = {"run": str(tmp_path / "run"), "out": str(tmp_path / "out")}
    for command in COMMANDS:
        arguments = [word.format(**words) for word in command]
        done = subprocess.run(
            [*PROGRAM, *arguments],
            preexec_fn=limited,
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "XDG_CONFIG_HOME": "/nowhere"},
        )
        assert done.returncode == 0, (command, done.stderr)
    for made in ("outcopy", "outnew", "outmore"):
        result = verify_version(f"{tmp_path / made}@1", level="deep")
        assert not result.findings
        assert result.fingerprint == version.fingerprint, made


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this process keep two files open."""
    monkeypatch.setattr(descriptors, "COUNT", descriptors.OpenCount(2))


@pytest.mark.usefixtures("few")
def test_files_beyond_the_limit_are_read_and_written_alike(tmp_path: Path) -> None:
    """A reader and a file that is written do what others do; a closed one gives its place to the next."""
    files = [PreallocatedFile(str(tmp_path / f"{i}"), 8) for i in range(4)]
    for number, file in enumerate(files):
        file.write(4, bytes([number] * 4))
        file.flush()
    assert [file.is_kept_open for file in files] == [True, True, False, False]
    assert bytes(files[3].view(4, 4)[:4]) == bytes([3] * 4)
    files[0].close()
    readers = [LocalReader(str(tmp_path / f"{i}")) for i in range(4)]
    assert [reader.is_kept_open for reader in readers] == [True, False, False, False]
    assert [reader.read(4, 1) for reader in readers] == [bytes([i]) for i in range(4)]
    before = len(os.listdir("/proc/self/fd"))
    closing = [*(file.close for file in files), *(reader.close for reader in readers)]
    for close in (*closing, *closing):
        close()
    assert len(os.listdir("/proc/self/fd")) == before - 2
    assert descriptors.COUNT.now == 0


@pytest.mark.usefixtures("few")
def test_another_file_in_its_place_is_not_read(tmp_path: Path) -> None:
    """Whoever replaces a shard meanwhile gets none of its bytes mixed with the old ones."""
    version = save_checkpoint(tmp_path / "run", 1, 4, tables={"t": (np.arange(8), np.ones((8, 2), np.float32))})
    with open_checkpoint(version) as checkpoint:
        shutil.copy(version.shards[3].path, tmp_path / "new")
        os.replace(tmp_path / "new", version.shards[3].path)
        with pytest.raises(Exception, match="another file has its place"):
            checkpoint.table("t").to_numpy()


@pytest.mark.usefixtures("few")
def test_a_restore_reads_the_same(tmp_path: Path) -> None:
    """Values do not depend on how many files are open."""
    version = save_checkpoint(tmp_path / "run", 1, 7, tables={"t": (np.arange(70), np.ones((70, 2), np.float32))})
    assert sorted(restore(version, 0, 1).tables["t"].ids.tolist()) == list(range(70))


def test_the_error_of_the_limit_says_so() -> None:
    """It is a limit of the system, as a full disk is, and the hint says what to raise."""
    with pytest.raises(NoSpaceError, match="too many open files") as caught, storage_errors("here"):
        raise OSError(24, os.strerror(24))
    assert "ulimit -n" in str(caught.value.hint)
    assert json.dumps(caught.value.exit_code) == "14"
