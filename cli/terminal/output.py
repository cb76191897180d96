"""Output: data goes to stdout, all else to stderr; one place turns an error into its exit code."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NoReturn, TextIO

from edl_ckpt.cli import __version__
from edl_ckpt.cli.terminal.csv_rows import Several, as_csv
from edl_ckpt.cli.terminal.documents import to_json
from edl_ckpt.cli.terminal.folding import fold_words
from edl_ckpt.cli.terminal.template import Template
from edl_ckpt.cli.terminal.text import annotation, escaped, is_runner, without_commands
from edl_ckpt.cli.terminal.window import charset_of, encodable, painted, shown_on, uses_colour, width_of
from edl_ckpt.core.base.errors import EdlCkptError, UsageError
from edl_ckpt.core.base.interruption import COMMIT

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from edl_ckpt.cli.terminal.progress import Tracker
    from edl_ckpt.core.sources.determined.storages import Storages
    from edl_ckpt.core.storage.location import Location

_HEIGHT = 25
_NO_WIDTH = 100_000
"""The width of a file or a pipe: nothing is folded or left out there."""


class AlreadyReported(SystemExit):
    """The end of the program after a failure that was already reported, as text or as a document."""


@dataclass(slots=True)
class Output:
    """The output of one command, as its common options want it; and the reporter of its operation."""

    json: bool = False
    csv: bool = False
    jsonl: bool = False
    quiet: bool = False
    verbose: bool = False
    no_color: bool = False
    storage_options: dict[str, str] = field(default_factory=dict)
    system: str = ""
    """The checkpoint system that --system names."""
    storages: Storages | None = None
    """Determined's storages, from a configuration file."""
    defaulted: frozenset[str] = frozenset()
    """The options of the command whose values come from the environment or from a configuration file."""
    progress: str = "auto"
    """How progress is shown: `auto`, `bar`, `lines` or `none`."""
    config: str | None = None
    """The configuration file that --config or its variable names."""
    paged: bool = False
    """Whether long output goes to a pager on a terminal."""
    streams: bool = False
    """Whether a result goes out while it is read, so that a second attempt would repeat it."""
    template: Template | None = None
    """The line that `list` prints for each row."""
    doing: Callable[[], str] = str
    """Says who does the work, for the progress: '' where it is this process alone."""
    _tracker: Tracker | None = None

    def console(self, *, stderr: bool = False, file: TextIO | None = None, moving: bool = False) -> Console:
        """Return a rich console with the width and colours of the stream; it interprets no markup.

        With `file`, it writes to that file as it would to the stream. With `moving`, its size is always that of the
        window.
        """
        from rich.console import Console

        stream = sys.stderr if stderr else sys.stdout
        terminal = stream.isatty()
        width = None
        if not moving:
            width = width_of(stream) if terminal else _NO_WIDTH
        bare = self.no_color or os.environ.get("NO_COLOR")
        return Console(
            file=file or stream,
            force_terminal=terminal or None,
            width=width,
            height=None if width is None else _HEIGHT,  # of a dumb terminal rich believes no width without a height
            color_system=None if bare else "auto",  # with `no_color` rich would still write bold and dim
            highlight=False,
            markup=False,
            emoji=False,
        )

    def show(
        self,
        document: Callable[[], dict[str, Any]],
        human: Iterable[RenderableType],
        rows: Callable[[], Sequence[Sequence[Any]]] | None = None,
        records: Callable[[], Iterable[Mapping[str, Any]]] | None = None,
    ) -> None:
        """Print a result: as one JSON document, as rows of CSV or JSON, as lines of the user's template, or as text.

        Only that is made: the text is an iterator, and the others are functions.
        """
        self.end_progress()
        if self.json:
            self.print_json(document())
        elif self.jsonl and rows is not None:
            head, *others = ([cell.values if isinstance(cell, Several) else cell for cell in row] for row in rows())
            self.write("".join(to_json(dict(zip(head, row, strict=True))) + "\n" for row in others))
        elif self.csv and rows is not None:
            self._print_csv(rows())
        elif self.template is not None and records is not None:
            self.write(self.template.of(records(), safe=sys.stdout.isatty()))
        else:
            self.print_human(human)

    def show_aside(self, document: Callable[[], dict[str, Any]], human: Iterable[RenderableType]) -> None:
        """Print a result on stderr, because stdout has the data: as a line of JSON, or as text unless quiet."""
        self.end_progress()
        if self.json:
            print(to_json(document()), file=sys.stderr)
        elif not self.quiet:
            self.print_human(human, stderr=True)

    @property
    def is_for_programs(self) -> bool:
        """Return True when stdout has a document or rows, and nothing for people."""
        return self.json or self.csv or self.jsonl

    def shows_all(self, every: bool) -> bool:
        """Say whether long tables are shown whole: if that is asked for, and in pipes and files, as `grep` needs it."""
        return every or not sys.stdout.isatty()

    def print_json(self, document: dict[str, Any], *, line: bool = False) -> None:
        """Print one JSON document in ASCII, safe on any terminal; NaN and infinities are texts, as JSON lacks them.

        A terminal gets it indented. A line of a stream of documents stays a line.
        """
        self.write(to_json(document, indent=2 if sys.stdout.isatty() and not line else None) + "\n")

    def print_json_list(self, document: dict[str, Any], items: Iterable[Sequence[int]]) -> None:
        """Print a document whose last value, an empty list, gets these numbers; they are printed as they come."""
        gap = "\n    " if sys.stdout.isatty() else ""
        text = to_json(document, indent=2 if gap else None)
        before, _, after = text.rpartition("[]")
        self.write(f"{before}[")
        start, end = gap, ""
        for some in items:
            self.write(start + ("," + (gap or " ")).join(map(str, some)))
            start, end = "," + (gap or " "), gap[:-2]
        self.write(f"{end}]{after}\n")

    def _print_csv(self, rows: Sequence[Sequence[Any]]) -> None:
        if sys.stdout.isatty():  # in a pipe only commands of CI runners are escaped
            rows = [[escaped(str(cell)) if isinstance(cell, str | Several) else cell for cell in row] for row in rows]
        self.write(as_csv(rows))

    def print_human(self, renderables: Iterable[RenderableType], *, stderr: bool = False) -> None:
        """Print text on stdout, or on stderr where stdout is for data."""
        import io

        from edl_ckpt.cli.terminal.fingerprints import shortened_line
        from edl_ckpt.cli.terminal.tables import draw

        drawing = io.StringIO()
        console = self.console(stderr=stderr, file=drawing)
        stream = sys.stderr if stderr else sys.stdout
        if stream.isatty() and not self.verbose:  # a pipe gets it whole, as scripts need it
            renderables = map(shortened_line, renderables)
        draw(renderables, console, charset=charset_of(stream))
        lines = [line.rstrip() for line in drawing.getvalue().rstrip().split("\n")]
        compact = lines[:1] + [line for before, line in pairwise(lines) if before or line]
        if not any(compact):
            return
        if stderr:
            self.end_progress()
            print_aside(shown_on(sys.stderr, "\n".join(compact)))
        else:
            self.write("\n".join(compact) + "\n")

    def write(self, text: str) -> None:
        """Write data to stdout, after the progress; when its reader has gone, end the program as SIGPIPE would.

        Raises NoSpaceError when stdout is a file on a full disk, EdlCkptError when writing fails otherwise.
        """
        self.end_progress()
        shown = without_commands(shown_on(sys.stdout, text))
        if self.paged and not self.quiet and _in_pager(shown):
            return
        try:
            sys.stdout.write(encodable(shown, sys.stdout.encoding or "utf-8"))
            sys.stdout.flush()
        except BrokenPipeError:
            Output.abandon_stdout()
            raise SystemExit(141) from None
        except OSError as error:
            Output.abandon_stdout()
            from edl_ckpt.core.storage.faults import storage_errors  # imports all of storage; the help needs none

            with storage_errors("stdout"):
                raise error from None

    @staticmethod
    def abandon_stdout() -> None:
        """Send what is still buffered to /dev/null, so that the end of the program does not fail on it again."""
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)

    def say(self, text: str) -> None:
        """Print a line on stderr, above the progress bar, unless quiet."""
        if not self.quiet:
            self._print_aside(self._folded(text))

    def warn(self, *texts: str, always: bool = False) -> None:
        """Print warnings on stderr, unless quiet; with `always` also then."""
        for text in texts if always or not self.quiet else ():
            self._print_aside(self._labelled("warning", text))

    def _print_aside(self, text: str) -> None:
        if self._tracker is None:
            print_aside(text)
        else:
            self._tracker.print(without_commands(text))

    def annotate(self, line: str) -> None:
        """Print a line for the runner of a CI job on stderr, also when quiet: it is a result."""
        self.end_progress()
        print_aside(line, safe=True)

    def detail(self, text: str) -> None:
        """Print a line on stderr with --verbose."""
        if self.verbose:
            self.say(text)

    def start_log(self) -> None:
        """Print the engine's log with --verbose: requests that are retried."""
        if not self.verbose and "logging" not in sys.modules:
            return
        import logging

        class Lines(logging.Handler):
            def emit(handler, record: logging.LogRecord) -> None:  # noqa: N805 - `self` is the output
                self.say(escaped(record.getMessage()))

        log = logging.getLogger("edl_ckpt")
        log.handlers[:] = [Lines()] if self.verbose else []
        log.setLevel(logging.INFO if self.verbose else logging.WARNING)

    def location(self, text: str | None) -> Location:
        """Return a location with the storage options of the command: the one named, or the default."""
        from edl_ckpt.core.storage.location import Location

        where = text or self.default_location()
        if self.storages is None:
            return Location(where, self.storage_options, self.system)
        name, _ = self.storages.split(where)
        if name and os.path.lexists(name):
            raise UsageError(
                f"{name!r} is here, and is a storage in the configuration file", hint=f"write ./{name} for what is here"
            )
        found = self.storages.locate(where)
        return Location(found.url, {**found.options, **self.storage_options}, self.system)

    def default_location(self) -> str:
        """Return the location that a command uses when none is given."""
        named = os.environ.get("EDL_CKPT_DIR")
        if named == "":
            raise UsageError("EDL_CKPT_DIR is empty", hint="unset it, or name a location")
        if named or self.storages is None or self.storages.default is None:
            return named or "."
        return self.storages.default.location.url

    def expect(self, total_bytes: int) -> None:
        """Show the following phases of the progress, which have so many bytes together, as one bar."""
        self._tracked().expect(total_bytes)

    def start(self, what: str, total_bytes: int) -> None:
        """Begin a phase of the progress, which a terminal shows as a bar; the next output ends the bar."""
        self._tracked().start(what, total_bytes)

    def _tracked(self) -> Tracker:
        if self._tracker is None:
            from edl_ckpt.cli.terminal.progress import Tracker, kind_of

            kind = kind_of(self.progress, sys.stderr, quiet=self.quiet)
            colour = uses_colour(sys.stderr, no_color=self.no_color)
            self._tracker = Tracker(sys.stderr, kind, colour=colour, doing=self.doing)
        return self._tracker

    def advance(self, size_bytes: int) -> None:
        """Count bytes of the phase."""
        tracker = self._tracker
        if tracker is not None:
            tracker.advance(size_bytes)

    def end_progress(self) -> None:
        """Remove the progress bar."""
        if self._tracker is not None:
            self._tracker.stop()
            self._tracker = None

    def fail(self, error: EdlCkptError) -> NoReturn:
        """Report an error and end with its exit code."""
        self.end_progress()
        if COMMIT.is_past and not error.hint:
            error.hint = "earlier changes of this command are in place"
        if is_runner():
            self.annotate(annotation("error", str(error)))
        if self.json:
            print_aside(_error_document(error.exit_code, error.id, str(error), error.hint, error.path))
        else:
            path = escaped(error.path or "")
            print_aside(self._labelled("error", str(error), path))
            if error.hint:
                hint = self._folded(f"  {escaped(error.hint)}", path)
                print_aside(f"  {self._painted(hint[2:], 'hint')}")
        raise AlreadyReported(error.exit_code)

    def _labelled(self, kind: str, text: str, path: str = "") -> str:
        """Return a message for stderr behind its kind, which is in colour if stderr has colours."""
        label = f"{kind}:"
        return self._painted(label, kind) + self._folded(f"{label} {escaped(text)}", path).removeprefix(label)

    @staticmethod
    def _folded(text: str, path: str = "") -> str:
        """Return a message for stderr; a terminal gets line breaks between words, but none in a path or a secret."""
        if not sys.stderr.isatty():
            return text
        whole, width = (path, *getattr(sys.stderr, "hidden", ())), width_of(sys.stderr)
        return "\n".join(fold_words(line, width, whole) for line in text.split("\n"))

    def _painted(self, text: str, kind: str) -> str:
        """Return text for stderr, in the colour of its kind if stderr has colours."""
        return painted(text, kind, colour=uses_colour(sys.stderr, no_color=self.no_color))

    @staticmethod
    def conclude(*, ok: object) -> None:
        """End the program with exit code 3 unless the answer of the command is yes, and all could be read."""
        if not ok:
            raise SystemExit(3)

    def bug(self) -> NoReturn:
        """Print the traceback of an unexpected exception and end with 70."""
        self.end_progress()
        print_aside(traceback.format_exc().rstrip())
        text = f"internal error: this is a bug in edl-ckpt {__version__} (Python {sys.version.split()[0]})."
        print(self._folded(f"{text} Please report it with the traceback above."), file=sys.stderr)
        if self.json:
            print(_error_document(70, "internal", traceback.format_exc(limit=0).strip()), file=sys.stderr)
        raise SystemExit(70)


