"""Results with very many variables: tables that a terminal gets in part, and documents that are made quickly."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict

import pytest
from rich.console import RenderableType

from edl_ckpt.cli.render import diff as render_diff
from edl_ckpt.cli.render import inspect as render_inspect
from edl_ckpt.cli.render import shared_tables
from edl_ckpt.cli.terminal import documents
from edl_ckpt.cli.terminal.output import Output
from edl_ckpt.cli.terminal.tables import Bar, Cell, Column, Table
from edl_ckpt.core import CheckpointSummary, DiffResult
from edl_ckpt.core.model.tables import ShardSummary
from edl_ckpt.core.operations.diff.results import DenseDiff
from edl_ckpt.core.operations.summary import VariableSummary

NAMES = [f"layer_{i}/bias:0" for i in range(9)]
SUMMARY = CheckpointSummary(
    "run@1",
    1,
    1,
    "v4",
    "design",
    100,
    36,
    (ShardSummary(0, "run/a", 100, 9, 0),),
    tuple(VariableSummary(name, "float32", (2, 2), 16, 0) for name in NAMES),
    (),
    {"owner": ["ads", 1.5, None]},
)


def _printed(human: Iterable[RenderableType], capsys: pytest.CaptureFixture[str]) -> str:
    Output().print_human(human)
    return capsys.readouterr().out


def test_inspect(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Of a long table a terminal gets the first rows, and a line with the number of the others; --all gives all."""
    monkeypatch.setattr(shared_tables, "MOST_ROWS", 5)
    part = _printed(render_inspect.human(SUMMARY, every=False), capsys)
    assert [name for name in NAMES if name in part] == NAMES[:5]
    assert "and 4 more variables; --all shows them too" in part
    whole = _printed(render_inspect.human(SUMMARY, every=True), capsys)
    assert [name for name in NAMES if name in whole] == NAMES
    assert "more" not in whole


def test_diff(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """What differs is among the rows that are shown, however late its name comes."""
    for module in (shared_tables, render_diff):
        monkeypatch.setattr(module, "MOST_ROWS", 3)
    parts = tuple(DenseDiff(name, "changed" if name == NAMES[-1] else "equal", 0.5, 1.0) for name in NAMES)
    result = DiffResult("run@1", "run@2", False, 0.0, parts, (), "edl1:a", "edl1:b")
    part = _printed(render_diff.human(result, every=False), capsys)
    assert [name for name in NAMES if name in part] == [*NAMES[:2], NAMES[-1]]
    assert "and 6 more variables" in part
    assert "1 of 9 tensors differs" in part


def test_terminal_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pipe gets every row, as `grep` needs it."""
    assert Output().shows_all(False)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    assert not Output().shows_all(False)
    assert Output().shows_all(True)


def test_lines_are_the_same() -> None:
    """Rows of ASCII, which are drawn faster, are drawn as they are beside a row that is not ASCII."""
    drawn = []
    for last in ("ende", "\N{LATIN SMALL LETTER E WITH ACUTE}nde"):
        table = Table(Column("name", "name"), Column("size", "number"), Column("bar", "bar"), Column("what", "prose"))
        table.add(Cell("a/b", "bold"), "12 KiB", Bar(1, 2), "")
        table.add(Cell(last), "3", Bar(2, 2), "it is so")
        drawn.append(["".join(cell.text for cell in line).rstrip() for line in table.lines(120)])
    assert drawn[0][:-2] == drawn[1][:-2]
    assert [line.replace("\N{LATIN SMALL LETTER E WITH ACUTE}", "e") for line in drawn[1]] == drawn[0]


def test_documents() -> None:
    """A document is the one that `dataclasses.asdict` makes."""
    assert documents.as_dict(SUMMARY) == asdict(SUMMARY)
