"""Whether the browser can draw here: it needs a terminal that can move its cursor, and the library that draws."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TextIO

from edl_ckpt.cli.terminal.text import escaped
from edl_ckpt.cli.terminal.window import shown_on
from edl_ckpt.core.base.errors import UnsupportedError, UsageError

_TRY = "these commands print the same: edl-ckpt list, edl-ckpt inspect, edl-ckpt head"


def check_terminal() -> None:
    """Raise UsageError where there is no terminal, UnsupportedError for one without a cursor to move."""
    away = [name for name in ("stdin", "stdout", "stderr") if not getattr(sys, name).isatty()]
    if away:
        *others, last = away
        names = f"{', '.join(others)} and {last} are no terminals" if others else f"{last} is no terminal"
        raise UsageError(f"browse needs a terminal; {names}", hint=_TRY)
    term = os.environ.get("TERM", "")
    if term in {"", "dumb", "unknown"}:
        named = f"TERM={term}" if term else "a terminal without a name (TERM is not set)"
        raise UnsupportedError(f"{named} cannot move its cursor, which browse needs", hint=_TRY)


def plain(stream: TextIO) -> Callable[[str], str]:
    """Return how a terminal without block characters, or without UTF-8, shows a text; `str` for one that has all."""
    every = "█é"
    return str if shown_on(stream, every) == every else partial(shown_on, stream)


@contextmanager
def first_paint(url: str) -> Iterator[None]:
    """Show the lines of the first screen while the block loads what draws it; take them back where that fails."""
    head, foot = f"\x1b[1m{escaped(url)}\x1b[0m  listing ...", "? help  q quit"
    _write(f"\x1b[?1049h\x1b[2J\x1b[{shutil.get_terminal_size().lines};1H{foot}\x1b[H{head}\x1b[H")
    try:
        yield
    except BaseException:
        _write("\x1b[?1049l")
        raise


def _write(words: str) -> None:
    sys.stdout.write(plain(sys.stdout)(words))
    sys.stdout.flush()
