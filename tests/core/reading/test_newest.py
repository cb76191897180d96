"""`latest`: the newest complete version that can be read, and why later ones are passed over."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from checkpoints import at, save_small
from edl_ckpt.core import IncompleteError, NotFoundError, UnavailableError, latest, open_checkpoint, verify_versions
from edl_ckpt.core.model.versions import Version
from edl_ckpt.core.reading import newest
from places import GOLDEN
from reporters import Recorder
from waiting import settle


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Return a location in which each version from 3 to 7 is torn in another way, and 1 and 2 are whole."""
    run = tmp_path / "run"
    save_small(run, 1, 2, 3, 4, 5, 6, 7)
    shard = "variables-1-of-2.ckpt"
    data = (run / "version-3" / shard).read_bytes()
    (run / "version-3" / shard).write_bytes(data[: len(data) // 2])
    (run / "version-4" / shard).unlink()
    (run / "version-5" / "variables-0-of-3.ckpt").write_bytes(data)
    (run / "version-6" / "notes.txt").write_text("by hand")
    (run / "version-7" / shard).write_bytes(b"\x08\x07")  # as far as a saver comes before it writes its tables
    return run


def test_falls_back_and_says_why(run: Path) -> None:
    """Every later version is passed over, the newest first, with a warning that names it and its fault."""
    recorder = Recorder()
    assert latest(run, reporter=recorder).version == 2
    faults = ["does not describe table 't'", "notes.txt", "several ps_num", "shard 1 of 2", "variables-1-of-2.ckpt"]
    assert len(recorder.warnings) == len(faults)
    for number, warning, fault in zip((7, 6, 5, 4, 3), recorder.warnings, faults, strict=True):
        assert warning.startswith(f"{run}@{number} is passed over for version 2: ")
        assert fault in warning
    with open_checkpoint(at(run, 2)) as checkpoint:
        assert checkpoint.restore(0, 1).version == 2


def test_known_damage_is_passed_over(tmp_path: Path) -> None:
    """A flipped bit, which no header shows, is no newest version once a verification has found it."""
    save_small(tmp_path, 1, 2)
    shard = tmp_path / "version-2/variables-0-of-2.ckpt"
    data = bytearray(shard.read_bytes())
    data[-3] ^= 1
    shard.write_bytes(data)
    settle()
    assert latest(tmp_path).version == 2
    assert not verify_versions([at(tmp_path, 2)], level="deep").results[0].ok
    recorder = Recorder()
    assert latest(tmp_path, reporter=recorder).version == 1
    (warning,) = recorder.warnings
    assert warning.startswith(f"{tmp_path}@2 is passed over for version 1: damaged: ")


def test_nothing_is_readable(run: Path) -> None:
    """With no version to fall back to, one error has the reason of each version."""
    for number in (1, 2):
        shutil.rmtree(run / f"version-{number}")
    recorder = Recorder()
    with pytest.raises(
        IncompleteError, match=r"no version can be read: version 7: .*version 6: .*version 3: "
    ) as caught:
        latest(run, reporter=recorder)
    assert caught.value.path == str(run)
    assert recorder.warnings == []


def test_no_version(tmp_path: Path) -> None:
    """A directory without versions, and no directory at all, are not found."""
    for path in (tmp_path, tmp_path / "none"):
        with pytest.raises(NotFoundError):
            latest(path)


def test_golden() -> None:
    """Of what ElasticDL saved, the newest version with all its shards is the one that it restores itself."""
    recorder = Recorder()
    assert latest(GOLDEN / "multi", reporter=recorder).version == 20
    assert len(recorder.warnings) == 1


def test_replaced_while_it_looks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A version that is gone when it is opened was in an old listing: it is listed again, without a warning."""
    save_small(tmp_path, 1, 2)
    real = newest.read_fault

    def racing(version: Version) -> str | None:
        if version.version == 2:
            shutil.rmtree(version.path)
        return real(version)

    monkeypatch.setattr(newest, "read_fault", racing)
    recorder = Recorder()
    assert latest(tmp_path, reporter=recorder).version == 1
    assert recorder.warnings == []


def test_storage_that_is_away(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Storage that cannot be reached says nothing of a version, so nothing is passed over for it."""

    def away(version: Version) -> str | None:
        raise UnavailableError("no route to host", path=version.path)

    monkeypatch.setattr(newest, "read_fault", away)
    with pytest.raises(UnavailableError):
        latest(run)
