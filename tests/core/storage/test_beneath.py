"""An open directory, below which no link is followed, and in which only plain files are opened."""

from __future__ import annotations

import errno
import os
import resource
from pathlib import Path

import pytest

from edl_ckpt.core.base.errors import EdlCkptError, NotFoundError, RefusedError, UsageError
from edl_ckpt.core.storage.beneath import Directory, ForeignError


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """Return a directory beside the one that is worked in."""
    (tmp_path / "victim/inside").mkdir(parents=True)
    (tmp_path / "victim/precious").write_text("mine")
    (tmp_path / "top").mkdir()
    return tmp_path / "victim"


def test_no_link_is_followed(victim: Path) -> None:
    """A link is refused as a directory, as a file to be read, written or replaced; the top may be one."""
    top = victim.parent / "top"
    (top / "room").symlink_to(victim)
    (top / "file").symlink_to(victim / "precious")
    (victim.parent / "named").symlink_to(top)
    with Directory.open(str(victim.parent / "named")) as place:
        for attempt in (
            lambda: place.enter("room"),
            lambda: place.enter("room/inside", make=True),
            lambda: place.find("room"),
            lambda: place.read("file", 10),
            lambda: place.open_file("file", os.O_RDWR | os.O_CREAT),
            lambda: place.replace("file", b"x"),
            lambda: Directory.beneath(place.path, "room/inside"),
        ):
            with pytest.raises(ForeignError, match="is a symbolic link") as end:
                attempt()
            assert end.value.exit_code == 16
        place.remove("room")
        place.remove("file")
        assert place.names() == []
    assert (victim / "precious").read_text() == "mine"
    assert (victim / "inside").is_dir()


@pytest.mark.parametrize("kind", ["pipe", "directory", "device"])
def test_only_files_are_opened(tmp_path: Path, kind: str) -> None:
    """A pipe does not block, a device is not read, a directory is no file."""
    if kind == "pipe":
        os.mkfifo(tmp_path / "x")
    elif kind == "directory":
        (tmp_path / "x").mkdir()
    else:
        (tmp_path / "x").symlink_to(os.devnull)
    with Directory.open(str(tmp_path)) as place:
        for flags in (os.O_RDONLY, os.O_RDWR, os.O_RDWR | os.O_CREAT):
            with pytest.raises(ForeignError):
                place.open_file("x", flags)
        with pytest.raises(ForeignError):
            place.replace("x", b"")


def test_hard_links_are_not_written(victim: Path) -> None:
    """A file with a second name may be somebody's: it is read, and never opened to be written in place."""
    os.link(victim / "precious", victim.parent / "top/file")
    with Directory.open(str(victim.parent / "top")) as place:
        assert place.read("file", 10) == b"mine"
        with pytest.raises(ForeignError, match="several names"):
            place.open_file("file", os.O_RDWR | os.O_CREAT)
        place.replace("file", b"ours")
    assert (victim / "precious").read_text() == "mine"


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "/", "a\0b"])
def test_names_are_single(tmp_path: Path, name: str) -> None:
    """A name with a way out of the directory is refused wherever one is taken."""
    with Directory.open(str(tmp_path)) as place:
        for attempt in (place.stat, place.unlink, place.remove, place.rmdir, place.make, place.remove_empty):
            with pytest.raises(EdlCkptError, match="is not a name in a directory"):
                attempt(name)
        with pytest.raises(EdlCkptError, match="is not a name"):
            place.rename(name, place, "x")


def test_bounds(tmp_path: Path) -> None:
    """A file beyond the bound is an error before it is read; one at the bound is read whole."""
    (tmp_path / "x").write_bytes(b"12345")
    with Directory.open(str(tmp_path)) as place:
        assert place.read("x", 5) == b"12345"
        with pytest.raises(UsageError, match="has 5 bytes"):
            place.read("x", 4)
        os.truncate(tmp_path / "x", 1 << 40)
        with pytest.raises(UsageError):
            place.read("x", 1 << 20)
        assert place.read("y", 5) is None


def test_a_deep_tree_goes(tmp_path: Path) -> None:
    """A tree that is deeper than we may open files is removed whole, and files that are in it."""
    fd = os.open(tmp_path, os.O_RDONLY)
    for _ in range(200):
        os.mkdir("deep", dir_fd=fd)
        os.close(os.open("file", os.O_CREAT, dir_fd=fd))
        below = os.open("deep", os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = below
    os.close(fd)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    problems: list[EdlCkptError] = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 110, hard))
    try:
        with Directory.open(str(tmp_path)) as place:
            place.remove("deep", problems.append)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert problems == []
    assert os.listdir(tmp_path) == ["file"]


def test_problems_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What cannot be removed is named once, with the reason; the rest goes."""
    for name in ("a", "b"):
        (tmp_path / "tree" / name).mkdir(parents=True)
        (tmp_path / "tree" / name / "file").touch()
    real = os.unlink

    def unlink(name: str, *, dir_fd: int) -> None:
        if os.readlink(f"/proc/self/fd/{dir_fd}").endswith("/a"):
            raise OSError(errno.EPERM, os.strerror(errno.EPERM))
        real(name, dir_fd=dir_fd)

    problems: list[EdlCkptError] = []
    with monkeypatch.context() as patch, Directory.open(str(tmp_path)) as place:
        patch.setattr(os, "unlink", unlink)
        place.remove("tree", problems.append)
    assert [str(p) for p in problems] == [f"{tmp_path}/tree/a/file: cannot be removed (Operation not permitted)"]
    assert problems[0].exit_code == 12
    assert os.listdir(tmp_path / "tree") == ["a"]


def test_renames(tmp_path: Path) -> None:
    """A rename to a new name is refused where the name is taken; absent is only what is not there."""
    (tmp_path / "one").touch()
    (tmp_path / "two").symlink_to("nowhere")
    with Directory.open(str(tmp_path)) as place:
        with pytest.raises(RefusedError, match="already exists"):
            place.rename_new("one", place, "two")
        assert not place.is_gone("two")
        assert place.is_gone("three")
        with pytest.raises(NotFoundError):
            place.rename("three", place, "four")
        assert place.exchange("one", place, "two") in {True, False}
