"""Results in a notebook: tables of HTML without any colour, so that they are light or dark as the notebook is.

A class shows itself by `_repr_html_`, which notebooks call; it reads nothing for that. All texts are escaped and cut
short, and tables have at most 20 rows, with the number of the others below. Nouns know no HTML: they are `Shown` by a
view that a room above registers.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Final, TypeAlias

from edl_ckpt.core.base.words import counted, size

ROWS: Final = 20
_NAME, _WORDS = 60, 240
"""Characters of the first cell of a row, and of any other text."""
_MARKUP: Final = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#39;"})
_LEFT: Final = "text-align: left"
_RIGHT: Final = "text-align: right"


@functools.singledispatch
def html_of(noun: object) -> str:
    """Return a noun as HTML, by the view that is registered for its class, or else its repr."""
    return f"<code>{_text(repr(noun))}</code>"


class Shown:
    """A noun that notebooks show by `html_of`."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        return html_of(self)


class Bytes(int):
    """A number of bytes, to be shown as a size."""

    __slots__ = ()


Cell: TypeAlias = str | int | float | None
"""A text, a number, `Bytes`, or nothing."""


def card(kind: str, title: str, facts: Iterable[str], tables: Iterable[str] = ()) -> str:
    """Return a result: its kind, what it is about, facts in words, and tables.

    >>> card("Version", "run@<1>", ["complete", ""])
    '<div><p><strong>Version</strong> <code>run@&lt;1&gt;</code>: complete</p></div>'
    """
    known = ", ".join(_text(fact) for fact in facts if fact)
    return f"<div><p><strong>{kind}</strong> <code>{_text(title)}</code>: {known}</p>{''.join(tables)}</div>"


def table(columns: Sequence[str], rows: Iterable[Sequence[Cell]], total: int, noun: str) -> str:
    """Return a table of at most 20 rows, and how many more of these there are; '' without a row.

    The first cell of each row is its name. Numbers stand on the right.

    >>> table(["table", "rows"], [["user", 2000]], 5, "table")[-45:]
    '</tbody></table><p>4 tables are not shown</p>'
    """
    shown = list(islice(rows, ROWS))
    if not shown:
        return ""
    numbers = [any(isinstance(row[k], int | float) for row in shown) for k in range(len(columns))]
    styles = [_RIGHT if number else _LEFT for number in numbers]
    head = "".join(f'<th style="{s}">{_text(c)}</th>' for c, s in zip(columns, styles, strict=True))
    body = "".join(f"<tr>{_row(row, styles)}</tr>" for row in shown)
    left = total - len(shown)
    verb = "is" if left == 1 else "are"
    more = f"<p>{counted(left, noun)} {verb} not shown</p>" if left > 0 else ""
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}"


def _row(row: Sequence[Cell], styles: Sequence[str]) -> str:
    limits = [_NAME, *[_WORDS] * len(row)]
    first, *others = (
        f'style="{style}">{_cell(cell, limit)}' for cell, style, limit in zip(row, styles, limits, strict=False)
    )
    return f'<th scope="row" {first}</th>' + "".join(f"<td {other}</td>" for other in others)


def _cell(cell: Cell, limit: int) -> str:
    if cell is None:
        return ""
    if isinstance(cell, str):
        return f"<bdi>{_text(cell, limit)}</bdi>"
    if isinstance(cell, Bytes):
        return size(cell)
    if isinstance(cell, int):
        return f"{cell:,}"
    return "NaN" if math.isnan(cell) else f"{cell:.6g}"


def _text(text: str, limit: int = _WORDS) -> str:
    """Return a text with what cannot be printed as escape sequences, cut short."""
    short = text if len(text) <= limit else f"{text[: limit - 3]}..."
    if not short.isprintable():
        short = "".join(c if c.isprintable() else repr(c)[1:-1] for c in short)
    return short.translate(_MARKUP)
