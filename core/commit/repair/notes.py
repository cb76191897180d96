"""Notes on shards that are not needed any more, and their removal; the caller holds the lock of the location."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Final

from edl_ckpt.core.base.errors import EdlCkptError
from edl_ckpt.core.sources.registry import number_named
from edl_ckpt.core.state.metadata import sealed_versions
from edl_ckpt.core.state.owner import prove_lock
from edl_ckpt.core.state.paths import META_DIR, NOTES_DIR, noted_version, notes_dir
from edl_ckpt.core.state.shard_note import has_newer_note, note_names
from edl_ckpt.core.storage import Store

_YOUNG_SECONDS: Final = 600.0
"""A note is there before its shard: without a shard it is left over when it is older than this."""


def remove_notes(store: Store, version: int) -> None:
    """Remove all notes on the shards of a version."""
    for name in store.names(notes_dir(version)):
        prove_lock(store.location)
        store.remove(f"{notes_dir(version)}/{name}")


def forget_notes(store: Store, gone: Iterable[int]) -> list[EdlCkptError]:
    """Remove the notes on versions that the caller has just deleted or replaced; return the errors."""
    problems: list[EdlCkptError] = []
    try:
        for number in {*gone} & {*noted_versions(store)}:
            remove_notes(store, number)
    except EdlCkptError as error:
        problems.append(error)
    return problems


def sweep_notes(store: Store) -> list[str]:
    """Remove the notes on versions that are sealed or gone; return what was done, in words."""
    done: list[str] = []
    numbers = noted_versions(store)
    if not numbers:
        return []
    sealed, present = sealed_versions(store.names(META_DIR)), set(map(number_named, store.names("")))
    for number in numbers:
        ages = {} if number in sealed or number in present else store.ages(notes_dir(number))
        if number in sealed or min(ages.values(), default=0.0) > _YOUNG_SECONDS:
            with suppress(EdlCkptError):
                if not has_newer_note(store, number):
                    remove_notes(store, number)
                    done.append(f"removed the notes on the shards of version {number}")
    return done


def noted_versions(store: Store) -> list[int]:
    """Return the versions that there are notes on."""
    return sorted(number for number in map(noted_version, store.names(NOTES_DIR)) if number is not None)


def note_names_now(store: Store) -> dict[int, tuple[str, ...]]:
    """Return the names of all notes at a location, by version."""
    return {number: tuple(sorted(map(str, note_names(store, number)))) for number in noted_versions(store)}
