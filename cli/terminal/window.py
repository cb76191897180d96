"""What the window behind a stream can show: how many columns, which characters, and which colours.

Colours need no rich, whose import takes longer than the help. `NO_COLOR` and `--no-color` win over `FORCE_COLOR`, and
that over what the stream is, as in other programs.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Final, TextIO

from edl_ckpt.cli.terminal.text import in_ascii

LEAST_WIDTH: Final = 20
_OLD = re.compile("vt[0-9]|ansi|cons25|linux|sun|wy")
"""Terminals without the blocks that bars are made of, by the beginning of TERM."""
_OF_PYTHON: Final = ("C.UTF-8", "C.utf8", "UTF-8")
_UTF8 = re.compile("utf-?8$", re.IGNORECASE)


def width_of(stream: TextIO) -> int:
    """Return the columns of the terminal behind a stream: of COLUMNS, else as they are now, else 80."""
    named = os.environ.get("COLUMNS", "")
    return max(int(named), LEAST_WIDTH) if re.fullmatch("[1-9][0-9]{0,5}", named) else real_width(stream)


def real_width(stream: TextIO) -> int:
    """Return the columns of the terminal behind a stream as they are now; 80 when it does not know."""
    try:
        return max(os.get_terminal_size(stream.fileno()).columns or 80, LEAST_WIDTH)
    except (OSError, ValueError):
        return 80


def charset_of(stream: TextIO) -> str:
    """Return the characters that a stream can show, as an encoding.

    Python writes UTF-8 in the C locale, and then sets LC_CTYPE itself. A person who chose that locale has a terminal
    that may not know UTF-8; where no locale is set at all, it is likely that it does.
    """
    encoding = stream.encoding or "utf-8"
    named = (os.environ.get(name, "") for name in ("LC_ALL", "LC_CTYPE", "LANG"))
    locale = next((value for value in named if value and value not in _OF_PYTHON), "")
    if locale and stream.isatty() and not _UTF8.search(locale.partition("@")[0]):
        return "ascii"
    return encoding


def shown_on(stream: TextIO, text: str) -> str:
    """Return text for a stream: bars in ASCII and other characters escaped where it has none."""
    charset = charset_of(stream)
    is_utf8 = charset.lower().startswith("utf")
    if not is_utf8 or (stream.isatty() and _OLD.match(os.environ.get("TERM", ""))):
        text = in_ascii(text)
    return text if is_utf8 else encodable(text, charset)


def encodable(text: str, charset: str) -> str:
    r"""Return text with each character that an encoding lacks written as an escape sequence.

    >>> encodable("größe", "ascii")
    'gr\\xf6\\xdfe'
    """
    return text.encode(charset, "backslashreplace").decode(charset)


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
