"""Metrics, tags and notes of versions: each function takes the lock of the location itself and writes one change.

`state/annotate.py` has the same changes for callers that hold the lock.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from edl_ckpt.core.base.choices import Mode
from edl_ckpt.core.base.errors import EdlCkptError, LockedError, RefusedError
from edl_ckpt.core.base.progress import WARNINGS, Reporter
from edl_ckpt.core.base.several import several
from edl_ckpt.core.base.words import command
from edl_ckpt.core.catalog.files import check_in_location
from edl_ckpt.core.catalog.listing import VersionLike, as_version, list_versions
from edl_ckpt.core.commit.repair.recovery import location_lock
from edl_ckpt.core.model.versions import State, Version
from edl_ckpt.core.state import annotate
from edl_ckpt.core.state.lock import LOCK_WAIT_SECONDS
from edl_ckpt.core.state.metric_modes import check_mode
from edl_ckpt.core.storage import LocationLike, Store


@contextmanager
def _changing(
    version: VersionLike, purpose: str, wait_seconds: float, reporter: Reporter
) -> Iterator[tuple[Store, Version]]:
    """Hold the lock of a version's location while its metadata changes; yield its store, and the version.

    Raises LockedError when the version was deleted after it was looked up: its metadata would be that of the next
    version of this number.
    """
    version = as_version(version)
    check_in_location(version)
    with location_lock(version.location, purpose, wait_seconds=wait_seconds, reporter=reporter) as locked:
        if not set(version.names_outside) & set(locked.store.names("")):
            raise LockedError("another command deleted this version meanwhile", path=version.ref)
        yield locked.store, version


def set_metrics(
    version: VersionLike,
    metrics: Mapping[str, float],
    *,
    steps: Mapping[str, int] | None = None,
    mode: Mode | None = None,
    wait_seconds: float = LOCK_WAIT_SECONDS,
    reporter: Reporter = WARNINGS,
) -> None:
    """Record metrics of a version; they replace older values of the same names. NaN is a value too.

    `steps` has the step of each metric that was measured at another step than the version. `mode` ('max' or 'min') also
    declares the better end of these metrics for the location. Raises LockedError when the lock is not free in time.

    >>> set_metrics("run@100", {"auc": 0.71, "loss": 0.3})
    """
    modes = {} if mode is None else dict.fromkeys(metrics, check_mode(mode))
    with _changing(version, "metrics set", wait_seconds, reporter) as changed:
        annotate.write_metrics(*changed, metrics, steps=steps)
        if modes:
            annotate.write_modes(changed[0], modes)


def remove_metrics(
    version: VersionLike,
    names: Sequence[str],
    *,
    wait_seconds: float = LOCK_WAIT_SECONDS,
    reporter: Reporter = WARNINGS,
) -> None:
    """Remove metrics of a version; NotFoundError when it has none of such a name."""
    with _changing(version, "metrics remove", wait_seconds, reporter) as changed:
        annotate.erase_metrics(*changed, several(names, "names"))


def set_modes(
    location: LocationLike,
    modes: Mapping[str, Mode],
    *,
    wait_seconds: float = LOCK_WAIT_SECONDS,
    reporter: Reporter = WARNINGS,
) -> None:
    """Declare for a location the mode of each metric: 'max' when higher is better, 'min' when lower is."""
    checked = {name: check_mode(mode) for name, mode in modes.items()}
    with location_lock(location, "metrics mode", wait_seconds=wait_seconds, reporter=reporter) as locked:
        annotate.write_modes(locked.store, checked)


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

    >>> add_tag("run@100", "serving")
    ()
    >>> add_tag("run@200", "serving")
    (100,)
    """
    version = as_version(version)
    if version.state is not State.COMPLETE and not force:
        again = command("tag", "add", version.ref, tag, "--force")
        raise RefusedError(
            f"this version is not complete (its state is {version.state.value})",
            path=version.ref,
            hint=f"to give it the tag {tag!r} all the same: {again}",
        )
    with _changing(version, "tag add", wait_seconds, reporter) as (store, _):
        annotate.write_tag(store, version, tag)
        versions = () if also else list_versions(version.location).versions
        others = {v.key: v for v in versions if tag in v.tags and v.key != version.key}
        for other in others.values():  # last: a crash leaves the tag on too many versions, never on none
            annotate.erase_tag(store, other.key, tag)
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
    version: VersionLike,
    tag: str,
    *,
    wait_seconds: float = LOCK_WAIT_SECONDS,
    reporter: Reporter = WARNINGS,
) -> None:
    """Remove a tag from a version; NotFoundError when the version does not have it."""
    with _changing(version, "tag remove", wait_seconds, reporter) as (store, changed):
        annotate.erase_tag(store, changed.key, tag)


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
    with _changing(version, "metadata set", wait_seconds, reporter) as changed:
        annotate.write_metadata(*changed, metadata)


def remove_metadata(
    version: VersionLike,
    keys: Sequence[str],
    *,
    wait_seconds: float = LOCK_WAIT_SECONDS,
    reporter: Reporter = WARNINGS,
) -> None:
    """Remove values of a version by their keys; NotFoundError, and nothing is removed, when it lacks one of them."""
    with _changing(version, "metadata remove", wait_seconds, reporter) as changed:
        annotate.erase_metadata(*changed, several(keys, "keys"))


def set_note(
    version: VersionLike,
    text: str,
    *,
    wait_seconds: float = LOCK_WAIT_SECONDS,
    reporter: Reporter = WARNINGS,
) -> None:
    """Write a version's note; it replaces an older one, and '' removes it."""
    with _changing(version, "note", wait_seconds, reporter) as changed:
        annotate.write_note(*changed, text)
