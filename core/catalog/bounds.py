"""The bound of a listing on object storage, where every thousand names take a request.

Object storage lists everything below a location in one stream. A location of checkpoints is listed whole, since rules
and guards need every version. But the root of a bucket may have millions of objects of others. So while nothing shows a
version, the look ends after a few requests, and says so: what was not looked at may be anything. A large directory of
others' files is stepped over.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from edl_ckpt.core.base.errors import NotFoundError
from edl_ckpt.core.sources import registry
from edl_ckpt.core.state.paths import LOCK_FILE, STATE_DIR
from edl_ckpt.core.storage import Location, open_store
from edl_ckpt.core.storage.interface import (
    Entry,
    Inside,
    ListedRow,
    MarkedStore,
    Page,
    Store,
    flat_listing,
    lists_marks,
)

MOST_REQUESTS: Final = 5
"""So many requests look at the names of a location, or of one level of directories, that shows no version."""
_LAST: Final = "\U0010ffff"
"""Sorts behind every name."""


class Look(NamedTuple):
    """The entries of a location, and how many names were seen of one that has more of them; 0 for all."""

    entries: list[Entry]
    bound: int = 0


def look(store: Store, inside: Inside) -> Look:
    """Return the entries of a location as `Store.entries` does, of one without signs of a version only the first."""
    if not lists_marks(store):
        return Look(store.entries(inside))
    found = _Pages(store)
    found.read()
    if not found.rows and store.location.split()[1]:
        raise NotFoundError("no such location", path=store.location.url.rstrip("/"))
    left_out = found.stepped_over
    entries = flat_listing(
        store, found.rows.values(), lambda directory: directory not in left_out and inside(directory)
    )
    return Look(entries, 0 if found.is_whole else len(found.rows))


def shows_version(relative: str) -> bool:
    """Say whether the path of a file in a location is a sign that versions, or files of ours, are there.

    >>> shows_version("step_100/.metadata"), shows_version("best/model.safetensors"), shows_version("m.ckpt-7.index")
    (True, True, True)
    >>> shows_version("run/step_100/.metadata"), shows_version("images/1.png"), shows_version("part-7.parquet")
    (False, False, False)
    """
    first, slash, rest = relative.partition("/")
    if not slash:
        return registry.is_sign(first) or registry.version_named(first) is not None
    if first == STATE_DIR:
        return not relative.startswith(f"{LOCK_FILE}/")  # a writer makes these before there is a version
    if registry.is_step_name(first):
        return True
    if first.startswith("."):
        return False
    second, _, deeper = rest.partition("/")
    is_part = registry.is_part(second) or (first.isdigit() and "." not in second)
    return registry.is_sign(second) or (is_part and registry.is_sign(deeper.partition("/")[0]))


def is_unclear(location: Location) -> bool:
    """Say whether one request shows more names than it lists, and no sign of a version among the first of them."""
    store = open_store(location)
    if not lists_marks(store):
        return False
    first = store.page()
    return bool(first.token) and not any(shows_version(row[0]) for row in first.rows)


class _Pages:
    """The pages of a location's objects, as many as it takes."""

    def __init__(self, store: MarkedStore) -> None:
        self._store = store
        self.rows: dict[str, ListedRow] = {}
        self.stepped_over: set[str] = set()
        """Large directories of others: what was seen of them is not shown."""
        self.is_whole = True
        self._has_sign = False
        self._can_jump = True
        self._in_vain: set[str] = set()

    def read(self) -> None:
        """Read pages until the last one, or until so many have shown no sign of a version."""
        page = self._store.page()
        for requests in range(1, 1 << 62):
            self._take(page.rows)
            if not page.token:
                return
            if not self._has_sign and requests >= MOST_REQUESTS:
                self.is_whole = False
                return
            page = self._next(page)

    def _take(self, rows: Sequence[ListedRow]) -> None:
        self.rows |= {row[0]: row for row in rows}
        self._has_sign = self._has_sign or any(shows_version(row[0]) for row in rows)

    def _next(self, page: Page) -> Page:
        """Return the page after one, or that after the directory which the page lies in, if that is of others."""
        directory = _directory_of(page.rows) if self._can_jump else ""
        if not directory or not self._is_of_others(directory):
            return self._store.page(token=page.token)
        after = f"{directory}/{_LAST}"
        jumped = self._store.page(after=after)
        if jumped.rows and jumped.rows[0][0] <= after:  # the service lists from the top again
            self._can_jump = False
            return self._store.page(token=page.token)
        self.stepped_over.add(directory)
        return jumped

    def _is_of_others(self, directory: str) -> bool:
        """Say whether a large directory has no file of a format among its first names, nor among its first objects."""
        if directory in self._in_vain or directory == STATE_DIR or registry.is_step_name(directory):
            return False
        self._in_vain.add(directory)
        if any(shows_version(name) for name in self.rows if name.startswith(f"{directory}/")):
            return False
        names = self._store.level(directory, 1).names
        return not any(shows_version(f"{directory}/{name}") for name in names)


def _directory_of(rows: Sequence[ListedRow]) -> str:
    """Return the directory right in the location in which all objects of a page lie; '' where there is none."""
    if not rows:
        return ""
    first, slash, _ = rows[0][0].partition("/")
    return first if slash and rows[-1][0].startswith(f"{first}/") else ""
