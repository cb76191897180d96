"""Draw the terminals that README and the manual show: `python tests/docs/picture.py` writes docs/images/*.svg.

A picture is what commands print on a colour terminal after `edl-ckpt demo`. It names no font to fetch, so a forge shows
it as it is.
"""

from __future__ import annotations

import io
import re
import tempfile
from html import escape, unescape
from pathlib import Path

from console import TOP, Example, Session, fresh_demo

PICTURES = {
    "terminal": ("edl-ckpt list edl-ckpt-demo", "edl-ckpt inspect edl-ckpt-demo@best:auc"),
    "help": ("edl-ckpt --help",),
}
"""The commands of each picture."""
_WIDTH = 100
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
    svg = screen.export_svg(title="edl-ckpt", theme=MONOKAI, unique_id=name)
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


if __name__ == "__main__":
    for each in PICTURES:
        path(each).write_text(draw(each), encoding="utf-8")
