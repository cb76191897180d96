"""Retention of the servers that save: keep_checkpoint_max, and the policy that is stored with the location."""

from __future__ import annotations

import os
from pathlib import Path

from checkpoints import at, numbers
from edl_ckpt.core import (
    Latest,
    Location,
    Policy,
    add_tag,
    list_versions,
    location_lock,
    prune,
    remove_own_shard,
    reshard_version,
    store_policy,
)
from edl_ckpt.core.commit.notes import noted_versions
from edl_ckpt.core.format.model import State
from edl_ckpt.core.storage import open_store
from elasticdl_rules import leftovers
from forked import run_forked
from reporters import Recorder
from saving import save_all, save_part


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
