"""Metadata for library users and commands: each function takes the location's lock itself and writes one change.

`state/annotate.py` has the same changes for callers that hold the lock.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from edl_ckpt.core.checkpoint.catalog import VersionLike, as_version, list_versions
from edl_ckpt.core.checkpoint.files import check_in_location
from edl_ckpt.core.commit.recovery import location_lock
from edl_ckpt.core.errors import EdlCkptError, LockedError, RefusedError
from edl_ckpt.core.format.model import State, Version
from edl_ckpt.core.progress import WARNINGS, Reporter
from edl_ckpt.core.state import annotate
from edl_ckpt.core.state.lock import LOCK_WAIT_SECONDS
from edl_ckpt.core.state.metadata import check_mode
from edl_ckpt.core.state.seal import base_name
from edl_ckpt.core.storage import LocationLike, open_store
from edl_ckpt.core.words import command


@contextmanager
def _changing(version: Version, purpose: str, wait_seconds: float, reporter: Reporter) -> Iterator[None]:
    """Hold the lock of a version's location while its metadata changes.

    Raises LockedError when the version was deleted after it was looked up: its metadata would be that of the next
    version of this number.
    """
    check_in_location(version)
    with location_lock(version.location, purpose, wait_seconds=wait_seconds, reporter=reporter):
        if base_name(version.path) not in open_store(version.location).names(""):
            raise LockedError("another command deleted this version meanwhile", path=version.ref)
        yield


def set_metrics(
    version: VersionLike,
    metrics: Mapping[str, float],
    *,
    steps: Mapping[str, int] | None = None,
    mode: str | None = None,
    wait_seconds: float = LOCK_WAIT_SECONDS,
    reporter: Reporter = WARNINGS,
) -> None:
    """Record metrics of a version; they replace older values of the same names. NaN is a value too.

    `steps` has the step of each metric that was measured at another step than the version. `mode` ('max' or 'min') also
    declares the better end of these metrics for the location. Raises LockedError when the lock is not free in time.
    """
    version = as_version(version)
    modes = {} if mode is None else dict.fromkeys(metrics, check_mode(mode))
    with _changing(version, "metrics set", wait_seconds, reporter):
        annotate.write_metrics(version, metrics, steps=steps)
        if modes:
            annotate.write_modes(version.location, modes)


def remove_metrics(
    version: VersionLike,
    names: Sequence[str],
    *,
    wait_seconds: float = LOCK_WAIT_SECONDS,
    reporter: Reporter = WARNINGS,
) -> None:
    """Remove metrics of a version; NotFoundError when it has none of such a name."""
    version = as_version(version)
    with _changing(version, "metrics remove", wait_seconds, reporter):
        annotate.erase_metrics(version, names)


def set_modes(
    location: LocationLike,
    modes: Mapping[str, str],
    *,
    wait_seconds: float = LOCK_WAIT_SECONDS,
    reporter: Reporter = WARNINGS,
) -> None:
    """Declare for a location the mode of each metric: 'max' when higher is better, 'min' when lower is."""
    checked = {name: check_mode(mode) for name, mode in modes.items()}
    with location_lock(location, "metrics mode", wait_seconds=wait_seconds, reporter=reporter):
        annotate.write_modes(location, checked)


def add_tag(
    version: VersionLike,
    tag: str,
    *,
    also: bool = False,
    force: bool = False,
    wait_seconds: float = LOCK_WAIT_SECONDS,
    reporter: Reporter = WARNINGS,
) -> tuple[int | str, ...]:
    """Give a version a tag, which protects it from deletion, and return the versions that lost the tag by that.

    A tag names one version, so the others lose it. With `also` they keep it, and a reference cannot use the tag. Raises
    RefusedError, and nothing changes, for a version that is not complete, unless `force` is set. Raises EdlCkptError,
    after all that can be done, when the metadata of another version cannot be read: it may have the tag.
    """
    version = as_version(version)
    if version.state is not State.COMPLETE and not force:
        again = command("tag", "add", version.ref, tag, "--force")
        raise RefusedError(
            f"this version is not complete (its state is {version.state.value})",
            path=version.ref,
            hint=f"to give it the tag {tag!r} all the same: {again}",
        )
    with _changing(version, "tag add", wait_seconds, reporter):
        annotate.write_tag(version, tag)
        versions = () if also else list_versions(version.location).versions
        others = {v.key: v for v in versions if tag in v.tags and v.key != version.key}
        for other in others.values():  # last: a crash leaves the tag on too many versions, never on none
            annotate.erase_tag(other, tag)
    for other in versions:
        if other.metadata_fault and other.key != version.key:
            kind = other.unread.kind if other.unread else EdlCkptError
            raise kind(
                f"it may have the tag {tag!r} too, because its metadata cannot be read: {other.metadata_fault}",
                path=other.ref,
                hint=f"version {version.key} has the tag; run the same command again",
            )
    return tuple(others)


def remove_tag(
    version: VersionLike, tag: str, *, wait_seconds: float = LOCK_WAIT_SECONDS, reporter: Reporter = WARNINGS
) -> None:
    """Remove a tag from a version; NotFoundError when the version does not have it."""
    version = as_version(version)
    with _changing(version, "tag remove", wait_seconds, reporter):
        annotate.erase_tag(version, tag)


def set_metadata(
    version: VersionLike,
    metadata: Mapping[str, Any],
    *,
    wait_seconds: float = LOCK_WAIT_SECONDS,
    reporter: Reporter = WARNINGS,
) -> None:
    """Record JSON values of a version by keys of your own; they replace older values of the same keys.

    All keys and values of a version have at most 64 KiB as JSON. Raises UsageError, and nothing changes, for more, for
    a key that cannot be printed, and for a value that JSON lacks.
    """
    version = as_version(version)
    with _changing(version, "metadata set", wait_seconds, reporter):
        annotate.write_metadata(version, metadata)


def remove_metadata(
    version: VersionLike,
    keys: Sequence[str],
    *,
    wait_seconds: float = LOCK_WAIT_SECONDS,
    reporter: Reporter = WARNINGS,
) -> None:
    """Remove values of a version by their keys; NotFoundError, and nothing is removed, when it lacks one of them."""
    version = as_version(version)
    with _changing(version, "metadata remove", wait_seconds, reporter):
        annotate.erase_metadata(version, keys)


def set_note(
    version: VersionLike, text: str, *, wait_seconds: float = LOCK_WAIT_SECONDS, reporter: Reporter = WARNINGS
) -> None:
    """Write a version's note; it replaces an older one, and '' removes it."""
    version = as_version(version)
    with _changing(version, "note", wait_seconds, reporter):
        annotate.write_note(version, text)
