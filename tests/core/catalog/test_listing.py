"""Listings: foreign entries never stop one, and it opens no file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from edl_ckpt.core import list_versions, open_checkpoint, parse_ref, resolve, verify_version
from edl_ckpt.core.base.errors import IncompleteError, NotFoundError, UsageError
from edl_ckpt.core.model.versions import State
from places import GOLDEN


def test_listing_opens_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A listing opens no file, and lists each directory once."""
    opened: list[Any] = []
    listed: list[str] = []
    real = os.scandir
    monkeypatch.setattr(os, "open", lambda *a, **k: opened.append(a))

    def scandir(path: str) -> Any:
        listed.append(path)
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    list_versions(str(GOLDEN / "multi"))
    assert opened == []
    assert sorted(listed) == sorted([str(GOLDEN / "multi")] + [f"{GOLDEN}/multi/version-{v}" for v in (9, 20, 100)])


def test_places_that_are_no_location(tmp_path: Path) -> None:
    """Nothing there, a file, an empty directory, a loop of links: a plain error or an empty listing."""
    with pytest.raises(NotFoundError):
        list_versions(str(tmp_path / "no"))
    (tmp_path / "file").write_text("x")
    with pytest.raises(NotFoundError):
        list_versions(str(tmp_path / "file"))
    (tmp_path / "empty").mkdir()
    assert list_versions(str(tmp_path / "empty")).versions == ()
    with pytest.raises(NotFoundError, match="no checkpoint here"):
        resolve(parse_ref(str(tmp_path / "empty")))
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(NotFoundError):
        list_versions(str(tmp_path / "loop"))
    with pytest.raises(UsageError):
        parse_ref("x@")


def test_odd_entries(tmp_path: Path) -> None:
    """Foreign files, directories in a shard's place, dangling links and odd numbers never stop a listing."""
    location = tmp_path / "run"
    (location / "version-7" / "variables-0-of-1.ckpt").mkdir(parents=True)
    (location / "version-8").mkdir()
    (location / "version-8" / "variables-0-of-1.ckpt").symlink_to("nowhere")
    (location / "version-9").mkdir()
    (location / "version-007").mkdir()
    (location / "tmp-30").mkdir()
    (location / "metrics.json").write_text("{}")
    (location / "version-11").write_text("a file")
    listing = list_versions(str(location), grace_seconds=0)
    assert [(v.version, v.state) for v in listing.versions] == [
        (7, State.INCOMPLETE),
        (8, State.UNREADABLE),
        (9, State.INCOMPLETE),
    ]
    assert {f.name: f.elasticdl_version for f in listing.foreign} == {
        "version-007": 7,
        "tmp-30": 30,
        "metrics.json": None,
        "version-11": 11,
    }
    for version in listing.versions:
        assert not verify_version(version).ok
    with pytest.raises(IncompleteError):
        open_checkpoint(listing.versions[0])
    with pytest.raises(NotFoundError):
        open_checkpoint(listing.versions[1])
