"""Pipes, devices and sockets in the place of files: no command waits for them, replaces or removes them."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
from pathlib import Path

import pytest

import program
from edl_ckpt.core.base.ids import new_id
from places import GOLDEN


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Return a directory with a location `run` and a good export `ok.npz`."""
    shutil.copytree(GOLDEN / "multi", tmp_path / "run")
    assert edl(tmp_path, "export", "run@20", "ok.npz").returncode == 0
    return tmp_path


def edl(place: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the program in a directory; a command that hangs fails the test."""
    return program.edl(*words, cwd=place)


OUTPUTS = {
    "m.npz": "export run@20 m.npz --force",
    "m.safetensors": "export run@20 m.safetensors --force",
    "m.csv": "export run@20 m.csv --force",
    "m.ckpt": "export run@20 m.ckpt --force",
    "arrays": "export run@20 arrays --format npy --force",
    "location": "export run@20 location --format checkpoint",
    "values.npy": "get run@20 --table e --id 3 --npy values.npy",
    "report.xml": "verify run@20 --junit report.xml",
    "plan.json": "prune run --keep 1 --dry-run --plan-out plan.json",
}
INPUTS = {
    "m.npz": "import m.npz new@1 --ps 2",
    "m.safetensors": "import m.safetensors new@1 --ps 2",
    "m.pt": "import m.pt new@1 --ps 2",
    "m.ckpt": "import m.ckpt new@1 --ps 2",
    "anything": "import anything new@1 --ps 2",
    "arrays/a.npy": "import arrays new@1 --ps 2",
    "tables/t.parquet": "import tables new@1 --ps 2",
    "tensors.index": "import tensors new@1 --ps 2",
    "map.toml": "import ok.npz new@1 --ps 2 --map map.toml",
    "master.log": "metrics import master.log run",
    "m.jsonl": "metrics import m.jsonl run",
    "m.csv": "metrics import m.csv run",
    "ids.txt": "get run@20 --table e --ids-file ids.txt",
    "ids.npy": "get run@20 --table e --ids-file ids.npy",
    "plan.json": "prune --apply plan.json",
}


def special(path: Path, kind: str) -> None:
    """Make a pipe or a socket, or a link to the null device."""
    path.parent.mkdir(exist_ok=True)
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "socket":
        folder = os.open(path.parent, os.O_RDONLY)  # the path itself may be too long for a socket
        with socket.socket(socket.AF_UNIX) as bound:
            bound.bind(f"/proc/self/fd/{folder}/{path.name}")
        os.close(folder)
    else:
        path.symlink_to(os.devnull)


@pytest.mark.parametrize("kind", ["pipe", "socket", "device"])
@pytest.mark.parametrize("name", sorted(OUTPUTS))
def test_targets(name: str, kind: str, place: Path) -> None:
    """A target that is neither file nor directory is refused before anything is written, with --force too.

    But an export of one file is written into a device, and so are values.
    """
    special(place / name, kind)
    before = os.lstat(place / name)
    names = set(os.listdir(place))
    done = edl(place, *OUTPUTS[name].split())
    written = kind == "device" and name in {"m.npz", "m.safetensors", "m.csv", "m.ckpt", "location", "values.npy"}
    assert (done.returncode, f"{name}: is a {kind}" in done.stderr) == (0 if written else 16, not written), done.stderr
    assert os.lstat(place / name).st_ino == before.st_ino
    assert set(os.listdir(place)) == names


@pytest.mark.parametrize("kind", ["pipe", "socket", "device"])
@pytest.mark.parametrize("name", sorted(INPUTS))
def test_inputs(name: str, kind: str, place: Path) -> None:
    """An input that is no file is a usage error; nothing waits for a writer, and nothing is made."""
    special(place / name, kind)
    done = edl(place, *INPUTS[name].split())
    assert (done.returncode, f"{name}: is a {kind}" in done.stderr) == (2, True), done.stderr
    assert not (place / "new").exists()


@pytest.mark.parametrize("kind", ["pipe", "socket", "device"])
def test_shards(kind: str, place: Path) -> None:
    """A shard that is no file is not found, whatever reads it; nothing is made from the version."""
    shard = place / "run/version-20/variables-0-of-2.ckpt"
    shard.unlink()
    special(shard, kind)
    (place / "run/.edl-ckpt-0/meta-0/20.seal.json").unlink(missing_ok=True)
    for words in ("inspect run@20", "export run@20 m.npz", "reshard run@20 --ps 3", "copy run@20 new"):
        done = edl(place, *words.split())
        copied = 10 if kind == "device" else 16  # a copy looks at every entry
        code = {"inspect": 4, "copy": copied}.get(words.split()[0], 10)  # inspect shows the other shards
        said = f"contains a {kind} (variables-0-of-2.ckpt)" if code == 16 else "not a regular file"
        assert (done.returncode, said in done.stderr) == (code, True), (words, done.stderr)
    assert edl(place, "verify", "run@20").returncode == 3
    assert not (place / "m.npz").exists()
    assert not (place / "new").exists()


def test_what_lies_beside_a_target(place: Path) -> None:
    """An abandoned output that is a pipe is removed, not opened; pipes of others beside a target are left."""
    dead = re.sub(r"-\d+-([0-9a-f]{8})$", r"-999999-\1", new_id())
    for name in (f".m.npz.{dead}.edl-ckpt", ".theirs.edl-ckpt", "theirs.npz", "checkpoint"):
        os.mkfifo(place / name)
    assert edl(place, "export", "run@20", "m.npz").returncode == 0
    assert {p.name for p in place.iterdir() if p.is_fifo()} == {".theirs.edl-ckpt", "theirs.npz", "checkpoint"}


def test_place_above_a_target(place: Path) -> None:
    """Whether a target lies among checkpoints is told by names; no pipe in a version's place is opened."""
    os.mkfifo(place / "version-3")
    assert edl(place, "export", "run@20", "m.npz").returncode == 0
    assert edl(place, "export", "run@20", "run/m.npz").returncode == 16
    assert edl(place, "export", "run@20", "run/version-20/m.npz").returncode == 16


def test_state(place: Path) -> None:
    """Pipes among our own files neither block a command nor are replaced by one."""
    state = place / "run/.edl-ckpt-0"
    for folder in ("trash-0", "stage-0/x", "meta-0"):
        (state / folder).mkdir(parents=True)
    for name in ("trash-0/drop-x", "stage-0/x/owner.json", "stage-0/x/journal.json", "meta-0/9.json"):
        os.mkfifo(state / name)
    codes = {"list run": 0, "note run@20 words": 0, "recover run": 3, "prune run --keep 5": 0, "verify run@20": 0}
    for words, code in codes.items():  # `recover` names what it leaves to a person
        assert edl(place, *words.split()).returncode == code
    assert edl(place, "note", "run@9", "words").returncode == 16
    assert (state / "meta-0/9.json").is_fifo()
    os.mkfifo(state / "lock-0")
    assert edl(place, "note", "run@20", "other").returncode == 0
    (aside,) = (state / "stage-0").glob("damaged-*lock-0")
    assert aside.is_fifo()
