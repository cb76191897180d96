"""Pages for a terminal: headings and names in colour, text wrapped at the width of the window, and nothing cut."""

from __future__ import annotations

import os
import re
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import replace
from typing import Final, TextIO

from edl_ckpt.cli.manual.pages import Block, ManualPage, Row, is_for_all
from edl_ckpt.cli.terminal.truths import is_set
from edl_ckpt.cli.terminal.window import painted, uses_colour

_WIDEST: Final = 110
"""Longer lines of text are hard to read."""
_USUAL: Final = 80
"""The columns of a window that does not say how many it has."""
_NARROW: Final = 60
"""Below this, a term stands above its text."""
_TERM: Final = 30
"""A longer term stands above its text too, so that one does not push all texts to the right."""
_GAP: Final = 2
_GLUE: Final = "\u00a0"
"""Stands for a blank at which no line is broken."""
_CODE: Final = re.compile(r"`([^`]+)`")


def drawn(page: ManualPage, stream: TextIO | None = None) -> str:
    """Return a page for a stream, by default stdout: as wide as the window, and in colour if the stream has colours."""
    no_color = "--no-color" in sys.argv or is_set("EDL_CKPT_NO_COLOR")
    return draw(page, width=_columns(), colour=uses_colour(stream or sys.stdout, no_color=no_color))


def _columns() -> int:
    """Return the columns of the window, by COLUMNS or stdout, as `shutil` does; its import is slow."""
    named = os.environ.get("COLUMNS", "")
    if named.isdecimal() and int(named):
        return int(named)
    try:
        return os.get_terminal_size(sys.__stdout__.fileno()).columns or _USUAL if sys.__stdout__ else _USUAL
    except (OSError, ValueError):
        return _USUAL


def draw(page: ManualPage, *, width: int, colour: bool = False) -> str:
    """Return a page as text of at most so many columns, but for example lines, which must stay whole."""
    width = max(20, min(width, _WIDEST))
    lines = [*_paragraph(page.summary, width, colour=colour), ""]
    for text in page.description:
        lines += [*_paragraph(text, width, colour=colour), ""]
    if page.usage:
        head, words = painted("Usage:", "heading", colour=colour), page.usage
        wrapped = textwrap.wrap(words, width, initial_indent=" " * 7, subsequent_indent=" " * 9, break_on_hyphens=False)
        wrapped = [line.replace("edl-ckpt", painted("edl-ckpt", "name", colour=colour), 1) for line in wrapped]
        lines += [head + wrapped[0][6:], *wrapped[1:], ""]
    blocks = [_folded(block) for block in page.blocks]
    terms = [row.term for block in blocks for row in block.rows if len(row.term) <= _TERM]
    column = max(map(len, terms), default=0) + 2 + _GAP
    for block in blocks:
        lines += [*_block(block, width, column, colour=colour), ""]
    return "\n".join(lines).rstrip()


def _folded(block: Block) -> Block:
    """Return a block without what is the same in every command: a topic has it, and so have the man pages."""
    if is_for_all(block):
        flags = ", ".join(_short(row.term) for row in block.rows)
        return Block("In every command", (f"{flags}: see `edl-ckpt help options`.",))
    rows = tuple(_without_codes(row) if row.term == "others" else row for row in block.rows)
    return replace(block, rows=rows)


def _short(term: str) -> str:
    """Return the first flag of a term, but --help."""
    return "--help" if term.endswith("--help") else term.split(maxsplit=1)[0].rstrip(",")


def _without_codes(row: Row) -> Row:
    return replace(row, text=f"see {row.text.partition('see ')[2]}")


def _block(block: Block, width: int, column: int, *, colour: bool) -> Iterator[str]:
    yield painted(f"{block.heading}:", "heading", colour=colour)
    for number, text in enumerate(block.paragraphs):
        if number:
            yield ""
        yield from (f"  {line}" for line in _paragraph(text, width - 2, colour=colour))
    if block.paragraphs and (block.rows or block.lines):
        yield ""
    for row in block.rows:
        yield from _row(row, width, column, colour=colour)
    if block.rows and block.lines:
        yield ""
    for line in block.lines:
        yield f"  {painted(line, 'value', colour=colour)}"


def _row(row: Row, width: int, column: int, *, colour: bool) -> Iterator[str]:
    """Yield a term and its text beside it; below it in a narrow window, and for a term that is too long."""
    above = width < _NARROW or len(row.term) + 2 + _GAP > column
    indent = 6 if width < _NARROW else column
    term = painted(row.term, "name", colour=colour)
    shown = (note for note in row.notes if not note.startswith("env: "))
    notes = (f"[{note}]".replace(" ", _GLUE if len(note) + 2 <= width - indent else " ") for note in shown)
    lines = list(_paragraph(" ".join([row.text, *notes]), width - indent, colour=colour))
    if above:
        wrapped = textwrap.wrap(row.term, width - 2, break_on_hyphens=False, subsequent_indent="  ")
        yield from (f"  {painted(line, 'name', colour=colour)}" for line in wrapped)
    elif lines:
        yield f"  {term}{' ' * (column - 2 - len(row.term))}{lines.pop(0)}"
    else:
        yield f"  {term}"
    yield from (f"{'':{indent}}{line}" for line in lines)


def _paragraph(text: str, width: int, *, colour: bool) -> Iterator[str]:
    """Yield a text in lines; a command in backticks is not broken if it fits a line, and has its colour."""
    glued = _CODE.sub(lambda m: m[0].replace(" ", _GLUE) if len(m[0]) <= width else m[0], text)
    for line in textwrap.wrap(glued, width, break_on_hyphens=False, break_long_words=True):
        shown = _CODE.sub(lambda m: painted(m[0], "value", colour=colour), line) if colour else line
        shown = re.sub(r"\[(default|env|required)[^\]]*\]", lambda m: painted(m[0], "faint", colour=colour), shown)
        yield shown.replace(_GLUE, " ")
