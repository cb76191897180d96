"""Power cuts: a file system on a loop device that forgets what was not flushed, at any moment of a command.

What a command has published when it returns survives; until then the old state does. Needs root and mounts: run with
`pytest -m root`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

import elasticdl_rules
from checkpoints import files_of
from edl_ckpt.core import list_versions, save_checkpoint, verify_version
from edl_ckpt.core.operations.save import Table
from program import edl
from waiting import CHANGES, count_calls, paused, wait_until

pytestmark = pytest.mark.root


def tool(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout


@dataclass
class Disk:
    """A small file system in a file, whose power can be cut."""

    image: Path
    place: Path
    kind: str

    def mount(self) -> None:
        """Make its files visible; its journal is replayed as after a crash."""
        tool("mount", "-o", "loop", str(self.image), str(self.place))

    def power_off(self) -> None:
        """Forget all that is not on the disk, as when the power goes."""
        tool("xfs_io", "-x", "-c", "shutdown", str(self.place))  # ext4 knows the same request

    def come_back(self) -> None:
        """Start again from what is on the disk."""
        wait_until(self._unmount)
        self.mount()

    def _unmount(self) -> bool:
        """Return whether nothing uses the file system any more, so that it could be unmounted."""
        with suppress(OSError):
            tool("umount", str(self.place))
            return True
        return False


@pytest.fixture(params=["xfs", "ext4"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Disk]:
    """A fresh file system, mounted; skipped where that is not allowed, with the reason."""
    if os.geteuid() != 0:
        pytest.skip("mounting needs root")
    for name in (f"mkfs.{request.param}", "xfs_io", "mount"):
        if shutil.which(name) is None:
            pytest.skip(f"{name} is not installed")
    held = Disk(tmp_path / "image", tmp_path / "disk", request.param)
    held.place.mkdir()
    with held.image.open("wb") as file:
        file.truncate(320 << 20)
    try:
        tool(f"mkfs.{request.param}", "-q", str(held.image))
        held.mount()
    except OSError as error:
        pytest.skip(f"mounts are not allowed here: {error}")
    try:
        yield held
    finally:
        tool("umount", str(held.place))


def save(location: Path) -> None:
    ids = np.arange(60_000)
    rows = np.random.default_rng(1).standard_normal((len(ids), 16)).astype(np.float32)
    save_checkpoint(str(location), 10, 3, variables={"w": rows}, tables={"t": Table(ids, rows)}, layout="elasticdl")
    os.sync()


COMMANDS = {
    "reshard in place": ("reshard", "run@10", "--ps", "4"),
    "reshard --output": ("reshard", "run@10", "--ps", "4", "--output", "other"),
    "copy": ("copy", "run@10", "other"),
    "import": ("import", "run@10", "other@10", "--ps", "2"),
    "export": ("export", "run@10", "model.safetensors"),
    "tag": ("tag", "add", "run@10", "good"),
}


MOMENTS = 8


def age_empty_files(place: Path) -> None:
    """Make empty files two seconds old: one that is younger may be that of an owner that just begins."""
    for path in place.rglob("*"):
        if path.is_file() and path.stat().st_size == 0:
            os.utime(path, (path.stat().st_mtime - 2,) * 2)


def whole(location: Path) -> tuple[int | None, str | None]:
    """Return the shards and the fingerprint of the one version in a location, having verified it."""
    (version,) = list_versions(str(location)).versions
    found = verify_version(version, level="deep")
    assert found.ok, found.findings
    return version.ps_num, found.fingerprint


@pytest.mark.parametrize("name", COMMANDS)
def test_after_it_returned(disk: Disk, name: str) -> None:
    """What a command has said is done is there after the power was cut the moment it returned."""
    run = disk.place / "run"
    save(run)
    before = whole(run)
    done = edl(*COMMANDS[name], cwd=disk.place)
    assert done.returncode == 0, done.stderr
    held = files_of(disk.place)
    disk.power_off()
    disk.come_back()
    left = files_of(disk.place)
    # What was removed at the end may be back: nobody waits for that to reach the disk, and the next command removes it.
    back = {name for name in left.keys() - held.keys() if "/stage-0/" in name or name.endswith("lock-0")}
    assert {name: data for name, data in left.items() if name not in back} == held
    age_empty_files(disk.place)
    for location in {name.partition("/")[0] for name in back}:
        assert edl("recover", location, cwd=disk.place).returncode == 0
    assert files_of(disk.place) == held
    assert whole(run)[1] == before[1]
    if (disk.place / "other").exists():
        assert whole(disk.place / "other")[1] == before[1]
    assert elasticdl_rules.latest_valid(run) == "version-10"


@pytest.mark.parametrize("name", COMMANDS)
def test_at_any_moment(disk: Disk, name: str) -> None:
    """Cut before one of its changes: the old state or the new is there whole, and the next command tidies up."""
    run = disk.place / "run"
    save(run)
    before = whole(run)
    calls = count_calls(*COMMANDS[name], of=CHANGES, cwd=disk.place)
    assert calls > MOMENTS
    after = whole(run)
    for moment in range(MOMENTS):
        for path in disk.place.iterdir():
            if path.name != "lost+found":
                shutil.rmtree(path, ignore_errors=True)
                path.unlink(missing_ok=True)
        save(run)
        with paused(*COMMANDS[name], at=f"{CHANGES}:{1 + moment * calls // MOMENTS}", cwd=disk.place) as program:
            disk.power_off()
            program.process.kill()
        disk.come_back()
        assert elasticdl_rules.latest_valid(run) == "version-10"
        assert whole(run) in {before, after}
        other = disk.place / "other"
        if other.exists() and list_versions(str(other)).versions:
            assert whole(other)[1] == before[1]
        age_empty_files(disk.place)
        for location in (run, *([other] if other.exists() else [])):
            assert edl("recover", location, "--drop-copies").returncode == 0
            assert elasticdl_rules.leftovers(location) == []
        assert edl("verify", "run@10", "--deep", cwd=disk.place).returncode == 0
