"""Progress: a bar for the window as it is, lines where there is no terminal."""

from __future__ import annotations

import codecs
import fcntl
import io
import os
import pty
import re
import shlex
import shutil
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from rich.cells import cell_len

from edl_ckpt.cli.terminal import progress
from edl_ckpt.cli.terminal.output import Output
from edl_ckpt.cli.terminal.progress import Tracker
from edl_ckpt.core import execute_reshard, prepare_reshard, save_checkpoint, verify_version
from edl_ckpt.core.base.interruption import COMMIT
from edl_ckpt.core.base.progress import SilentReporter
from edl_ckpt.core.operations.save import Table
from program import edl
from waiting import wait_until

GIB = 2**30


def half_way(stream: io.StringIO | None = None, doing: Callable[[], str] = str) -> Tracker:
    """Return a tracker that has done half of five GiB."""
    tracker = Tracker(stream or io.StringIO(), "none", doing=doing)
    tracker.start("checking 模型 of a long name", 5 * GIB)
    tracker._samples[0] = (tracker._samples[0][0] - 10, 0)
    tracker.advance(5 * GIB // 2)
    return tracker


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the time stand still for a tracker: a rate is that of the test, however long the process is kept waiting."""
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: 1000.0))


@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize("width", [20, 30, 40, 60, 72, 80, 100, 160])
def test_every_width(width: int) -> None:
    """The line fits, with its percentage; whatever else it has is whole, and sizes are in one unit system."""
    line = half_way().line(width)
    assert cell_len(line) <= width
    assert "50%" in line
    wide = half_way().line(1000)
    assert re.findall(r"[0-9.]+ (?:of [0-9.]+ )?[A-Za-z]+(?:/s)?", wide) == ["2.5 of 5.0 GiB", "256.0 MiB/s", "10 s"]
    assert {*re.findall(r"[0-9]+(?:\.[0-9]+)?", line)} <= {*re.findall(r"[0-9]+(?:\.[0-9]+)?", wide)}
    assert ("█" in line) == (width > 80)


@pytest.mark.usefixtures("clock")
def test_who_does_the_work() -> None:
    """With a cluster the line has tasks and workers; beside a bar they take the place of the rate."""
    tracker = half_way(doing=lambda: "12 tasks, 2 workers")
    assert "12 tasks, 2 workers, 256.0 MiB/s, 10 s left" in tracker.line()
    assert "12 tasks, 2 workers  10 s left" in tracker.line(120)
    assert "MiB/s" not in tracker.line(120)


class Window:
    """A pseudo-terminal with a tracker's bar, and all that it got."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(progress, "PATIENCE_SECONDS", 0.0)
        monkeypatch.setattr(progress, "DRAW_SECONDS", 0.01)
        monkeypatch.setenv("TERM", "xterm")
        self.reader, writer = pty.openpty()
        self.stream = os.fdopen(writer, "w", encoding="utf-8")
        os.set_blocking(self.reader, False)
        self.got = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")()  # a read may end in the middle of a character

    def resize(self, columns: int) -> None:
        """Give the window another width."""
        fcntl.ioctl(self.reader, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))

    def wait(self, condition: Callable[[str], object]) -> None:
        """Wait until the last drawing fulfils a condition."""

        def fulfilled() -> object:
            with suppress(BlockingIOError):
                self.got += self._decoder.decode(os.read(self.reader, 1 << 16))
            return condition(re.split("\r\x1b\\[K(?:\x1b7.*\x1b8)?", self.got)[-1])

        wait_until(fulfilled)

    def close(self) -> None:
        """Close both ends."""
        self.stream.close()
        os.close(self.reader)


