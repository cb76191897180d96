"""New names of tables and variables: what a pair OLD=NEW names, and how companions follow their table.

OLD is a whole name, a glob, or what names end with. A whole name gets the new one. Of a name that OLD is only the end
of, this end is replaced: `user=member` makes `ebc.member.weight` of `ebc.user.weight`. A companion that has no pair of
its own gets the name that its table's new name gives it: each system finds companions by the names of their tables.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase

from edl_ckpt.core.base.errors import UsageError
from edl_ckpt.core.base.words import abridged
from edl_ckpt.core.reading.names import LEFT_OUT


def new_names(pairs: Iterable[tuple[str, str]], matching: Callable[[str], Sequence[str]]) -> dict[str, str]:
    """Return the new names by the old ones; a `*` in a new name stands for what the `*` of the glob stands for.

    `matching` returns the names that a glob matches. UsageError for several names that would be one.

    >>> new_names([("emb.*.weight", "*")], lambda glob: ["emb.user.weight", "emb.item.weight"])
    {'emb.user.weight': 'user', 'emb.item.weight': 'item'}
    >>> new_names([("user", "member")], lambda glob: ["ebc.user.weight"])
    {'ebc.user.weight': 'ebc.member.weight'}
    """
    new: dict[str, str] = {}
    for old, pattern in pairs:
        names = matching(old)
        if len(names) > 1 and "*" not in pattern and len({_new_name(n, old, pattern) for n in names}) < len(names):
            several, hint = abridged(map(repr, names), 3), "a new name may have a * as the old one has"
            raise UsageError(f"{several} would all be named {pattern!r}", hint=hint)
        for name in names:
            new[name] = _new_name(name, old, pattern)
    return new


def _new_name(name: str, old: str, pattern: str) -> str:
    """Return the new name of a name that `old` matches, wholly or at its end."""
    if name == old:
        return pattern
    if fnmatchcase(name, old):
        return _filled(name, old, pattern)
    for before, end, left_out in _ends(name):
        if fnmatchcase(end, old):
            new = _filled(end, old, pattern)
            return new if new.startswith(before) else before + new + left_out
    return _filled(name, old, pattern)  # a companion by its short name, as in user:momentum1


def _ends(name: str) -> Iterator[tuple[str, str, str]]:
    """Yield (before, end, what people leave out behind it) for each end of a name, the shortest ends first."""
    for left_out in ("", *LEFT_OUT):
        if name.endswith(left_out):
            stem = name.removesuffix(left_out)
            marks = [n for n, letter in enumerate(stem) if letter in "./"]
            for mark in reversed(marks):
                yield stem[: mark + 1], stem[mark + 1 :], left_out


def _filled(name: str, old: str, pattern: str) -> str:
    """Return a new name, whose `*` is what the one of the old name stands for.

    >>> _filled("emb.user.weight", "emb.*.weight", "*_table")
    'user_table'
    """
    before, _, after = old.partition("*")
    inner = name[name.find(before) + len(before) :] if before in name else name
    return pattern.replace("*", inner.removesuffix(after))


def with_companions(new: Mapping[str, str], owners: Mapping[str, str]) -> dict[str, str]:
    """Return new names with those of companions whose table has a new name, unless they have one of their own.

    `owners` has the table of each companion.
    """
    followed = {
        name: followed_name(name, table, new[table])
        for name, table in owners.items()
        if table in new and name not in new
    }
    return {**new, **followed}


def followed_name(companion: str, table: str, new_table: str) -> str:
    """Return the name of a companion whose table has a new name; its own where the table's name is not in it.

    >>> followed_name("item_emb-freqs", "item_emb", "items")
    'items-freqs'
    >>> followed_name("optim.ebc.user.weight.user.momentum1", "model.ebc.user.weight", "model.ebc.member.weight")
    'optim.ebc.member.weight.member.momentum1'
    """
    if companion.startswith(table):
        return new_table + companion.removeprefix(table)
    from difflib import SequenceMatcher  # most names begin with the table's

    parts = companion.split(".")
    old = table.split(".")
    new = new_table.split(".")
    run = SequenceMatcher(None, old, parts, autojunk=False).find_longest_match()
    before = parts
    middle = []
    after = []
    if run.size > 1 and run.a + run.size == len(old):  # the end of the table's name is in that of the companion
        before, after = parts[: run.b], parts[run.b + run.size :]
        is_in_place = new[: run.a] == old[: run.a]
        middle = new[run.a :] if is_in_place else new[-run.size :]
    short, new_short = _short_name(old), _short_name(new)
    before, after = ([new_short if part == short else part for part in some] for some in (before, after))
    return ".".join([*before, *middle, *after])


def _short_name(parts: Sequence[str]) -> str:
    """Return how an optimizer, or a module of managed collision, calls a table with a dotted name."""
    return parts[-2] if len(parts) > 1 and parts[-1] == "weight" else parts[-1]
