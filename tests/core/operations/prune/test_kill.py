"""A prune or an undo that is killed at each of its file operations."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from checkpoints import at, numbers, save_small
from edl_ckpt.core import recover, reshard_version, verify_version
from edl_ckpt.core.base.errors import NotFoundError
from edl_ckpt.core.commit.deletion.records import list_trash
from edl_ckpt.core.operations.undo import undo
from edl_ckpt.core.state.paths import is_verdicts
from edl_ckpt.core.storage import files
from forked import run_forked
from pruning import check_whole, prune

OPERATIONS = ("rename", "unlink", "rmdir", "mkdir", "open", "fsync", "pwrite", "replace", "ftruncate")


def kill_at(k: int, action: Any) -> bool:
    """Run an action in a child process that is killed before its k-th file operation; False if it ends first."""
    count, real_open = 0, os.open

    def killing(function: Any) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            nonlocal count
            if function is not real_open or arguments[1] & os.O_CREAT:  # to open what is there changes nothing
                count += 1
            if count == k:
                os._exit(9)
            return function(*arguments, **options)

        return call

    def act() -> None:
        for name in OPERATIONS:
            setattr(os, name, killing(getattr(os, name)))
        rename = files.renameat2()
        files.renameat2 = lambda: rename and killing(rename)
        action()

    ended = run_forked(act)
    assert ended in {0, 9}
    return ended == 9


def points(tmp_path: Path, run: Path, action: Any, step: int = 1) -> Iterator[Path]:
    """Yield a fresh copy of a location for each file operation of an action, killed before that operation.

    With a step, every so many operations are tried.
    """
    for k in range(1, 500, step):
        copy = tmp_path / f"kill-{k}"
        shutil.copytree(run, copy)
        killed = kill_at(k, lambda copy=copy: action(copy))
        yield copy
        shutil.rmtree(copy)
        if not killed:
            print(f"{k - 1} points")
            assert k > 15
            return
    pytest.fail("it never came to an end")


@pytest.mark.parametrize(
    ("trash", "step"),
    [(False, 7), (True, 7), *(pytest.param(trash, 1, marks=pytest.mark.slow) for trash in (False, True))],
)
def test_kill_at_each_operation_of_prune(tmp_path: Path, run: Path, trash: bool, step: int) -> None:
    """Killed anywhere, a prune leaves each version in place whole, in the trash whole, or gone; the next goes on."""
    for copy in points(tmp_path, run, lambda where: prune(where, trash=trash), step):
        check_whole(copy)
        there = set(numbers(copy))
        assert {1, 5} <= there
        trashed = [entry for entry in list_trash(str(copy)) if entry.names]
        for entry in trashed:
            for name in entry.names:
                assert int(name.removeprefix("version-")) not in there
                assert len(os.listdir(Path(entry.path) / name)) == 2
        prune(copy, trash=trash)
        assert numbers(copy) == [1, 5]
        if not trash:
            assert sorted(p.name for p in (copy / ".edl-ckpt-0").iterdir()) == ["meta-0"]
        check_whole(copy)


@pytest.mark.slow
@pytest.mark.parametrize("exchange", [True, False])
def test_kill_at_each_operation_of_an_undo_of_a_reshard(tmp_path: Path, exchange: bool) -> None:
    """Killed anywhere, both sets of shards are there, one in place and one in the trash; again, undo goes on."""
    run = tmp_path / "run"
    save_small(run, 6, ps_num=1)
    reshard_version(f"{run}@6", 2, keep_old=True)

    def act(where: Path) -> None:
        rename = files.renameat2()
        assert rename

        def without_exchange(*args: Any) -> int:
            if args[-1] == files.RENAME_EXCHANGE:
                raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
            return rename(*args)

        if not exchange:
            files.renameat2 = lambda: without_exchange
        undo(str(where))

    for copy in points(tmp_path, run, act):
        recover(str(copy))
        (entry,) = [entry for entry in list_trash(str(copy)) if entry.names]
        counts = at(copy, 6).ps_num, len(os.listdir(Path(entry.path) / "version-6"))
        assert counts in {(1, 2), (2, 1)}
        undo(str(copy))
        assert (at(copy, 6).ps_num, at(copy, 6).fingerprint != "") == (counts[1], True)
        assert verify_version(at(copy, 6)).ok


@pytest.mark.parametrize(
    ("number", "step"), [(None, 7), *(pytest.param(number, 1, marks=pytest.mark.slow) for number in (None, 3))]
)
def test_kill_at_each_operation_of_undo(number: int | None, step: int, tmp_path: Path, run: Path) -> None:
    """Killed anywhere, undo leaves each version in its place whole or in the trash whole; again, it goes on."""
    content = {p.relative_to(run): p.read_bytes() for p in run.rglob("*") if p.is_file()}
    prune(run, trash=True)
    for copy in points(tmp_path, run, lambda where: undo(str(where), number), step):
        check_whole(copy)
        there = set(numbers(copy))
        trashed = {name for entry in list_trash(str(copy)) for name in entry.names}
        assert there | {int(name.removeprefix("version-")) for name in trashed} == {1, 2, 3, 4, 5}
        try:
            undo(str(copy))
        except NotFoundError:
            assert (number, there) == (None, {1, 2, 3, 4, 5})
        prune(copy, keep=9)  # sweeps the leftovers of a killed undo
        left = [p for p in copy.rglob("*") if p.is_file() and not is_verdicts(p.name)]  # of `check_whole`
        assert {p.relative_to(copy): p.read_bytes() for p in left} == content
