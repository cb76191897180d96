"""Where words go: stdout is data, stderr is everything else; one place turns an error into its exit code."""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn

from edl_ckpt.cli import __version__
from edl_ckpt.cli.text import shown
from edl_ckpt.core.errors import EdlCkptError

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from edl_ckpt.core.progress import Progress

_PIPE_WIDTH = 200


class Told(SystemExit):
    """The end of the program after a failure that was told already, in words or as a document."""


@dataclass(slots=True)
class Output:
    """How one command talks: the common options, and what was asked of storage."""

    json: bool = False
    csv: bool = False
    quiet: bool = False
    verbose: bool = False
    no_color: bool = False
    storage_options: dict[str, str] = field(default_factory=dict)

    def console(self, *, stderr: bool = False) -> Console:
        """Return a rich console that interprets nothing in what it is given."""
        from rich.console import Console

        stream = sys.stderr if stderr else sys.stdout
        width = None if stream.isatty() else _PIPE_WIDTH
        return Console(
            file=stream,
            width=width,
            no_color=self.no_color or bool(os.environ.get("NO_COLOR")),
            highlight=False,
            markup=False,
            emoji=False,
        )

    def show(
        self,
        document: Callable[[], dict[str, Any]],
        human: Callable[[], Iterable[RenderableType]],
        rows: Callable[[], Sequence[Sequence[Any]]] | None = None,
    ) -> None:
        """Print a result: one JSON document, CSV rows, or what people read."""
        if self.json:
            self.print_json(document())
        elif self.csv and rows is not None:
            self._print_csv(rows())
        else:
            self._print_human(human())

    def print_json(self, document: dict[str, Any]) -> None:
        """Print one JSON document; NaN and infinities, which JSON lacks, as null."""
        self._write(json.dumps(_finite(document), ensure_ascii=False, allow_nan=False) + "\n")

    def _print_csv(self, rows: Sequence[Sequence[Any]]) -> None:
        import csv
        import io

        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(rows)
        self._write(text.getvalue())

    def _print_human(self, renderables: Iterable[RenderableType]) -> None:
        console = self.console()
        with console.capture() as capture:
            for item in renderables:
                console.print(item)
        lines = capture.get().split("\n")
        self._write("\n".join(line.rstrip() for line in lines))

    @staticmethod
    def _write(text: str) -> None:
        """Write data; a reader that went away ends the program as SIGPIPE would."""
        try:
            sys.stdout.write(text.encode("utf-8", "backslashreplace").decode("utf-8"))
            sys.stdout.flush()
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            raise SystemExit(141) from None

    def say(self, text: str) -> None:
        """Say something on stderr, unless quiet."""
        if not self.quiet:
            print(text, file=sys.stderr)

    def warn(self, text: str) -> None:
        """Warn on stderr, unless quiet."""
        self.say(f"warning: {shown(text)}")

    def detail(self, text: str) -> None:
        """Say something on stderr for those who asked for more."""
        if self.verbose:
            self.say(text)

    def progress(self) -> Progress:
        """Return a progress bar on a terminal, else one that does nothing."""
        from edl_ckpt.core.progress import SILENT

        if self.quiet or self.json or not sys.stderr.isatty():
            return SILENT
        from edl_ckpt.cli.progress import Bar

        return Bar(self.console(stderr=True))

    def fail(self, error: EdlCkptError) -> NoReturn:
        """Say what failed and end with its code."""
        if self.json:
            document = {
                "schema": "edl-ckpt/error/1",
                "code": error.exit_code,
                "id": error.id,
                "message": str(error),
                "hint": error.hint,
                "path": error.path,
            }
            print(json.dumps(document), file=sys.stderr)
        else:
            print(f"error: {shown(str(error))}", file=sys.stderr)
            if error.hint:
                print(f"  {shown(error.hint)}", file=sys.stderr)
        raise Told(error.exit_code)

    def bug(self) -> NoReturn:
        """Show the traceback of what should not have happened and end with 70."""
        traceback.print_exc()
        python = sys.version.split()[0]
        print(
            f"internal error: this is a bug of edl-ckpt {__version__} (Python {python}). Please report what is above.",
            file=sys.stderr,
        )
        if self.json:
            message = traceback.format_exc(limit=0).strip()
            document = {"schema": "edl-ckpt/error/1", "code": 70, "id": "internal", "message": message}
            print(json.dumps(document | {"hint": None, "path": None}), file=sys.stderr)
        raise SystemExit(70)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    if isinstance(value, float) and (value != value or value in {float("inf"), float("-inf")}):  # noqa: PLR0124 - NaN
        return None
    return value
