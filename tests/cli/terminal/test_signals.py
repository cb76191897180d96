"""Signals at a known moment of a command."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest

import elasticdl_rules
from checkpoints import files_of, save_small
from program import edl
from waiting import paused, wait_for

RESHARD = ("reshard", "run@20", "--ps", "3", "--quiet")
MOMENTS = {
    "reshard in place, written": (RESHARD, "pwrite:5"),
    "reshard in place, flushed": (RESHARD, "fsync:1"),
    "reshard --output": ((*RESHARD, "--output", "out"), "pwrite:5"),
    "copy": (("copy", "run@20", "out", "--quiet"), "pwrite:1"),
    "import": (("import", "run@20", "out@1", "--ps", "3", "--quiet"), "pwrite:5"),
    "export of arrays": (("export", "run@20", "arrays.npz", "--quiet"), "pwrite:3"),
    "export of text": (("export", "run@20", "rows.csv", "--table", "t", "--quiet"), "fsync:1"),
}
"""Commands, each with the call before which the signal comes."""


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Return a location with two versions."""
    save_small(tmp_path / "run", 10, 20)
    return tmp_path / "run"


@pytest.mark.parametrize(
    ("name", "number", "code"),
    [(name, number, 128 + number) for name in MOMENTS for number in (signal.SIGINT, signal.SIGTERM)]
    + [("copy", signal.SIGHUP, 129)],
)
def test_signals(run: Path, tmp_path: Path, name: str, number: signal.Signals, code: int) -> None:
    """A signal during a command that writes ends it with its code and leaves what there was before."""
    arguments, moment = MOMENTS[name]
    before = files_of(tmp_path)
    with paused(*arguments, at=moment, cwd=tmp_path) as program:
        assert program.end_by(number) == code
    left = {name: data for name, data in files_of(tmp_path).items() if "copy-" not in name}  # a copy resumes
    assert left == before
    assert elasticdl_rules.visible(run) == {"version-10", "version-20"}


@pytest.mark.parametrize(("first", "second"), [(signal.SIGINT, signal.SIGINT), (signal.SIGTERM, signal.SIGHUP)])
def test_a_second_signal_ends_at_once(run: Path, tmp_path: Path, first: int, second: int) -> None:
    """While the first signal is being obeyed, a second one of either kind ends the process where it stands."""
    with paused(*RESHARD, "--output", "out", at="pwrite:5 unlink,rmdir:1", cwd=tmp_path) as program:
        program.process.send_signal(first)
        program.resume()
        program.wait_for_stop()  # it removes what it had written
        program.process.send_signal(second)
        assert program.process.wait(300) == -second
    out = tmp_path / "out"
    assert elasticdl_rules.leftovers(out) != []
    assert edl("recover", out).returncode == 0
    assert elasticdl_rules.leftovers(out) == []


def test_a_signal_that_asks(run: Path, tmp_path: Path) -> None:
    """SIGUSR1 prints how far a command is, though it is quiet and has no terminal; the command goes on to its end."""
    with (tmp_path / "stderr").open("w") as stderr, paused(*RESHARD, at="fsync:1", cwd=tmp_path, stderr=stderr) as p:
        for _ in wait_for((tmp_path / "stderr").read_text):
            p.process.send_signal(signal.SIGUSR1)  # again: Python may see one only when what it waits for has come
        p.resume()
        assert p.process.wait(300) == 0
    said = (tmp_path / "stderr").read_text()
    assert re.fullmatch(r"(edl-ckpt: \w+: +\d+%, \S+ of \S+ \w*B.* \(at work for \d+ s\)\n)+", said), said
    assert edl("verify", run, "--deep").returncode == 0
