"""Colours without rich, whose import takes longer than the help: for errors, warnings and help.

`NO_COLOR` and `--no-color` win over `FORCE_COLOR`, and that over what the stream is, as in other programs.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final, TextIO

_CODES: Final[Mapping[str, str]] = {
    "error": "1;31",
    "warning": "1;33",
    "hint": "36",
    "heading": "1;32",
    "name": "1;36",
    "value": "36",
    "faint": "2",
}
"""What each kind of text looks like: the select graphic rendition of ECMA-48."""


def uses_colour(stream: TextIO, *, no_color: bool = False) -> bool:
    """Say whether a stream gets colours: a terminal that has some, or any stream with FORCE_COLOR."""
    if no_color or os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    return stream.isatty() and os.environ.get("TERM", "dumb") != "dumb"


def painted(text: str, kind: str, *, colour: bool = True) -> str:
    r"""Return text in the colour of its kind; as it is without `colour`.

    >>> painted("error:", "error"), painted("error:", "error", colour=False)
    ('\x1b[1;31merror:\x1b[0m', 'error:')
    """
    return f"\x1b[{_CODES[kind]}m{text}\x1b[0m" if colour and text else text
