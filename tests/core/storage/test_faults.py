"""Errors of the system, and of a file server behind it, become ours."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from typing import Any, cast

import pytest

from edl_ckpt.core import execute_reshard, parse_ref, prepare_reshard, resolve, verify_version
from edl_ckpt.core.base.errors import (
    AuthError,
    EdlCkptError,
    LockedError,
    NoSpaceError,
    NotFoundError,
    UnavailableError,
    UnsupportedError,
)
from edl_ckpt.core.storage.faults import storage_errors
from edl_ckpt.core.storage.interface import RangeReader
from places import GOLDEN


@pytest.mark.parametrize(
    ("code", "kind", "exit_code"),
    [
        (errno.ESTALE, LockedError, 11),
        (errno.EIO, EdlCkptError, 1),
        (errno.EACCES, AuthError, 12),
        (errno.EROFS, AuthError, 12),
        (errno.EXDEV, UnsupportedError, 15),
        (errno.ENOSPC, NoSpaceError, 14),
        (errno.EDQUOT, NoSpaceError, 14),
        (errno.EFBIG, NoSpaceError, 14),
        (errno.ETIMEDOUT, UnavailableError, 13),
        (errno.ENOENT, NotFoundError, 10),
        (errno.ENOTDIR, NotFoundError, 10),
        (errno.ELOOP, NotFoundError, 10),
    ],
)
def test_errors_of_the_system(code: int, kind: type[EdlCkptError], exit_code: int) -> None:
    """What the operating system, or a file server behind it, answers becomes our error with the file's name."""
    with pytest.raises(kind) as end, storage_errors("/data/shard"):
        raise OSError(code, os.strerror(code))
    assert end.value.exit_code == exit_code
    assert end.value.path == "/data/shard"


class Failing:
    """A reader whose k-th read fails as a file server fails that was restarted."""

    def __init__(self, inner: RangeReader, code: int) -> None:
        self._inner = inner
        self._code = code

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def __enter__(self) -> RangeReader:
        return cast("RangeReader", self)

    def __exit__(self, *_: object) -> None:
        self._inner.close()

    def read_into(self, offset: int, buffer: memoryview) -> None:
        """Fail."""
        with storage_errors(self._inner.path):
            raise OSError(self._code, os.strerror(self._code))


@pytest.mark.parametrize(("code", "exit_code"), [(errno.ESTALE, 11), (errno.EIO, 1)])
def test_a_file_server_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, exit_code: int) -> None:
    """An error in the middle of a reshard or a verify names the shard; nothing is published."""
    from edl_ckpt.core.storage import local as store

    shutil.copytree(GOLDEN / "current/ps2", tmp_path / "run")
    version = resolve(parse_ref(str(tmp_path / "run")))
    plan, settings = prepare_reshard(version, 3, output=str(tmp_path / "out"))
    real = store.LocalStore.open
    monkeypatch.setattr(store.LocalStore, "open", lambda self, path, **_: Failing(real(self, path), code))
    for act in (lambda: execute_reshard(plan, settings), lambda: verify_version(version, level="deep")):
        with pytest.raises(EdlCkptError) as end:
            act()
        assert end.value.exit_code == exit_code
        assert end.value.path in {shard.path for shard in version.shards}
    assert not (tmp_path / "out").exists()
