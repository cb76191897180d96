"""Names as people give them: a name is a whole key, and what only one key ends with is that key's name, too.

Keys of other systems are long: `user` stands for `model.ebc.embedding_bags.user.weight`, and `user:momentum1` for the
optimizer's slot of that table, whose own key may have another root.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Final, Protocol

from edl_ckpt.core.base.errors import NameNotFoundError, NotFoundError, UsageError
from edl_ckpt.core.base.words import abridged, escaped, meant

LEFT_OUT: Final = (".weight", "/.ATTRIBUTES/VARIABLE_VALUE")
"""How many keys end that people leave out."""
_SOME: Final = 8


class Slotted(Protocol):
    """What says of a table whose companion it is."""

    @property
    def name(self) -> str:
        """Return its whole name."""

    @property
    def companion_of(self) -> str:
        """Return the name of the table with the same ids; '' for a table of its own."""

    @property
    def slot(self) -> str:
        """Return what it has of that table."""


def slots_of(tables: Iterable[Slotted]) -> dict[str, str]:
    """Return the names of companions by the names that people give them, such as 'user:momentum1'."""
    return {f"{table.companion_of}:{table.slot}": table.name for table in tables if table.companion_of}


def whole_name(name: str, known: Collection[str], noun: str, ref: str, slots: Mapping[str, str] | None = None) -> str:
    """Return the whole name that somebody gave a part of, of known ones; `slots` is what `slots_of` returns.

    The name of a table is preferred to those of companions. Raises NameNotFoundError for one that is unknown, and
    UsageError for one that several end with.

    >>> whole_name("user", ["ebc.user.weight", "ebc.item.weight"], "table", "run@1")
    'ebc.user.weight'
    """
    if name in known:
        return name
    slots = slots or {}
    ends = [key for key in known if is_end(name, key)]
    ends = [key for key in ends if key not in slots.values()] or ends
    ends += [slots[key] for key in slots if is_end(name, key)]
    if len(ends) == 1:
        return ends[0]
    if ends:
        several = abridged(map(escaped, sorted(called_names(ends, slots))), _SOME)
        raise UsageError(f"which {noun}? {name!r} is the end of {several}", path=ref)
    raise NameNotFoundError(f"no {noun} {name!r}", path=ref, hint=meant(name, called_names(known, slots), f"{noun}s"))


def called_names(names: Iterable[str], slots: Mapping[str, str] | None) -> list[str]:
    """Return names as messages have them: companions behind a colon, as options take them.

    >>> called_names(["item_emb", "item_emb-freqs"], {"item_emb:freqs": "item_emb-freqs"})
    ['item_emb', 'item_emb:freqs']
    """
    companions = {key: name for name, key in (slots or {}).items()}
    return [companions.get(name, name) for name in names]


def names_like(glob: str, known: Collection[str], slots: Mapping[str, str] | None = None) -> list[str]:
    """Return the names that a glob matches; if it matches no whole name, those of which it matches an end.

    >>> names_like("us*", ["user"]), names_like("us*", ["ebc.user.weight", "ebc.item.weight"])
    (['user'], ['ebc.user.weight'])
    """
    if whole := [name for name in known if fnmatchcase(name, glob)]:
        return whole
    names = {name: name for name in known} | dict(slots or {})
    return [name for key, name in names.items() if is_end(glob, key, fnmatchcase)]


def chosen_names(
    known: Sequence[str], globs: Sequence[str], others: Sequence[str], noun: str, slots: Mapping[str, str] | None = None
) -> list[str]:
    """Return the known names that some glob matches, in their order; NotFoundError for a glob that matches nothing.

    Without globs these are all names, or none where there are globs for `others` only.

    >>> chosen_names(["item", "user"], ["us*"], [], "table"), chosen_names(["item"], [], ["bias"], "table")
    (['user'], [])
    """
    if not globs:
        return [] if others else list(known)
    chosen: set[str] = set()
    for glob in globs:
        names = [glob] if glob in known else names_like(glob, known, slots)
        if not names:
            raise NotFoundError(f"no {noun} matches {glob!r}", hint=meant(glob, called_names(known, slots), f"{noun}s"))
        chosen.update(names)
    return [name for name in known if name in chosen]


def is_end(name: str, key: str, matches: Callable[[str, str], bool] | None = None) -> bool:
    """Say whether a name is a key, or its last part behind a dot or a slash; also without what people leave out.

    >>> is_end("user", "ebc.user.weight"), is_end("ser", "ebc.user"), is_end("user:m", "ebc.user.weight:m")
    (True, False, True)
    """
    ends = ((f"{mark}{form}", f"{mark}{name}") for form in _forms(key) for mark in "./")
    return any(form.endswith(end) if matches is None else matches(form, f"*{end}") for form, end in ends)


def short_names(known: Collection[str], slots: Mapping[str, str] | None = None) -> list[str]:
    """Return names as people type them: the last part of each where no other key ends so, companions behind a colon.

    >>> short_names(["ebc.user.weight", "ebc.item.weight", "a.bias", "b.bias"])
    ['user', 'item', 'a.bias', 'b.bias']
    >>> short_names(["ebc.user.weight", "optim.m"], {"ebc.user.weight:m": "optim.m"})
    ['user', 'user:m']
    """
    every = called_names(known, slots)
    lasts = [_last_part(name) for name in every]
    counts = Counter(lasts)
    return [last if counts[last] == 1 else name for last, name in zip(lasts, every, strict=True)]


def _last_part(name: str) -> str:
    """Return the last part of a name, without what people leave out."""
    table, colon, slot = name.rpartition(":")
    if not colon or "/" in slot:
        table, colon, slot = name, "", ""
    for ending in LEFT_OUT:
        table = table.removesuffix(ending)
    return f"{re.split('[./]', table)[-1]}{colon}{slot}"


def _forms(key: str) -> Iterator[str]:
    yield key
    table, colon, slot = key.rpartition(":")
    for ending in LEFT_OUT:
        yield f"{table}{colon}{slot}".removesuffix(ending)
        yield f"{table.removesuffix(ending)}{colon}{slot}"
