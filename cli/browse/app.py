"""The application: its screens, the checks that run in the background, and how it ends."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, ClassVar, Final

from textual import events
from textual.app import App
from textual.binding import Binding, BindingType

from edl_ckpt.cli.browse.diff import DiffPage
from edl_ckpt.cli.browse.page import BrowserPage, JobEnded
from edl_ckpt.cli.browse.source import BackgroundCheck, BackgroundJob
from edl_ckpt.cli.browse.verify import VerifyPage
from edl_ckpt.cli.browse.versions import BeginningPage, ChoicePage
from edl_ckpt.cli.options.references import parsed_ref
from edl_ckpt.cli.render import verify as render_verify
from edl_ckpt.cli.terminal.signals import ASKING, ENDING
from edl_ckpt.core import Location

if TYPE_CHECKING:
    from edl_ckpt.cli.terminal.output import Output
    from edl_ckpt.core import CheckpointRef, Version
    from edl_ckpt.core.base.choices import Level

_END_SECONDS: Final = 5.0


class BrowseApp(App[None]):
    """The browser. It draws in the sixteen colours that every terminal has and its owner has chosen."""

    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+c", "interrupt", "Quit", show=False, priority=True),
        Binding("ctrl+z", "suspend_process", "Suspend", show=False),
        Binding("ctrl+l", "redraw", "Redraw", show=False),
    ]

    def __init__(
        self,
        ref: CheckpointRef,
        *,
        parse: Callable[[str], CheckpointRef],
        locate: Callable[[str], Location] = Location,
        shown: Callable[[str], str] = str,
        now: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(ansi_color=True)
        self.theme = "ansi-dark"
        self.animation_level = "none"
        self.parse, self.locate, self.shown, self.now = parse, locate, shown, now
        """How references and locations are read, how a terminal shows a text that it lacks characters for; the time."""
        self.checks: dict[str, BackgroundCheck] = {}
        """The last check of each version, by its path."""
        self.last_action: BackgroundJob | None = None
        """What the browser changed last, or still changes."""
        self.ended_with: BaseException | None = None
        """The error of the reference, or a bug: the command reports it when the terminal is as it was."""
        self._ref = ref

    def on_mount(self) -> None:
        """Show what the reference names, and let signals end the program in order."""
        self.push_screen(BeginningPage(self._ref))
        for number in ENDING if self._driver and not self.is_headless else ():
            if signal.getsignal(number) is not signal.SIG_IGN:
                asyncio.get_running_loop().add_signal_handler(number, self.exit, None, 128 + number)

    @property
    def page(self) -> BrowserPage | None:
        """Return the screen that is shown; None before the first one, and at the end."""
        shown = next(reversed(self.screen_stack), None)
        return shown if isinstance(shown, BrowserPage) else None

    async def on_event(self, event: events.Event) -> None:
        """Take back the last notice at each key, whichever widget gets it."""
        if isinstance(event, events.Key) and self.page:
            self.page.forget_notice()
        await super().on_event(event)

    def end_with(self, error: BaseException) -> None:
        """Leave the browser; the command then reports an error."""
        self.ended_with = error
        self.exit(return_code=1)

    def _handle_exception(self, error: Exception) -> None:
        """Leave the browser at a bug of ours: the command reports it as those of other commands."""
        self.ended_with = self.ended_with or error
        super()._handle_exception(error)
        self._exit_renderables.clear()

    def action_interrupt(self) -> None:
        """Leave the browser as Ctrl-C leaves every command."""
        self.exit(return_code=128 + signal.SIGINT)

    def action_redraw(self) -> None:
        """Draw everything again, after another program has written to the terminal."""
        self.refresh(repaint=True, layout=True)

    # What several screens begin.

    def verify(self, version: Version) -> None:
        """Show the check of a version."""
        self.push_screen(VerifyPage(version))

    def diff(self, version: Version) -> None:
        """Ask for the version to compare with, the old one, and compare."""
        self.push_screen(ChoicePage(version, lambda other: self.push_screen(DiffPage(other, version))))

    def start_check(self, version: Version, level: Level) -> None:
        """Verify a version in the background; a check of it that runs is given up."""
        self.cancel_check(version)
        self.checks[version.path] = BackgroundCheck(version, level, lambda job: self.post_message(JobEnded(job)))
        self.checks[version.path].begin()

    def cancel_check(self, version: Version) -> None:
        """Give up the check of a version."""
        if check := self.checks.get(version.path):
            check.give_up()

    def on_job_ended(self, message: JobEnded) -> None:
        """Show what a check found, or say so on whichever screen is there."""
        check = next((check for check in self.checks.values() if check is message.job), None)
        if check is None:
            return
        if check.bug is not None:
            self.end_with(check.bug)
        elif isinstance(self.page, VerifyPage) and self.page.check is check:
            self.page.show_check()
        elif self.page:
            words = str(check.error) if check.result is None else render_verify.verdict(check.result)
            self.page.notice(f"verified {check.version.ref}: {words}; v shows it")

    def background(self, page: BrowserPage) -> Iterable[str]:
        """Yield how far the checks are that run in the background."""
        for check in self.checks.values():
            if check.is_running:
                here = isinstance(page, VerifyPage) and page.check is check
                yield f"{'' if here else f'verifying {check.version.ref}, '}{check.progress} ..."

    def stop(self) -> None:
        """Give up all that still runs; wait a little for what was to change something, so that no lock stays."""
        for check in self.checks.values():
            check.give_up()
        if self.last_action is not None:
            self.last_action.give_up()
            self.last_action.thread.join(_END_SECONDS)


def browse(ref: CheckpointRef, out: Output, *, mouse: bool) -> int:
    """Run the browser on the terminal; return the exit code. Raises the error of the reference."""
    from edl_ckpt.cli.browse.terminal import plain

    if out.no_color:
        os.environ["NO_COLOR"] = "1"
    handlers: dict[int, Any] = {number: signal.getsignal(number) for number in (*ENDING, *ASKING)}
    for number in ASKING:
        signal.signal(number, signal.SIG_IGN)  # an answer would stand across the screen
    app = BrowseApp(ref, parse=lambda text: parsed_ref(text, out), locate=out.location, shown=plain(sys.stdout))
    try:
        app.run(mouse=mouse)
    finally:
        app.stop()
        for number, handler in handlers.items():
            signal.signal(number, handler)
    if app.ended_with is not None:
        raise app.ended_with
    return app.return_code or 0
