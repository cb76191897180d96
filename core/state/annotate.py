"""Writing what is known of versions beside their shards: metrics, tags, a note, modes, a policy.

Every file is replaced whole, under the location's lock; keys that we do not know stay as they are.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from edl_ckpt.core.errors import EdlCkptError, NotFoundError
from edl_ckpt.core.format.model import Version
from edl_ckpt.core.state.metadata import (
    LOCATION_SCHEMA,
    VERSION_SCHEMA,
    check_metric_name,
    check_tag,
    json_number,
    parse_location,
    parse_version,
    read_document,
    read_metadata,
)
from edl_ckpt.core.state.paths import LOCATION_FILE, META_DIR, version_file
from edl_ckpt.core.storage import LocationLike, open_store
from edl_ckpt.core.storage.interface import Store
from edl_ckpt.core.storage.location import Location

Document = dict[str, Any]


def set_metrics(
    version: Version,
    metrics: Mapping[str, float],
    *,
    steps: Mapping[str, int] | None = None,
) -> None:
    """Record metrics of a version, in the place of older values of the same names; NaN is a value too.

    `steps` says of metrics that were measured at another step which one. The caller holds the location's lock.
    """
    for name in metrics:
        check_metric_name(name)

    def change(document: Document) -> None:
        document["metrics"] = document.get("metrics", {}) | {n: json_number(v) for n, v in metrics.items()}
        kept = {n: s for n, s in document.get("steps", {}).items() if n not in metrics}
        document["steps"] = kept | dict(steps or {})

    _edit_version(version, change)


def remove_metrics(version: Version, names: Sequence[str]) -> None:
    """Forget metrics of a version; NotFoundError when it has none of such a name. The caller holds the lock."""
    absent = [name for name in names if name not in version.metrics]
    if absent:
        raise NotFoundError(f"no metric {absent[0]!r}", path=version.ref)

    def change(document: Document) -> None:
        for key in ("metrics", "steps"):
            document[key] = {n: v for n, v in document.get(key, {}).items() if n not in names}

    _edit_version(version, change)


def add_tag(version: Version, tag: str) -> None:
    """Give a version a tag; one it has already stays once. The caller holds the location's lock."""
    check_tag(tag)

    def change(document: Document) -> None:
        document["tags"] = sorted({*document.get("tags", []), tag})

    _edit_version(version, change)


def remove_tag(version: Version, tag: str) -> None:
    """Take a tag from a version; NotFoundError when it has none of that name. The caller holds the lock."""
    if tag not in version.tags:
        raise NotFoundError(f"no tag {tag!r}", path=version.ref)

    def change(document: Document) -> None:
        document["tags"] = [t for t in document.get("tags", []) if t != tag]

    _edit_version(version, change)


def set_note(version: Version, text: str) -> None:
    """Write a version's note, in the place of an older one; '' removes it. The caller holds the lock."""
    _edit_version(version, lambda document: document.update(note=text))


def remember_modes(location: LocationLike, modes: Mapping[str, str]) -> None:
    """Remember, for a location, which end of each metric is the better one. The caller holds the lock."""

    def change(document: Document) -> None:
        document["modes"] = document.get("modes", {}) | {check_metric_name(n): mode for n, mode in modes.items()}

    _edit_location(location, change)


def store_policy(location: LocationLike, policy: Mapping[str, Any] | None) -> None:
    """Keep a retention policy, as `Policy.to_json` makes it, with a location; None forgets it. The caller locks."""
    _edit_location(location, lambda document: document.update(policy=policy))


def _edit_version(version: Version, change: Callable[[Document], None]) -> None:
    empty = {"schema": VERSION_SCHEMA, "version": version.version}
    store = open_store(version.location)
    _edit(store, version.location, version_file(version.version), empty, change, parse_version)


def _edit_location(location: LocationLike, change: Callable[[Document], None]) -> None:
    store = open_store(location)
    relative = f"{META_DIR}/{LOCATION_FILE}"
    _edit(store, store.location, relative, {"schema": LOCATION_SCHEMA}, change, parse_location)


def _edit(
    store: Store,
    location: Location,
    relative: str,
    empty: Document,
    change: Callable[[Document], None],
    check: Callable[[Document], object],
) -> None:
    """Read a document, change it, and put it back; one that says nothing any more is removed."""
    try:
        held = read_document(store, relative) or {}
        check(held)
    except EdlCkptError as error:
        raise type(error)(
            error.message, path=f"{location}/{relative}", hint="mend it or move it away; nothing was changed"
        ) from None
    document = empty | held
    change(document)
    if document == held:
        return
    document = {key: value for key, value in document.items() if value not in ({}, [], "", None)}
    if set(document) <= set(empty):
        store.remove(relative)
        return
    text = json.dumps(document, indent=2, sort_keys=False, ensure_ascii=False, allow_nan=False) + "\n"
    store.write_small(relative, text.encode("utf-8", "surrogatepass"))


def copy_metadata(source: Version, target: Location) -> None:
    """Bring the metadata of a version to its copy in another location, and the modes of its metrics.

    Metrics and tags that the copy has under other names stay. The caller holds the target's lock.
    """
    document = read_document(open_store(source.location), version_file(source.version)) or {}
    if not document:
        return
    modes = {n: mode for n, mode in read_metadata(open_store(source.location)).modes.items() if n in source.metrics}
    store = open_store(target)
    empty = {"schema": VERSION_SCHEMA, "version": source.version}

    def change(existing: Document) -> None:
        existing.update(_merged(existing, document))

    _edit(store, target, version_file(source.version), empty, change, parse_version)
    known = read_metadata(store).modes
    new = {name: mode for name, mode in modes.items() if known.get(name) != mode}
    if new:
        remember_modes(target, new)


def _merged(there: Document, here: Document) -> Document:
    """Return a document with all that two say; where they differ, what the second says."""
    merged = there | here
    for key in ("metrics", "steps"):
        if key in there and key in here:
            merged[key] = there[key] | here[key]
    if "tags" in there and "tags" in here:
        merged["tags"] = sorted({*there["tags"], *here["tags"]})
    return merged
