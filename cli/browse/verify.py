"""Verification in the background: it goes on while other screens are looked at, until it ends or is cancelled."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any, Final

from edl_ckpt.cli.browse.grid import Grid, ItemRows
from edl_ckpt.cli.browse.keys import ScreenKey
from edl_ckpt.cli.browse.page import BACK, CANCEL, COPY, HELP, QUIT, BrowserPage, NotesPage
from edl_ckpt.cli.render import verify as render_verify
from edl_ckpt.cli.terminal.tables import Cell, Column

if TYPE_CHECKING:
    from edl_ckpt.cli.browse.source import BackgroundCheck
    from edl_ckpt.core import Finding, Version
    from edl_ckpt.core.base.choices import Level


_FLAGS: Final = {"quick": " --quick", "default": "", "deep": " --deep"}
_STARTS = (
    ScreenKey("1", "1", "headers", "start('quick')", "read names and headers"),
    ScreenKey("2", "2", "ids", "start('default')", "read every id, too"),
    ScreenKey("3", "3", "deep", "start('deep')", "read every value, too, and compare with the seal"),
)
_WHOLE = ScreenKey("", "enter", "whole finding", "open_row", "show the whole finding, with its hint")
_COLUMNS = (
    Column("code", "name", title="finding"),
    Column("severity", worth=8),
    Column("place", "name", worth=7),
    Column("message", "prose", worth=9),
)


class VerifyPage(BrowserPage):
    """The check of one version, and what it found."""

    keys = (HELP, BACK, QUIT, *_STARTS, CANCEL, _WHOLE, COPY)
    about = "A check of one version. It continues in the background when you go back; nothing is changed or sealed."

    def __init__(self, version: Version) -> None:
        super().__init__()
        self._version = version
        self._shown: object = None

    @property
    def check(self) -> BackgroundCheck | None:
        """Return the last check of the version."""
        return self.browser.checks.get(self._version.path)

    def title_parts(self) -> tuple[str, str]:
        """Return the version and the verdict."""
        check = self.check
        place = f"Verify {self._version.ref}"
        if check is None:
            return place, ""
        if check.is_running:
            return place, "running"
        if check.result is None:
            return place, "failed" if check.error else "cancelled"
        return place, render_verify.verdict(check.result)

    def reference(self) -> str:
        """Return what `verify` takes."""
        check = self.check
        return shlex.quote(self._version.ref) + _FLAGS[check.level if check else "default"]

    def begin(self) -> None:
        """Show the last check."""
        self.show_check()

    def show_check(self) -> None:
        """Show what the check found, or that it has not ended."""
        check = self.check
        self._error = check.error if check else None
        findings = check.result.findings if check and check.result else ()
        self.grid.show(ItemRows(_COLUMNS, findings, _cells), empty=self._words())
        self.show_title()
        self.show_status()

    def _words(self) -> str:
        """Return what stands in the place of findings."""
        check = self.check
        if check is None or (check.result is None and not check.is_running):
            return "choose: 1 headers, 2 ids, 3 every value"
        if check.result is None:
            return "It continues when you leave this screen. x cancels it."
        return f"no finding: {render_verify.checked([check.result])}"

    def show_status(self) -> None:
        """Say what was read, below the findings."""
        check = self.check
        if check and check.result and check.result.findings and not self._notice:
            self._notice = render_verify.checked([check.result])
        super().show_status()

    def action_start(self, level: Level) -> None:
        """Begin a check; a running one is cancelled."""
        self._notice = ""
        self.browser.start_check(self._version, level)
        self.show_check()

    def action_cancel(self) -> None:
        """Cancel the check."""
        if self.check and self.check.is_running:
            self.browser.cancel_check(self._version)
            self.show_check()
            self.notice("cancelled")

    def on_grid_opened(self, event: Grid.Opened) -> None:
        """Show a finding with all it says."""
        event.stop()
        finding: Finding = event.item
        place = f"{finding.path} ({finding.place})" if finding.place else finding.path
        hint = [f"hint: {finding.hint}"] if finding.hint else []
        self.app.push_screen(NotesPage(f"{finding.severity} {finding.code}", [finding.message, place, *hint]))


def _cells(finding: Finding) -> list[Any]:
    colour = "red" if finding.severity == "error" else "yellow"
    return [Cell(finding.code, "bold"), Cell(finding.severity, colour), finding.place, finding.message]
