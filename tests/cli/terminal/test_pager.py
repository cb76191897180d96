"""Long output of `list` and `schema` goes to the user's pager, on a terminal only."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from edl_ckpt.cli import app
from edl_ckpt.cli.terminal import output
from program import edl


class Page:
    """A terminal of 24 lines, and the file to which its pager writes."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.path, self._patch = path, monkeypatch
        self.reader, writer = pty.openpty()
        fcntl.ioctl(self.reader, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        self.stream = os.fdopen(writer, "w", encoding="utf-8")

    def run(self, *arguments: str | Path) -> str:
        """Run a command in this process, and return what the terminal got."""
        with self._patch.context() as patch:
            patch.setattr(sys, "stdout", self.stream)
            with pytest.raises(SystemExit) as end:
                app.run([*map(str, arguments)])
        assert not end.value.code
        self.stream.write("\0")  # the terminal may not have everything at once
        self.stream.flush()
        shown = b""
        while not shown.endswith(b"\0"):
            shown += os.read(self.reader, 1 << 16)
        return shown[:-1].decode()


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Page]:
    """Return a terminal."""
    monkeypatch.setenv("PAGER", f"sh -c 'cat > {tmp_path}/page'")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("CI", raising=False)
    page = Page(tmp_path / "page", monkeypatch)
    yield page
    page.stream.close()
    os.close(page.reader)


def versions(tmp_path: Path, count: int) -> Path:
    """Return a location with so many versions."""
    for number in range(count):
        (tmp_path / f"run/version-{number}").mkdir(parents=True)
        (tmp_path / f"run/version-{number}/variables-0-of-1.ckpt").write_bytes(b"\x08\x01")
    return tmp_path / "run"


def test_long_output(page: Page, tmp_path: Path) -> None:
    """A list and a schema that are longer than the window go to the pager, whole."""
    assert page.run("schema", "list") == ""
    assert page.path.read_text().rstrip().endswith("}")
    assert page.run("list", versions(tmp_path, 30)) == ""
    assert all(f" {number} " in page.path.read_text() for number in range(30))


def test_a_signal_ends_the_pager(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pager does not stay on the terminal when the program is terminated."""
    ended: list[str] = []

    class Pager:
        def communicate(self, _: bytes) -> None:
            raise SystemExit(143)

        def terminate(self) -> None:
            ended.append("terminated")

    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: Pager())
    monkeypatch.setattr(os, "get_terminal_size", lambda _: os.terminal_size((80, 24)))
    monkeypatch.setattr(sys, "stdout", SimpleNamespace(isatty=lambda: True, fileno=lambda: 1, encoding="utf-8"))
    for name, value in (("TERM", "xterm"), ("PAGER", "less")):
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(SystemExit):
        output._in_pager("line\n" * 30)
    assert ended == ["terminated"]


@pytest.mark.parametrize(
    ("name", "value"), [("CI", "true"), ("PAGER", ""), ("PAGER", "cat"), ("PAGER", "/nowhere/less"), ("TERM", "dumb")]
)
def test_no_pager(page: Page, monkeypatch: pytest.MonkeyPatch, name: str, value: str, tmp_path: Path) -> None:
    """Without a pager that works, in a CI job, on a dumb terminal and with -q the terminal gets everything."""
    many = versions(tmp_path / "more", 30)
    assert " 2 " in page.run("list", versions(tmp_path, 3))
    assert "run@29" in page.run("list", many, "-q")
    monkeypatch.setenv(name, value)
    assert " 29 " in page.run("list", many)
    assert not page.path.exists()


def test_pipes(tmp_path: Path) -> None:
    """What is no terminal gets everything, and starts no pager."""
    done = edl("schema", PAGER=f"sh -c 'cat > {tmp_path}/page'", TERM="xterm")
    assert len(done.stdout.splitlines()) > 1000
    assert not (tmp_path / "page").exists()