def _in_pager(text: str) -> bool:
    """Show text in $PAGER, by default less, as git has it; False where the window has room for it, or in a CI job."""
    import shlex
    import subprocess

    if not sys.stdout.isatty() or os.environ.get("CI") or os.environ.get("TERM", "dumb") == "dumb":
        return False
    with suppress(OSError, ValueError):  # no such program, or no such words
        words = shlex.split(os.environ.get("PAGER", "less -R -F"))
        if not words or words == ["cat"] or text.count("\n") < os.get_terminal_size(sys.stdout.fileno()).lines:
            return False
        pager = subprocess.Popen(words, stdin=subprocess.PIPE, env={"LESS": "RF", **os.environ})
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the pager
        try:
            pager.communicate(text.encode(sys.stdout.encoding or "utf-8", "backslashreplace"))
        except BaseException:
            pager.terminate()
            raise
        finally:
            signal.signal(signal.SIGINT, before)
        return True
    return False


def _error_document(code: int, id_: str, message: str, hint: str | None = None, path: str | None = None) -> str:
    keys = {"code": code, "id": id_, "message": message, "hint": hint, "path": path}
    return to_json({"schema": "edl-ckpt/error/1", **keys})


def agreed(question: str) -> bool:
    """Ask on the terminal, and say whether the answer is yes; no without one."""
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    answer = sys.stdin.readline()
    if not answer:  # Ctrl-D leaves the cursor behind the question
        print(file=sys.stderr)
    return answer.strip().lower() in {"y", "yes"}


