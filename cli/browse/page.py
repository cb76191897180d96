"""What all screens share: where one is, the keys, the line to type in, jobs, and errors in the place of what failed.

Pages of text: the keys of the screen below it; and sentences, such as warnings and what is too long for a line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final, cast

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal, VerticalScroll
from textual.message import Message
from textual.screen import Screen
from textual.widget import Widget
from textual.widgets import Input, Static

from edl_ckpt.cli.browse.grid import Grid
from edl_ckpt.cli.browse.keys import MOVING, KeyLine, ScreenKey, bound
from edl_ckpt.cli.browse.source import BackgroundJob
from edl_ckpt.cli.terminal import text
from edl_ckpt.cli.terminal.folding import cell_width, fold, shortened
from edl_ckpt.cli.terminal.tables import Cell, Column, Table
from edl_ckpt.core.base.errors import EdlCkptError

if TYPE_CHECKING:
    from edl_ckpt.cli.browse.app import BrowseApp


HELP: Final = ScreenKey("question_mark", "?", "help", "help", "show the keys of this screen")
BACK: Final = ScreenKey("escape", "esc", "back", "back", "go back to the screen before; also the left arrow")
_ALSO_BACK: Final = ScreenKey("left,h,backspace", "left", "back", "also_back", "")
QUIT: Final = ScreenKey("q", "q", "quit", "quit", "leave the browser; Ctrl-C does it too")
COPY: Final = ScreenKey(
    "y", "y", "copy", "copy", "copy the reference, for other commands, to the clipboard of the terminal"
)
REFRESH: Final = ScreenKey("r", "r", "refresh", "refresh", "list again")
SEARCH: Final = ScreenKey("slash", "/", "search", "search", "show only rows that contain a text; esc shows all again")
OPEN: Final = ScreenKey("", "enter", "open", "open_row", "open the row under the cursor; a second click does it too")
CANCEL: Final = ScreenKey("x", "x", "cancel", "cancel", "stop what the screen reads or does")
ACTION: Final = "action"
"""The kind of the jobs that change something: their errors leave the screen as it is."""
QUIET: Final = "quiet"
"""The kind of the jobs that begin by themselves: they leave an error where it stands."""
_TICK_SECONDS: Final = 0.2
_LINES: Final = 6
"""The lines of an error, and those of the row under the cursor."""


@dataclass
class JobEnded(Message):
    """A job of a screen has a result or an error."""

    job: BackgroundJob


class Prompt(Horizontal):
    """A line to type in, with a word before it."""

    DEFAULT_CSS = """
    Prompt { height: 1; display: none; }
    Prompt Static { width: auto; text-style: bold; }
    Prompt Input { width: 1fr; border: none; height: 1; padding: 0; }
    Prompt Input > .input--cursor { background: ansi_default; color: ansi_default; text-style: reverse; }
    """

    def compose(self) -> ComposeResult:
        """Make the word and the field."""
        yield Static("", markup=False)
        yield Input(compact=True, select_on_focus=False)


class BrowserPage(Screen[None]):
    """A screen of the browser: subclasses fill `body`, name their `keys`, and start jobs with `work`."""

    DEFAULT_CSS = """
    BrowserPage { layout: vertical; overflow: hidden hidden; }
    BrowserPage > .line { height: 1; width: 100%; text-wrap: nowrap; }
    BrowserPage > Horizontal > Grid { width: 3fr; }
    BrowserPage > #details, BrowserPage > #status { height: auto; max-height: 6; width: 100%; }
    """
    AUTO_FOCUS = "Grid"
    keys: ClassVar[tuple[ScreenKey, ...]] = (HELP, BACK, QUIT)
    BINDINGS: ClassVar[list[BindingType]] = []
    about = ""
    """A sentence for the page of help."""
    does = "reads"
    """What `refresh` does again after it was cancelled."""

    def __init_subclass__(cls, **options: Any) -> None:
        """Bind the keys of a screen."""
        cls.BINDINGS = bound((*cls.keys, _ALSO_BACK))
        super().__init_subclass__(**options)

    def __init__(self) -> None:
        super().__init__()
        self._jobs: dict[str, tuple[BackgroundJob, Callable[[Any], None]]] = {}
        self._error: EdlCkptError | None = None
        self._notice = ""
        self._was_busy = False
        self._written: dict[str, Text] = {}
        self._typed: Callable[[str], None] | None = None
        self._entered: Callable[[str], None] | None = None

    @property
    def browser(self) -> BrowseApp:
        """Return the application."""
        return cast("BrowseApp", self.app)

    # What a screen has.

    def compose(self) -> ComposeResult:
        """Make the lines that all screens have around the body."""
        yield Static("", id="crumbs", classes="line", markup=False)
        yield from self.body()
        yield Static("", id="details", markup=False)
        yield Static("", id="status", markup=False)
        yield Prompt()
        yield KeyLine(self.keys)

    def body(self) -> Iterable[Widget]:
        """Return the widgets between the first line and the last."""
        yield Grid(shown=self.browser.shown)

    def title_parts(self) -> tuple[str, str]:
        """Return where one is, and what is known of it."""
        return "", ""

    def reference(self) -> str:
        """Return what `y` copies."""
        return ""

    def begin(self) -> None:
        """Start the jobs that read what the screen shows."""

    @property
    def grid(self) -> Grid:
        """Return the table of the screen."""
        return self.query_one(Grid)

    def on_mount(self) -> None:
        """Begin to read, and show progress from time to time."""
        self.set_interval(_TICK_SECONDS, self.show_status)
        self.show_title()
        self.begin()
        self.show_status()

    def on_unmount(self) -> None:
        """Give up what the screen still reads."""
        self.give_up()

    def on_resize(self) -> None:
        """Fit the texts into the window."""
        self.show_title()
        self.show_status()
        self.call_after_refresh(self.show_details)

    # Jobs.

    def work(
        self, words: str, function: Callable[[BackgroundJob], Any], done: Callable[[Any], None], *, kind: str = ""
    ) -> BackgroundJob:
        """Run a function in a thread, and then `done` with its result here; a new job takes the place of its kind."""
        self.give_up(kind)
        if kind != QUIET:
            self._error = None
        job = BackgroundJob(words, function, lambda ended: self.post_message(JobEnded(ended)))
        self._jobs[kind] = job, done
        if kind == ACTION:
            self.browser.last_action = job
        job.begin()
        return job

    def give_up(self, kind: str | None = None) -> None:
        """Give up the job of a kind, or all jobs."""
        for each in [kind] if kind is not None else list(self._jobs):
            if found := self._jobs.pop(each, None):
                found[0].give_up()

    @property
    def jobs(self) -> list[BackgroundJob]:
        """Return the jobs that are running."""
        return [job for job, _ in self._jobs.values() if job.is_running]

    def on_job_ended(self, message: JobEnded) -> None:
        """Show a result, or an error in its place; a bug ends the program, which reports it."""
        message.stop()
        job = message.job
        kind, done = next(((k, done) for k, (mine, done) in self._jobs.items() if mine is job), (None, None))
        if kind is None or done is None:
            return  # given up meanwhile
        del self._jobs[kind]
        if job.bug is not None:
            self.browser.end_with(job.bug)
        elif job.error is not None and kind == ACTION:
            self._error = job.error
        elif job.error is not None:
            self.failed(job.error)
        else:
            done(job.result)
        self.show_status()

    def failed(self, error: EdlCkptError) -> None:
        """Show an error in the place of what could not be read."""
        self._error = error
        for grid in self.query(Grid):
            grid.empty = "" if grid.empty.startswith("not ") else grid.empty  # 'not read yet'
            grid.refresh()

    # Lines.

    def show_title(self) -> None:
        """Write the first line: where one is, and what is known of it or how far a job is.

        Jobs have no line of their own, so that rows do not jump whenever some are read.
        """
        if not self.query("#crumbs"):
            return
        place, known = self.title_parts()
        width = self.app.size.width
        line = Text(no_wrap=True).append(shortened(self.shown(place), width), "bold")
        room = width - cell_width(line.plain) - 2
        parts = known.split(", ")
        while parts and cell_width(", ".join(parts)) > room:
            parts.pop()
        job = next(reversed(self.jobs), None)  # it may end at any moment: we look once
        if job is not None:
            line.append("  " + shortened(self.shown(f"{job.progress} ..."), max(room, 0)), "cyan")
        else:
            line.append("  " + self.shown(", ".join(parts)) if parts else "", "dim")
        self._was_busy = job is not None
        self._write("#crumbs", line)

    def shown(self, words: str) -> str:
        """Return a text of anybody's, harmless and in characters that the terminal has."""
        return self.browser.shown(text.escaped(words))

    def on_grid_cursor_moved(self) -> None:
        """Say more about the row under the cursor."""
        self.show_details()

    def show_details(self) -> None:
        """Write what the table does not show of the row under the cursor."""
        grid = next(iter(self.query(Grid)), None)
        if grid is not None:
            self._write("#details", Text("\n").join(list(grid.details(self.app.size.width))[: self.most_lines]))

    @property
    def most_lines(self) -> int:
        """Return how many lines details and errors may take."""
        return max(1, min(_LINES, self.app.size.height // 4))

    def show_status(self) -> None:
        """Write how far jobs are, then errors, the last notice, and what goes on in the background."""
        if not self.query("#status"):  # not there yet, or not any more
            return
        if self.jobs or self._was_busy:
            self.show_title()
        width = self.app.size.width
        lines: list[Text] = []
        if self._error is not None:
            lines += _folded("error: ", "bold red", self.shown(str(self._error)), "", width)
            lines += _folded("  ", "", self.shown(self._error.hint), "cyan", width) if self._error.hint else []
        if self._notice:
            lines += _folded("", "", self.shown(self._notice), "", width)
        lines += [Text(shortened(self.shown(line), width), "cyan") for line in self.browser.background(self)]
        self._write("#status", Text("\n").join(lines[: max(self.most_lines, 2)]))

    def _write(self, where: str, words: Text) -> None:
        """Write a line unless it is there already: this is asked for several times a second. An empty one is hidden."""
        if self._written.get(where) == words:
            return
        self._written[where] = words
        line = self.query_one(where, Static)
        line.update(words)
        line.display = bool(words)

    def notice(self, words: str) -> None:
        """Say something in the line above the keys, until the next key."""
        self._notice = words
        self.show_status()

    def forget_notice(self) -> None:
        """Take back the last notice, at the next key."""
        if self._notice:
            self._notice = ""
            self.call_after_refresh(self.show_status)

    # The line to type in.

    def ask(
        self,
        word: str,
        *,
        value: str = "",
        typed: Callable[[str], None] | None = None,
        entered: Callable[[str], None] | None = None,
    ) -> None:
        """Show the line to type in; `typed` gets every change, `entered` the end."""
        self._typed, self._entered = typed, entered
        prompt = self.query_one(Prompt)
        prompt.query_one(Static).update(Text(word + " "))
        field = prompt.query_one(Input)
        field.value = value
        self.query_one(KeyLine).display, prompt.display = False, True
        self.set_focus(field)

    def on_input_changed(self, event: Input.Changed) -> None:
        """Pass on what is typed."""
        if self._typed is not None:
            self._typed(event.value)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Close the line, and pass on what was typed."""
        entered = self._entered
        self.close_prompt()
        if entered is not None:
            entered(event.value)

    def close_prompt(self) -> bool:
        """Hide the line to type in; say whether it was there."""
        prompt = self.query_one(Prompt)
        was = bool(prompt.display)
        prompt.display, self.query_one(KeyLine).display = False, True
        self._typed = self._entered = None
        for grid in self.query(Grid):
            self.set_focus(grid)
        return was

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:  # noqa: ARG002 - Textual's
        """Allow the keys of the screen unless something is being typed; of them only esc."""
        ours = {key.action.partition("(")[0] for key in (*self.keys, _ALSO_BACK)} - {BACK.action}
        return not (isinstance(self.focused, Input) and action in ours)

    # What keys do.

    def action_help(self) -> None:
        """Show the keys."""
        self.app.push_screen(HelpPage(self))

    def action_back(self) -> None:
        """Close the line to type in, or go back; from the first screen there is nowhere to go."""
        if self.close_prompt() or self.went_back() or self.waits_for(self):
            return
        if len(self.app.screen_stack) > 2:
            self.app.pop_screen()
        else:
            self.notice("this is the first screen; q leaves the browser")

    action_also_back = action_back

    def went_back(self) -> bool:
        """Undo what changed the screen, such as a search; say whether there was something."""
        return False

    def action_quit(self) -> None:
        """Leave the browser, unless it is changing something."""
        if not self.waits_for(*self.app.screen_stack):
            self.app.exit(return_code=0)

    def waits_for(self, *screens: object) -> bool:
        """Say whether one of these screens is changing something, which must not end without a word."""
        acting = [page.acting for page in screens if isinstance(page, BrowserPage) and page.acting]
        for job in acting:
            self.notice(f"{job.words} has not ended; x on its screen cancels it, Ctrl-C leaves")
        return bool(acting)

    @property
    def acting(self) -> BackgroundJob | None:
        """Return the job of the screen that changes something."""
        return self._jobs[ACTION][0] if ACTION in self._jobs else None

    def action_copy(self) -> None:
        """Copy the reference."""
        words = self.reference()
        if words:
            self.app.copy_to_clipboard(words)
            self.notice(f"copied, where the terminal allows it: {words}")

    def action_refresh(self) -> None:
        """Read again."""
        self.begin()
        self.show_status()

    def action_cancel(self) -> None:
        """Give up what the screen reads."""
        if self.jobs:
            words = "cancelled" if self.acting else f"cancelled; r {self.does} again"
            self.give_up()
            self.notice(words)

    def action_open_row(self) -> None:
        """Open the row under the cursor."""
        self.grid.action_open()


def _folded(head: str, head_style: str, words: str, style: str, width: int) -> list[Text]:
    """Return a message in lines, its first word in a colour."""
    lines = fold(head + words, max(width, 1))
    first = Text(lines[0], style)
    first.stylize(head_style, 0, len(head))
    return [first, *(Text(line, style) for line in lines[1:])]


class SearchPage(BrowserPage):
    """A screen whose rows can be searched for a text."""

    _wanted = ""

    def action_search(self) -> None:
        """Show only rows that contain a text."""
        self.ask("search:", value=self._wanted, typed=self.search)

    def search(self, wanted: str) -> None:
        """Show the rows that contain a text; all of them for an empty one."""
        self._wanted = wanted
        self.fill()

    def fill(self) -> None:
        """Show the rows that contain the text."""
        raise NotImplementedError

    def went_back(self) -> bool:
        """Show all rows again."""
        was = bool(self._wanted)
        if was:
            self.search("")
        return was

    def _has(self, words: str) -> bool:
        return self._wanted.casefold() in words.casefold()


class TextPage(BrowserPage):
    """Lines of text that scroll."""

    AUTO_FOCUS = "VerticalScroll"
    keys = (BACK, QUIT)

    def __init__(self, title: str) -> None:
        super().__init__()
        self._heading = title

    def body(self) -> Iterable[Widget]:
        """Return the text in place of a table."""
        yield VerticalScroll(Static("", id="text", markup=False))

    def title_parts(self) -> tuple[str, str]:
        """Return the title."""
        return self._heading, ""

    def lines(self, width: int) -> Iterable[Text]:
        """Return the lines for a window of this width."""
        raise NotImplementedError

    def on_resize(self) -> None:
        """Fold the text anew for the window as it is; Textual calls the handler of each class."""
        width = max(self.app.size.width - 2, 20)
        self.query_one("#text", Static).update(Text("\n").join(self.lines(width)))


class HelpPage(TextPage):
    """The keys of the screen that was there."""

    def __init__(self, page: BrowserPage) -> None:
        super().__init__("Keys")
        self._page = page

    def lines(self, width: int) -> Iterable[Text]:
        """Return a table of keys."""
        place, known = map(self.shown, self._page.title_parts())
        for words, style in ((place, "bold"), (known, ""), ("", ""), (self._page.about, ""), ("", "")):
            yield from (Text(line, style) for line in fold(words, width))
        rows = [*((key.label, key.help) for key in self._page.keys), *MOVING]
        columns = Column("key", "name", title=""), Column("help", "prose", title="")
        table = Table(*columns, rows=((Cell(label, "bold"), words) for label, words in rows), indent=0)
        for line in table.lines(width):
            yield Text.assemble(*((self.shown(cell.text), cell.style) for cell in line))
        yield Text("")
        yield Text("Nothing is changed without a question.", "dim")


class NotesPage(TextPage):
    """Sentences, one below the other."""

    def __init__(self, title: str, notes: Iterable[str]) -> None:
        super().__init__(title)
        self._notes = list(notes)

    def lines(self, width: int) -> Iterable[Text]:
        """Return the sentences, each folded, with an empty line between them."""
        for note in self._notes or ["nothing to say"]:
            yield from (Text(line) for line in fold(self.shown(note), width))
            yield Text("")
