"""Draw the pictures of README and the manual: `python tests/docs/picture.py [NAME...]` writes docs/images/.

A terminal is what commands print on a colour terminal after `edl-ckpt demo`, as SVG. It names no font to fetch, so a
forge shows it as it is. A screen is what the browser draws after some keys, as SVG too. A page is what Chromium shows
of it, as PNG; without Chromium it is left as it is.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
import tempfile
from html import escape, unescape
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))  # when this file is the program

import browser
from console import TOP, Example, Session, fresh_demo

PICTURES = {
    "terminal": ("edl-ckpt list edl-ckpt-demo", "edl-ckpt inspect edl-ckpt-demo@best:auc"),
    "help": ("edl-ckpt --help",),
    "verify": (
        "truncate -s 200000 edl-ckpt-demo/version_200/variables-2-of-4.chkpt",
        "edl-ckpt verify edl-ckpt-demo@200 --deep",
        "edl-ckpt verify edl-ckpt-demo@400",
    ),
    "diff": ("edl-ckpt diff edl-ckpt-demo@200 @300 --top 2",),
    "prune": ("edl-ckpt prune edl-ckpt-demo --keep 1 --keep-best 1 --metric auc --dry-run",),
}
"""The commands of each picture of a terminal."""
PAGES = {"report": ("edl-ckpt report edl-ckpt-demo --keep 1 -o report.html", "report.html", 1000, 1560)}
"""The command that writes each page, its file, and the size of the window."""
SCREENS = {
    "browse": ("edl-ckpt-demo", (100, 18), ()),
    "browse-statistics": ("edl-ckpt-demo@300", (100, 36), ("down", "s")),
}
"""The reference that the browser of a terminal opens for each picture, its window, and the keys that are pressed."""
_WIDTH = 100
_BEGIN = 1_790_000_000
_DAY = "2026-09-21 18:00 UTC"
"""When the report was made, in its picture: the same picture is drawn tomorrow."""
_MADE = re.compile("As it was on [0-9-]+ [0-9:]+ UTC")
NO_BREAK = "\xa0"


def path(name: str) -> Path:
    """Return the file of a picture."""
    return TOP / "docs" / "images" / f"{name}.svg"


def draw(name: str) -> str:
    """Return a picture as SVG."""
    from rich.console import Console
    from rich.terminal_theme import MONOKAI
    from rich.text import Text

    variables = {"TERM": "xterm-256color", "COLORTERM": "truecolor", "COLUMNS": str(_WIDTH)}
    screen = Console(record=True, width=_WIDTH, file=io.StringIO(), force_terminal=True, highlight=False)
    with tempfile.TemporaryDirectory() as temporary:
        fresh_demo(Path(temporary) / "page")
        session = Session(Path(temporary) / "page", variables, colour=True)
        for command in PICTURES[name]:
            screen.print(Text(f"$ {command}", "bold"))
            screen.print(Text.from_ansi(session.run(Example("command", command, 0, 0)) + "\n"))
    return _plain(screen.export_svg(title="edl-ckpt", theme=MONOKAI, unique_id=name))


def screen(name: str) -> str:
    """Return a picture of the browser as SVG."""
    from browsing import Screen, browsing

    ref, size, keys = SCREENS[name]
    drawn: list[str] = []

    async def use(shown: Screen) -> None:
        await shown.press(*keys)
        drawn.append(shown.app.export_screenshot(title="edl-ckpt browse"))

    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "page"
        _timed_demo(folder)
        with contextlib.chdir(folder):
            browsing(ref, use, size=size, now=lambda: _BEGIN + 5 * 3600)
    return _plain(re.sub(r"terminal-\d+", name, drawn[0]))


def _plain(svg: str) -> str:
    """Return a picture that names no font to fetch, and that all viewers show alike."""
    svg = re.sub(r"@font-face \{.*?\}", "", svg, flags=re.DOTALL).replace("Fira Code", "ui-monospace")
    svg = _TEXT.sub(_apart, svg)
    return "\n".join(line.rstrip() for line in svg.splitlines() if line.strip()) + "\n"


_TEXT = re.compile(
    r'<text class="([\w-]+)" x="([0-9.]+)" y="([0-9.]+)" textLength="([0-9.]+)" (.*?)>(.*?)</text>', re.DOTALL
)


def _apart(match: re.Match[str]) -> str:
    """Return a line's text in pieces without outer spaces, each at its own place: some viewers drop such spaces."""
    style, x, y, length, clip, content = match.groups()
    text = unescape(content)
    if not text.strip():
        return ""
    cell = float(length) / len(text)
    pieces = re.finditer(r"[^\s](?:\s?[^\s])*", text)
    return "".join(
        f'<text class="{style}" x="{float(x) + cell * piece.start():.1f}" y="{y}"'
        f' textLength="{cell * len(piece[0]):.1f}" {clip}>{escape(piece[0].replace(NO_BREAK, " "))}</text>'
        for piece in pieces
    )


def words(svg: str) -> str:
    """Return the text in a picture, line by line, without its places and colours."""
    lines: dict[str, list[str]] = {}
    for match in _TEXT.finditer(svg):
        lines.setdefault(match[3], []).append(unescape(match[6]))
    return "\n".join("  ".join(pieces) for pieces in lines.values())


def page(name: str) -> bytes:
    """Return the picture of a page as PNG."""
    command, file, width, height = PAGES[name]
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "page"
        _timed_demo(folder)
        Session(folder, {}, colour=False).run(Example("command", command, 0, 0))
        text = (folder / file).read_text(encoding="utf-8")
        (folder / file).write_text(_MADE.sub(f"As it was on {_DAY}", text, count=1), encoding="utf-8")
        return browser.picture(folder / file, width, height)


def _timed_demo(folder: Path) -> None:
    """Make the demo as if its versions had been saved hour by hour."""
    fresh_demo(folder)
    for hour, version in enumerate(sorted((folder / "edl-ckpt-demo").glob("version*"))):
        for each in (*version.iterdir(), version):
            os.utime(each, (_BEGIN + 3600 * hour,) * 2)


def main() -> None:
    """Draw the pictures that are named, or all."""
    wanted = sys.argv[1:] or [*PICTURES, *SCREENS, *PAGES]
    for each in wanted:
        if each in PICTURES:
            path(each).write_text(draw(each), encoding="utf-8")
        elif each in SCREENS:
            path(each).write_text(screen(each), encoding="utf-8")
        elif browser.BROWSER is None:
            print(f"{each}: Chromium is not installed, so the picture stays as it is")
        else:
            path(each).with_suffix(".png").write_bytes(page(each))


if __name__ == "__main__":
    main()
