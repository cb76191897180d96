"""Versions of one location that have one number: which of them has the metadata and the seal of that number.

The files of a seal say it. Where no seal does, ElasticDL's version has them, else the first by name. All others are
told apart by their names.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace

from edl_ckpt.core.base.errors import EdlCkptError
from edl_ckpt.core.model.seals import differing_sizes
from edl_ckpt.core.model.versions import Version
from edl_ckpt.core.state.seal import read_seal
from edl_ckpt.core.storage.interface import Store


def of_one_number(versions: Iterable[Version]) -> list[list[Version]]:
    """Return the versions that share a number, by number; those with a UUID share none."""
    groups: defaultdict[int, list[Version]] = defaultdict(list)
    for version in versions:
        if version.number is not None and not version.uuid:
            groups[version.version].append(version)
    return [group for _, group in sorted(groups.items()) if len(group) > 1]


def with_owners(store: Store, versions: Sequence[Version]) -> tuple[Version, ...]:
    """Return versions, those told apart by name that have the number of another one and not its metadata."""
    others: set[str] = set()
    for group in of_one_number(versions):
        owner = _owner(store, group)
        others |= {version.path for version in group if version.path != owner.path}
    return tuple(replace(v, by_name=True) if v.path in others else v for v in versions)


def _owner(store: Store, group: Sequence[Version]) -> Version:
    with suppress(EdlCkptError):
        if seal := read_seal(store, group[0].version, with_chunks=False):
            fitting = [version for version in group if not differing_sizes(seal, version)]
            if len(fitting) == 1:
                return fitting[0]
    return min(group, key=lambda version: (not version.is_elasticdl, version.path))


def warnings(versions: Iterable[Version]) -> Iterator[str]:
    """Yield a warning for each number that several versions have, with the names of all of them."""
    for group in of_one_number(versions):
        number, location = group[0].version, group[0].location
        names = " and ".join(version.name for version in group)
        yield f"{location}: {names} have the number {number}; name one as in {location}@{group[0].name}"
