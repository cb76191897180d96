"""How often a prune looks at what it prunes: the work of a version must not grow with each guard."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edl_ckpt.core import Latest, Policy, plan_prune, prune, save_checkpoint
from edl_ckpt.core.commit.deletion import holdings
from edl_ckpt.core.operations.prune import facts
from edl_ckpt.core.storage import beneath, open_store, walk
from edl_ckpt.core.storage.interface import lists_marks
from edl_ckpt.core.storage.mounts import mount_points as mount_points_now
from s3_fixtures import Bucket

VERSIONS = 12


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Return a location with sealed versions of two shards, saved long ago."""
    for number in range(1, VERSIONS + 1):
        save_checkpoint(tmp_path / "run", number, 2, variables={"w": np.arange(4.0)}, layout="elasticdl")
    for path in (tmp_path / "run").rglob("*"):
        os.utime(path, (1e9, 1e9))
    return tmp_path / "run"


def test_a_plan_looks_into_each_directory_once(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each version is walked once, and the mounts of the machine are read once for all of them."""
    walked: Counter[str] = Counter()
    mounts: list[int] = []
    real_tree, real_points = walk.local_tree, mount_points_now

    def tree(top: beneath.Directory, points: frozenset[str] | None = None) -> Any:
        assert points is not None
        walked[os.path.basename(top.path)] += 1
        return real_tree(top, points)

    def points() -> frozenset[str]:
        mounts.append(1)
        return real_points()

    monkeypatch.setattr(holdings, "local_tree", tree)
    monkeypatch.setattr(facts, "mount_points", points)
    plan = plan_prune([run], Policy((Latest(3),)))
    assert len(plan.deletions) == VERSIONS - 3
    assert set(walked.values()) == {1}
    assert len(walked) == VERSIONS
    assert len(mounts) == 1


def test_metadata_is_read_once_and_its_directory_opened_once(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A prune reads each seal once, although it lists twice; no read of one opens the directories above it anew."""
    opened: Counter[str] = Counter()
    real = os.open

    def spy(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        opened[os.path.basename(os.fsdecode(path))] += 1
        return real(path, flags, mode, dir_fd=dir_fd)

    monkeypatch.setattr(os, "open", spy)
    assert len(prune([run], Policy((Latest(VERSIONS - 1),))).deleted) == 1
    seals = {name: count for name, count in opened.items() if name.endswith(".seal.json")}
    assert len(seals) == VERSIONS
    assert set(seals.values()) == {1}
    assert opened["meta-0"] < VERSIONS


def test_one_listing_shows_the_trees_of_many_versions_on_s3(
    run: Path, s3: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plan on S3 lists the directories of all versions together, and finds the same as one request for each."""
    (run / "version-2" / "notes.txt").write_text("mine")
    (run / "version-3" / ".git").mkdir()
    (run / "version-3" / ".git" / "HEAD").write_text("ref")
    s3.upload(run)
    store = open_store(s3.url)
    names = [f"version-{number}" for number in range(1, VERSIONS + 1)]
    assert lists_marks(store)
    assert holdings.object_trees(store, names) == {name: store.raw_tree(name) for name in names}
    assert holdings.object_trees(store, names[:3]) == {}
    monkeypatch.setattr(type(store), "raw_tree", lambda *_: pytest.fail("a version was listed by itself"))
    plan = plan_prune([s3.url], Policy((Latest(3),)), now=2e9)
    assert len(plan.facts.held) >= len(plan.deletions) > 3
