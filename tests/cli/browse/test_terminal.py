"""The real program on a terminal that somebody else wrote (pyte): what it draws, and how it ends."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

import browsing
from checkpoints import files_of, save_small
from edl_ckpt.cli.browse import terminal
from edl_ckpt.cli.commands.browse_ import browse_command
from edl_ckpt.cli.terminal.output import Output
from edl_ckpt.core.base.errors import EdlCkptError
from program import edl

pyte = pytest.importorskip("pyte", reason="pyte is not installed: pip install '.[test]'")


OWNS = "import fcntl, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); "
"""Makes the window the terminal of the process: so it hears of a new size."""
PROGRAM = [sys.executable, "-c", OWNS + "from edl_ckpt.cli.app import main; main()"]


class Terminal:
    """A window in which the program runs."""

    def __init__(self, columns: int, rows: int, reader: int, process: subprocess.Popen[bytes]) -> None:
        self.screen = pyte.Screen(columns, rows)
        self._stream = pyte.ByteStream(self.screen)
        self._reader, self.process = reader, process
        self.raw = b""

    def look(self, seconds: float = 0.05) -> str:
        """Take what the program has written, and return the screen."""
        while select.select([self._reader], [], [], seconds)[0]:
            try:
                data = os.read(self._reader, 1 << 16)
            except OSError:  # the program has ended
                break
            if not data:
                break
            self.raw += data
            self._stream.feed(data.replace(b"\x1b[>25u", b"").replace(b"\x1b[<u", b""))  # of kitty, which pyte prints
        return "\n".join(self.screen.display)

    def until(self, words: str) -> str:
        """Wait until the screen has some words, and return it."""
        deadline = time.monotonic() + 300
        while words not in (text := self.look()):
            assert time.monotonic() < deadline, f"{words!r} does not come:\n{text}"
        return text

    def press(self, keys: str) -> None:
        """Send what a keyboard sends."""
        os.write(self._reader, keys.encode())

    def resize(self, columns: int, rows: int) -> None:
        """Give the window another size."""
        fcntl.ioctl(self._reader, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.screen.resize(rows, columns)

    def end(self) -> int:
        """Wait for the end of the program, and return its exit code."""
        deadline = time.monotonic() + 300
        while self.process.poll() is None:
            self.look()
            assert time.monotonic() < deadline, "it does not end"
        self.look(0)
        return self.process.returncode


@contextmanager
def running(*arguments: str | Path, **variables: str) -> Iterator[Terminal]:
    """Run `browse` in a window; it is killed at the end if it still runs."""
    columns, rows = 80, 24
    reader, writer = pty.openpty()
    fcntl.ioctl(reader, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    given = {k: v for k, v in os.environ.items() if k not in {"COLORTERM", "NO_COLOR", "COLUMNS", "LINES"}}
    environment = {**given, "XDG_CONFIG_HOME": "/nowhere", "TERM": "xterm", "LC_ALL": "C.UTF-8", **variables}
    process = subprocess.Popen(
        [*PROGRAM, "browse", *map(str, arguments)],
        env=environment,
        stdin=writer,
        stdout=writer,
        stderr=writer,
        start_new_session=True,
    )
    os.close(writer)
    try:
        yield Terminal(columns, rows, reader, process)
    finally:
        process.kill()
        process.wait()
        with suppress(OSError):
            os.close(reader)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a location with three versions, the last of which is damaged."""
    place = tmp_path_factory.mktemp("terminal") / "run"
    browsing.make_stable(place)
    return place


def test_a_session(run: Path) -> None:
    """Keys, the mouse and a new size of the window work; at the end the terminal is as it was, and so is the disk."""
    before = files_of(run)
    with running(run) as window:
        assert "100  complete" in window.until("serving")
        window.press("\x1b[A")  # up
        window.press("\r")
        window.until("tables 2")
        window.press("\x1b[<0;20;2M\x1b[<0;20;2m")  # a click on the tab
        window.until("dense/kernel:0")
        window.press("1\r")
        window.until("400 rows")
        window.press("g399\r")
        window.until("399  ")
        window.resize(40, 12)
        window.until("... 5 more")
        window.press("y")
        window.until("copied")
        window.press("q")
        assert window.end() == 0
        assert window.raw.rindex(b"\x1b[?1049l") > window.raw.rindex(b"\x1b[?1049h")
        assert b"\x1b[?25h" in window.raw[window.raw.rindex(b"copied") :]
        assert b"\x1b]52;c;" in window.raw
        assert b"Traceback" not in window.raw
    assert files_of(run) == before


