"""Run the examples of README and the manual, and compare or rewrite the output that the pages show.

    python tests/docs/console.py                      compare; the exit code is 1 when a page is out of date
    python tests/docs/console.py --update             rewrite the output that has changed, in place
    python tests/docs/console.py --update PAGE...     only in these pages

The examples of a page run in order, in one temporary directory where `edl-ckpt demo` has run. These are examples:

* `console`: each line that begins with `$ ` is a command, and the lines up to the next one are its output. Lines before
  a command that begin with `# ` are comments. Commands that need a shell (pipes, redirections, variables) get one; all
  others run in this process. A command that fails must be followed by `$ echo $?`: a reader then sees the exit code.
* `python`: the block runs in the page's one namespace; a `text` block directly behind it is what it prints.
* a block of any other kind behind `<!-- file: NAME -->` is written to that file.

`normalise` names everything that may differ from one run to the next: times, ages, rates and peak memory.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import functools
import io
import logging
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

TOP = Path(__file__).parents[2]
UPDATE = "python tests/docs/console.py --update"

_AGE = "AGE"
_VOLATILE = (
    (r"(?<=  )now(?=  )|\b\d+ (?:s|min|h|d) ago\b", _AGE),
    (r"\b(in|after) \d+\.\d+ s\b", r"\1 SECONDS"),
    (r"\(\d+\.\d+ [KMG]iB/s\)", "(RATE)"),
    (r"\bpeak memory \d+\.\d+ [KMG]iB", "peak memory SIZE"),
    (r"\"(seconds|waited_seconds)\": [0-9.e-]+", r'"\1": SECONDS'),
    (r"\"peak_memory_bytes\": \d+", '"peak_memory_bytes": BYTES'),
    (r"\b20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:\+00:00|Z)", "TIME"),
)
_RULES = tuple((re.compile(pattern), stand_in) for pattern, stand_in in _VOLATILE)
_SHELL = re.compile(r"[$`*~]")
_FENCE = re.compile(r"```(\w*)\s*$")
_FILE = re.compile(r"<!-- file: (\S+) -->$")


def normalise(text: str) -> str:
    """Return output with a stand-in for everything that differs between two runs on two machines.

    An age decides how wide its column is, so spaces and rules count as one character where there is an age.

    >>> normalise("1.5 MiB in 0.02 s (91.8 MiB/s), peak memory 49.1 MiB")
    '1.5 MiB in SECONDS (RATE), peak memory SIZE'
    >>> normalise("100   10 s ago  complete") == normalise("100  now  complete")
    True
    """
    for pattern, stand_in in _RULES:
        text = pattern.sub(stand_in, text)
    if _AGE in text:
        text = re.sub(r" +", " ", re.sub(r"─+", "─", text))
    return text


@dataclass(frozen=True, slots=True)
class Example:
    """A command, a program or a file of a page; its output stands in the page's lines from `start` to `end`."""

    kind: str
    source: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """What an example printed when it ran, beside the output that the page shows."""

    example: Example
    shown: str
    printed: str

    @property
    def same(self) -> bool:
        """Say whether the page is up to date."""
        return normalise(self.shown) == normalise(self.printed)


class ExampleError(Exception):
    """An example that cannot stand in a page as it is."""


def pages() -> list[Path]:
    """Return README and the pages of the manual."""
    return [TOP / "README.md", *sorted((TOP / "docs").glob("*.md"))]


def examples(lines: Sequence[str]) -> Iterator[Example]:
    """Yield the examples of a page in order."""
    number = 0
    while number < len(lines):
        fence = _FENCE.match(lines[number])
        if fence is None:
            number += 1
            continue
        begin = number + 1
        end = next(k for k in range(begin, len(lines)) if lines[k].rstrip() == "```")
        file = _FILE.match(lines[number - 1]) if number else None
        text = "\n".join(lines[begin:end])
        if file:
            yield Example("file", f"{file[1]}\n{text}\n", end, end)
        elif fence[1] == "console":
            yield from _commands(lines, begin, end)
        elif fence[1] == "python":
            following = end + 1 < len(lines) and lines[end + 1].rstrip() == "```text"
            shown = end + 2 if following else end + 1
            close = next(k for k in range(shown, len(lines)) if lines[k].rstrip() == "```") if following else shown
            yield Example("python", text, shown, close)
            end = close if following else end
        number = end + 1


