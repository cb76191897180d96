"""Rows as CSV: what a cell with several values becomes, and texts that no spreadsheet computes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from edl_ckpt.cli.terminal.documents import to_json

_FORMULAS: Final = ("=", "+", "-", "@", "\t", "\r")
"""What a cell begins with that spreadsheets compute."""


@dataclass(frozen=True, slots=True)
class Several:
    """The values of one cell of a row: a list in JSON, and in CSV one text with a gap between them."""

    values: Sequence[Any]
    gap: str = " "

    def __str__(self) -> str:
        return self.gap.join(map(str, self.values))


@dataclass(frozen=True, slots=True)
class Recorded(Several):
    """One cell with any value of JSON: in CSV it is a text that is JSON."""

    values: Any

    def __str__(self) -> str:
        return to_json(self.values)


def as_csv(rows: Iterable[Sequence[Any]]) -> str:
    """Return rows as lines of CSV; True and False as JSON writes them, texts as `no_formula` does."""
    import csv

    lines = _Lines()
    csv.writer(lines, lineterminator="\r\n").writerows([[_cell(value) for value in row] for row in rows])
    return "".join(lines.found)


class _Lines:
    """Takes lines of CSV that end with CR LF, so that the writer quotes both characters; here they end with LF."""

    def __init__(self) -> None:
        self.found: list[str] = []

    def write(self, line: str) -> None:
        """Take a line."""
        self.found.append(f"{line[:-2]}\n")


def no_formula(text: str) -> str:
    """Return a text that no spreadsheet takes for a formula: before its first character stands an apostrophe.

    Names come from files of others. Numbers, also those that are written as texts, stay as they are.

    >>> no_formula("=HYPERLINK(A1)"), no_formula("user"), no_formula("-Infinity"), no_formula("-1.5")
    ("'=HYPERLINK(A1)", 'user', '-Infinity', '-1.5')
    """
    if not text.startswith(_FORMULAS):
        return text
    try:
        float(text)
    except ValueError:
        return f"'{text}"
    return text


def _cell(value: Any) -> Any:
    """Return a value as a cell of CSV."""
    if isinstance(value, bool):
        return str(value).lower()
    if value is None or isinstance(value, int | float):
        return value
    return no_formula(str(value))
