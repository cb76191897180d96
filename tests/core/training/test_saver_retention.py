"""Retention of the servers that save: keep_checkpoint_max, and the policy that is stored with the location."""

from __future__ import annotations

import errno
import os
import random
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from checkpoints import at, numbers
from edl_ckpt.core import (
    Best,
    CheckpointSaver,
    Latest,
    Location,
    Policy,
    Tagged,
    add_tag,
    list_versions,
    location_lock,
    prune,
    remove_own_shard,
    remove_tag,
    reshard_version,
    store_policy,
    verify_version,
)
from edl_ckpt.core.base.errors import NoSpaceError, UsageError
from edl_ckpt.core.model.versions import State
from edl_ckpt.core.state.shard_note import noted_versions
from edl_ckpt.core.storage import open_store
from elasticdl_rules import leftovers
from forked import run_forked
from reporters import Recorder
from s3_fixtures import Bucket
from s3_proxy import Fault, status
from saving import save_all, save_part, small_parts


def test_keep_checkpoint_max(place: str) -> None:
    """Each server keeps as many shards as it was told to, and the last one removes what belonged to the version."""
    for version in (1, 2, 3):
        save_all(place, version, 2, keep=2)
    assert numbers(place) == [2, 3]
    saved = save_part(place, 4, 0, 2, keep=2)  # the newest complete version is 3, so 2 loses a shard
    assert [path.rpartition("/")[2] for path in saved.removed] == ["variables-0-of-2.ckpt"]
    assert [v.state for v in list_versions(place, grace_seconds=0).versions] == [
        State.INCOMPLETE,
        State.COMPLETE,
        State.INCOMPLETE,
    ]
    assert save_part(place, 4, 1, 2, keep=2).sealed
    assert numbers(place) == [3, 4]
    if not place.startswith("s3:"):
        assert sorted(p.name for p in Path(place).glob(".edl-ckpt-0/*/*")) == ["3.seal.json", "4.seal.json"]


def test_what_is_never_removed(place: str) -> None:
    """The newest complete version and a tagged one keep their shards, whatever the number; 0 keeps all."""
    for version in (1, 2, 3):
        save_all(place, version, 2)
    add_tag(at(place, 1), "serving")
    for version in (4, 5):  # one server is far ahead of the other
        save_part(place, version, 0, 2, keep=1)
    states = {v.version: v.state for v in list_versions(place, grace_seconds=0).versions}
    assert {number for number, state in states.items() if state is State.COMPLETE} == {1, 3}


def test_a_slow_server_completes_its_versions(place: str) -> None:
    """A server that is further ahead than it keeps versions leaves its shards until the slow one has come."""
    save_all(place, 1, 2)
    for version in (2, 3, 4):
        save_part(place, version, 0, 2, keep=1)
    assert save_part(place, 2, 1, 2, keep=1).sealed
    save_part(place, 5, 0, 2, keep=1)
    assert numbers(place) == [2, 3, 4, 5]


def test_a_stored_policy_replaces_it(place: str) -> None:
    """With a policy at the location no server removes its shards: the one that seals prunes by the policy."""
    reporter = Recorder()
    for version in (1, 2):
        save_all(place, version, 2)
    store_policy(place, Policy((Latest(2),)))
    save_part(place, 3, 0, 2, keep=1)
    assert numbers(place) == [1, 2, 3]
    saved = save_part(place, 3, 1, 2, keep=1, reporter=reporter)
    assert (saved.removed, numbers(place)) == ((f"{place}@1",), [2, 3])
    assert reporter.warnings == [f"{place}: the stored policy replaces keep_checkpoint_max"]


def test_a_busy_lock_only_delays_it(tmp_path: Path) -> None:
    """Retention that finds the lock taken leaves everything for the next save, and says nothing."""
    for version in (1, 2):
        save_all(tmp_path, version, 1)

    def save() -> None:
        reporter = Recorder()
        assert save_part(tmp_path, 3, 0, 2, keep=1, wait_seconds=0.0, reporter=reporter).removed == ()
        assert reporter.warnings == []

    with location_lock(str(tmp_path), "copy"):
        assert run_forked(save) == 0
    assert numbers(tmp_path) == [1, 2, 3]
    save_all(tmp_path, 4, 1, keep=1)
    assert numbers(tmp_path) == [3, 4]


def test_empty_directories_that_killed_servers_left(tmp_path: Path) -> None:
    """A directory that lost its last shard to a killed server goes with the next removal; a young one stays."""
    save_all(tmp_path, 5, 1)
    for name in ("version-1", "version-2"):
        (tmp_path / name).mkdir()
    os.utime(tmp_path / "version-1", (1, 1))
    assert remove_own_shard(tmp_path, 0, 1, 1) == (str(tmp_path / "version-1"),)
    assert numbers(tmp_path) == [2, 5]
    assert leftovers(tmp_path) == []


def test_a_reshard_in_place_removes_the_notes(place: str) -> None:
    """The shards that a reshard puts in place of those with notes have a seal, and need none."""
    save_all(place, 1, 2, run="a")
    save_part(place, 1, 0, 2, run="a")
    reshard_version(at(place, 1), 3)
    assert noted_versions(open_store(Location(place))) == []
    assert at(place, 1).fingerprint


