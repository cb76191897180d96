"""What a directory on this machine's disk seems to hold, at a glance: for a shell that completes a word.

A shell waits for the answer while a person types. So nothing of storage or numpy is imported, every step has a bound,
and whatever cannot be read at once is left out. The names may be wrong where files are damaged; nothing but a
suggestion follows from them.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final

from edl_ckpt.core.base.errors import EdlCkptError
from edl_ckpt.core.sources.elasticdl import peek
from edl_ckpt.core.sources.elasticdl.peek import Budget, entries, open_at_once
from edl_ckpt.core.sources.steps import names as steps
from edl_ckpt.core.state.document import parse_document
from edl_ckpt.core.state.paths import LOCATION_FILE, META_DIR, TRASH_DIR, described_key

_MOST_DOCUMENTS: Final = 1000
_MOST_DOCUMENT_BYTES: Final = 1 << 20
_MOST_FOLDERS: Final = 50
"""So many directories of unknown names are looked into."""


@dataclass(frozen=True, slots=True)
class Glimpse:
    """The names in a location's metadata: tags with the version that has each, and metrics."""

    tags: dict[str, int | str] = field(default_factory=dict)
    metrics: dict[str, None] = field(default_factory=dict)
    keys: dict[str, None] = field(default_factory=dict)
    """The keys of the metadata that users recorded."""


def versions(location: str) -> tuple[list[int], list[str]]:
    """Return the numbers of the versions in a location, the highest first, and the names that stand for others.

    These are UUIDs, the names of versions without a number, and those of two versions of one number, which is
    ambiguous then. Whether a directory with a name of a version is one is left open; one of unknown spelling is looked
    into for names of a format's files.
    """
    numbers, names = peek.versions(location)
    spelled: dict[int, set[str]] = {}
    others: list[os.DirEntry[str]] = []
    for entry in entries(location):
        named = steps.version_named(entry.name)
        if named is not None and named.number is not None:
            name = entry.name.removesuffix(".index") if named.is_file else entry.name
            spelled.setdefault(named.number, set()).add(name)
        elif entry.name[:1] != ".":
            others.append(entry)
    shared = {number for number, several in spelled.items() if len(several) > 1}
    for number in sorted(shared, reverse=True):
        names += sorted(spelled[number])
    if not numbers:  # next to versions of ElasticDL, others without a number are not listed
        names += _unnumbered(others, {entry.name for entry in others if _is_file(entry)})
    return sorted({*numbers, *spelled} - shared, reverse=True), names


def _is_file(entry: os.DirEntry[str]) -> bool:
    with suppress(OSError):
        return not entry.is_dir()
    return False


def _unnumbered(others: list[os.DirEntry[str]], files: Collection[str]) -> list[str]:
    """Return the names of versions without a number: prefixes of bundles, and directories with files of a format."""
    prefixes = sorted(name.removesuffix(".index") for name in files if name.endswith(".index"))
    if steps.is_whole(files):  # the directory is one checkpoint itself
        return prefixes
    folders = (entry for entry in others if entry.name not in files and not steps.is_part(entry.name))
    looked_into = islice(folders, _MOST_FOLDERS)
    return prefixes + sorted(f.name for f in looked_into if steps.has_format(inner.name for inner in entries(f.path)))


def has_versions(folder: str) -> bool:
    """Say whether one of the first entries of a directory is a version; a number alone may be anything."""
    first = (entry.name for entry in islice(entries(folder), 1000))
    return peek.has_versions(folder) or any(not name.isdigit() and steps.version_named(name) for name in first)


def may_be_whole(path: str) -> bool:
    """Say whether a file has the name of a checkpoint by itself: one shard of several is none."""
    return peek.may_be_whole(path) or steps.may_be_file(os.path.basename(path))


def glimpse(location: str, budget: Budget) -> Glimpse:
    """Return the names in the metadata of a location, those of the newest versions first."""
    seen = Glimpse()
    folder = os.path.join(location, META_DIR)
    every = [key for entry in entries(folder) if (key := described_key(entry.name)) is not None]
    every.sort(key=lambda key: key if isinstance(key, int) else -1, reverse=True)
    of_location = _document(os.path.join(folder, LOCATION_FILE)).get("modes")
    if isinstance(of_location, dict):
        seen.metrics.update(dict.fromkeys(of_location))
    for key in every[:_MOST_DOCUMENTS]:
        if budget.spent:
            break
        _take(seen, key, _document(os.path.join(folder, f"{key}.json")))
    return seen


def _take(seen: Glimpse, key: int | str, document: Mapping[str, Any]) -> None:
    """Add the names in the metadata of one version."""
    tags, metrics, values = (document.get(part) for part in ("tags", "metrics", "metadata"))
    for tag in tags if isinstance(tags, list) else ():
        if isinstance(tag, str):
            seen.tags.setdefault(tag, key)
    if isinstance(metrics, dict):
        seen.metrics.update(dict.fromkeys(metrics))
    if isinstance(values, dict):
        seen.keys.update(dict.fromkeys(values))


def in_trash(location: str, budget: Budget) -> Iterator[list[int]]:
    """Yield the versions of each deletion in the trash that `undo` can put back, the last deletion first."""
    folder = os.path.join(location, TRASH_DIR)
    every = sorted((entry.name for entry in islice(entries(folder), 1000) if entry.name[:1].isdigit()), reverse=True)
    for name in every:
        if budget.spent:
            return
        deletion = os.path.join(folder, name)
        record = _document(os.path.join(deletion, "record.json"))
        listed = record.get("versions") if record.get("keep") else None
        present = set(versions(deletion)[0])
        if found := [key for key in listed if key in present] if isinstance(listed, list) else []:
            yield found


def _document(path: str) -> dict[str, Any]:
    """Return a small JSON object of ours; an empty one for what is none, or cannot be read without waiting."""
    with suppress(OSError, ValueError, EdlCkptError), open(path, "rb", opener=open_at_once) as file:
        status = os.fstat(file.fileno())
        if stat.S_ISREG(status.st_mode) and status.st_size <= _MOST_DOCUMENT_BYTES:
            return parse_document(file.read(_MOST_DOCUMENT_BYTES), path)
    return {}
