"""The rule of each server for its own shard, and the files that such servers leave."""

from __future__ import annotations

import os
import shutil
from functools import partial
from pathlib import Path

import pytest

from checkpoints import at, numbers, save_small
from edl_ckpt.core import execute_prune, verify_version
from edl_ckpt.core.base.errors import RefusedError
from edl_ckpt.core.base.progress import SILENT
from edl_ckpt.core.catalog.listing import list_versions
from edl_ckpt.core.commit.repair.kinds import kind_of
from edl_ckpt.core.commit.repair.recovery import location_lock
from edl_ckpt.core.commit.shard import ShardOutput, ShardPlace
from edl_ckpt.core.model.versions import State
from edl_ckpt.core.operations.annotate import add_tag
from edl_ckpt.core.operations.prune.guards import Guards
from edl_ckpt.core.operations.prune.own_shard import remove_own_shard
from edl_ckpt.core.sources.elasticdl.names import ELASTICDL
from edl_ckpt.core.storage import open_store
from pruning import NOW, check_whole, plan_for, prune


def test_per_server_rule(tmp_path: Path) -> None:
    """Each server removes its own shard of the smallest version; the last one removes the directory."""
    save_small(tmp_path, 1, 2, 3, ps_num=3, sealed=False)
    assert remove_own_shard(str(tmp_path), 0, 3, 0) == ()
    assert remove_own_shard(str(tmp_path), 0, 3, 2) == (str(tmp_path / "version-1/variables-0-of-3.ckpt"),)
    assert remove_own_shard(str(tmp_path), 0, 3, 2) == ()
    remove_own_shard(str(tmp_path), 1, 3, 2)
    assert remove_own_shard(str(tmp_path), 2, 3, 2) == (
        str(tmp_path / "version-1/variables-2-of-3.ckpt"),
        str(tmp_path / "version-1"),
    )
    assert numbers(tmp_path) == [2, 3]


def test_per_server_rule_is_safe(tmp_path: Path) -> None:
    """No shard goes of the last complete version that can be read, of a later one, or of a tagged one.

    Slower servers may still complete the later ones.
    """
    save_small(tmp_path, 1, 2, 3, sealed=False)
    add_tag(at(tmp_path, 1), "prod")
    os.unlink(tmp_path / "version-3/variables-1-of-2.ckpt")
    assert remove_own_shard(str(tmp_path), 0, 2, 1) == ()
    save_small(tmp_path, 4, sealed=False)
    os.truncate(tmp_path / "version-4/variables-1-of-2.ckpt", 5)
    assert remove_own_shard(str(tmp_path), 0, 2, 1) == ()
    assert list_versions(str(tmp_path)).versions[1].state is State.COMPLETE
    save_small(tmp_path, 5, sealed=False)
    removed = remove_own_shard(str(tmp_path), 0, 2, 1)
    assert [path.rpartition("run/")[2].removeprefix(f"{tmp_path}/") for path in removed] == [
        "version-2/variables-0-of-2.ckpt",
        "version-3/variables-0-of-2.ckpt",
        "version-3",
        "version-4/variables-0-of-2.ckpt",
    ]


def test_go_server_story(tmp_path: Path) -> None:
    """Go servers leave orphans, a restarted count with another ps_num, and several ps_num in one directory.

    `list` shows the state of each, `verify` names each fault, and `prune` deletes only orphans, and only on request.
    """
    save_small(tmp_path, 60, 80, 100, sealed=False)
    for orphan in (20, 40):
        save_small(tmp_path, orphan, sealed=False)
        os.unlink(tmp_path / f"version-{orphan}/variables-0-of-2.ckpt")
    save_small(tmp_path / "restarted", 1, 60, ps_num=4, sealed=False)
    for shard in (tmp_path / "restarted/version-60").iterdir():
        shutil.copy(shard, tmp_path / "version-60")
    shutil.move(tmp_path / "restarted/version-1", tmp_path / "version-1")
    shutil.rmtree(tmp_path / "restarted")
    old, young = NOW - 86_400, NOW - 7200
    for path in tmp_path.rglob("*"):
        when = young if path.parent.name == "version-1" or path.name == "version-1" else old
        os.utime(path, (when, when))
    listing = list_versions(str(tmp_path), now=NOW)
    assert [(v.version, v.state.value, v.ps_num) for v in listing.versions] == [
        (1, "complete", 4),
        (20, "incomplete", 2),
        (40, "incomplete", 2),
        (60, "mixed", None),
        (80, "complete", 2),
        (100, "complete", 2),
    ]
    codes = {v.version: sorted({f.code for f in verify_version(v).findings}) for v in listing.versions}
    assert codes == {
        1: [],
        20: ["missing-shard"],
        40: ["missing-shard"],
        60: ["mixed-ps-num"],
        80: [],
        100: [],
    }
    plan = plan_for(tmp_path, guards=Guards(incomplete=True))
    assert {e.version: e.action.value for e in plan.entries} == {
        1: "keep",
        20: "delete",
        40: "delete",
        60: "keep",
        80: "delete",
        100: "keep",
    }
    assert "version 1 was written long after higher numbers" in plan.warnings[0]
    prune(tmp_path, guards=Guards(incomplete=True))
    assert numbers(tmp_path) == [1, 60, 100]
    prune(tmp_path, guards=Guards(delete=(60,)))
    assert numbers(tmp_path) == [1, 100]


def _saving(location: Path) -> ShardOutput:
    """Return where a server saves the second shard of version 2."""
    store = open_store(location)
    place = ShardPlace(store, ELASTICDL, 2, 1, 2)
    return kind_of(store).shard(place, partial(location_lock, location, "save a shard"), SILENT)


def test_a_version_that_a_process_is_saving(tmp_path: Path) -> None:
    """A named version of which a process is still writing a shard is refused, however long it has not changed."""
    save_small(tmp_path, 1, 2, sealed=False)
    (tmp_path / "version-2/variables-1-of-2.ckpt").unlink()
    named = Guards(delete=(2,))
    with _saving(tmp_path) as shard:
        shard.create(10)
        with pytest.raises(RefusedError, match="cannot be deleted: still being written"):
            plan_for(tmp_path, guards=named)
        assert not plan_for(tmp_path, guards=Guards(incomplete=True)).deletions
    plan = plan_for(tmp_path, guards=named)
    with _saving(tmp_path) as shard:
        shard.create(10)
        with pytest.raises(RefusedError, match="stale: still being written"):
            execute_prune(plan, now=NOW)
    prune(tmp_path, guards=named)
    assert numbers(tmp_path) == [1]
    check_whole(tmp_path)
