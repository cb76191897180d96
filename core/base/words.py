"""Numbers and names as people read them: sizes, lengths of time, counts, lists cut short, and names that were meant.

Messages of the engine and tables of the command line take them from here, so that one thing has one spelling.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

_GAPS: Final = 8
_AS_LIKELY: Final = 0.05
"""A name that is so much less alike than the best was not meant."""
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def unit(size_bytes: float) -> tuple[str, int]:
    """Return the largest unit that leaves a number of one to four digits, and its bytes.

    >>> unit(1023), unit(2**20)
    (('B', 1), ('MiB', 1048576))
    """
    power = next((n for n in range(len(_UNITS) - 1) if size_bytes < 1024 ** (n + 1)), len(_UNITS) - 1)
    return _UNITS[power], 1024**power


def size(size_bytes: float) -> str:
    """Return bytes in the largest unit that leaves a number of one to four digits.

    >>> size(0), size(2215), size(5 * 2**30)
    ('0 B', '2.2 KiB', '5.0 GiB')
    """
    name, unit_bytes = unit(size_bytes)
    return f"{size_bytes:.0f} B" if unit_bytes == 1 else f"{size_bytes / unit_bytes:.1f} {name}"


def portion(done_bytes: int, total_bytes: int) -> str:
    """Return how much of a total is done, both in the unit of the total.

    >>> portion(3 * 2**29, 5 * 2**30), portion(20, 100)
    ('1.5 of 5.0 GiB', '20 of 100 B')
    """
    _, unit_bytes = unit(total_bytes)
    done = done_bytes / unit_bytes
    return f"{done:.0f} of {size(total_bytes)}" if unit_bytes == 1 else f"{done:.1f} of {size(total_bytes)}"


def rounded_duration(seconds: float) -> str:
    """Return a length of time to look at, in one or two units.

    >>> rounded_duration(7.2), rounded_duration(185), rounded_duration(7260), rounded_duration(200_000)
    ('7 s', '3 min 5 s', '2 h 1 min', '2 d 7 h')
    """
    left = round(seconds)
    for unit, name, below, small in ((86_400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if left >= unit:
            rest = left % unit // below
            return f"{left // unit} {name} {rest} {small}" if rest else f"{left // unit} {name}"
    return f"{left} s"


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


def left_out_items(names: Sequence[str], reason: str, kind: str = "item") -> str:
    """Return a line of items that are left out for a reason.

    >>> left_out_items(["lr", "step"], "not in npz", "value")
    'left out: lr, step (2 values; not in npz)'
    """
    return f"left out: {abridged(map(escaped, names), 8)} ({counted(len(names), kind)}; {reason})"


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


def closest(name: str, known: Iterable[str]) -> list[str]:
    """Return the known names that somebody who wrote `name` may have meant, the likeliest first.

    Those are names that differ in few characters, in case, or in what precedes or follows.

    >>> closest("sefe", ["safe", "user"]), closest("USER", ["user_embedding", "item"]), closest("x", ["user"])
    (['safe'], ['user_embedding'], [])
    """
    import difflib

    by_folded = {each.casefold(): each for each in known}
    folded = name.casefold()
    alike = difflib.get_close_matches(folded, by_folded, 2)
    if alike:
        best, *others = (difflib.SequenceMatcher(None, each, folded).ratio() for each in alike)
        alike = alike[: 1 + sum(other > best - _AS_LIKELY for other in others)]
    around = sorted(each for each in by_folded if len(folded) > 1 and folded in each)
    return [by_folded[each] for each in dict.fromkeys(alike or around)][:2]


def meant(name: str, known: Iterable[str], nouns: str = "") -> str | None:
    """Return a hint for a name that is not known: those that were perhaps meant, else the first ones that there are.

    `nouns` says what the names are, such as 'tables'; without it, a name that is like no other gets None.

    >>> meant("sefe", ["safe"]), meant("x", ["user", "item"], "tables"), meant("x", ["user"])
    ('did you mean safe?', 'tables there: item, user', None)
    """
    names = sorted(known)
    if close := closest(name, names):
        return f"did you mean {' or '.join(escaped(each) for each in close)}?"
    return f"{nouns} there: {abridged((escaped(each) for each in names), 8)}" if names and nouns else None


def shape(extents: Iterable[int]) -> str:
    """Return the shape of an array.

    >>> shape((64, 32)), shape(())
    ('64x32', 'scalar')
    """
    return "x".join(map(str, extents)) or "scalar"


def ends_early(size_bytes: int, needed_bytes: int) -> str:
    """Return what is wrong with a file that is cut; its name or its shard comes before it.

    >>> ends_early(5000, 6024)
    'ends after 5,000 of at least 6,024 bytes'
    """
    return f"ends after {size_bytes:,} of at least {needed_bytes:,} bytes"


def command(*words: str) -> str:
    """Return a command of edl-ckpt that can be pasted into a shell.

    >>> command("verify", "my runs/a@30", "--seal")
    "edl-ckpt verify 'my runs/a@30' --seal"
    """
    import shlex

    return shlex.join(("edl-ckpt", *words))


def extra_hint(extra: str) -> str:
    """Return how to install an extra of the package, which is on no index.

    >>> extra_hint("s3")
    "install edl-ckpt with its extra s3: pip install '.[s3]' in a clone, or pip install 'FILE.whl[s3]' of a release"
    """
    ways = f"pip install '.[{extra}]' in a clone, or pip install 'FILE.whl[{extra}]' of a release"
    return f"install edl-ckpt with its extra {extra}: {ways}"


def neighbours(number: int, known: Iterable[int], limit: int = 2) -> list[int]:
    """Return the known numbers nearest to one that is not there, in order.

    >>> neighbours(1234, range(1000, 2000, 10))
    [1230, 1240]
    """
    return sorted(sorted(known, key=lambda each: (abs(each - number), each))[:limit])


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


def base_name(path: str) -> str:
    """Return the last part of a path or URL."""
    return path.rpartition("/")[2]