def _commands(lines: Sequence[str], begin: int, end: int) -> Iterator[Example]:
    starts = [k for k in range(begin, end) if lines[k].startswith("$ ")]
    if not starts or any(not line.startswith("# ") for line in lines[begin : starts[0]]):
        raise ExampleError(f"line {begin + 1}: a console block begins with a command")
    for start, following in zip(starts, [*starts[1:], end], strict=True):
        close = following
        while following < end and close > start + 1 and lines[close - 1].startswith("# "):
            close -= 1
        while close > start + 1 and not lines[close - 1].strip():
            close -= 1
        yield Example("command", lines[start].removeprefix("$ "), start + 1, close)


class _Screen(io.TextIOWrapper):
    """A stream that keeps what it is given, and may call itself a terminal."""

    def __init__(self, *, colour: bool) -> None:
        self._bytes = io.BytesIO()
        self._colour = colour
        super().__init__(self._bytes, encoding="utf-8", write_through=True)

    def isatty(self) -> bool:
        """Say whether programs should think of people and colours."""
        return self._colour

    def text(self) -> str:
        """Return everything that was written, without the last line's end."""
        return self._bytes.getvalue().decode().rstrip("\n")


@dataclass(slots=True)
class Session:
    """The state that the examples of one page share: a directory, variables, an exit code, a namespace."""

    directory: Path
    variables: dict[str, str] = field(default_factory=dict)
    exit_code: int = 0
    namespace: dict[str, Any] = field(default_factory=lambda: {"__name__": "example"})
    colour: bool = False

    def run(self, example: Example) -> str:
        """Run one example and return what it printed, stdout and stderr as a terminal mixes them."""
        if example.kind == "file":
            name, _, content = example.source.partition("\n")
            (self.directory / name).write_text(content, encoding="utf-8")
            return ""
        if example.kind == "python":
            with self._terminal() as printed:
                exec(compile(example.source, "example", "exec"), self.namespace)
            return printed.text()
        words = shlex.split(example.source)
        if words[0] == "export":
            self.variables |= dict(word.split("=", 1) for word in words[1:])
            return ""
        if words[0] == "edl-ckpt" and not _needs_shell(example.source):
            return self._run_here(words[1:])
        return self._run_in_shell(example.source)

    def _run_here(self, arguments: list[str]) -> str:
        """Run a command in this process."""
        from edl_ckpt.cli import app
        from edl_ckpt.core.base.interruption import COMMIT

        self.exit_code = 0
        COMMIT.forget()  # as a new process: an error says nothing of what the example before has committed
        with self._terminal() as printed:
            try:
                app.run(arguments)
            except SystemExit as end:
                self.exit_code = int(end.code or 0)
        return printed.text()

    def _run_in_shell(self, command: str) -> str:
        programs = self.directory.parent / "programs"
        if not programs.exists():
            programs.mkdir()
            python, start = shlex.quote(sys.executable), "from edl_ckpt.cli.app import main; main()"
            for name, command_line in {"edl-ckpt": f'{python} -c "{start}"', "python3": python}.items():
                (programs / name).write_text(f'#!/bin/sh\nexec {command_line} "$@"\n', encoding="utf-8")
                (programs / name).chmod(0o755)
        done = subprocess.run(
            ["sh", "-c", f"(exit {self.exit_code})\n{command}"],
            cwd=self.directory,
            env=_environment(self.variables) | {"PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=300,
            check=False,
        )
        self.exit_code = done.returncode
        return done.stdout.rstrip("\n")

    @contextlib.contextmanager
    def _terminal(self) -> Iterator[_Screen]:
        """Put this process into the page's directory and variables; yield where its output goes."""
        printed = _Screen(colour=self.colour)
        before = dict(os.environ)
        os.environ.clear()
        os.environ.update(_environment(self.variables) | {"PATH": before["PATH"]})
        with (
            contextlib.chdir(self.directory),
            contextlib.redirect_stdout(printed),
            contextlib.redirect_stderr(printed),
            open(os.devnull, encoding="utf-8") as nothing,
        ):
            stdin, sys.stdin = sys.stdin, nothing
            try:
                yield printed
            finally:
                sys.stdin = stdin
                os.environ.clear()
                os.environ.update(before)


def _needs_shell(command: str) -> bool:
    """Say whether a command has anything in it that only a shell understands."""
    lexer = shlex.shlex(command, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    return bool(_SHELL.search(command)) or any(set(word) <= set("();<>|&") for word in lexer)


def _environment(variables: dict[str, str]) -> dict[str, str]:
    """Return this process's environment without what would set an option, and with as many workers everywhere."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("EDL_CKPT_", "AWS_", "NO_COLOR", "FORCE_"))}
    return inherited | {"XDG_CONFIG_HOME": "/nowhere", "EDL_CKPT_WORKERS": "2", "COLUMNS": "80"} | variables


@functools.cache
def demo() -> Path:
    """Run `edl-ckpt demo` once and return the directory in which it ran; it is removed at the end of the process."""
    keeper = tempfile.TemporaryDirectory(prefix="edl-ckpt-docs-")
    _KEEPERS.append(keeper)
    directory = Path(keeper.name)
    session = Session(directory)
    session.run(Example("command", "edl-ckpt demo", 0, 0))
    if session.exit_code:
        raise ExampleError(f"edl-ckpt demo ended with {session.exit_code}")
    return directory


_KEEPERS: list[tempfile.TemporaryDirectory[str]] = []

_SETTLED_SECONDS = 0.1
"""`verify` remembers nothing of a file that is younger than a tick of its file system."""


def fresh_demo(directory: Path) -> None:
    """Make a directory in which `edl-ckpt demo` has run a moment ago: pages show the age `now` as long as they can."""
    shutil.copytree(demo(), directory)
    for top, _, names in os.walk(directory):
        for path in (top, *(os.path.join(top, name) for name in names)):
            os.utime(path)
    threading.Event().wait(_SETTLED_SECONDS)


def run_page(lines: Sequence[str]) -> list[Outcome]:
    """Run the examples of a page in a temporary directory; raise ExampleError for a silent failure."""
    todo = list(examples(lines))
    outcomes: list[Outcome] = []
    with tempfile.TemporaryDirectory(prefix="edl-ckpt-docs-") as temporary:
        directory = Path(temporary) / "page"
        fresh_demo(directory)
        session = Session(directory)
        for number, example in enumerate(todo):
            printed = session.run(example)
            following = todo[number + 1].source if number + 1 < len(todo) else ""
            if session.exit_code and example.kind == "command" and "echo $?" not in example.source + following:
                raise ExampleError(
                    f"line {example.start}: `{example.source}` ended with {session.exit_code}, and no `$ echo $?`"
                    f" behind it says so:\n{printed}"
                )
            outcomes.append(Outcome(example, "\n".join(lines[example.start : example.end]), printed))
    return outcomes


def rewritten(lines: Sequence[str], outcomes: Sequence[Outcome]) -> list[str]:
    """Return the page with fresh output; output that differs in nothing that counts stays as it is."""
    fresh = list(lines)
    for outcome in reversed(outcomes):
        example = outcome.example
        if outcome.same:
            continue
        if example.kind == "python" and example.start == example.end:
            fresh[example.start : example.end] = ["```text", *outcome.printed.split("\n"), "```"]
        else:
            fresh[example.start : example.end] = outcome.printed.split("\n") if outcome.printed else []
    return fresh


def differences(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """Yield, for each example that is out of date, its line, its source, and a diff after normalising."""
    for outcome in outcomes:
        if not outcome.same:
            yield f"line {outcome.example.start}: {outcome.example.source}"
            before, after = (normalise(text).splitlines() for text in (outcome.shown, outcome.printed))
            yield from difflib.unified_diff(before, after, "the page", "the program", lineterm="", n=1)


def main() -> int:
    """Compare the pages, or rewrite them; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--update", action="store_true", help="rewrite the output that has changed")
    parser.add_argument("pages", nargs="*", type=Path, metavar="PAGE", help="README and docs/*.md when not given")
    chosen = parser.parse_args()
    warnings.simplefilter("ignore")  # pages show neither warnings nor logs: pytest takes them out of the output too
    logging.getLogger("edl_ckpt").disabled = True
    stale = 0
    for page in chosen.pages or pages():
        lines = page.read_text(encoding="utf-8").split("\n")
        try:
            outcomes = run_page(lines)
        except ExampleError as error:
            print(f"{page}: {error}")
            stale += 1
            continue
        changed = list(differences(outcomes))
        if changed and chosen.update:
            page.write_text("\n".join(rewritten(lines, outcomes)), encoding="utf-8")
            print(f"{page}: rewritten")
        elif changed:
            print(f"{page}: out of date; {UPDATE} rewrites it", *changed, sep="\n")
            stale += 1
    return 1 if stale else 0


if __name__ == "__main__":
    raise SystemExit(main())
