"""Numbers as people read them: sizes, lengths of time, counts with their nouns, and lists cut short.

Messages of the engine and tables of the command line take them from here, so that one thing has one spelling.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

_GAPS: Final = 8
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def size(size_bytes: float) -> str:
    """Return bytes in the largest unit that leaves a number of one to four digits.

    >>> size(0), size(2215), size(5 * 2**30)
    ('0 B', '2.2 KiB', '5.0 GiB')
    """
    for unit in _UNITS:
        if size_bytes < 1024 or unit == _UNITS[-1]:
            return f"{size_bytes:.0f} {unit}" if unit == "B" else f"{size_bytes:.1f} {unit}"
        size_bytes /= 1024
    raise AssertionError


def duration(seconds: float) -> str:
    """Return a length of time as options such as `--keep-within` take it.

    >>> duration(604800), duration(5400)
    ('7d', '90m')
    """
    for unit, name in ((86_400, "d"), (3600, "h"), (60, "m")):
        if seconds % unit == 0:
            return f"{seconds / unit:g}{name}"
    return f"{seconds:g}s"


def plural(number: int, noun: str) -> str:
    """Return a noun in the form that follows the number.

    >>> plural(1, "row"), plural(0, "row"), plural(2, "entry")
    ('row', 'rows', 'entries')
    """
    if number == 1:
        return noun
    return f"{noun[:-1]}ies" if noun.endswith("ry") else f"{noun}s"


def counted(number: int, noun: str) -> str:
    """Return a number and its noun.

    >>> counted(1, "row"), counted(2, "64-bit id")
    ('1 row', '2 64-bit ids')
    """
    return f"{number} {plural(number, noun)}"


def abridged(items: Iterable[object], limit: int) -> str:
    """Return the first items of a list, and how many more there are.

    >>> abridged([1, 2, 3], 8), abridged("abcd", 2)
    ('1, 2, 3', 'a, b and 2 more')
    """
    texts = [str(item) for item in items]
    more = f" and {len(texts) - limit} more" if len(texts) > limit else ""
    return ", ".join(texts[:limit]) + more


def escaped(text: str, limit: int = 80) -> str:
    r"""Return a text from a file or a user as one printable line, cut short.

    >>> escaped("user\x1b[2J"), escaped("a" * 100, 4)
    ('user\\x1b[2J', 'aaaa...')
    """
    return repr(text[:limit])[1:-1] + ("..." if len(text) > limit else "")


def describe(kind: str, subject: str, *parts: str) -> str:
    """Return the `repr` of an object: its kind, its subject, and what it has; without values.

    >>> describe("TableView", "user", "1000 rows", "")
    '<TableView user: 1000 rows>'
    """
    rest = ", ".join(part for part in parts if part)
    return f"<{kind} {subject}: {rest}>" if subject and rest else f"<{kind} {subject or rest}>"


def missing_shards(gaps: Iterable[range], ps_num: int | None = None) -> str:
    """Return which shards are missing, from the gaps between those that are not; the first eight gaps.

    >>> missing_shards([range(0, 1), range(2, 4)]), missing_shards([range(3, 4)], 4)
    ('shards 0, 2, 3 are missing', 'shard 3 of 4 (numbered 0 to 3) is missing')
    >>> missing_shards([range(1, 10**9)], 10**9)
    'shards 1 to 999999999 of 1000000000 (numbered 0 to 999999999) are missing'
    """
    listed = list(gaps)
    count = sum(gap.stop - gap.start for gap in listed)
    of = f" of {ps_num} (numbered 0 to {ps_num - 1})" if ps_num else ""
    verb = "is" if count == 1 else "are"
    return f"{plural(count, 'shard')} {abridged(_shown(listed), _GAPS)}{of} {verb} missing"


def _shown(gaps: Iterable[range]) -> Iterator[str]:
    """Yield the numbers of small gaps one by one, of others the first and the last."""
    for gap in gaps:
        if gap.stop - gap.start > _GAPS:
            yield f"{gap.start} to {gap.stop - 1}"
        else:
            yield from map(str, gap)
