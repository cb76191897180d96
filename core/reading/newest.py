"""The newest version that can be read; one that is whole by its listing may be none.

Savers write in place, so a listing can show all files of a version while the last one is still being written. Its
headers tell: such a shard is shorter than they say, grows while it is read, or ends before it describes its tables.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from edl_ckpt.core.base.errors import (
    CorruptError,
    EdlCkptError,
    IncompleteError,
    NotFoundError,
    ReplacedError,
    UnavailableError,
)
from edl_ckpt.core.base.progress import WARNINGS, Reporter
from edl_ckpt.core.base.words import abridged
from edl_ckpt.core.catalog.listing import list_versions
from edl_ckpt.core.model.versions import State, Version
from edl_ckpt.core.reading.reader import open_checkpoint
from edl_ckpt.core.state.metadata import is_unread
from edl_ckpt.core.state.shard_note import mixed_runs
from edl_ckpt.core.storage import LocationLike

_LISTINGS: Final = 3
"""How often `latest` lists a location whose versions are replaced or deleted while it looks at them."""
_REASONS: Final = 20
PASSED_OVER: Final = (CorruptError, IncompleteError, NotFoundError)
"""Why a version is passed over for an older one: what it contains cannot be read."""


def latest(location: LocationLike, *, reporter: Reporter = WARNINGS) -> Version:
    """Return the newest complete version that can be read, by its headers; versions after it are passed over.

    So is one that verify has found damaged, as far as that is remembered. Each version that is passed over is a warning
    to the reporter: which one, and why. `resolve` of '@latest' goes by the listing alone, so it may name a version that
    a job was still writing when it was killed. Raises NotFoundError when there is no version, IncompleteError with all
    reasons when none can be read, and UnavailableError.

    >>> latest("run").version
    200
    """
    for attempt in range(_LISTINGS):
        listing = list_versions(location)
        versions = listing.versions
        errors: list[EdlCkptError] = []
        newest, faults = newest_readable(versions, errors)
        settled = not any(isinstance(error, ReplacedError | NotFoundError) for error in errors)
        if settled or attempt == _LISTINGS - 1:
            break
    if not versions:
        raise NotFoundError(listing.none_here, path=str(location), hint=listing.wrong_place_hint)
    if newest is None:
        raise none_readable((f"version {v.version}: {faults[v.path]}" for v in reversed(versions)), str(location))
    for version in reversed(versions):
        if version.path in faults:
            reporter.warn(f"{version.ref} is passed over for version {newest.version}: {faults[version.path]}")
    return newest


def none_readable(faults: Iterable[str], location: str) -> IncompleteError:
    """Return the error of a location where no version can be read; `faults` says why of each."""
    return IncompleteError(f"no version can be read: {abridged(faults, _REASONS)}", path=location)


def newest_readable(
    versions: Sequence[Version], errors: list[EdlCkptError] | None = None
) -> tuple[Version | None, dict[str, str]]:
    """Return the newest complete version of one location that can be read, and by path why later ones cannot.

    `versions` are in the order of their numbers. Usually one of them is opened. `errors` gets the errors of reading,
    which say nothing of the content. Raises UnavailableError.
    """
    faults: dict[str, str] = {}
    for version in reversed(versions):
        fault = _fault(version, [] if errors is None else errors)
        if fault is None:
            return version, faults
        faults[version.path] = fault
    return None, faults


def _fault(version: Version, errors: list[EdlCkptError]) -> str | None:
    """Return why a version cannot be read or is damaged; None when its headers show no fault, and none is known."""
    if version.state is State.INVALID:
        return f"ElasticDL refuses it, because of other entries next to its shards: {abridged(version.extra, 3)}"
    if version.damage:  # headers do not show what verify found in the values
        return version.damage
    try:
        return read_fault(version)
    except UnavailableError:
        raise  # a fault of the storage, not of the version
    except EdlCkptError as error:
        if is_unread(error):
            errors.append(error)
        return str(error)


def read_fault(version: Version) -> str | None:
    """Return why a job could not restore a version, as far as headers show; None when they show no fault.

    Raises the error of reading them, CorruptError for headers that are damaged.
    """
    with open_checkpoint(version) as checkpoint:
        for shard in checkpoint.shards:
            for file in shard.file.files:
                if checkpoint.files[file.path].size_bytes != file.size_bytes:
                    return f"{file.path}: still being written"
            absent = checkpoint.infos.keys() - {info.name for info in shard.infos}
            if absent and version.has_only_shards:
                return f"{shard.file.path}: does not describe table {min(absent)!r}, as other shards do"
    return mixed_runs(version) or None