def print_aside(text: str, *, safe: bool = False) -> None:
    """Print a line on stderr. A stderr that takes nothing, such as a log on a full disk, changes no exit code.

    Unless it is `safe`, it has no command for the runner of a CI job.
    """
    try:
        print(text if safe else without_commands(text), file=sys.stderr, flush=True)
    except BrokenPipeError:  # see `reported_errors`
        raise
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)


def _signal_code(error: BaseException) -> int:
    return int(error.code or 0) if isinstance(error, SystemExit) else 130


def _signal_name(error: BaseException) -> str:
    return signal.Signals(_signal_code(error) - 128).name


def _say_kept(out: Output) -> None:
    """Say that a signal came too late to end the command, which its exit code does not show."""
    if COMMIT.kept is not None:
        with suppress(OSError):
            out.say(f"{_signal_name(COMMIT.kept)} came after the commit: the command ran to its end")


@contextmanager
def reported_errors(out: Output) -> Iterator[None]:
    """Turn what ends a command into an exit code: an error of ours is reported, any other exception is a bug."""
    try:
        yield
        _say_kept(out)
    except EdlCkptError as error:
        if COMMIT.kept is not None:  # a signal wins, and now it ends a command that has not done all of its work
            with suppress(OSError):  # the terminal may be gone
                out.say(f"{_signal_name(COMMIT.kept)} came after the commit, and then the command failed: {error}")
            raise SystemExit(_signal_code(COMMIT.kept)) from None
        out.fail(error)
    except AlreadyReported:
        raise
    except SystemExit as end:
        if end.code == 3:
            _say_kept(out)
        raise
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    except BrokenPipeError:  # the reader of stderr has gone; for stdout, see Output.write
        raise SystemExit(141) from None
    except (OSError, MemoryError, RecursionError) as error:
        # The code near a call names its path and knows best what its error means; this is for a call without any.
        from edl_ckpt.core.storage.faults import error_of_system

        out.detail(traceback.format_exc())
        out.fail(error_of_system(error))
    except Exception:  # noqa: BLE001 - a bug of ours, which must not end with the code of an error
        out.bug()
    finally:
        out.end_progress()
