"""Text in columns of a terminal: how wide it is, how it is padded, cut and folded."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import lru_cache

from edl_ckpt.core.base.patterns import LatePattern

_UNITS = "B|[KMGTP]iB(?:/s)?|s|min|[hd]"
_TOKEN = LatePattern(
    rf"(?<=  )\S{{1,12}} \S{{1,14}}(?=  |$)\s*|[^\s\d]{{0,2}}\d[\d.,]* (?:{_UNITS})(?!\w)\S*\s*|\S+\s*|\s+"
)
"""What stays on one line if it can: a number with its name or unit, a word."""
_PIECE = LatePattern(r"[^/_:.@,;=-]*[/_:.@,;=-]+|[^/_:.@,;=-]+")
"""What stays on one line of a word that is too long: up to a separator."""
_MESSAGE_WORD = rf"`[^`]*`\S*|'[^']*'\S*|\"[^\"]*\"\S*|(?<=: )edl-ckpt [^;]*\S|\d[\d.,]* (?:{_UNITS})(?!\w)\S*|\S+"
"""What stays on one line of a message: a quoted name, a command to type, a number with its unit, a word."""


def cell_width(content: str) -> int:
    """Return how many columns of a terminal a text takes: two for a wide character, none for a combining mark."""
    if content.isascii():
        return len(content)
    from rich.cells import cell_len

    return cell_len(content)


def padded(content: str, width: int, *, right: bool = False) -> str:
    """Return a text with spaces up to this width; with `right` they come first."""
    spaces = " " * (width - cell_width(content))
    return spaces + content if right else content + spaces


def shortened(content: str, width: int) -> str:
    """Return a name without its middle, so that it takes no more than this width.

    >>> shortened("embedding/user/table:0", 16), shortened("table", 16)
    ('embeddi...able:0', 'table')
    """
    if cell_width(content) <= width:
        return content
    room = max(0, width - 3)
    head = _head(content, room - room // 2)
    tail = _head(content[::-1], room // 2)
    return (head + "..." + tail[::-1])[: max(0, width)]


def _head(content: str, width: int) -> str:
    """Return the longest beginning of a text that takes no more than this width."""
    taken = 0
    for position, char in enumerate(content):
        taken += cell_width(char)
        if taken > width:
            return content[:position]
    return content


def fold(content: str, width: int) -> list[str]:
    """Return a text in lines of at most this width.

    It folds at spaces, a longer word at separators, and what has none anywhere. A number stays with its unit. Lines
    after the first are indented like it.

    >>> fold("run/version_100/shard", 14), fold("it has 1.5 MiB", 11)
    (['run/version_', '100/shard'], ['it has', '1.5 MiB'])
    """
    if cell_width(content) <= width:
        return [content]
    indent, starts = breaks(content, width)
    parts = [content[a:b].rstrip() for a, b in zip(starts, [*starts[1:], None], strict=True)]
    return [parts[0], *(" " * indent + part for part in parts[1:])]


def fold_words(content: str, width: int, whole: Iterable[str] = ()) -> str:
    """Return a message with line breaks between its words, so that each line takes at most this width.

    Nothing is put into a word: the terminal itself folds one that is too long, so that it can be copied. A quoted name
    and a command to type count as one word, and so does each text in `whole`. Lines after the first are indented like
    it.

    >>> print(fold_words("run: no version or tag 'new one'", 24))
    run: no version or tag
    'new one'
    """
    if cell_width(content) <= width:
        return content
    indent = " " * (len(content) - len(content.lstrip(" ")))
    named = "".join(rf"{re.escape(text)}\S*|" for text in sorted(whole, key=len, reverse=True) if text)
    lines, taken = [""], 0
    for word in re.findall(rf"{named}{_MESSAGE_WORD}", content):
        size = cell_width(word)
        if taken and taken + 1 + size > width:
            lines.append("")
            taken = 0
        start = " " if taken else indent
        lines[-1] += start + word
        taken = (taken + len(start) + size - 1) % width + 1
    return "\n".join(lines)


@lru_cache(maxsize=64)
def breaks(content: str, width: int) -> tuple[int, list[int]]:
    """Return the indentation of a text, and where its lines begin."""
    indent = min(len(content) - len(content.lstrip(" ")), max(0, width - 10))
    starts, taken = [0], indent
    for match in _TOKEN.finditer(content, indent):
        word = cell_width(match[0].rstrip())
        if taken + word > width and taken > indent:
            starts.append(match.start())
            taken = indent
        if taken + word > width:
            for begin, size in _pieces(match[0].rstrip(), width - indent):
                if taken + size > width and taken > indent:
                    starts.append(match.start() + begin)
                    taken = indent
                taken += size
            taken += len(match[0]) - len(match[0].rstrip())
        else:
            taken += cell_width(match[0])
    return indent, starts


def _pieces(word: str, width: int) -> Iterator[tuple[int, int]]:
    """Yield the begin and the width of each piece of a long word: up to a separator, and cut where it has none."""
    for match in _PIECE.finditer(word):
        begin, rest = match.start(), match[0]
        while rest:
            piece = _head(rest, max(2, width)) or rest[0]
            yield begin, cell_width(piece)
            begin, rest = begin + len(piece), rest[len(piece) :]