@pytest.mark.parametrize("how", [{"NO_COLOR": "1", "LC_ALL": "C"}, {"EDL_CKPT_NO_COLOR": "1"}])
def test_without_colours_or_characters(how: dict[str, str], run: Path) -> None:
    """Without colours the cursor is still seen, reversed; where the locale has only ASCII, nothing else is written."""
    with running(f"{run}@200", **how) as window:
        window.until("tables 2")
        window.press("3")
        window.until("variables-1-of-2")
        cell = window.screen.buffer[3][6]
        assert (cell.data, cell.reverse) == ("0", True) or window.screen.buffer[3][4].reverse
        assert {cell.fg for line in window.screen.buffer.values() for cell in line.values()} == {"default"}
        assert window.raw.isascii() == ("LC_ALL" in how)
        window.press("q")
        assert window.end() == 0


@pytest.mark.parametrize(
    ("number", "code", "term"),
    [
        (signal.SIGTERM, 143, "screen"),
        (signal.SIGHUP, 129, "linux"),
        (signal.SIGINT, 130, "xterm-256color"),
        (None, 130, "xterm"),
    ],
)
def test_signals_and_terminals(number: signal.Signals | None, code: int, term: str, run: Path) -> None:
    """A signal, or Ctrl-C, ends the browser with its code, and gives the terminal back; SIGUSR1 disturbs nothing.

    On each terminal only the colours are used that all have, and bars are in ASCII where it has no block characters.
    """
    with running(run, TERM=term) as window:
        assert ("█" in window.until("serving")) == (term != "linux")
        window.process.send_signal(signal.SIGUSR1)
        if number is None:
            window.press("\x03")
        else:
            window.process.send_signal(number)
        assert window.end() == code
        assert b"\x1b[?1049l" in window.raw
        assert b"\x1b[38;2;" not in window.raw
        assert b"38;5;" not in window.raw
        assert b"Traceback" not in window.raw


def test_the_first_paint_comes_before_textual(run: Path) -> None:
    """The location stands on the screen before the library that draws is loaded, and an error takes it back."""
    with running(run) as window:
        window.until("listing ...")
        assert b"\x1b[?1049h\x1b[2J" in window.raw[:40]
        window.until("serving")
        window.press("q")
        assert window.end() == 0
    assert window.raw.index(b"listing ...") < window.raw.index(b"\x1b[?1000h")  # Textual takes the mouse


def test_a_wrong_reference(run: Path) -> None:
    """A reference that names nothing ends with the error and the code of all commands, on the usual screen."""
    with running(f"{run}@250") as window:
        assert window.end() == 10
        text = window.look()
        assert "no version 250" in text
        assert "versions there: 100, 200, 300" in text


def test_a_bug_is_reported(run: Path) -> None:
    """A bug ends with its traceback and 70, after the terminal is as it was."""
    broken = "from edl_ckpt.cli.browse import open_version; open_version.opened = None"
    program = f"{broken}; from edl_ckpt.cli.app import main; main()"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys.modules[__name__], "PROGRAM", [sys.executable, "-c", program])
        with running(f"{run}@200") as window:
            assert window.end() == 70
            assert b"internal error: this is a bug" in window.raw
            assert b"TypeError" in window.raw[window.raw.rindex(b"\x1b[?1049l") :]


def test_no_terminal(tmp_path: Path) -> None:
    """Where there is no terminal, a command that prints the same is named, and nothing is drawn."""
    save_small(tmp_path, 10)
    done = edl("browse", tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""
    assert "browse needs a terminal; stdin, stdout and stderr are no terminals" in done.stderr
    assert "edl-ckpt list" in done.stderr
    done = edl("browse", tmp_path, "--json")
    assert (done.returncode, done.stdout) == (2, "")
    assert "browse has no document to print" in done.stderr


@pytest.mark.parametrize("term", ["dumb", ""])
def test_a_dumb_terminal(term: str, run: Path) -> None:
    """A terminal that cannot move its cursor is refused before anything is written to it."""
    with running(run, TERM=term) as window:
        assert window.end() == 15
        assert "cannot move its cursor" in " ".join(window.look().split())
        assert b"\x1b[?" not in window.raw


def test_without_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without Textual, the error names the extra that brings it."""
    monkeypatch.setitem(sys.modules, "textual", None)
    monkeypatch.setattr(terminal, "check_terminal", lambda: None)
    with pytest.raises(EdlCkptError, match="textual is not installed") as error:
        browse_command(Output())
    assert error.value.exit_code == 15
    assert "extra tui" in str(error.value.hint)


def test_other_commands_import_no_textual() -> None:
    """Only the browser imports Textual, and its help does not either."""
    program = (
        "import sys; from edl_ckpt.cli.app import run\n"
        "for line in sys.argv[1:]:\n"
        "    try: run(line.split())\n"
        "    except SystemExit: pass\n"
        "    assert 'textual' not in sys.modules, line"
    )
    lines = ("--help", "browse --help", "version", "browse nowhere")
    subprocess.run([sys.executable, "-c", program, *lines], capture_output=True, timeout=60, check=True)
