"""What takes the place of a version keeps its owner, group, mode and ACL; new versions follow the location.

The judges are `stat` and `getfacl`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from checkpoints import at, numbers, save_small
from edl_ckpt.core import reshard_version
from edl_ckpt.core.base.choices import FormatName
from edl_ckpt.core.operations.copy.execute import execute_copy
from edl_ckpt.core.operations.copy.plan import plan_copy
from edl_ckpt.core.operations.export import export_version
from edl_ckpt.core.storage import files
from program import edl
from reporters import Recorder

ALICE, BOB, TEAM = 54_321, 54_322, 54_400
ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")
ACL = pytest.mark.skipif(
    shutil.which("setfacl") is None or shutil.which("getfacl") is None, reason="apt install acl: no setfacl here"
)


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory that every user may enter."""
    directory = Path(tempfile.mkdtemp(prefix="edl-access-"))
    directory.chmod(0o755)
    yield directory
    shutil.rmtree(directory)


@contextmanager
def user(uid: int, *groups: int) -> Iterator[None]:
    """Work as another user; only root can, and it comes back."""
    before = os.getgroups()
    os.setgroups(list(groups))
    os.setegid(uid)
    os.seteuid(uid)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)
        os.setgroups(before)


def rights(path: str | Path) -> str:
    """Return owner, group and mode as `stat` prints them."""
    done = subprocess.run(["stat", "-c", "%u:%g %a", path], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def acl(path: str | Path) -> list[str]:
    """Return the ACL as `getfacl` prints it, without the name of the file."""
    done = subprocess.run(["getfacl", "-nE", "--absolute-names", path], capture_output=True, text=True, check=True)
    return sorted(line for line in done.stdout.splitlines() if line and not line.startswith("# file"))


def setfacl(*arguments: str | Path) -> None:
    done = subprocess.run(["setfacl", *arguments], capture_output=True, text=True, check=False)
    if "not supported" in done.stderr:
        pytest.skip("this file system has no ACLs")
    assert done.returncode == 0, done.stderr


def give(directory: Path, uid: int, gid: int) -> None:
    """Give a version away, with modes that no umask makes: 2750 and 0640."""
    for path in directory.iterdir():
        os.chown(path, uid, gid)
        path.chmod(0o640)
    os.chown(directory, uid, gid)
    directory.chmod(0o2750)


@pytest.fixture(params=["exchange", "two renames"])
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace versions with RENAME_EXCHANGE, and without."""
    if request.param == "two renames":
        monkeypatch.setattr(files, "RENAME_EXCHANGE", 1 << 20)  # a flag that no kernel knows


@ROOT
@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize("ps_num", [1, 3])
def test_in_place_as_root(place: Path, ps_num: int) -> None:
    """A reshard in place by root leaves shards and directory to their owner and group, with their modes."""
    run = place / "run"
    save_small(run, 7)
    give(run / "version-7", ALICE, TEAM)
    reshard_version(at(run, 7), ps_num)
    assert rights(run / "version-7") == f"{ALICE}:{TEAM} 2750"
    shards = sorted((run / "version-7").iterdir())
    assert [rights(shard) for shard in shards] == [f"{ALICE}:{TEAM} 640"] * ps_num


@ROOT
def test_modes_of_single_shards(place: Path) -> None:
    """Shards whose modes differ keep them by their numbers; more shards than before get the first one's."""
    run = place / "run"
    save_small(run, 7)
    zero, one = sorted((run / "version-7").iterdir())
    zero.chmod(0o400)
    one.chmod(0o664)
    reshard_version(at(run, 7), 3)
    assert [rights(p)[-3:] for p in sorted((run / "version-7").iterdir())] == ["400", "664", "400"]


@pytest.mark.usefixtures("kernel")
def test_in_place_as_the_owner(tmp_path: Path) -> None:
    """The owner's modes stay, 0640 and setgid among them, under another umask."""
    run = tmp_path / "run"
    save_small(run, 7)
    for path in (run / "version-7").iterdir():
        path.chmod(0o640)
    (run / "version-7").chmod(0o2750)
    before = os.umask(0o077)
    try:
        recorder = Recorder()
        reshard_version(at(run, 7), 3, reporter=recorder)
    finally:
        os.umask(before)
    assert rights(run / "version-7").endswith(" 2750")
    assert {rights(p)[-3:] for p in (run / "version-7").iterdir()} == {"640"}
    assert recorder.warnings == []


@ROOT
def test_in_place_as_another_user(place: Path) -> None:
    """A user who cannot give files away is warned once; group and mode stay as far as the user may set them."""
    run = place / "run"
    save_small(run, 7)
    give(run / "version-7", ALICE, TEAM)
    for directory in (run, run / ".edl-ckpt-0", run / ".edl-ckpt-0/meta-0", run / "version-7"):
        os.chown(directory, ALICE, TEAM)
        directory.chmod(0o2770)
    recorder = Recorder()
    with user(BOB, TEAM):
        reshard_version(at(run, 7), 3, reporter=recorder)
    assert rights(run / "version-7") == f"{BOB}:{TEAM} 2770"
    assert {rights(p) for p in (run / "version-7").iterdir()} == {f"{BOB}:{TEAM} 640"}
    assert [w for w in recorder.warnings if "cannot keep the owner" in w] == recorder.warnings
    assert len(recorder.warnings) == 1


@ACL
@pytest.mark.usefixtures("kernel")
def test_acls_stay(tmp_path: Path) -> None:
    """The ACLs of the shards and the directory, and its default ACL, are those from before, or none."""
    run = tmp_path / "run"
    save_small(run, 7, 8)
    setfacl("-R", "-m", f"u:{ALICE}:rX,g:{TEAM}:rwX", run / "version-7")
    setfacl("-d", "-m", f"u:{ALICE}:rX", run / "version-7")
    setfacl("-d", "-m", f"u:{BOB}:rwX", run)  # since the versions were made, so they lack it
    shard = run / "version-7/variables-0-of-2.ckpt"
    before = acl(run / "version-7"), acl(shard)
    plain = acl(run / "version-8"), acl(run / "version-8/variables-0-of-2.ckpt")
    assert any(str(ALICE) in line for line in before[1])
    for number in (7, 8):
        reshard_version(at(run, number), 1)
    assert (acl(run / "version-7"), acl(run / "version-7/variables-0-of-1.ckpt")) == before
    assert (acl(run / "version-8"), acl(run / "version-8/variables-0-of-1.ckpt")) == plain


def inside(run: Path) -> Path:
    """Return a directory with a file, as a job makes them now."""
    other = run / "by-hand-0"
    other.mkdir()
    (other / "file").touch()
    return other


@ACL
def test_new_versions_inherit_from_the_location(tmp_path: Path) -> None:
    """A new version has the group and ACL that anything new in its location gets, also since a moment ago.

    The state directory is older than the default ACL and the setgid bit, and has neither.
    """
    run = tmp_path / "run"
    save_small(run, 7)
    save_small(tmp_path / "source", 8)
    group = TEAM if os.geteuid() == 0 else next((g for g in os.getgroups() if g != os.getegid()), os.getegid())
    os.chown(run, -1, group)
    run.chmod(0o2775)
    setfacl("-d", "-m", f"u:{ALICE}:rwX,g::rX", run)
    model = inside(run)
    expected = (rights(model), acl(model), rights(model / "file"), acl(model / "file"))
    shutil.rmtree(model)
    assert f":{group} " in expected[2]
    execute_copy(plan_copy([at(tmp_path / "source", 8)], str(run)))
    save_small(run, 9)
    reshard_version(at(tmp_path / "source", 8), 2, output=str(run), number=10)
    for number in (8, 9, 10):
        made = run / f"version-{number}"
        found = made / "variables-0-of-2.ckpt"
        assert (rights(made), acl(made), rights(found), acl(found)) == expected, number


@ACL
def test_new_versions_inherit_nothing_old(tmp_path: Path) -> None:
    """A default ACL and a setgid bit that the location no longer has do not come from the state directory."""
    run = tmp_path / "run"
    run.mkdir()
    run.chmod(0o2775)
    setfacl("-d", "-m", f"u:{ALICE}:rwX", run)
    save_small(run, 7)
    setfacl("-k", run)
    run.chmod(0o755)
    model = inside(run)
    expected = (rights(model), acl(model), rights(model / "file"), acl(model / "file"))
    shutil.rmtree(model)
    save_small(run, 8)
    found = run / "version-8/variables-0-of-2.ckpt"
    assert (rights(run / "version-8"), acl(run / "version-8"), rights(found), acl(found)) == expected


@ROOT
def test_undo_keeps_everything(place: Path) -> None:
    """Prune and undo bring a version back with owner, group and modes."""
    run = place / "run"
    save_small(run, 7, 8)
    give(run / "version-7", ALICE, TEAM)
    before = [rights(path) for path in (run / "version-7", *sorted((run / "version-7").iterdir()))]
    assert edl("prune", run, "--keep", "1", "--trash", "--yes").returncode == 0
    assert numbers(run) == [8]
    assert edl("undo", run).returncode == 0
    assert [rights(path) for path in (run / "version-7", *sorted((run / "version-7").iterdir()))] == before


@ROOT
def test_old_shards_in_the_trash(place: Path) -> None:
    """`--keep-old` leaves the old shards to their owner, who gets the new ones too."""
    run = place / "run"
    save_small(run, 7)
    give(run / "version-7", ALICE, TEAM)
    reshard_version(at(run, 7), 1, keep_old=True)
    (old,) = (run / ".edl-ckpt-0/trash-0").glob("*/version-7")
    assert rights(old) == rights(run / "version-7") == f"{ALICE}:{TEAM} 2750"


@ACL
@pytest.mark.usefixtures("kernel")
def test_replaced_exports(tmp_path: Path) -> None:
    """`export --force` leaves the mode and the ACL of the file or directory that it replaces."""
    save_small(tmp_path / "run", 7)
    file, directory = tmp_path / "model.npz", tmp_path / "arrays"
    for output in (file, directory):
        export_version(at(tmp_path / "run", 7), str(output), format_name="npy" if output is directory else None)
    file.chmod(0o600)
    directory.chmod(0o2750)
    setfacl("-m", f"u:{ALICE}:r", file)
    before = rights(file), acl(file), rights(directory)
    for output in (file, directory):
        name: FormatName | None = "npy" if output is directory else None
        export_version(at(tmp_path / "run", 7), str(output), format_name=name, force=True)
    assert (rights(file), acl(file), rights(directory)) == before
