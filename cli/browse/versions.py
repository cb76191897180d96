"""The versions of a location, the choice of one of them, and what is in the one under the cursor."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final, cast

from rich.text import Text
from textual.containers import Horizontal
from textual.widgets import Static

from edl_ckpt.cli.browse import open_version, source
from edl_ckpt.cli.browse.grid import Grid, ItemRows
from edl_ckpt.cli.browse.keys import DIFF, VERIFY, ScreenKey
from edl_ckpt.cli.browse.page import BACK, COPY, HELP, OPEN, QUIET, QUIT, REFRESH, SEARCH, BrowserPage, NotesPage
from edl_ckpt.cli.browse.version import ACTIONS, ActionPage, VersionPage, recorded
from edl_ckpt.cli.render import listing as render_list
from edl_ckpt.cli.render.recorded import names_of
from edl_ckpt.cli.terminal import text
from edl_ckpt.cli.terminal.tables import Cell, Column
from edl_ckpt.core import CheckpointRef, Listing, Version, kinds_of, list_versions, resolve, versions_at
from edl_ckpt.core.base import words
from edl_ckpt.core.base.errors import EdlCkptError

if TYPE_CHECKING:
    from textual.widget import Widget

    from edl_ckpt.core import Location


_FROM: Final = 110
"""The least width of a window with a preview."""
_REST_SECONDS: Final = 0.15
"""The cursor rests so long on a version before its headers are read."""


class Preview(Static):
    """Tables and variables of a version, then what is recorded of it. Headers are read once the cursor rests."""

    DEFAULT_CSS = "Preview { width: 2fr; height: 100%; padding: 0 0 0 2; }"

    def __init__(self) -> None:
        super().__init__("", markup=False)
        self.is_wanted = True
        self._version: Version | None = None
        self.seen: dict[str, open_version.OpenVersion | EdlCkptError] = {}

    def show(self, version: Version | None) -> None:
        """Show a version where there is room; what is not known of it yet is read."""
        self._version = version
        self.display = bool(version and self.is_wanted and self.app.size.width >= _FROM)
        if version is None or not self.display:
            return
        if version.path not in self.seen:
            self.set_timer(_REST_SECONDS, lambda: self._read(version))
        page = cast("BrowserPage", self.screen)
        lines = (Text.assemble((page.shown(a), "bold"), f"  {page.shown(b)}") for a, b in self._lines(version))
        self.update(Text("\n").join(lines))

    def _lines(self, version: Version) -> list[tuple[str, str]]:
        seen = self.seen.get(version.path)
        if not isinstance(seen, open_version.OpenVersion):
            return [*([] if seen else [("reading headers ...", "")]), *recorded(version, None, seen)]
        tables = [(t.name, f"{text.count(t.rows, 'row')}, dim {t.dim}") for t in seen.summary.tables]
        variables = [(v.name, words.shape(v.shape)) for v in seen.summary.variables]
        return [*tables, *variables, *recorded(version, seen, None)]

    def _read(self, version: Version) -> None:
        """Read the headers unless the cursor went on."""
        if self._version is version:
            cast("BrowserPage", self.screen).work("reading headers", lambda _: _opened(version), self._keep, kind=QUIET)

    def _keep(self, read: tuple[Version, open_version.OpenVersion | EdlCkptError]) -> None:
        version, seen = read
        self.seen[version.path] = seen
        self.show(self._version)


def _opened(version: Version) -> tuple[Version, open_version.OpenVersion | EdlCkptError]:
    try:
        read = open_version.opened(version)
    except EdlCkptError as error:
        return version, error
    read.let_go()
    return version, read


COMPARE = ScreenKey("", "enter", "compare", "open_row", "compare with the version under the cursor")
OTHER = ScreenKey("o", "o", "other", "other", "compare with a version of another location")
PREVIEW = ScreenKey("p", "p", "preview", "preview", "show or hide the content of the version under the cursor")
NOTES = ScreenKey("w", "w", "warnings", "warnings", "show the warnings about the location")


class VersionRows(ItemRows):
    """Versions as `list` shows them, but the state comes third: it stays where there is room for few columns."""

    def __init__(self, listing: Listing, versions: list[Version], now: float) -> None:
        made = render_list.VersionCells(listing, names_of(listing.versions), listing.versions, now)
        super().__init__(_state_third(made.columns), versions, lambda version: _state_third(made.row(version)))


def _state_third(row: Sequence[Any]) -> list[Any]:
    return [*row[:2], row[7], *row[2:7], *row[8:]]


def matches(version: Version, wanted: str) -> bool:
    """Say whether a version has a text in its number, state, tags, note or metadata."""
    parts = (str(version.key), version.shown_state, *version.tags, version.note, *map(str, version.metadata.items()))
    return any(wanted.casefold() in part.casefold() for part in parts)


class VersionsPage(ActionPage):
    """The first screen: the versions of a location."""

    keys: ClassVar[tuple[ScreenKey, ...]] = (
        *(HELP, QUIT, OPEN, VERIFY, DIFF, SEARCH, REFRESH, COPY),
        *(*ACTIONS, PREVIEW, NOTES, BACK),
    )
    about = "The versions of a location. The newest is the last one."

    def __init__(self, location: Location) -> None:
        super().__init__()
        self._location = location
        self._listing: Listing | None = None
        self._below: list[Location] = []

    def body(self) -> Iterable[Widget]:
        """Return the table, and what is in the version under the cursor."""
        yield Horizontal(*super().body(), Preview())

    def title_parts(self) -> tuple[str, str]:
        """Return the location, and what `list` says of it."""
        listing = self._listing
        if listing is None:
            return self._location.url, ""
        total = sum(v.size_bytes for v in listing.versions)
        kinds = kinds_of(listing.versions) or "no layout"
        known = f"{text.count(len(listing.versions), 'version')}, {words.size(total)}, {kinds}"
        warnings = len(list(render_list.warnings(listing)))
        return self._location.url, known + (f", {text.count(warnings, 'warning')} (w)" if warnings else "")

    def begin(self) -> None:
        """List the versions."""
        self.work("listing", lambda _: list_versions(self._location), self.show_listing)

    def show_listing(self, listing: Listing) -> None:
        """Show a listing, with the cursor where it was, at first on the newest complete version."""
        chosen = self.subject
        self._listing = listing
        self.query_one(Preview).seen.clear()
        self.fill(chosen or listing.newest)
        self.show_title()
        if not listing.versions:
            self.work("looking below", lambda _: source.below(listing), self._show_below, kind="below")

    def _show_below(self, locations: list[Location]) -> None:
        """Show the locations below a directory that has no version itself."""
        self._below = locations
        self.fill()

    def fill(self, chosen: Version | None = None) -> None:
        """Show the versions that are searched for, with the cursor on the chosen one, by default where it was."""
        if self._listing is None:
            return
        chosen = chosen or self.subject
        if self._below and not self._listing.versions:
            places = [place for place in self._below if self._has(place.url)]
            column = Column("locations below", "name")
            self.grid.show(ItemRows((column,), places, lambda place: [Cell(place.url, "bold")]))
            return
        found = [v for v in self._listing.versions if not self._wanted or matches(v, self._wanted)]
        cursor = next((i for i, v in enumerate(found) if chosen and v.path == chosen.path), len(found) - 1)
        empty = "no version contains it" if self._wanted else self._listing.none_here
        self.grid.show(VersionRows(self._listing, found, self.browser.now()), cursor=cursor, empty=empty)

    @property
    def subject(self) -> Version | None:
        """Return the version under the cursor."""
        rows = self.grid.rows
        return rows.items[self.grid.cursor] if isinstance(rows, VersionRows) and len(rows) else None

    def on_grid_cursor_moved(self) -> None:
        """Show what is in the version under the cursor; Textual calls the handler of each class."""
        self.query_one(Preview).show(self.subject)

    on_resize = on_grid_cursor_moved

    def action_preview(self) -> None:
        """Show or hide the preview."""
        preview = self.query_one(Preview)
        preview.is_wanted = not preview.is_wanted
        preview.show(self.subject)

    def reference(self) -> str:
        """Return the reference of the version under the cursor."""
        return self.subject.ref if self.subject else self._location.url

    def on_grid_opened(self, event: Grid.Opened) -> None:
        """Open a version."""
        event.stop()
        is_version = isinstance(event.rows, VersionRows)
        self.app.push_screen(VersionPage(event.item) if is_version else VersionsPage(event.item))

    def action_verify(self) -> None:
        """Verify the version under the cursor."""
        if self.subject:
            self.browser.verify(self.subject)

    def action_diff(self) -> None:
        """Compare the version under the cursor with another one."""
        if self.subject:
            self.browser.diff(self.subject)

    def action_warnings(self) -> None:
        """Show the warnings about the location."""
        listing = self._listing
        if listing is not None:
            self.app.push_screen(NotesPage(f"Warnings about {listing.location.url}", render_list.warnings(listing)))


class ChoicePage(VersionsPage, inherit_bindings=False):
    """The versions of a location, to choose the one that another is compared with."""

    keys = (HELP, BACK, QUIT, COMPARE, OTHER, SEARCH)
    about = "Choose the version to compare with."

    def __init__(self, version: Version, chosen: Callable[[Version], object]) -> None:
        super().__init__(version.location)
        self._version, self._done = version, chosen

    def title_parts(self) -> tuple[str, str]:
        """Say what is chosen for."""
        return f"Compare {self._version.ref} with", "choose a version"

    def show_listing(self, listing: Listing) -> None:
        """Put the cursor on the complete version before the one that is compared."""
        complete = [v for v in listing.versions if v.is_good and v.path != self._version.path]
        order = {v.path: place for place, v in enumerate(listing.versions)}  # some have no number
        own = order.get(self._version.path, len(order))
        before = [v for v in complete if order[v.path] < own] or complete
        self._listing = listing
        self.fill(before[-1] if before else None)
        self.show_title()

    def on_grid_opened(self, event: Grid.Opened) -> None:
        """Take the version under the cursor."""
        event.stop()
        event.prevent_default()  # Textual calls the handler of each class
        if isinstance(event.rows, VersionRows):
            self._take(event.item)

    def _take(self, version: Version) -> None:
        self.app.pop_screen()
        self._done(version)

    def action_other(self) -> None:
        """Ask for a reference."""
        self.ask("reference:", entered=self._other)

    def _other(self, words: str) -> None:
        if words.strip():
            self.work("listing", lambda job: resolve(self.browser.parse(words.strip()), reporter=job), self._take)


class BeginningPage(VersionsPage):
    """The first screen while it is not known what the reference names. An error then ends the program."""

    def __init__(self, ref: CheckpointRef) -> None:
        super().__init__(ref.location)
        self._ref = ref
        self._began = False

    def begin(self) -> None:
        """Look at what the reference names, and later list again."""
        if self._began:
            super().begin()
        else:
            self.work("listing", lambda job: versions_at(self._ref, reporter=job), self._show_beginning)

    def _show_beginning(self, found: tuple[Listing | None, Version | None]) -> None:
        self._began = True
        listing, version = found
        if listing is not None:
            self._location = listing.location
            self.show_listing(listing)
        elif version is not None:
            self.app.switch_screen(VersionPage(version))
            return
        if version is not None:
            self.fill(version)
            self.app.push_screen(VersionPage(version))

    def failed(self, error: EdlCkptError) -> None:
        """End the program with the error of the reference: nothing could be shown."""
        if self._began:
            super().failed(error)
        else:
            self.browser.end_with(error)
