"""Writing what is known of versions beside their shards: metrics, tags, a note, modes, a policy.

Every file is replaced whole, under the location's lock; keys that we do not know stay as they are.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
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
from edl_ckpt.core.storage import open_store
from edl_ckpt.core.storage.interface import Store

Document = dict[str, Any]


def set_metrics(
    version: Version,
    metrics: Mapping[str, float],
    *,
    steps: Mapping[str, int] | None = None,
    storage_options: Mapping[str, str] | None = None,
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

    _edit_version(version, change, storage_options)


def remove_metrics(version: Version, names: Sequence[str], *, storage_options: Mapping[str, str] | None = None) -> None:
    """Forget metrics of a version; NotFoundError when it has none of such a name. The caller holds the lock."""
    absent = [name for name in names if name not in version.metrics]
    if absent:
        raise NotFoundError(f"no metric {absent[0]!r}", path=version.ref)

    def change(document: Document) -> None:
        for key in ("metrics", "steps"):
            document[key] = {n: v for n, v in document.get(key, {}).items() if n not in names}

    _edit_version(version, change, storage_options)


def add_tag(version: Version, tag: str, *, storage_options: Mapping[str, str] | None = None) -> None:
    """Give a version a tag; one it has already stays once. The caller holds the location's lock."""
    check_tag(tag)

    def change(document: Document) -> None:
        document["tags"] = sorted({*document.get("tags", []), tag})

    _edit_version(version, change, storage_options)


def remove_tag(version: Version, tag: str, *, storage_options: Mapping[str, str] | None = None) -> None:
    """Take a tag from a version; NotFoundError when it has none of that name. The caller holds the lock."""
    if tag not in version.tags:
        raise NotFoundError(f"no tag {tag!r}", path=version.ref)

    def change(document: Document) -> None:
        document["tags"] = [t for t in document.get("tags", []) if t != tag]

    _edit_version(version, change, storage_options)


def set_note(version: Version, text: str, *, storage_options: Mapping[str, str] | None = None) -> None:
    """Write a version's note, in the place of an older one; '' removes it. The caller holds the lock."""
    _edit_version(version, lambda document: document.update(note=text), storage_options)


def remember_modes(
    location: str, modes: Mapping[str, str], *, storage_options: Mapping[str, str] | None = None
) -> None:
    """Remember, for a location, which end of each metric is the better one. The caller holds the lock."""

    def change(document: Document) -> None:
        document["modes"] = document.get("modes", {}) | {check_metric_name(n): mode for n, mode in modes.items()}

    _edit_location(location, change, storage_options)


def store_policy(
    location: str, policy: Mapping[str, Any] | None, *, storage_options: Mapping[str, str] | None = None
) -> None:
    """Keep a retention policy, as `Policy.to_json` makes it, with a location; None forgets it. The caller locks."""
    _edit_location(location, lambda document: document.update(policy=policy), storage_options)


def _edit_version(
    version: Version, change: Callable[[Document], None], storage_options: Mapping[str, str] | None
) -> None:
    empty = {"schema": VERSION_SCHEMA, "version": version.version}
    store = open_store(version.location, storage_options)
    _edit(store, version.location, version_file(version.version), empty, change, parse_version)


def _edit_location(
    location: str, change: Callable[[Document], None], storage_options: Mapping[str, str] | None
) -> None:
    store = open_store(location, storage_options)
    relative = f"{META_DIR}/{LOCATION_FILE}"
    _edit(store, location, relative, {"schema": LOCATION_SCHEMA}, change, parse_location)


def _edit(
    store: Store,
    location: str,
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
    document = {key: value for key, value in document.items() if value not in ({}, [], "", None)}
    if set(document) <= set(empty):
        store.remove(relative)
        return
    text = json.dumps(document, indent=2, sort_keys=False, ensure_ascii=False, allow_nan=False) + "\n"
    store.write_small(relative, text.encode("utf-8", "surrogatepass"))


def copy_known(
    source: Version, target: str, lock: AbstractContextManager[object], *, storage_options: Mapping[str, str] | None
) -> None:
    """Bring what is known of a version to its copy in another location, and the modes of its metrics.

    What the copy had of the same names is replaced, the rest stays. The lock of the target is taken only when there is
    anything to write.
    """
    document = read_document(open_store(source.location, storage_options), version_file(source.version)) or {}
    if not document:
        return
    listed = read_metadata(open_store(source.location, storage_options))
    store = open_store(target, storage_options)
    held = read_document(store, version_file(source.version)) or {}
    if _merged(held, document) == held:
        return
    modes = {name: mode for name, mode in listed.modes.items() if name in source.metrics}
    with lock:
        empty = {"schema": VERSION_SCHEMA, "version": source.version}

        def change(there: Document) -> None:
            there.update(_merged(there, document))

        _edit(store, target, version_file(source.version), empty, change, parse_version)
        known = read_metadata(store).modes
        new = {name: mode for name, mode in modes.items() if known.get(name) != mode}
        if new:
            remember_modes(target, new, storage_options=storage_options)


def _merged(there: Document, here: Document) -> Document:
    """Return a document with all that two say; where they differ, what the second says."""
    merged = there | here
    for key in ("metrics", "steps"):
        if key in there and key in here:
            merged[key] = there[key] | here[key]
    if "tags" in there and "tags" in here:
        merged["tags"] = sorted({*there["tags"], *here["tags"]})
    return merged
