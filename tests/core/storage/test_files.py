"""Files of known size: what is written, copied and flushed."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from edl_ckpt.core import EdlCkptError
from edl_ckpt.core.base.errors import NoSpaceError
from edl_ckpt.core.storage import files
from edl_ckpt.core.storage.files import PreallocatedFile, allocate_all


def test_a_copy_of_a_file_that_becomes_shorter(tmp_path: Path) -> None:
    """It is an error that names the file, and not a copy that never ends."""
    old, new = (PreallocatedFile(str(tmp_path / name), 4096) for name in ("old", "new"))
    try:
        os.truncate(tmp_path / "old", 100)
        with pytest.raises(EdlCkptError, match="became shorter"):
            new.copy_of(old)
    finally:
        old.close()
        new.close()


@pytest.mark.parametrize("least", [0, 1 << 30])
def test_files_that_wait_have_no_bytes_before_all_are_allocated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, least: int
) -> None:
    """By several threads or by one, each file then has its size and its blocks."""
    monkeypatch.setattr(files, "THREADED_BYTES", least)
    waiting = [PreallocatedFile(str(tmp_path / str(size)), size, waits=True) for size in (0, 4096, 100_000, 8192)]
    try:
        assert [path.stat().st_size for path in tmp_path.iterdir()] == [0] * 4
        allocate_all(waiting, 3)
        found = [os.stat(file.path) for file in waiting]
    finally:
        for file in waiting:
            file.close()
    assert [stat.st_size for stat in found] == [0, 4096, 100_000, 8192]
    assert all(stat.st_blocks * 512 >= stat.st_size for stat in found)


@pytest.mark.parametrize("least", [0, 1 << 30])
def test_a_full_disk_names_the_file_that_has_no_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, least: int
) -> None:
    """Whichever thread finds it."""
    monkeypatch.setattr(files, "THREADED_BYTES", least)
    waiting = [PreallocatedFile(str(tmp_path / str(size)), size, waits=True) for size in (1, 2, 3)]
    fallocate = os.posix_fallocate

    def is_full(file: int, offset: int, size_bytes: int) -> None:
        if size_bytes == 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        fallocate(file, offset, size_bytes)

    monkeypatch.setattr(os, "posix_fallocate", is_full)
    try:
        with pytest.raises(NoSpaceError) as caught:
            allocate_all(waiting, 2)
    finally:
        for file in waiting:
            file.close()
    assert caught.value.path == str(tmp_path / "2")
