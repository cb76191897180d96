"""Several versions verified and sealed in one run."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from checkpoints import save_small
from edl_ckpt.core import list_versions, location_lock, seal_version, verify_and_seal, verify_versions
from edl_ckpt.core.base.errors import LockedError
from edl_ckpt.core.base.interruption import COMMIT
from edl_ckpt.core.model.versions import Version
from edl_ckpt.core.operations.verify import check
from edl_ckpt.core.operations.verify.headers import open_readable_shards
from edl_ckpt.core.state.paths import seal_file
from reporters import Recorder


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Return a location with three versions without seals, the second truncated."""
    save_small(tmp_path / "run", 1, 2, 3, sealed=False)
    os.truncate(tmp_path / "run/version-2/variables-1-of-2.ckpt", 5)
    return tmp_path / "run"


def test_an_error_does_not_stop_the_others(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A version that cannot be verified is in the result with its error; those after it are verified."""
    one, two, three = list_versions(run).versions
    real = open_readable_shards

    def locked(version: Version, *arguments: Any) -> object:
        if version == one:
            raise LockedError("a job goes on writing it", path=one.path)
        return real(version, *arguments)

    monkeypatch.setattr(check, "open_readable_shards", locked)
    monkeypatch.setattr(check, "ATTEMPTS", 1)
    found = verify_versions([one, two, three])
    assert [(r.ref, r.ok) for r in found.results] == [(two.ref, False), (three.ref, True)]
    assert [(ref, type(error)) for ref, error in found.failed] == [(one.ref, LockedError)]
    assert found.worst_error is found.failed[0][1]
    assert verify_versions([three]).worst_error is None


def test_only_whole_versions_are_sealed(run: Path) -> None:
    """Sealing seals every whole version and warns of the others; only `use_seal=False` replaces a seal."""
    reporter = Recorder()
    found = verify_versions(list_versions(run).versions, seal=True, reporter=reporter)
    assert [(r.level, r.sealed) for r in found.results] == [("deep", True), ("deep", False), ("deep", True)]
    assert reporter.warnings == [f"{run}@2: not sealed, because shards are missing or damaged"]
    assert [bool(v.fingerprint) for v in list_versions(run).versions] == [True, False, True]
    before = (run / seal_file(1)).stat().st_ino
    assert verify_and_seal(list_versions(run).versions[0]).sealed
    assert (run / seal_file(1)).stat().st_ino == before
    assert verify_and_seal(list_versions(run).versions[0], use_seal=False).sealed
    assert (run / seal_file(1)).stat().st_ino != before


def test_a_signal_behind_a_seal(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal that comes when one version was sealed ends the command before the next one is read."""
    read: list[str] = []
    real = open_readable_shards

    def noted(version: Version, *arguments: Any) -> object:
        read.append(version.ref)
        return real(version, *arguments)

    monkeypatch.setattr(check, "open_readable_shards", noted)
    one, _, three = list_versions(run).versions
    COMMIT.forget()
    try:
        with pytest.raises(SystemExit, match="143"):
            verify_versions([one, three], seal=True, take=lambda _: assert_kept())
    finally:
        COMMIT.forget()
    assert read == [one.ref]
    assert (run / seal_file(1)).exists()


def assert_kept() -> None:
    """Be the handler of a signal after a commit."""
    assert COMMIT.keep(SystemExit(143))


def test_sealing_takes_the_lock(run: Path) -> None:
    """While another command holds the lock, a version is verified but not sealed: error 11, and no seal."""
    version = list_versions(run).versions[0]
    with location_lock(run, "test"):
        with pytest.raises(LockedError):
            verify_and_seal(version, wait_seconds=0)
        with pytest.raises(LockedError):
            seal_version(version, "edl1:0", wait_seconds=0)
        assert verify_versions([version], seal=True, wait_seconds=0).failed
    assert not (run / seal_file(1)).exists()