def test_a_prune_removes_the_notes(place: str) -> None:
    """A version that a restarted server left with notes and without a seal leaves nothing when it is pruned."""
    save_all(place, 1, 2)
    save_part(place, 1, 0, 2)
    assert not list_versions(place).versions[0].fingerprint
    save_all(place, 2, 2)
    save_all(place, 3, 2)
    assert prune([place], Policy((Latest(1),))).deleted == (f"{place}@1", f"{place}@2")
    assert noted_versions(open_store(Location(place))) == []
    assert place.startswith("s3:") or leftovers(Path(place)) == []


@pytest.mark.parametrize("seed", [*range(2), *(pytest.param(seed, marks=pytest.mark.hours) for seed in range(2, 60))])
def test_servers_at_their_own_pace(tmp_path: Path, seed: int) -> None:
    """Whatever the pace of each server: after the last save only the versions to keep are there, whole and sealed."""
    chance = random.Random(seed)
    ps_num, keep, last = chance.randint(2, 4), chance.randint(1, 3), chance.randint(4, 6)
    options: dict[str, Any] = {"ps_num": ps_num, "keep_checkpoint_max": keep, "layout": "elasticdl"}
    running = [CheckpointSaver(tmp_path, ps_id=ps_id, **options) for ps_id in range(ps_num)]
    steps = [ps_id for ps_id in range(ps_num) for _ in range(last)]
    pace = [chance.random() ** 2 for _ in range(ps_num)]  # of a slow server most saves come late
    steps.sort(key=lambda ps_id: chance.random() + pace[ps_id])
    version = [0] * ps_num
    for ps_id in steps:
        version[ps_id] += 1
        part = small_parts(ps_num)[ps_id]
        running[ps_id].save(version[ps_id], part.dense, part.tables)
        if version[ps_id] == last and chance.random() < 0.5:
            running[ps_id].close()
    assert numbers(tmp_path) == [*range(last - keep + 1, last + 1)]
    for found in list_versions(tmp_path).versions:
        assert (found.state, bool(found.fingerprint)) == (State.COMPLETE, True)
        assert verify_version(found).findings == ()
    assert leftovers(tmp_path) == []


def test_leftovers_of_others(place: str) -> None:
    """The server that completes a version removes what faster ones left; a tagged version stays, and one to keep."""
    for version in (1, 2):
        save_all(place, version, 2)
    add_tag(at(place, 1), "serving")
    for version in (3, 4):
        save_part(place, version, 0, 2, keep=1)
    assert save_part(place, 3, 1, 2, keep=1).sealed
    assert [v.version for v in list_versions(place).versions] == [1, 3, 4]
    assert save_part(place, 4, 1, 2, keep=1).sealed
    assert [(v.version, v.state) for v in list_versions(place).versions] == [(1, State.COMPLETE), (4, State.COMPLETE)]
    assert verify_version(at(place, 1), level="deep").findings == ()
    assert verify_version(at(place, 4), level="deep").findings == ()


def test_leftovers_are_only_of_versions_without_the_own_shard(place: str) -> None:
    """A whole version that the last server keeps is left whole, though a faster one has more versions than it keeps."""
    for version in (2, 3, 4, 5):
        save_part(place, version, 0, 2)
    save_part(place, 2, 1, 2)
    assert save_part(place, 5, 1, 2, keep=2).sealed
    versions = list_versions(place, grace_seconds=0).versions
    assert [(v.version, v.state) for v in versions] == [
        (2, State.COMPLETE),
        (4, State.INCOMPLETE),
        (5, State.COMPLETE),
    ]
    assert verify_version(at(place, 2), level="deep").findings == ()


def test_a_server_comes_back_when_it_is_closed(tmp_path: Path) -> None:
    """A server whose lock was busy at its last save removes its shard when it is closed."""
    for version in (1, 2):
        save_all(tmp_path, version, 1)
    with CheckpointSaver(tmp_path, keep_checkpoint_max=1, wait_seconds=0.0, layout="elasticdl") as saver:
        (part,) = small_parts(1)
        with location_lock(tmp_path, "copy"):
            assert saver.save(3, part.dense, part.tables).removed == ()
        assert numbers(tmp_path) == [1, 2, 3]
    assert numbers(tmp_path) == [3]
    assert verify_version(at(tmp_path, 3), level="deep").findings == ()


def fill(monkeypatch: pytest.MonkeyPatch, place: Path, shards: int) -> None:
    """Leave room for so many shards of `small_parts(1)` at a location, and for small files; allocation tells."""
    allocate, one = os.posix_fallocate, (place / "version-1/variables-0-of-1.ckpt").stat().st_size

    def allocate_if_room(file: int, offset: int, size_bytes: int) -> None:
        if size_bytes >= one and len(list(place.glob("version-*/variables-*"))) >= shards:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        allocate(file, offset, size_bytes)

    monkeypatch.setattr(os, "posix_fallocate", allocate_if_room)


