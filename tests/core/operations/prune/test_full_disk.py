"""A full disk: a prune and a recover run without a new block, and the two kinds of lock exclude each other."""

from __future__ import annotations

import errno
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

import pytest

from checkpoints import save_small
from edl_ckpt.core import add_tag, list_versions, prune, verify_version
from edl_ckpt.core.base.errors import LockedError, NoSpaceError
from edl_ckpt.core.commit.deletion import trash
from edl_ckpt.core.commit.repair.recovery import location_lock
from edl_ckpt.core.operations.prune.guards import Guards
from edl_ckpt.core.operations.prune.retention import Policy
from edl_ckpt.core.state.paths import LOCK_FILE
from edl_ckpt.core.state.signature import Signature
from edl_ckpt.core.storage.beneath import Directory
from edl_ckpt.core.storage.faults import storage_errors
from program import document, edl
from reporters import Recorder
from system_runs import step_run
from zoo import GUESTS, settle


def _mounted(arguments: list[str], place: Path) -> None:
    done = subprocess.run(["mount", *arguments, str(place)], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"cannot mount here: {done.stderr.strip()}")


@pytest.fixture(params=["tmpfs", "ext4"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """Return a small file system; ext4 keeps no blocks for root."""
    place = tmp_path / "disk"
    place.mkdir()
    if request.param == "tmpfs":
        _mounted(["-t", "tmpfs", "-o", "size=2m", "tmpfs"], place)
    else:
        image = tmp_path / "image"
        with open(image, "wb") as file:
            file.truncate(8 << 20)
        try:
            subprocess.run(["mkfs.ext4", "-q", "-m", "0", str(image)], capture_output=True, check=True)
        except (OSError, subprocess.CalledProcessError) as error:
            pytest.skip(f"cannot make a file system here: {error}")
        _mounted(["-o", "loop", str(image)], place)
    yield place
    subprocess.run(["umount", str(place)], check=True)


def fill(place: Path) -> None:
    """Write until there is no room for a byte more."""
    for name, block in (("large", 1 << 16), ("small", 1)):
        with open(place / name, "wb", buffering=0) as file, suppress(OSError):
            while True:
                file.write(bytes(block))
        os.sync()


def aged(location: Path) -> None:
    """Let the versions be an hour old, in the order of their numbers."""
    for number, version in enumerate(sorted(location.glob("version-*"))):
        for file in version.iterdir():
            os.utime(file, (time.time() - 3600 + number,) * 2)


@pytest.mark.root
def test_prune_runs_on_a_full_disk(disk: Path) -> None:
    """Not a byte is free: a prune deletes what the plan says, says which lock it has, and the rest verifies."""
    run = disk / "run"
    save_small(run, 1, 2, 3)
    aged(run)
    fill(disk)
    tagged = edl("tag", "add", f"{run}@1", "x")
    assert tagged.returncode == 14
    assert "prune" in tagged.stderr  # the hint
    into_the_trash = edl("prune", run, "--keep", "1", "--trash", "--yes")
    assert into_the_trash.returncode == 14
    assert "without --trash" in into_the_trash.stderr
    assert [version.version for version in list_versions(str(run)).versions] == [1, 2, 3]
    recovered = edl("recover", run)
    assert recovered.returncode == 0, recovered.stderr
    pruned = edl("prune", run, "--keep", "1", "--yes")
    assert pruned.returncode == 0, pruned.stderr
    assert "the disk is full: the directory itself is locked" in pruned.stderr
    (left,) = list_versions(str(run)).versions
    assert verify_version(left).ok
    assert not (run / ".edl-ckpt-0" / "trash-0").exists()
    assert not (run / ".edl-ckpt-0" / "meta-0" / "1.seal.json").exists()


@pytest.mark.root
def test_the_trash_is_emptied_on_a_full_disk(disk: Path) -> None:
    """What the trash keeps can be freed when nothing else can."""
    run = disk / "run"
    save_small(run, 1, 2, 3)
    aged(run)
    assert document("prune", run, "--keep", "1", "--trash", "--yes")["deleted"]
    fill(disk)
    purged = edl("prune", run, "--purge", "--yes")
    assert purged.returncode == 0, purged.stderr
    assert not (run / ".edl-ckpt-0" / "trash-0").exists()


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no file of a lock be signed, as on a full disk."""

    def sign(self: Signature, fd: int, path: str, purpose: str) -> None:
        with storage_errors(path):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Signature, "__init__", sign)


def test_a_step_goes_with_all_in_it_without_a_new_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step that is removed file by file, because the trash has no room, goes with links and empty directories."""
    place = step_run(tmp_path / "run", (10, 20))
    for guest in ("hydra", "empty", "deep", "dangling", "secret-link", "hard-links"):
        GUESTS[guest](place / "step_10")
    settle(place)

    def no_room(*_: object, **__: object) -> NoReturn:
        raise NoSpaceError("No space left on device", path=str(place))

    monkeypatch.setattr(trash, "write_record", no_room)
    guards = Guards(delete=(10,), with_foreign=True, everything=True, grace_seconds=0)
    result = prune([place], Policy(()), guards=guards)
    assert result.deleted == (f"{place}@10",)
    assert (sorted(os.listdir(place)), (tmp_path / "secret").read_text()) == (["step_20"], "root's")


def test_only_what_frees_space_locks_the_directory(tmp_path: Path, full: None) -> None:
    """Another command ends with the error of the disk, and says what frees space; nothing of its lock stays."""
    save_location = tmp_path / "run"
    (save_location / "version-5").mkdir(parents=True)
    (save_location / "version-5" / "variables-0-of-1.ckpt").write_bytes(b"")
    with pytest.raises(NoSpaceError) as caught, location_lock(str(save_location), "tag"):
        pass
    assert "prune" in (caught.value.hint or "")
    with location_lock(str(save_location), "prune", frees_space=True):
        assert os.listdir(save_location) == ["version-5"]


def test_the_two_locks_exclude_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who has the lock's file keeps out who would lock the directory, and the other way round."""
    run = str(tmp_path / "run")
    save_small(Path(run), 5)
    recorder = Recorder()

    real = Directory.open_file

    def no_room(self: Directory, name: str, flags: int) -> int:
        if name == os.path.basename(LOCK_FILE):
            raise NoSpaceError("No space left on device", path=self.join(name))
        return real(self, name, flags)

    def on_a_full_disk() -> None:
        with monkeypatch.context() as patched:
            patched.setattr(Directory, "open_file", no_room)
            with location_lock(run, "prune", frees_space=True, wait_seconds=0, reporter=recorder):
                patched.undo()
                with pytest.raises(LockedError), location_lock(run, "tag", wait_seconds=0):
                    pass

    with location_lock(run, "tag"), pytest.raises(LockedError):
        on_a_full_disk()
    on_a_full_disk()
    assert "the disk is full" in recorder.warnings[0]
    add_tag(f"{run}@5", "free")
    assert verify_version(f"{run}@5").ok
