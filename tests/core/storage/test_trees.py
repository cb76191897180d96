"""A directory read raw: every entry is there, no link is followed, and a change shows."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from edl_ckpt.core.base.errors import RefusedError
from edl_ckpt.core.storage import open_store, tree, walk
from edl_ckpt.core.storage.tree import Kind, difference, digest_of
from raw_trees import raw_tree
from s3_fixtures import Bucket
from zoo import GUESTS, REFUSED


def _zoo(place: Path) -> Path:
    step = place / "step_1"
    step.mkdir(parents=True)
    for guest in {**GUESTS, **REFUSED}.values():
        guest(step)
    return step


def test_every_entry_is_there(tmp_path: Path) -> None:
    """The tree has the entries that `os` shows, each before those in it, with links as links."""
    step = _zoo(tmp_path / "run")
    found = open_store(str(tmp_path / "run")).raw_tree("step_1")
    assert found.keys() == raw_tree(step).keys()
    assert (found["aa"].kind, found["aa"].leads_to) == (Kind.LINK, str(tmp_path / "secret"))
    assert (found["events.fifo"].kind, found["run/s"].kind) == (Kind.PIPE, Kind.SOCKET)
    order = list(found)
    assert all(os.path.dirname(path) in {"", *order[:number]} for number, path in enumerate(order))


@pytest.mark.parametrize("change", ["touch", "write", "link", "new", "gone"])
def test_a_change_shows(tmp_path: Path, change: str) -> None:
    """Another content, time, target or entry is named, and gives another digest."""
    step, store = _zoo(tmp_path / "run"), open_store(str(tmp_path / "run"))
    before = store.raw_tree("step_1")
    assert difference(before, store.raw_tree("step_1")) == ""
    if change == "touch":
        os.utime(step / "notes.txt", (5, 5))
    elif change == "write":
        (step / "notes.txt").write_text("other")
    elif change == "link":
        (step / "gone").unlink()
        (step / "gone").symlink_to("/other")
    elif change == "new":
        (step / ".hydra/new").write_text("")
    else:
        (step / "a/b/c/d/e/f/g/h/i/j/deep.txt").unlink()
    now = store.raw_tree("step_1")
    changed = {"link": "gone", "new": ".hydra/new", "gone": "a/b/c/d/e/f/g/h/i/j/deep.txt"}
    assert difference(before, now) == changed.get(change, "notes.txt")
    assert digest_of(before) != digest_of(now)


def test_a_look_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory with more entries than any checkpoint has is refused, and so is one that is too deep."""
    store = open_store(str(tmp_path))
    deep = tmp_path / "step_1" / "/".join(["d"] * 30)
    deep.mkdir(parents=True)
    monkeypatch.setattr(walk, "MOST_DEPTH", 20)
    with pytest.raises(RefusedError, match="directories in one another"):
        store.raw_tree("step_1")
    monkeypatch.setattr(walk, "MOST_DEPTH", tree.MOST_DEPTH)
    monkeypatch.setattr(walk, "MOST_ENTRIES", 20)
    with pytest.raises(RefusedError, match="entries"):
        store.raw_tree("step_1")


def test_mounts_are_entries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mount point is one, and nothing below it is listed."""
    (tmp_path / "step_1/sub/data").mkdir(parents=True)
    (tmp_path / "step_1/sub/data/foreign").write_text("")
    mounted = os.path.realpath(tmp_path / "step_1/sub/data")
    monkeypatch.setattr(walk, "mount_points", lambda: frozenset([mounted, "/proc"]))
    found = open_store(str(tmp_path)).raw_tree("step_1")
    assert [(path, entry.kind) for path, entry in found.items()] == [
        ("sub", Kind.DIRECTORY),
        ("sub/data", Kind.MOUNT),
    ]


def test_objects(s3: Bucket) -> None:
    """On object storage every key below the directory is there, hidden ones too; a changed object shows."""
    for key in ("step_1/.git/HEAD", "step_1/w", "step_1/a/b/c/d/e/f/g/h", "step_10/x", "step_1/empty/"):
        s3.put(f"run/{key}", b"" if key.endswith("/") else b"1")
    store = open_store(s3.url)
    before = store.raw_tree("step_1")
    assert {path: entry.kind for path, entry in before.items()} == {
        ".git/HEAD": Kind.FILE,
        "w": Kind.FILE,
        "a/b/c/d/e/f/g/h": Kind.FILE,
        "empty": Kind.DIRECTORY,
    }
    s3.put("run/step_1/w", b"2")
    assert difference(before, store.raw_tree("step_1")) == "w"