def test_a_disk_without_room_for_one_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With `free_first` the oldest version goes before the save; without it the error names it, and nothing goes."""
    for version in (1, 2):
        save_all(tmp_path, version, 1)
    fill(monkeypatch, tmp_path, 2)
    with pytest.raises(NoSpaceError, match="@1 could go first") as full:
        save_all(tmp_path, 3, 1, keep=2)
    assert "free_first=True" in str(full.value.hint)
    assert numbers(tmp_path) == [1, 2]
    for version in (3, 4, 5):
        with CheckpointSaver(tmp_path, keep_checkpoint_max=2, free_first=True, layout="elasticdl") as saver:
            (part,) = small_parts(1)
            saved = saver.save(version, part.dense, part.tables)
        assert (saved.sealed, saved.removed[-1]) == (True, str(tmp_path / f"version-{version - 2}"))
        assert numbers(tmp_path) == [version - 1, version]
        assert verify_version(at(tmp_path, version), level="deep").findings == ()
    assert leftovers(tmp_path) == []


def test_what_makes_no_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tagged versions, the newest complete one and later ones stay, and so does all where a policy is stored."""
    for version in (1, 2):
        save_all(tmp_path, version, 1)
    fill(monkeypatch, tmp_path, 2)
    (part,) = small_parts(1)
    options: dict[str, Any] = {"keep_checkpoint_max": 2, "layout": "elasticdl"}
    add_tag(at(tmp_path, 1), "serving")
    with CheckpointSaver(tmp_path, free_first=True, **options) as saver, pytest.raises(NoSpaceError):
        saver.save(3, part.dense, part.tables)
    remove_tag(at(tmp_path, 1), "serving")
    store_policy(tmp_path, Policy((Latest(2),)))
    with CheckpointSaver(tmp_path, free_first=True, **options) as saver, pytest.raises(NoSpaceError):
        saver.save(3, part.dense, part.tables)
    store_policy(tmp_path, Policy())
    (tmp_path / "version-2/other").touch()  # so that version 1 is the newest complete one
    with CheckpointSaver(tmp_path, **options) as saver, pytest.raises(NoSpaceError) as full:
        saver.save(3, part.dense, part.tables)
    assert "could go first" not in str(full.value)
    assert numbers(tmp_path) == [1, 2]
    for keep in (0, 1):
        with pytest.raises(UsageError, match="newest complete version never goes before the next one is whole"):
            CheckpointSaver(tmp_path, free_first=True, keep_checkpoint_max=keep)
    (tmp_path / "version-2/other").unlink()
    assert verify_version(at(tmp_path, 1), level="deep").findings == ()


def test_a_bucket_without_room_for_one_more(s3: Bucket) -> None:
    """A quota of a bucket is a full disk too: the upload begins again when the oldest version is gone."""
    for version in (1, 2):
        save_all(s3.url, version, 1)
    quota = s3.proxy.fail(Fault(status(403, "QuotaExceeded"), operation="upload_part", key="version-3"))
    (part,) = small_parts(1)
    with CheckpointSaver(s3.url, keep_checkpoint_max=2, free_first=True, layout="elasticdl") as saver:
        saved = saver.save(3, part.dense, part.tables)
    assert (quota.hits, saved.sealed, numbers(s3.url)) == (1, True, [2, 3])
    assert verify_version(at(s3.url, 3), level="deep").findings == ()


@pytest.mark.root
def test_a_small_file_system(tmp_path: Path) -> None:
    """On a real file system with room for two versions and a half, a job that keeps two goes on for ever."""
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=24m", "none", tmp_path], capture_output=True, check=False
    )
    if done.returncode:
        pytest.skip(f"cannot mount here: {done.stderr!r}")
    weights = {"w": np.ones(2 << 20, np.float32)}  # 8 MiB
    try:
        with CheckpointSaver(tmp_path / "run", keep_checkpoint_max=2) as saver:
            for version in (1, 2):
                saver.save(version, weights, {})
            with pytest.raises(NoSpaceError, match="needs 8"):
                saver.save(3, weights, {})
        with CheckpointSaver(tmp_path / "run", keep_checkpoint_max=2, free_first=True) as saver:
            for version in range(3, 9):
                assert saver.save(version, weights, {}).sealed
                assert numbers(tmp_path / "run") == [version - 1, version]
                assert verify_version(at(tmp_path / "run", version), level="deep").findings == ()
    finally:
        subprocess.run(["umount", tmp_path], check=True)


def test_a_policy_that_names_nothing(place: str) -> None:
    """A stored policy by a metric that no version has yet is a warning in a job, and prunes as ever."""
    reporter = Recorder()
    save_all(place, 1, 2)
    store_policy(place, Policy((Best(1, "auc"), Tagged(("good",)))))
    for ps_id in (0, 1):
        saved = save_part(place, 2, ps_id, 2, reporter=reporter)
    assert (saved.removed, numbers(place)) == ((f"{place}@1",), [2])
    assert reporter.warnings == [
        f"{place}: no version has a value of 'auc', so its rule keeps none; no version has metrics",
        f"{place}: no version has the tag 'good'; no version has tags",
    ]
