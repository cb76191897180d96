"""A conversion that is killed, fails or meets another writer: the version is the old one or the new one, and whole."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from checkpoints import at, files_of
from edl_ckpt.core import (
    convert_version,
    fingerprint_checkpoint,
    location_lock,
    open_checkpoint,
    recover,
    verify_version,
)
from edl_ckpt.core.base.errors import EdlCkptError, LockedError, NoSpaceError, RefusedError
from edl_ckpt.core.storage.beneath import Directory
from edl_ckpt.core.storage.files import PreallocatedFile
from foreign import copied
from forked import run_forked

KILLED = 9
STEPS = ("rename", "rename_new", "exchange", "replace", "unlink", "rmdir", "remove", "flush", "create")
RUNS = {"tfra": ("tfra", 3), "torch": ("dcp/mch", 6), "dynamicemb": ("dynamicemb", 1)}


def killed_at(monkeypatch: pytest.MonkeyPatch, number: int, action: Callable[[], object]) -> bool:
    """Run an action in a process that ends right before so many changes of directories; say whether it came so far."""
    calls: list[str] = []

    def counted(name: str, real: Callable[..., Any], *args: Any, **more: Any) -> Any:
        calls.append(name)
        if len(calls) == number:
            os._exit(KILLED)
        return real(*args, **more)

    with monkeypatch.context() as patched:
        for name in STEPS:
            real = getattr(Directory, name)
            patched.setattr(Directory, name, lambda *a, _n=name, _r=real, **m: counted(_n, _r, *a, **m))
        code = run_forked(action)
    assert code in {0, KILLED}
    return code == KILLED


@pytest.mark.parametrize(
    ("name", "stride"),
    [*((name, 3) for name in RUNS), ("tfra", 1), *(pytest.param(n, 1, marks=pytest.mark.hours) for n in RUNS)],
)
def test_killed_before_any_step_the_version_is_the_old_one_or_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, stride: int
) -> None:
    """Killed before any step, or before each third one, the version is the old one or the new one."""
    system, version = RUNS[name]
    run = copied(system, version, tmp_path).parent
    with open_checkpoint(at(run, version)) as checkpoint:
        before = fingerprint_checkpoint(checkpoint).text
    (tmp_path / f"step_{version}" / "notes.txt").write_text("kept")
    number, changed = 1, 0
    while killed_at(monkeypatch, number, partial(convert_version, at(run, version), 2 + number // stride % 3)):
        recover(str(run))
        there = at(run, version)
        result = verify_version(there, level="deep")
        assert not result.has_errors, (number, result.findings)  # without a seal it may still be written
        assert result.fingerprint == before, number
        assert (tmp_path / f"step_{version}" / "notes.txt").read_text() == "kept"
        assert not [path for path in files_of(tmp_path) if "/stage-0/" in path or "/trash-0/" in path], number
        changed += there.ps_num == 2 + number // stride % 3
        number += stride
    assert number > 10
    assert changed


@pytest.mark.parametrize("name", RUNS)
def test_a_write_that_fails_leaves_everything_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """A write that fails leaves everything as it was."""
    system, version = RUNS[name]
    run = copied(system, version, tmp_path).parent
    before = files_of(tmp_path)
    write, count = PreallocatedFile.write, 0

    def failing(file: PreallocatedFile, offset: int, data: memoryview | bytes) -> None:
        nonlocal count
        count += 1
        if count == 3:
            raise NoSpaceError("no space left on device", path=file.path)
        write(file, offset, data)

    with monkeypatch.context() as patched:
        patched.setattr(PreallocatedFile, "write", failing)
        with pytest.raises(NoSpaceError):
            convert_version(at(run, version), 3, workers=1)
    assert files_of(tmp_path) == before


def test_a_wrong_byte_is_found_before_anything_is_published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong byte is found before anything is published."""
    run = copied("tfra", 3, tmp_path).parent
    before = files_of(tmp_path)
    write = PreallocatedFile.write

    def wrong(file: PreallocatedFile, offset: int, data: memoryview | bytes) -> None:
        changed = bytearray(data)
        if file.path.endswith("-values") and changed:
            changed[-1] ^= 1
        write(file, offset, bytes(changed))

    with monkeypatch.context() as patched:
        patched.setattr(PreallocatedFile, "write", wrong)
        with pytest.raises(EdlCkptError, match=r"differs from its source .*; nothing was published"):
            convert_version(at(run, 3), 3)
    assert files_of(tmp_path) == before


def test_two_writers_wait_for_each_other(tmp_path: Path) -> None:
    """Two writers wait for each other."""
    run = copied("tfra", 3, tmp_path).parent
    with location_lock(str(run), "another"), pytest.raises(LockedError):
        convert_version(at(run, 3), 2, wait_seconds=0.1)


def test_a_version_that_changed_since_it_was_listed_is_not_replaced(tmp_path: Path) -> None:
    """A version that changed since it was listed is not replaced."""
    run = copied("tfra", 3, tmp_path).parent
    version = at(run, 3)
    path = next(path for path in tmp_path.rglob("*-values"))
    path.write_bytes(path.read_bytes()[:-4] + b"\1\2\3\4")
    os.utime(path, (1e9, 1e9))
    with pytest.raises((LockedError, RefusedError, EdlCkptError)):
        convert_version(version, 2)
    assert at(run, 3).ps_num == 4
