"""Exports into stdout, pipes and devices, with the tools that people put behind them."""

from __future__ import annotations

import io
import json
import os
import pty
import select
import shutil
import subprocess
import threading
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from edl_ckpt.core import import_arrays
from places import GOLDEN
from program import PROGRAM, document, edl

PLACE = f"{GOLDEN / 'current/ps3'}@120"
FILES = {
    "safetensors": "m.safetensors",
    "npz": "m.npz",
    "checkpoint": "m.ckpt",
    "csv": "m.csv",
    "jsonl": "m.jsonl",
    "word2vec": "m.vec",
}
ROWS = ("--table", "emb_a*")


def into(*words: str, stdout: int, stderr: int = subprocess.PIPE) -> subprocess.CompletedProcess[bytes]:
    """Run the program with a descriptor of ours for stdout."""
    env = {**os.environ, "XDG_CONFIG_HOME": "/nowhere"}
    command = [*PROGRAM, *words]
    return subprocess.run(command, env=env, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr, check=False)


@pytest.mark.parametrize("name", sorted(FILES))
def test_stdout_gets_the_file(tmp_path: Path, name: str) -> None:
    """`-` gets the bytes that a file would get, through a pipe; the report is on stderr, the reader needs no seek."""
    rows = ROWS if name in {"csv", "jsonl", "word2vec"} else ()
    written = edl("export", PLACE, tmp_path / FILES[name], *rows)
    done = into("export", PLACE, "-", "--format", name, *rows, stdout=subprocess.PIPE)
    assert (done.returncode, written.returncode) == (0, 0), done.stderr
    assert done.stdout == (tmp_path / FILES[name]).read_bytes()
    assert f"exported as {name}".encode() in done.stderr


def test_libraries_read_stdout(tmp_path: Path) -> None:
    """Safetensors and numpy read what comes out of the pipe, and jq each line of the rows; --json is on stderr."""
    done = into("export", PLACE, "-", "--format", "safetensors", "--json", stdout=subprocess.PIPE)
    arrays = safetensors.numpy.load(done.stdout)
    report = json.loads(done.stderr)
    assert (report["output"], report["files"][0]["size_bytes"]) == ("/dev/stdout", len(done.stdout))
    assert report["proved"]
    quiet = into("export", PLACE, "-", "--format", "npz", "--quiet", stdout=subprocess.PIPE)
    assert not quiet.stderr
    zipped = np.load(io.BytesIO(quiet.stdout))
    assert {name: array.tobytes() for name, array in arrays.items()} == {
        name: array.tobytes() for name, array in zipped.items() if name != "__edl_ckpt__"
    }
    if shutil.which("jq"):
        lines = into("export", PLACE, "-", "--format", "jsonl", *ROWS, stdout=subprocess.PIPE).stdout
        ids = subprocess.run(["jq", ".id"], input=lines, capture_output=True, check=True).stdout
        assert np.array_equal(np.array(ids.split(), np.int64), arrays["emb_a/embeddings:0.ids"])


@pytest.mark.parametrize("words", [("safetensors",), ("jsonl", *ROWS), ("csv", *ROWS)])
def test_a_reader_that_goes_away(words: tuple[str, ...]) -> None:
    """`| head -c 5` ends the export quietly, as SIGPIPE would."""
    program = " ".join(map(repr, PROGRAM))
    options = " ".join(map(repr, words))
    # The reader has gone before the first byte: beside it, a short export may end before `head` has begun.
    script = f"exec 3> >(head -c 0); wait $!; {program} export {PLACE!r} - --format {options} >&3; exit $?"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (141, "", "")


def test_a_terminal() -> None:
    """A terminal gets rows, and no binary format."""
    for words, code in ((("npz",), 16), (("csv", *ROWS, "--limit", "2"), 0)):
        reader, writer = pty.openpty()
        done = into("export", PLACE, "-", "--format", *words, stdout=writer)
        os.close(writer)
        assert done.returncode == code, done.stderr
        if code:
            assert b"/dev/stdout: is a terminal, and this format is not text" in done.stderr
        else:
            assert os.read(reader, 1000).startswith(b"id,v0,v1,v2,v3\r\n")
        os.close(reader)


def test_what_takes_several_files() -> None:
    """Formats of several files are refused for stdout (2), and so is a format that nobody named."""
    for words in (("npy",), ("projector", *ROWS), ("safetensors", "--max-shard-size", "500B")):
        done = edl("export", PLACE, "-", "--format", *words)
        assert (done.returncode, done.stdout) == (2, "")
        assert "is several files; a stream takes one" in done.stderr
    assert "choose one: --format" in edl("export", PLACE, "-").stderr


def test_pipes_and_devices(tmp_path: Path) -> None:
    """A pipe with a reader and a device are written into, and stay; a full device is an error (14)."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    found: list[bytes] = []
    opened = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)  # a writer waits for a reader half a second only

    def read() -> None:
        select.select([opened], [], [])
        os.set_blocking(opened, True)
        with open(opened, "rb") as file:
            found.append(file.read())

    reader = threading.Thread(target=read)
    reader.start()
    result = document("export", PLACE, pipe, "--format", "npz")
    reader.join()
    assert pipe.is_fifo()
    (tmp_path / "m.npz").write_bytes(found[0])
    imported = import_arrays(str(tmp_path / "m.npz"), str(tmp_path / "new"), 120, 2)
    assert imported.fingerprint == result["fingerprint"]
    before = os.stat(os.devnull)
    assert document("export", PLACE, os.devnull, "--format", "csv", *ROWS)["output"] == os.devnull
    assert os.stat(os.devnull).st_ino == before.st_ino
    for words in (("npz",), ("csv", *ROWS)):
        full = edl("export", PLACE, "/dev/full", "--format", *words)
        assert (full.returncode, "No space left on device" in full.stderr) == (14, True)


def test_a_descriptor_is_not_replaced(tmp_path: Path) -> None:
    """`/dev/stdout` goes on where the shell has opened it, also when that is a file, and is never renamed over."""
    with (tmp_path / "out.csv").open("ab") as file:
        file.write(b"first\n")
        file.flush()
        for target in ("-", "/dev/stdout", "/dev/fd/1"):
            words = ("export", PLACE, target, "--format", "csv", *ROWS, "--limit", "1", "--force")
            assert into(*words, stdout=file.fileno()).returncode == 0
    lines = (tmp_path / "out.csv").read_text().splitlines()
    assert (len(lines), lines[0], lines[1], lines[5]) == (7, "first", "id,v0,v1,v2,v3", "id,v0,v1,v2,v3")
    assert os.path.islink("/dev/stdout")
