"""Faults at every step of a save: a server that is killed, or whose storage fails, leaves its whole shard or none."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import elasticdl_rules
from checkpoints import only
from edl_ckpt.core import mixed_runs, recover, verify_version
from edl_ckpt.core.base.errors import EdlCkptError
from edl_ckpt.core.state.paths import seal_file
from edl_ckpt.core.storage import files, open_store
from forked import run_forked
from s3_fixtures import Bucket
from s3_proxy import Fault, lose_reply, status
from saving import save_all, save_part, values_of

CALLS = ("open", "mkdir", "pwrite", "fsync", "rename", "unlink", "rmdir", "posix_fallocate", "ftruncate", "listdir")
POINTS = 7
"""How many of the calls of a save are disturbed in the ordinary suite, spread over all of them; `slow` takes each."""


def disturbed(action: Callable[[], object], k: int, how: Callable[[], None]) -> int:
    """Run an action with something done before the k-th call that concerns files; return how many calls it made."""
    count = 0

    def watched(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **more: Any) -> Any:
            nonlocal count
            count += 1
            if count == k:
                how()
            return real(*args, **more)

        return call

    real = {name: getattr(os, name) for name in CALLS}
    find_rename, rename = files.renameat2, files.renameat2()
    try:
        for name, function in real.items():
            setattr(os, name, watched(function))
        files.renameat2 = lambda: rename and watched(rename)
        action()
    finally:
        for name, function in real.items():
            setattr(os, name, function)
        files.renameat2 = find_rename
    return count


def die() -> None:
    """End this process as a power button would."""
    os.kill(os.getpid(), 9)


def fail() -> None:
    """Fail as a broken disk does."""
    raise OSError(errno.EIO, os.strerror(errno.EIO))


def failing(save: Callable[[], object], k: int) -> None:
    """Let one call of a save fail, and end this process: with 5 where that is an error of the save, and one of ours."""
    try:
        disturbed(save, k, fail)
    except EdlCkptError:
        os._exit(5)


def prepare(place: Path, *, again: bool) -> Callable[[], object]:
    """Save all shards but the last, or all of them in an earlier run; return the save that is to be disturbed."""
    if again:
        save_all(place, 7, 2, run="one")
        return partial(save_part, place, 7, 1, 2, run="two", value=2.0)
    save_part(place, 7, 0, 2, run="two", value=2.0)
    return partial(save_part, place, 7, 1, 2, run="two", value=2.0)


def check(place: Path, *, again: bool, saved: bool) -> None:
    """Check that each shard is whole, that no seal stands over a mixture, and that the next save makes all good."""
    values = values_of(place / "version-7")
    allowed = ([{1.0}] if again else []) + [{2.0}]
    assert all(found in allowed for found in values.values())
    assert values["variables-0-of-2.ckpt"] == ({1.0} if again else {2.0})
    if saved:
        assert values["variables-1-of-2.ckpt"] == {2.0}
    is_mixture = len({float(min(found)) for found in values.values()}) == 2
    if len(values) == 2:
        version = only(place)
        assert bool(mixed_runs(version)) == is_mixture
        assert not (is_mixture and open_store(str(place)).read_small(seal_file(7)))
        assert verify_version(version, level="deep").ok == (not is_mixture)
    recover(place)
    assert [name for name in elasticdl_rules.leftovers(place) if not name.startswith("shards-0")] == []
    assert save_all(place, 7, 2, run="three", value=2.0).sealed
    assert verify_version(only(place), level="deep").findings == ()
    assert elasticdl_rules.leftovers(place) == []


def points(total: int, every: bool) -> list[int]:
    """Return the calls to disturb."""
    return sorted({1 + k * (total - 1) // (POINTS - 1) for k in range(POINTS)}) if not every else [*range(1, total + 1)]


def count_calls(save: Callable[[], object], note: Path) -> int:
    """Return how many calls a save makes: in a child, as threads of this process make some of their own."""
    assert run_forked(lambda: note.write_text(str(disturbed(save, 0, die)), encoding="ascii")) == 0
    return int(note.read_text(encoding="ascii"))


def sweep(place: Path, *, again: bool, how: str, every: bool) -> None:
    """Disturb one call after the other of a save."""
    total = count_calls(prepare(place / "count", again=again), place / "calls")
    assert total > 30
    for k in points(total, every):
        run = place / str(k)
        save = prepare(run, again=again)
        code = run_forked(partial(disturbed, save, k, die) if how == "killed" else partial(failing, save, k))
        assert code in ((-9,) if how == "killed" else (0, 5))
        saved = code == 0
        check(run, again=again, saved=saved)
        shutil.rmtree(run)


@pytest.mark.parametrize("how", ["killed", "failed"])
@pytest.mark.parametrize("again", [False, pytest.param(True, marks=pytest.mark.hours)], ids=["new", "again"])
def test_disturbed(tmp_path: Path, how: str, again: bool) -> None:
    """Killed or failing at calls spread over a save of a new shard, or of one that is there already."""
    sweep(tmp_path, again=again, how=how, every=False)


@pytest.mark.hours
@pytest.mark.parametrize("how", ["killed", "failed"])
@pytest.mark.parametrize("again", [False, True], ids=["new", "again"])
def test_disturbed_everywhere(tmp_path: Path, how: str, again: bool) -> None:
    """The same at each call."""
    sweep(tmp_path, again=again, how=how, every=True)


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (Fault(lose_reply, operation="complete"), None),
        (Fault(lose_reply, operation="put", key="shards-0"), None),
        (Fault(status(403, "AccessDenied"), operation="complete", times=None), "AccessDenied"),
        (Fault(status(403, "AccessDenied"), operation="upload_part", times=None), "AccessDenied"),
        (Fault(status(403, "AccessDenied"), operation="put", key="shards-0", times=None), "AccessDenied"),
    ],
    ids=["lost answer", "lost answer to the note", "complete", "part", "note"],
)
def test_disturbed_on_s3(s3: Bucket, fault: Fault, words: str | None) -> None:
    """A reply that is lost changes nothing; a refusal is the error of the save, and no upload and no note stay."""
    save_part(s3.url, 7, 0, 2)
    before = s3.objects()
    s3.proxy.fail(fault)
    if words is None:
        assert save_part(s3.url, 7, 1, 2).sealed
    else:
        with pytest.raises(EdlCkptError):
            save_part(s3.url, 7, 1, 2)
        assert s3.objects() == before
        s3.proxy.heal()
        assert save_part(s3.url, 7, 1, 2).sealed
    assert s3.open_uploads() == []
    assert verify_version(only(s3.url), level="deep").findings == ()


def test_requests_of_a_save_on_s3(s3: Bucket) -> None:
    """A save that is not the last costs a few requests, whatever its version: it reads no shard and takes no lock."""
    save_part(s3.url, 7, 0, 3)
    s3.proxy.reset()
    save_part(s3.url, 7, 1, 3)
    assert s3.proxy.count() <= 14
    assert s3.proxy.count("get") <= 2
    assert [r.key for r in s3.proxy.seen("put")] == [key for key in s3.objects() if "/shards-0/7/1-of-3" in key]
