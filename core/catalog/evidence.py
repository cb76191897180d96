"""Whether there is evidence that a save has ended, for systems whose files do not say it.

ElasticDL numbers its shards, and torch writes `.metadata` last. TFRA, dynamicemb and safetensors write one file after
another, and a bundle may be followed by more: all that names show is there while half is not. So a seal counts, or
a file that a job writes when it has saved everything. Without both, a version is compared with the one before it, and a
young one may still be being written. Names and sizes decide; no file is opened.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final

from edl_ckpt.core.base.patterns import LatePattern
from edl_ckpt.core.base.words import abridged, escaped
from edl_ckpt.core.model.versions import BEING_WRITTEN, State, Version
from edl_ckpt.core.sources.safetensors.sets import INDEX, number_of
from edl_ckpt.core.sources.side_files import is_of_a_host, unaccounted
from edl_ckpt.core.state.paths import stored_key

_ENDS: Final = {
    "safetensors": "trainer_state.json",
    "torch": "trainer_state.json",
    "tensorflow": "checkpoint",
    "tfra": "",
    "dynamicemb": "",
}
"""The systems whose files do not say that a save has ended, with the name of a file that does; '' for none."""
_SHARED: Final = frozenset({"checkpoint"})
"""Such files that lie in the location for all versions."""
_DIGITS: Final = LatePattern(r"[0-9]+", re.ASCII)
_SHOWN: Final = 3


def needs_evidence(version: Version) -> bool:
    """Say whether only other files show that a version is whole: one file of torch.save shows it by its own end."""
    if version.layout.system == "torch" and version.is_file:
        return False
    return version.layout.system in _ENDS and version.layout.in_location and not version.uuid


def with_doubts(
    versions: Sequence[Version], *, fresh_after: float, beside: Collection[str], sealed: Collection[int | str] = ()
) -> tuple[Version, ...]:
    """Return versions, in the order of their numbers and with their verdicts, with the doubts whether they are whole.

    `fresh_after` is in seconds since the epoch; `beside` are the names of files in the location. `sealed` are stored
    keys of versions that have a seal which was not read.
    """
    last: dict[str, Version] = {}
    found: list[Version] = []
    for version in versions:
        judged = version
        if version.state is State.COMPLETE and needs_evidence(version):
            if not _has_ended(version, beside) and not version.fingerprint and stored_key(version.key) not in sealed:
                doubts = tuple(_doubts(version, last.get(version.layout.system), fresh_after))
                judged = replace(version, doubts=doubts) if doubts else version
            if judged.is_good:  # a damaged one is no measure: when it goes, others must not look whole for that
                last[version.layout.system] = version
        found.append(judged)
    return tuple(found)


def _has_ended(version: Version, beside: Collection[str]) -> bool:
    """Say whether there is the file that a job writes when it has saved everything."""
    end = _ENDS[version.layout.system]
    return bool(end) and ((end in _SHARED and end in beside) or end in _names(version))


def _doubts(version: Version, before: Version | None, fresh_after: float) -> Iterator[str]:
    if version.modified >= fresh_after:
        yield BEING_WRITTEN
    if version.shapes and not any(rows for rows, _ in version.shapes.values()):
        yield "none of its tables has a row"
    elif before is not None:
        yield from _lost_since(version, before)


def _lost_since(version: Version, before: Version) -> Iterator[str]:
    """Yield what the version before has and this one has not."""
    gone = sorted(before.shapes.keys() - version.shapes.keys())
    if gone:
        yield f"it lacks {_shown(gone)} of version {before.key}"
    for name, (rows, dim) in sorted(before.shapes.items()):
        new_rows, new_dim = version.shapes.get(name, (rows, dim))
        if rows and not new_rows:
            yield f"{escaped(name)} has no rows; version {before.key} has {rows:,}"
        elif dim and new_dim and dim != new_dim:
            yield f"{escaped(name)} has rows of {new_dim}; those of version {before.key} have {dim}"
    companions = _companions(before)
    present = {_without_numbers(name) for name in _names(version)} if companions else set[str]()
    missing = sorted(name for name in companions if _without_numbers(name) not in present)
    missing += _lost_indexes(version, before)
    if missing:
        yield f"it lacks {_shown(missing)} of version {before.key}"


def _lost_indexes(version: Version, before: Version) -> list[str]:
    """Return the indexes of sets that the version before has, where this one has only the numbered files of the set.

    transformers writes the index when all files are there, and loads nothing without it.
    """
    names = _names(version)
    sets = {numbered[0] + INDEX for name in names if (numbered := number_of(name))}
    return sorted(name for name in _names(before) if name in sets and name not in names)


def _shown(names: Iterable[str]) -> str:
    return abridged(map(escaped, names), _SHOWN)


def _names(version: Version) -> list[str]:
    return [version.name_of(file.path) for file in version.files]


def _companions(version: Version) -> list[str]:
    """Return the files next to a checkpoint that are known to belong to it; not TensorFlow's `checkpoint`.

    A rewrite may add that one, and a bundle is whole without it: its index is written last.
    """
    if not version.unclaimed:
        return []
    foreign = set(unaccounted(version.layout.system, version.unclaimed, ()))
    left_out = foreign | _SHARED
    return [name for name in version.unclaimed if name not in left_out and not is_of_a_host(name)]


@functools.lru_cache(maxsize=4096)  # each of a thousand steps has the same names
def _without_numbers(name: str) -> str:
    """Return a name in which the numbers of steps and of ranks do not count."""
    return _DIGITS.sub("#", name)
