"""What is in the version under the cursor, next to the list of versions where the window is wide."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, cast

from rich.text import Text
from textual.widgets import Static

from edl_ckpt.cli.browse.page import PREVIEW, BrowserPage
from edl_ckpt.cli.browse.source import OpenVersion, opened
from edl_ckpt.cli.browse.version import recorded
from edl_ckpt.cli.terminal import text
from edl_ckpt.core.base import words
from edl_ckpt.core.base.errors import EdlCkptError

if TYPE_CHECKING:
    from edl_ckpt.core.model.versions import Version

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
        self._seen: dict[str, OpenVersion | EdlCkptError] = {}

    def show(self, version: Version | None) -> None:
        """Show a version where there is room; what is not known of it yet is read."""
        self._version = version
        self.display = bool(version and self.is_wanted and self.app.size.width >= _FROM)
        if version is None or not self.display:
            return
        if version.path not in self._seen:
            self.set_timer(_REST_SECONDS, lambda: self._read(version))
        page = cast("BrowserPage", self.screen)
        lines = (Text.assemble((page.shown(a), "bold"), f"  {page.shown(b)}") for a, b in self._lines(version))
        self.update(Text("\n").join(lines))

    def _lines(self, version: Version) -> list[tuple[str, str]]:
        seen = self._seen.get(version.path)
        if not isinstance(seen, OpenVersion):
            return [*([] if seen else [("reading headers ...", "")]), *recorded(version, None, seen)]
        tables = [(t.name, f"{text.count(t.rows, 'row')}, dim {t.dim}") for t in seen.summary.tables]
        variables = [(v.name, words.shape(v.shape)) for v in seen.summary.variables]
        return [*tables, *variables, *recorded(version, seen, None)]

    def _read(self, version: Version) -> None:
        """Read the headers unless the cursor went on."""
        if self._version is version:
            cast("BrowserPage", self.screen).work(
                "reading headers", lambda _: _opened(version), self._keep, kind=PREVIEW
            )

    def _keep(self, read: tuple[Version, OpenVersion | EdlCkptError]) -> None:
        version, seen = read
        self._seen[version.path] = seen
        self.show(self._version)


def _opened(version: Version) -> tuple[Version, OpenVersion | EdlCkptError]:
    try:
        read = opened(version)
    except EdlCkptError as error:
        return version, error
    read.let_go()
    return version, read
