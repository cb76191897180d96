"""Versions in directories that are named by UUIDs, as Determined names them.

The number of such a version is in a file next to the shards (`sources/determined/record.py`), or is unknown. Several
may have one number: the checkpoints of all trials of an experiment lie in one storage. So what tells them apart is the
UUID, and any start of it that is unique.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from edl_ckpt.core.base.errors import (
    EdlCkptError,
    RefusedError,
    UnavailableError,
    UsageError,
)
from edl_ckpt.core.base.parallel import REMOTE_WORKERS, run_parallel
from edl_ckpt.core.base.patterns import LatePattern
from edl_ckpt.core.base.words import command
from edl_ckpt.core.catalog.small_reads import read_small
from edl_ckpt.core.model.listings import Listing
from edl_ckpt.core.model.versions import Version
from edl_ckpt.core.sources.determined.record import RECORD, STEPS, recorded_number
from edl_ckpt.core.state.document import MAX_VALUE_DEPTH, is_deep, parse_document
from edl_ckpt.core.state.metadata import MAX_USER_BYTES, unread_fault
from edl_ckpt.core.storage import Location
from edl_ckpt.core.storage.interface import Entry, Store

_MAX_BYTES: Final = 1 << 20
_START: Final = LatePattern(r"[0-9a-f-]{4,36}", re.ASCII)
_SOME: Final = 4


def _order(version: Version) -> tuple[int, bool, float, str]:
    """Return a sort key: by number; of equal ones those with a UUID come first, by time, so that a number is latest."""
    return version.version, not version.uuid, version.modified if version.uuid else 0.0, version.path


def read_uuid_metadata(
    store: Store, versions: Sequence[Version], entries: Iterable[Entry]
) -> tuple[list[str], tuple[Version, ...]]:
    """Return warnings, and the versions, those with a UUID with the number and the metadata that Determined recorded.

    One small read for each of these; none where there are none.
    """
    wanted = [version for version in versions if version.uuid and not version.fault]
    if not wanted:
        return [], tuple(versions)
    files = {entry.parent: entry for entry in entries if entry.name == RECORD and not entry.is_dir}

    def read(version: Version) -> tuple[str, Version]:
        file = files.get(version.uuid)
        return ("", version) if file is None else _described(store, version, file)

    found = list(run_parallel(read, wanted, store.properties.at_a_time(REMOTE_WORKERS)))
    described = {version.path: version for _, version in found}
    numbered = sorted((described.get(version.path, version) for version in versions), key=_order)
    return [warning for warning, _ in found if warning], tuple(numbered)


def _described(store: Store, version: Version, file: Entry) -> tuple[str, Version]:
    """Return a version with what a file says of it, and a warning when the file cannot be used."""
    try:
        document = parse_document(read_small(store, file, _MAX_BYTES + 1), file.path, limit=_MAX_BYTES, foreign=True)
    except UnavailableError:
        raise  # a fault of the storage, not of the file
    except EdlCkptError as error:
        warning = f"{file.path}: {error.message}; the number of the version is not known"
        return warning, replace(version, unread=unread_fault(error, file.path))
    number = recorded_number(document)
    if number is not None:
        version = replace(version, version=number)
    fits = file.size_bytes <= MAX_USER_BYTES and not is_deep(document, MAX_VALUE_DEPTH)  # or no copy could have it
    return "", replace(version, metadata=document if fits else {})


def has_no_number(version: Version, target: Location) -> RefusedError:
    """Return the error of a writer that needs the number of a version, which is not known."""
    metadata = f"there is no {STEPS} in a {RECORD} next to its shards"
    return RefusedError(
        f"its number is not known: {metadata if version.uuid else 'its name has none'}",
        path=version.ref,
        hint="choose one: " + command("import", version.ref, f"{target}@NUMBER", "--ranks", str(version.ps_num or "N")),
    )


def with_uuid(listing: Listing, text: str) -> Version | None:
    """Return the version whose UUID begins with a text of four or more characters, None when there is none.

    Raises UsageError when several begin so.
    """
    start = text.lower()
    if not _START.fullmatch(start):
        return None
    found = [version for version in listing.versions if version.uuid.startswith(start)]
    if len(found) > 1:
        some = ", ".join(version.uuid for version in found[:_SOME]) + (", ..." if len(found) > _SOME else "")
        raise UsageError(
            f"{len(found)} versions have a UUID that begins with {text!r}: {some}",
            path=listing.location.url,
            hint="give more of it",
        )
    return found[0] if found else None
