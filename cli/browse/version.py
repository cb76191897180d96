"""One version: its tables, variables and shards, and what is recorded of it; and one shard: its contents.

A version can be copied, tagged and exported. Each asks first, and runs in the background.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from rich.text import Text

from edl_ckpt.cli.browse import open_version
from edl_ckpt.cli.browse.grid import Grid, GridRows, ItemRows
from edl_ckpt.cli.browse.keys import DIFF, VERIFY, ActionLine, ScreenKey
from edl_ckpt.cli.browse.page import (
    ACTION,
    BACK,
    CANCEL,
    COPY,
    HELP,
    OPEN,
    QUIT,
    REFRESH,
    SEARCH,
    NotesPage,
    SearchPage,
)
from edl_ckpt.cli.render import listing as render_list
from edl_ckpt.cli.render.inspect import TABLE_COLUMNS, VARIABLE_COLUMNS, about, table_cells, variable_cells
from edl_ckpt.cli.render.shared_tables import SHARD_COLUMNS, shard_cells
from edl_ckpt.cli.terminal import text
from edl_ckpt.cli.terminal.folding import shortened
from edl_ckpt.cli.terminal.tables import Cell, Column
from edl_ckpt.core import DenseEntry, TableEntry, TableSummary, VariableSummary, listed_again, title_of
from edl_ckpt.core.base import words
from edl_ckpt.core.base.errors import EdlCkptError, UsageError

if TYPE_CHECKING:
    from textual.widget import Widget

    from edl_ckpt.cli.browse.open_version import OpenVersion
    from edl_ckpt.cli.browse.source import BackgroundJob
    from edl_ckpt.core import Location, ShardIndex, Version


_ANSWER: Final = 16
"""The width of the end of a question, and of the answer."""
ACTIONS: Final = (
    ScreenKey("c", "c", "copy to", "act('copy')", "copy the version to another location, after a question"),
    ScreenKey("t", "t", "tag", "act('tag')", "give the version a tag, after a question"),
    ScreenKey("e", "e", "export", "act('export')", "export the version to a file or directory, after a question"),
    CANCEL,
)


def _copy(version: Version, target: str, locate: Callable[[str], Location], job: BackgroundJob) -> str:
    from edl_ckpt.core import execute_copy, plan_copy

    if "@" in target.rpartition("/")[2]:
        raise UsageError(f"expected a location, got {target!r}; the copy has the same version number")
    (copied,) = execute_copy(plan_copy([version], locate(target)), reporter=job).copied
    return f"{copied.to} is there already" if copied.skipped else f"copied to {copied.to}"


def _tag(version: Version, tag: str, _locate: Callable[[str], Location], job: BackgroundJob) -> str:
    from edl_ckpt.core import add_tag

    lost = add_tag(version, tag, reporter=job)
    return f"tagged {tag}" + (f"; {', '.join(map(str, lost))} lost it" if lost else "")


def _export(version: Version, target: str, locate: Callable[[str], Location], job: BackgroundJob) -> str:
    from edl_ckpt.core import export_version

    return f"exported to {export_version(version, locate(target), reporter=job).output}"


_ACTIONS: Final[dict[str, tuple[str, Callable[[Version, str, Callable[[str], Location], BackgroundJob], str]]]] = {
    "copy": ("copy to", _copy),
    "tag": ("tag", _tag),
    "export": ("export to", _export),
}


class ActionPage(SearchPage):
    """A screen about versions, with keys that ask for a target, then whether to go on."""

    @property
    def subject(self) -> Version | None:
        """Return the version that is acted on."""
        raise NotImplementedError

    def action_act(self, name: str) -> None:
        """Ask for the target of an action."""
        version = self.subject
        if version is not None and not self.waits_for(self):
            self.ask(f"{_ACTIONS[name][0]}:", entered=lambda target: self._confirm(name, version, target.strip()))

    def _confirm(self, name: str, version: Version, target: str) -> None:
        """Ask whether to go on; only y and yes are a yes."""

        def answered(answer: str) -> None:
            if answer.strip().lower() not in {"y", "yes"}:
                self.notice("nothing was changed")
                return
            find = self.browser.locate
            self.work(f"{name}: {target}", lambda job: act(listed_again(version), target, find, job), done, kind=ACTION)

        def done(said: str) -> None:
            self.begin()
            self.notice(said)

        words_before, act = _ACTIONS[name]
        if target:
            question = self.shown(f"{version.ref}, {words.size(version.size_bytes)}: {words_before} {target}")
            self.ask(f"{shortened(question, self.app.size.width - _ANSWER)}? [y/N]", entered=answered)


TABS: Final = ("tables", "variables", "shards", "about")

STATS = ScreenKey("s", "s", "statistics", "stats", "read the values: range, mean, norm, zeros, NaN, and a histogram")
NEXT = ScreenKey("tab", "tab", "next tab", "tab(1)", "tables, variables, shards, about; also 1 to 4")
_MORE_TABS = (
    ScreenKey("shift+tab", "shift-tab", "tab before", "tab(-1)", "the tab before"),
    *(ScreenKey(str(n + 1), str(n + 1), name, f"show({n})", f"show {name}") for n, name in enumerate(TABS)),
)

_SHARDS = (*SHARD_COLUMNS, Column("file", "name", worth=2))
_ENTRIES = (
    Column("name", "name"),
    Column("kind", worth=8),
    Column("rows", "number", worth=7),
    Column("dtype", worth=6),
    Column("shape", worth=6),
    Column("size", "number", worth=8),
    Column("offset", "number", worth=2),
)
_ABOUT = (Column("key", "name", title=""), Column("value", "name", title=""))


class TabLine(ActionLine):
    """The tabs in one line."""

    def show(self, labels: Sequence[str], chosen: int) -> None:
        """Draw the tabs; on a narrow screen without counts."""
        if sum(map(len, labels)) + 3 * len(labels) > self.app.size.width:
            labels = [label.partition(" ")[0] for label in labels]
        styles = ("bold reverse" if index == chosen else "" for index in range(len(labels)))
        parts = zip(labels, styles, strict=True)
        self.draw(((Text(f" {label} ", style), f"show({n})") for n, (label, style) in enumerate(parts)), " ")


class VersionPage(ActionPage):
    """The content of a version, from its headers."""

    keys = (HELP, BACK, QUIT, OPEN, NEXT, STATS, VERIFY, DIFF, SEARCH, REFRESH, COPY, *ACTIONS, *_MORE_TABS)
    about = "The content of one version. Headers are read; values only where you open or count them."

    def __init__(self, version: Version) -> None:
        super().__init__()
        self._version = version
        self._source: OpenVersion | None = None
        self._tab = 0
        self._cursors = [0] * len(TABS)

    def body(self) -> Iterable[Widget]:
        """Return tabs and a table."""
        yield TabLine()
        yield from super().body()

    @property
    def subject(self) -> Version:
        """Return this version."""
        return self._version

    def title_parts(self) -> tuple[str, str]:
        """Return the reference, and what `inspect` says of the version."""
        if self._source is None:
            return self._version.ref, f"{self._version.shown_state}, {words.size(self._version.size_bytes)}"
        return self._version.ref, f"{self._version.shown_state}, {about(self._source.summary)}"

    def reference(self) -> str:
        """Return the reference, with the table or variable under the cursor."""
        row = self.chosen
        name = getattr(row, "name", None)
        if name is None or self._tab > 1 or self._source is None:
            return self._version.ref
        return self._source.reference(TABS[self._tab][:-1], name)

    def begin(self) -> None:
        """Read the headers; at `refresh`, of the version as it is listed now."""
        before, version = self._source, self._version

        def read(_: object) -> OpenVersion:
            return open_version.opened(listed_again(version) if before else version)

        self._cursors[self._tab] = self.grid.cursor
        self.work("reading headers", read, self._show_opened)
        self.fill()

    def on_unmount(self) -> None:
        """Close the files, once nobody reads them."""
        if self._source is not None:
            self._source.let_go()

    def _show_opened(self, found: OpenVersion) -> None:
        if self._source is not None:
            self._source.let_go()
        self._source, self._version = found, found.version
        if not found.summary.tables and self._tab == 0:
            self._tab = 1 if found.summary.variables else 2
        self.fill()
        self.show_title()
        if found.warnings:
            more = f" (and {len(found.warnings) - 1} more in the last tab)" if len(found.warnings) > 1 else ""
            self.notice(f"warning: {found.warnings[0]}{more}")

    def failed(self, error: EdlCkptError) -> None:
        """Show the error, and the shards as they are listed."""
        super().failed(error)
        self._tab = 2
        self.fill()

    # Tabs.

    def fill(self) -> None:
        """Show the rows of the tab."""
        self._show_tabs()
        empty = f"no {TABS[self._tab]}"
        if self.jobs:
            empty = "not read yet"
        elif self._wanted:
            empty = "nothing contains it"
        self.grid.show(self._rows(), cursor=self._cursors[self._tab], empty=empty)

    def _show_tabs(self) -> None:
        s = self._source.summary if self._source else None
        shards = len(s.shards if s else self._version.shards)
        counts = (len(s.tables), len(s.variables), shards, None) if s else (None, None, shards, None)
        labels = [name if n is None else f"{name} {text.count(n)}" for name, n in zip(TABS, counts, strict=True)]
        self.query_one(TabLine).show(labels, self._tab)

    def _rows(self) -> GridRows:
        s = self._source.summary if self._source else None
        if self._tab == 0:
            cells = partial(table_cells, alone=bool(self._wanted))
            return ItemRows(TABLE_COLUMNS, self._searched(s.tables if s else ()), cells)
        if self._tab == 1:
            return ItemRows(VARIABLE_COLUMNS, self._searched(s.variables if s else ()), variable_cells)
        if self._tab == 2:
            return self._shard_rows()
        about = recorded(self._version, self._source, self._error)
        return ItemRows(_ABOUT, [pair for pair in about if self._has(" ".join(pair))], list)

    def _searched(self, items: Sequence[Any]) -> Sequence[Any]:
        return [item for item in items if self._has(item.name)] if self._wanted else items

    def _shard_rows(self) -> ItemRows:
        """Return the shards with their contents, or as they are listed where they could not be opened."""
        read = {s.ps_id: s for s in self._source.summary.shards} if self._source else {}
        largest = max((shard.all_bytes for shard in self._version.shards), default=0)

        def cells(shard: Any) -> list[Any]:
            found = read.get(shard.ps_id)
            rows, variables = (found.rows, found.variables) if found else (None, None)
            return [*shard_cells(shard, largest, rows, variables), shard.path.rpartition("/")[2]]

        return ItemRows(_SHARDS, [s for s in self._version.shards if self._has(s.path.rpartition("/")[2])], cells)

    def action_tab(self, step: int) -> None:
        """Go to the next tab, or the one before."""
        self.action_show((self._tab + step) % len(TABS))

    def action_show(self, index: int) -> None:
        """Show a tab."""
        self._cursors[self._tab] = self.grid.cursor
        self._tab = index
        self.fill()

    def on_resize(self) -> None:
        """Fit the tabs too; Textual calls the handler of each class."""
        self._show_tabs()

    # What is under the cursor.

    @property
    def chosen(self) -> Any:
        """Return the table, variable, shard or pair under the cursor."""
        rows = self.grid.rows
        return rows.items[self.grid.cursor] if isinstance(rows, ItemRows) and len(rows) else None

    def on_grid_opened(self, event: Grid.Opened) -> None:
        """Open the rows of a table, the values of a variable, or the contents of a shard."""
        from edl_ckpt.cli.browse.values import TablePage, VariablePage

        event.stop()
        row = event.item
        if isinstance(row, tuple):
            self.app.push_screen(NotesPage(row[0], [row[1]]))
        elif self._source is None:
            self.notice("its headers could not be read")
        elif isinstance(row, TableSummary):
            self.app.push_screen(TablePage(self._source, row))
        elif isinstance(row, VariableSummary):
            self.app.push_screen(VariablePage(self._source, row))
        elif shard := next((s for s in self._source.checkpoint.shards if s.file.ps_id == row.ps_id), None):
            self.app.push_screen(ShardPage(self._source, shard))
        else:
            self.notice("its header could not be read")

    def action_stats(self) -> None:
        """Show the statistics of the table or variable under the cursor."""
        from edl_ckpt.cli.browse.stats import StatsPage

        if self._tab < 2 and self.chosen is not None and self._source is not None:
            self.app.push_screen(StatsPage(self._source, TABS[self._tab][:-1], self.chosen.name))

    def action_verify(self) -> None:
        """Verify this version."""
        self.browser.verify(self._version)

    def action_diff(self) -> None:
        """Compare this version with another one."""
        self.browser.diff(self._version)

    def search(self, wanted: str) -> None:
        """Show the rows that contain a text, from the first on."""
        self._cursors = [0] * len(TABS)
        super().search(wanted)


def recorded(v: Version, opened: OpenVersion | None, error: EdlCkptError | None) -> Iterator[tuple[str, str]]:
    """Yield what is recorded of a version, and what its headers say of items and problems where they were read."""
    yield "reference", v.ref
    yield "path", v.path
    yield "state", v.shown_state
    if not v.is_elasticdl:
        yield "system", title_of(v.layout.system)
    yield "modified", render_list.timestamp(v.modified) or "unknown"
    yield from (("metric " + name, f"{value:g}") for name, value in sorted(v.metrics.items()))
    yield from (("tag", tag) for tag in v.tags)
    if v.note:
        yield "note", v.note
    yield from ((f"metadata {key}", json.dumps(value)) for key, value in v.metadata.items())
    if v.metadata_fault:
        yield "metadata", v.metadata_fault
    if v.verdict is not None:
        yield "verified", v.verdict.words
    yield "seal", v.fingerprint or v.seal_fault or "none"
    for item in opened.summary.items if opened else ():
        yield f"item {item.name}", f"{item.kind}, {words.size(item.size_bytes)}, in shard {item.shard}"
    if v.extra:
        yield "extra files", ", ".join(v.extra)
    yield from (("warning", warning) for warning in (opened.warnings if opened else ()))
    if error is not None:
        yield "error", str(error)


class ShardPage(SearchPage):
    """One shard, from its header."""

    keys = (HELP, BACK, QUIT, SEARCH, COPY)
    about = "The contents of one shard, and where they begin in its file."

    def __init__(self, opened: OpenVersion, shard: ShardIndex) -> None:
        super().__init__()
        self._source, self._shard = opened, shard

    def title_parts(self) -> tuple[str, str]:
        """Return the shard and its size."""
        known = filter(None, (words.size(self._shard.file.all_bytes), self._shard.generation))
        return f"{self._source.version.ref} > shard {self._shard.file.ps_id}", ", ".join(known)

    def reference(self) -> str:
        """Return the path of the file."""
        return self._shard.file.path

    def begin(self) -> None:
        """Show what the header says."""
        self.fill()

    def fill(self) -> None:
        """Show the entries that are searched for."""
        entries: list[TableEntry | DenseEntry] = [*self._shard.tables, *self._shard.variables]
        shown = [entry for entry in entries if self._has(entry.name)]
        self.grid.show(ItemRows(_ENTRIES, shown, _entry_cells), empty="nothing" + " contains it" * bool(self._wanted))


def _entry_cells(entry: TableEntry | DenseEntry) -> list[Any]:
    if isinstance(entry, DenseEntry):
        kind = "variable"
        rows = ""
        shape = words.shape(entry.shape)
    else:
        kind = "table"
        rows = text.count(entry.rows)
        shape = str(entry.dim)
    dtype, size = entry.dtype.name if entry.dtype else "-", words.size(entry.size_bytes)
    return [Cell(entry.name, "bold"), kind, rows, dtype, shape, size, text.count(entry.offset)]
