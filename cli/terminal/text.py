"""Text for a terminal: harmless names, numbers, ages and bars."""

from __future__ import annotations

import math
import os
import re
import unicodedata
from collections.abc import Sequence

from edl_ckpt.core.base.words import plural

_UNSURE = re.compile("[\ufe00-\ufe0f\U0001f1e6-\U0001f1ff\U0001f3fb-\U0001f3ff\U000e0100-\U000e01ef]")
_ASCII = str.maketrans("▏▎▍▌▋▊▉█▁▂▃▄▅▆▇━─░", "   #####_.-=+*%--.")
_COMMAND = re.compile(r"((?:^|(?<=[\r\n]))[^\S\r\n]*:):|##(?=(?:vso|teamcity)?\[)")
_EIGHTHS = " ▏▎▍▌▋▊▉█"


def escaped(name: str) -> str:
    r"""Return a name with each character that could control a terminal written as an escape sequence.

    >>> escaped("a\x1b[31mb\nc")
    'a\\x1b[31mb\\nc'

    So are characters whose width differs between terminals: selectors of a variant, flags, colours of skin, and a
    combining mark that stands alone.
    """
    if name.isascii() and name.isprintable():
        return name
    return "".join(c if _harmless(c, before) else _escape(c) for before, c in zip([" ", *name], name, strict=False))


def without_commands(text: str) -> str:
    r"""Return output in which no line is a command for the runner of a CI job, whatever names are in it.

    GitHub's looks for '::' at the begin of a line and for '##[' anywhere, Azure's for '##vso['.

    >>> print(without_commands("  ::error::a\na::b ##[error]c"))
      :%3Aerror::a
    a::b #%23[error]c
    """
    if "::" not in text and "##" not in text:
        return text
    return _COMMAND.sub(lambda found: f"{found[1]}%3A" if found[1] else "#%23", text)


def is_runner() -> bool:
    """Return True when a runner of GitHub Actions reads the output."""
    return os.environ.get("GITHUB_ACTIONS") == "true"


def annotation(severity: str, message: str, title: str = "edl-ckpt") -> str:
    """Return a workflow command, 'error' or 'warning', without its end of line.

    >>> annotation("error", "50% is lost", "verify: 1")
    '::error title=verify%3A 1::50%25 is lost'
    """
    return f"::{severity} title={_data(title).replace(':', '%3A').replace(',', '%2C')}::{_data(message)}"


def _data(text: str) -> str:
    return escaped(text).replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _escape(char: str) -> str:
    return repr(char)[1:-1] if len(repr(char)) > 3 else char.encode("ascii", "backslashreplace").decode()


def _harmless(char: str, before: str) -> bool:
    category = unicodedata.category(char)
    if category[0] in "CZ":
        return char == " "
    return not (_UNSURE.match(char) or (category[0] == "M" and before == " "))


def in_ascii(drawing: str) -> str:
    """Return text with its bars and rules drawn in ASCII, for a stdout that cannot show others.

    >>> in_ascii("██▌  ▁▄█ ──")
    '###  _=# --'
    """
    return drawing.translate(_ASCII)


def count(number: int, noun: str = "") -> str:
    """Return a number with commas between its thousands, and its noun if there is one.

    >>> count(16000000), count(1, "row"), count(2000, "row")
    ('16,000,000', '1 row', '2,000 rows')
    """
    return f"{number:,} {plural(number, noun)}" if noun else f"{number:,}"


def age(seconds: float) -> str:
    """Return how long ago something happened.

    >>> age(5), age(7200), age(-3)
    ('5 s ago', '2 h ago', 'now')
    """
    if seconds < 1:
        return "now"
    unit, name = next(pair for pair in ((86_400, "d"), (3600, "h"), (60, "min"), (1, "s")) if seconds >= pair[0])
    return f"{int(seconds // unit)} {name} ago"


def bar(value: float, largest: float, width: int = 12) -> str:
    """Return a bar of block characters, `width` cells for the largest value and for an infinite one.

    >>> bar(1, 2, 4), bar(0, 0, 4), bar(float("inf"), 0, 4)
    ('██  ', '    ', '████')
    """
    if not math.isfinite(value):
        return "█" * width
    eighths = round(value / largest * width * 8) if largest else 0
    full, rest = divmod(min(eighths, width * 8), 8)
    return ("█" * full + (_EIGHTHS[rest] if rest else "")).ljust(width)


def histogram(values: Sequence[float]) -> str:
    """Return a histogram on one line, one character for each value.

    >>> histogram([0, 1, 4, 8])
    ' ▁▄█'
    """
    largest = max(values, default=0)
    steps = " ▁▂▃▄▅▆▇█"
    return "".join(steps[0 if v == 0 else max(1, round(v / largest * 8))] for v in values)
