"""Names at a glance, for a shell that completes a word: of versions by their directories, of tables by their fields.

No step waits, and every one has a bound. The names may be wrong where files are damaged.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from edl_ckpt.core.base.numbers import MalformedError, varint_at
from edl_ckpt.core.sources.determined.record import is_uuid
from edl_ckpt.core.sources.elasticdl import names

_MOST_ENTRIES: Final = 200_000
_MOST_FIELDS: Final = 20_000
_PEEK_BYTES: Final = 512
"""A longer name is not found; people would not choose it from a list."""
_BYTES: Final = 2


@dataclass(frozen=True, slots=True)
class Budget:
    """How much may be looked at: so much of the processor's time, and eight times as long on a clock.

    A busy machine or a slow disk gives each process less, and half of the names would then help nobody.
    """

    work: float
    deadline: float

    @staticmethod
    def of(seconds: float) -> Budget:
        """Return a budget from now on."""
        return Budget(time.process_time() + seconds, time.monotonic() + 8 * seconds)

    @property
    def spent(self) -> bool:
        """Say whether no more may be looked at."""
        return time.process_time() > self.work or time.monotonic() > self.deadline


def entries(folder: str) -> Iterator[os.DirEntry[str]]:
    """Yield the entries of a directory, none of one that cannot be read."""
    with suppress(OSError), os.scandir(folder or ".") as found:
        yield from islice(found, _MOST_ENTRIES)


def numbers_of(entries: Iterable[str]) -> set[int]:
    """Return the numbers of the versions that are among the names of a directory's entries."""
    return names.numbers_among(entries)


def versions(location: str) -> tuple[list[int], list[str]]:
    """Return the numbers of the versions in a location, the highest first, and the UUIDs of those that have one."""
    every = [entry.name for entry in entries(location)]
    numbers = names.numbers_among(every)
    return sorted(numbers, reverse=True), [name for name in every if is_uuid(name)]


def find(location: str, key: int | str) -> str | None:
    """Return the path of a version in a location, a directory or a file; None when it is not there."""
    spelled = names.version_names(key) if isinstance(key, int) else [key]
    return next((path for name in spelled if os.path.lexists(path := os.path.join(location, name))), None)


def has_versions(folder: str) -> bool:
    """Say whether one of the first entries of a directory is a version."""
    return any(
        names.parse_version_dir(entry.name) or names.parse_single_file(entry.name) is not None
        for entry in islice(entries(folder), 1000)
    )


def may_be_whole(path: str) -> bool:
    """Say whether a file has the name of a checkpoint by itself: one shard of several is none.

    >>> may_be_whole("mnist_v110.chkpt"), may_be_whole("version-1/variables-0-of-2.ckpt")
    (True, False)
    """
    shard = names.shard_named(os.path.basename(path))
    return path.endswith((".ckpt", ".chkpt")) and (shard is None or shard[1] == 1)


def open_at_once(path: str, flags: int) -> int:
    """Open a file without waiting for the writer of a pipe; the `opener` of `open`."""
    return os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)


@dataclass(frozen=True, slots=True)
class Names:
    """The names in the shards of a version, in the order of the file."""

    tables: dict[str, None] = field(default_factory=dict)
    variables: dict[str, None] = field(default_factory=dict)


def names_in(version: str, budget: Budget, *, variables: bool) -> Names:
    """Return the names in a directory of shards, or in one file. A table is in every shard, a variable in one."""
    found = Names()
    shards = sorted(entry.path for entry in islice(entries(version), 10_000) if names.shard_named(entry.name))
    for path in shards or [version]:
        _add_names(found, path, budget)
        if budget.spent or (found.tables and not variables):
            break
    return found


def _add_names(found: Names, path: str, budget: Budget) -> None:
    """Add the names in one shard: those of its fields, whose payloads are skipped."""
    fields: list[tuple[int, str, int]] = []
    with suppress(OSError), open(path, "rb", buffering=0, opener=open_at_once) as shard:
        if stat.S_ISREG(os.fstat(shard.fileno()).st_mode):
            fields = list(_fields(shard.fileno(), budget))
    # The numbers that the fields have in each generation tell tables from variables (`generations`).
    described = {number for number, _, second in fields if second == _VARINT_TAG}  # a dim: infos of tables
    newest = 2 in described or (3 not in described and any(number in {3, 4} for number, _, _ in fields))
    tables = (2, 4) if newest else (3, 5)
    variables = (3,) if newest else (2, 4)
    found.tables.update({name: None for number, name, _ in fields if number in tables})
    found.variables.update(
        {name: None for number, name, _ in fields if number in variables and name not in found.tables}
    )


_VARINT_TAG: Final = 2 << 3
"""The tag of a second field that is a number."""


def _fields(shard: int, budget: Budget) -> Iterator[tuple[int, str, int]]:
    """Yield (number, name, tag that follows the name) of each field of a shard that begins with a name."""
    offset, size = 0, os.fstat(shard).st_size
    with suppress(MalformedError):
        for _ in range(_MOST_FIELDS):
            if offset >= size or budget.spent:
                return
            window = os.pread(shard, _PEEK_BYTES, offset)
            tag, start = varint_at(window, 0, len(window))
            length, start = varint_at(window, start, len(window))
            if tag & 7 != _BYTES:
                if tag != 1 << 3:  # the version; nothing else of a shard is a number
                    return
                offset += start
                continue
            if window[start : start + 1] == b"\n":  # its first field, a text
                count, first = varint_at(window, start + 1, len(window))
                name, after = window[first : first + count], window[first + count : first + count + 1]
                if len(name) == count:
                    yield tag >> 3, name.decode("utf-8", "replace"), (after or b"\0")[0]
            offset += start + length
