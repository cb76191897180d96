"""The layout of tables: random columns and names in windows of every width."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from rich.cells import cell_len
from rich.text import Text

from edl_ckpt.cli.terminal.folding import fold, shortened
from edl_ckpt.cli.terminal.tables import Bar, Cell, Column, Histogram, Table, folded
from edl_ckpt.cli.terminal.text import escaped

WIDTHS = (20, 30, 40, 59, 60, 72, 80, 100, 160, 1000)
KINDS = ("number", "word", "name", "prose", "bar")


class Maker:
    """Makes random tables, always the same ones for a seed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def name(self, most: int) -> str:
        """Return a name of separators, digits, wide and combining characters, and some that must be escaped."""
        letters = "abc/_:.-012 模型é\u0301\u202e\x1b☃\ufe0f\U0001f1e9ㄱ"
        return "".join(self._random.choices(letters, k=self._random.randint(0, most)))

    def table(self) -> Table:
        """Return a table of one to nine columns."""
        kinds = [self._random.choice(KINDS[:3]), *self._random.choices(KINDS, k=self._random.randint(0, 8))]
        titles = self._random.choices((None, None, ""), k=len(kinds))
        columns = [
            Column(f"c{c}{self.name(12)}", kind, self._random.randint(0, 9), title)  # type: ignore[arg-type]
            for c, (kind, title) in enumerate(zip(kinds, titles, strict=True))
        ]
        table = Table(*columns, indent=self._random.choice((0, 2)))
        for _ in range(self._random.randint(1, 4)):
            table.add(*map(self._cell, kinds))
        return table

    def _cell(self, kind: str) -> str | Bar | Histogram:
        if kind == "bar":
            return self._random.choice((Bar(self._random.random(), 1.0, 20), Histogram([1, 0, 5] * 20)))
        if kind == "number":
            return f"{self._random.randint(0, 10 ** self._random.randint(1, 9)):,}"
        return "complete" if kind == "word" else self.name(self._random.choice((5, 40, 150)))


@pytest.mark.parametrize("seed", range(3))
def test_random_tables(seed: int) -> None:
    """In every width no line is too long, and each number and word is whole, or its column is named as left out."""
    maker = Maker(seed)
    for table in (maker.table() for _ in range(12)):
        for width in WIDTHS:
            for blocks in (True, False):
                lines = ["".join(cell.text for cell in line) for line in table.lines(width, blocks=blocks)]
                assert max(map(cell_len, lines)) <= width
                body, _, note = " ".join(" ".join(lines).split()).partition("left out at this width:")
                there = Counter(body.split())
                for c, column in enumerate(table.columns):
                    cells = Counter(cell.text for row in table.rows if isinstance(cell := row[c], Cell))
                    if column.kind in {"number", "word"} and not cells <= there:
                        assert "".join(column.name.split()) in "".join(note.split())


def test_random_text() -> None:
    """Folding loses nothing, and styled text folds like plain text; a shortened name fits."""
    maker = Maker(9)
    for name in (escaped(maker.name(200)) for _ in range(60)):
        for width in (20, 33, 80):
            parts = fold(name, width)
            assert max(map(cell_len, parts)) <= width
            assert "".join("".join(parts).split()) == "".join(name.split())
            assert [part.plain.rstrip() for part in folded(Text(name), width)] == [part.rstrip() for part in parts]
            assert cell_len(shortened(name, width)) <= width


def test_what_gives_way() -> None:
    """Bars go first, then names fold, then columns of least worth, which are named; narrow windows get blocks."""
    table = Table(
        Column("table", "name"), Column("rows", "number", 9), Column("size", "number", 1), Column("load", "bar")
    )
    table.add("embedding/user/history/last_thirty_days", "1,234,567", "1.5 GiB", Bar(1, 1, 20))

    def drawn(width: int) -> str:
        return "\n".join("".join(cell.text for cell in line).rstrip() for line in table.lines(width)).rstrip()

    assert "████████████████████" in drawn(100)
    assert "█████" in drawn(76)
    assert drawn(66).endswith("  1,234,567  1.5 GiB\n  left out at this width: load")
    assert [*table.lines(45, blocks=False)][-2][0].text == "  left out at this width: load"
    assert "size, load" in "".join(cell.text for line in table.lines(36, blocks=False) for cell in line)
    assert drawn(40).splitlines() == [
        "  table  embedding/user/history/last_",
        "         thirty_days",
        "  rows   1,234,567",
        "  size   1.5 GiB",
        "  load   ████████████████████",
    ]