def test_a_bar_follows_the_window(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bar is as wide as the window is now, and never two lines; warnings stand above it; in the end it is gone."""
    window = Window(monkeypatch)
    window.resize(100)
    tracker = Tracker(window.stream, "bar")
    tracker.start("reading", 100)
    tracker.advance(50)
    window.wait(lambda last: "█" in last and "50%" in last)
    window.resize(40)
    window.wait(lambda last: "50%" in last and "█" not in last and last.endswith("\r"))
    assert "\n" not in window.got
    # One bar was drawn for the wide window, and one more if its size changed in the middle of a drawing.
    assert window.got.count("\x1b7\x1b[B\r\x1b[K\x1b8") in {1, 2}
    tracker.print("warning: x")
    window.wait(lambda last: "50%" in last)
    assert "\r\x1b[Kwarning: x\r\n" in window.got
    tracker.stop()
    window.wait(lambda last: last == "")
    tracker.start("more", 100)
    assert tracker._thread is not None
    tracker._thread.join(300)
    assert not tracker.erasing()
    window.close()


COMMAND = """
import os, sys, time
from edl_ckpt.cli.terminal.progress import Tracker
print("$ the line with the command")
tracker = Tracker(sys.stderr, "bar")
tracker.start("reading a table", 1000)
for step in range(100_000):
    tracker.advance(30 if step < 30 else 0)
    time.sleep(0.03)
    if step in (6, 13, 20, 27):
        tracker.print(f"warning: number {step} of those that are longer than a narrow window has columns")
    if step > 27 and os.path.exists(sys.argv[1]):  # nobody drags the border any more
        break
tracker.stop()
print("the end")
"""


@pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")
@pytest.mark.parametrize("widths", [(100, 40), (100, *range(96, 36, -4)), (40, 36, 40, 33, 30, 40)])
def test_tmux(tmp_path: Path, widths: tuple[int, ...]) -> None:
    """At the top of a tmux window that is made narrower, at once or while it is dragged, nothing of the bar stays."""
    first, *others = map(str, widths)
    tmux = ["tmux", "-S", str(tmp_path / "tmux"), "-f", os.devnull]
    command = shlex.join([sys.executable, "-c", COMMAND, str(tmp_path / "dragged")])
    run = partial(subprocess.run, check=True, capture_output=True, text=True, env={**os.environ, "TERM": "xterm"})
    run([*tmux, "new-session", "-d", "-x", first, "-y", "12", f"{command}; sleep 60", ";",
         "set-option", "-g", "window-size", "manual"])  # fmt: skip

    def screen() -> str:
        return str(run([*tmux, "capture-pane", "-p", "-S", "-"]).stdout)

    try:
        wait_until(lambda: "%" in screen())
        for width in others:
            run([*tmux, "resize-window", "-x", width, "-y", "12"])
            time.sleep(0.12)
            assert screen().count("%") <= 1
        (tmp_path / "dragged").touch()
        wait_until(lambda: "the end" in screen())
        assert "%" not in screen()
        assert "reading" not in screen()
        assert screen().count("warning: number") == 4
    finally:
        run([*tmux, "kill-server"])


def test_lines_where_there_is_no_terminal() -> None:
    """A log gets a line each while, without a bar or a control character, also when nothing goes on; then no more."""
    stream = io.StringIO()
    tracker = Tracker(stream, "lines", every_seconds=0.01)
    tracker.start("reading", 200)
    tracker.advance(50)
    wait_until(lambda: stream.getvalue().count("25%") >= 3)
    tracker.stop()
    found = [re.sub(", [0-9].*", "", line) for line in stream.getvalue().splitlines()]
    begin = found.index("reading: 25%")  # lines before it were written before the count
    assert {*found[:begin]} <= {"reading: 0%"}
    assert {*found[begin:]} == {"reading: 25%"}
    assert stream.getvalue().isprintable() or "\x1b" not in stream.getvalue()
    assert progress.LINE_SECONDS == 30


@pytest.mark.parametrize(
    ("asked", "quiet", "term", "kind"),
    [
        ("auto", False, "xterm", "bar"),
        ("auto", False, "dumb", "lines"),
        ("lines", False, "xterm", "lines"),
        ("none", False, "xterm", "none"),
        ("auto", True, "xterm", "none"),
    ],
)
def test_kinds(asked: str, quiet: bool, term: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal gets a bar, one that cannot move its cursor lines, a pipe lines even for `bar`; quiet gets none."""
    window = Window(monkeypatch)
    monkeypatch.setenv("TERM", term)
    assert progress.kind_of(asked, window.stream, quiet=quiet) == kind
    assert progress.kind_of("bar", io.StringIO(), quiet=False) == "lines"
    window.close()


def test_the_option() -> None:
    """`--progress` and EDL_CKPT_PROGRESS take four words; another is code 2 and names the flag and what was meant."""
    for done in (edl("list", ".", "--progress", "line"), edl("list", ".", EDL_CKPT_PROGRESS="line")):
        assert done.returncode == 2
        assert "expected auto, bar, lines or none, got 'line'" in done.stderr
        assert "lines" in done.stderr.splitlines()[-1]


def test_data_ends_the_bar(capsys: pytest.CaptureFixture[str]) -> None:
    """What a command prints on stdout comes after the bar, whichever way it prints."""
    out = Output()
    for stderr in (True, False):
        out.start("reading", 10)
        out.print_human(["x"], stderr=stderr)
        assert out._tracker is None
    capsys.readouterr()


def percent(tracker: Tracker) -> int:
    """Return the percentage that a tracker shows."""
    return int(re.findall(r"(\d+)%", tracker.line())[0])


@pytest.mark.usefixtures("clock")
def test_phases_are_one_bar() -> None:
    """Phases that were expected go on where the one before ended, each by its bytes; others begin anew."""
    tracker, shown = Tracker(io.StringIO(), "none"), []
    tracker.expect(200)
    for what, total, left in (("reading ids", 20, 20), ("resharding", 90, 180), ("proving", 90, 90)):
        tracker.expect(left)  # of a part of the command, which knows less
        tracker.start(what, total)
        shown.append(percent(tracker))
        tracker.advance(total)
        assert what in tracker.line()
    assert [*shown, percent(tracker)] == [0, 10, 55, 100]
    tracker.start("sealing", 200)  # nothing said so
    assert percent(tracker) == 50
    alone = Tracker(io.StringIO(), "none")
    for _ in range(2):
        alone.start("reading", 100)
        assert percent(alone) == 0
        alone.advance(100)


def test_a_reshard_is_one_bar(tmp_path: Path) -> None:
    """From its first byte to the last, no percentage of a reshard is lower than the one before."""
    table = Table(np.arange(1000), np.ones((1000, 4), "f4"))
    save_checkpoint(tmp_path / "run", 1, 2, variables={}, tables={"t": table}, layout="elasticdl")
    tracker, shown = Tracker(io.StringIO(), "none"), list[int]()

    class Watching(SilentReporter):
        def expect(self, total_bytes: int) -> None:
            tracker.expect(total_bytes)

        def start(self, what: str, total_bytes: int) -> None:
            tracker.start(what, total_bytes)
            shown.append(percent(tracker))

        def advance(self, size_bytes: int) -> None:
            tracker.advance(size_bytes)
            shown.append(percent(tracker))

    plan, settings = prepare_reshard(f"{tmp_path}/run@1", 3, output=tmp_path / "out", reporter=Watching())
    execute_reshard(plan, settings, reporter=Watching())
    assert verify_version(f"{tmp_path}/out@1", level="deep").ok
    assert shown == sorted(shown)
    assert (shown[0], shown[-1]) == (0, 100)


def test_an_answer_to_control_c(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a bar is drawn, the first Ctrl-C is answered above it; elsewhere the end of the command is the answer."""
    window = Window(monkeypatch)
    window.resize(80)
    assert progress.stopping() == ""
    tracker = Tracker(window.stream, "bar")
    tracker.start("reading", 100)
    window.wait(lambda last: "0%" in last)
    assert progress.stopping().endswith("stopping ...\n")
    with COMMIT:
        assert progress.stopping().endswith("finishing ...\n")
    COMMIT.forget()
    tracker.stop()
    assert progress.stopping() == ""
    window.close()
