"""A guard around every command of the suite: ElasticDL's scan, restated, at each of its locations, before and after.

No command may make the scan raise an exception where it worked, put a second layout beside the one that is there, or
change the version that the scan chooses, unless it published that version or deleted the one before.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import elasticdl_rules
from edl_ckpt.core import State, list_versions
from edl_ckpt.core.sources.elasticdl.names import ELASTICDL, parse_version_dir

_PUBLISH = frozenset({"copy", "demo", "edit", "export", "import", "recover", "repair", "reshard", "undo"})
_DELETE = frozenset({"prune"})
_CRASH = "the scan raises an exception"


@dataclass(frozen=True, slots=True)
class Scan:
    """What ElasticDL's scan meets at a location, and what it chooses in two orders of the listing."""

    chosen: tuple[str | None, str | None]
    prefixes: frozenset[str] = frozenset()
    """How the directories of versions are spelled, of complete and incomplete ones alike."""
    valid: frozenset[str] = frozenset()
    has_leftovers: bool = False
    """True if a killed command left work, which the next command finishes."""


def scan_of(place: Path) -> Scan:
    """Return what the scan meets at a place; where there is no directory that can be listed it meets nothing."""
    try:
        names = os.listdir(place)
    except (OSError, ValueError):
        return Scan((None, None))
    directories = [name for name in names if parse_version_dir(name) and (place / name).is_dir()]
    prefixes = frozenset(parsed[0] for parsed in map(parse_version_dir, directories) if parsed)
    valid = frozenset(name for name in directories if _is_valid(place / name))
    forward, backward = (_chosen(place, reverse=reverse) for reverse in (False, True))
    return Scan((forward, backward), prefixes, valid, bool(elasticdl_rules.leftovers(place)))


def _is_valid(directory: Path) -> bool:
    try:
        return elasticdl_rules.is_valid(directory)
    except (OSError, ValueError):
        return False


def _chosen(place: Path, *, reverse: bool) -> str | None:
    try:
        return elasticdl_rules.latest_valid(place, lambda names: sorted(names, reverse=reverse))
    except (OSError, ValueError):
        return _CRASH


def places_of(arguments: Sequence[str], folder: Path) -> set[Path]:
    """Return the directories that the arguments of a command may name, and the one it runs in."""
    places = {folder}
    for word in arguments:
        if word.startswith("-") or "://" in word or "\0" in word:
            continue
        head, at, version = word.rpartition("@")
        path = folder / (head if at and "/" not in version else word)
        places |= {path, path.parent} if parse_version_dir(path.name) else {path}
    return places


def fault(before: Scan, after: Scan, place: Path, arguments: Sequence[str]) -> str:
    """Return what a command did that it must not do, '' if nothing."""
    added = after.prefixes - before.prefixes
    asked = any(word.partition("=")[0] == "--layout" for word in arguments)
    if added and len(after.prefixes) > 1 and not asked:
        return f"layouts are mixed: {sorted(after.prefixes)}"
    if _CRASH not in before.chosen and _CRASH in after.chosen and ELASTICDL.prefix in after.prefixes and not asked:
        return _CRASH
    if before.chosen == after.chosen or _CRASH in {*before.chosen, *after.chosen} or before.has_leftovers:
        return ""
    complete = [v.path for v in list_versions(place, grace_seconds=0).versions if v.state is State.COMPLETE]
    newest = os.path.basename(complete[-1]) if complete else None
    if set(after.chosen) != {newest}:
        return f"the scan chooses {after.chosen}, and the newest complete version is {newest}"
    published = after.valid > before.valid and newest not in before.valid and bool(_PUBLISH & set(arguments))
    deleted = before.valid > after.valid and before.chosen[0] not in after.valid and bool(_DELETE & set(arguments))
    return "" if published or deleted else f"the scan chose {before.chosen} before, and chooses {after.chosen} now"


@contextmanager
def scan_guard(arguments: Sequence[str | Path], folder: Path | None = None) -> Iterator[None]:
    """Run the scan at every local location of a command, before it and after it; AssertionError for a fault."""
    words = [str(argument) for argument in arguments]
    before = {place: scan_of(place) for place in places_of(words, Path(folder or os.getcwd()))}
    yield
    for place, scan in before.items():
        found = fault(scan, scan_of(place), place, words)
        assert not found, f"after `edl-ckpt {' '.join(words)}`, in {place}: {found}"
