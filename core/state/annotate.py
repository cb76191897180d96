"""Writing metadata: metrics, tags, a note and keys of users of a version, modes and a policy of a location.

Every file is replaced whole; keys that we do not know stay as they are. The caller of each function holds the
location's lock: `operations/annotate.py` has the functions that take it themselves.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from edl_ckpt.core.base.errors import CorruptError, EdlCkptError, NotFoundError, UsageError
from edl_ckpt.core.base.interruption import COMMIT
from edl_ckpt.core.base.names import name_bytes
from edl_ckpt.core.base.numbers import whole_number
from edl_ckpt.core.base.progress import WARNINGS, Reporter
from edl_ckpt.core.base.words import meant
from edl_ckpt.core.model.versions import Version
from edl_ckpt.core.state.document import MAX_BYTES, check_value, json_number
from edl_ckpt.core.state.lock_proof import prove_lock, write_proved
from edl_ckpt.core.state.metadata import (
    LOCATION_SCHEMA,
    MAX_NAMES,
    MAX_USER_BYTES,
    VERSION_SCHEMA,
    Drafts,
    LocationMetadata,
    is_unread,
    parse_location,
    parse_version,
    read_document,
    read_metadata,
)
from edl_ckpt.core.state.paths import LOCATION_FILE, META_DIR, stored_key, version_file
from edl_ckpt.core.state.user_entries import check_key, check_metric_name, check_metric_value, check_tag
from edl_ckpt.core.storage import open_store
from edl_ckpt.core.storage.interface import Store, lists_marks

Document = dict[str, Any]
Describe = Callable[[Drafts | None], None]
"""Writes the metadata of a version that is about to become visible to drafts; at once without any."""


def write_metrics(
    store: Store,
    version: Version,
    metrics: Mapping[str, float],
    *,
    steps: Mapping[str, int] | None = None,
) -> None:
    """Record metrics of a version; they replace older values of the same names. NaN is a value too.

    `steps` has the step of each metric that was measured at another step than the version.
    """
    values = {check_metric_name(name): check_metric_value(name, value) for name, value in metrics.items()}
    measured = {name: whole_number(f"the step of {name!r}", step, least=0) for name, step in (steps or {}).items()}

    with _editing_version(store, version.key) as document:
        document["metrics"] = document.get("metrics", {}) | {n: json_number(v) for n, v in values.items()}
        document["steps"] = {n: s for n, s in document.get("steps", {}).items() if n not in metrics} | measured


def erase_metrics(store: Store, version: Version, names: Sequence[str]) -> None:
    """Remove metrics of a version; NotFoundError when it has none of such a name."""
    with _editing_version(store, version.key) as document:
        _check_present(names, document.get("metrics", {}), version.ref, "metric", "metrics")
        for key in ("metrics", "steps"):
            document[key] = {n: v for n, v in document.get(key, {}).items() if n not in names}


def write_tag(store: Store, version: Version, tag: str) -> None:
    """Give a version a tag; nothing changes when the version has it already."""
    check_tag(tag)

    with _editing_version(store, version.key) as document:
        document["tags"] = sorted({*document.get("tags", []), tag})


def erase_tag(store: Store, key: int | str, tag: str, drafts: Drafts | None = None) -> None:
    """Remove a tag from the version with this key; NotFoundError when the version does not have it."""
    with _editing_version(store, key, drafts) as document:
        _check_present([tag], document.get("tags", []), f"{store.location}@{key}", "tag", "tags")
        document["tags"] = [t for t in document.get("tags", []) if t != tag]


def write_note(store: Store, version: Version, text: object) -> None:
    """Write a version's note; it replaces an older one, and '' removes it. UsageError for other values than texts."""
    if not isinstance(text, str):
        raise UsageError(f"a note must be a text, got {text!r:.80}")
    with _editing_version(store, version.key) as document:
        document["note"] = text


def write_metadata(store: Store, version: Version, metadata: Mapping[str, Any]) -> None:
    """Record values by keys; they replace older values of the same keys. UsageError for values that JSON has not."""
    if not isinstance(metadata, Mapping):
        raise UsageError(f"metadata must be a mapping of keys, got {type(metadata).__name__}")
    values = {check_key(key): check_value(value, f"the metadata {key!r}") for key, value in metadata.items()}

    with _editing_version(store, version.key) as document:
        document["metadata"] = _bounded(document.get("metadata", {}) | values, version.ref)


def erase_metadata(store: Store, version: Version, keys: Sequence[str]) -> None:
    """Remove values by their keys; NotFoundError, and nothing is removed, when the version lacks one of the keys."""
    with _editing_version(store, version.key) as document:
        present = document.get("metadata", {})
        _check_present(keys, present, version.ref, "metadata", "keys")
        document["metadata"] = {key: value for key, value in present.items() if key not in keys}


def _check_present(names: Sequence[str], present: Collection[str], ref: str, noun: str, nouns: str) -> None:
    """Raise NotFoundError for the first of some names that a version lacks."""
    for name in names:
        if name not in present:
            raise NotFoundError(f"no {noun} {name!r}", path=ref, hint=meant(name, present, nouns))


def _bounded(metadata: Document, ref: str) -> Document:
    """Return the metadata of a user; UsageError when it is too large for a listing."""
    size = len(json.dumps(metadata, ensure_ascii=False).encode("utf-8", "surrogatepass"))
    if size > MAX_USER_BYTES:
        raise UsageError(
            f"too much metadata: {size} bytes as JSON, and at most {MAX_USER_BYTES} are possible",
            path=ref,
            hint="keep large data in a file of your own, and record its path here",
        )
    return metadata


def write_modes(store: Store, modes: Mapping[str, str], drafts: Drafts | None = None) -> None:
    """Declare for a location the mode of each metric: 'max' when higher is better, 'min' when lower is."""
    with _editing_location(store, drafts) as document:
        document["modes"] = document.get("modes", {}) | {check_metric_name(n): mode for n, mode in modes.items()}


def write_policy(store: Store, policy: Mapping[str, Any] | None) -> None:
    """Store a retention policy, as `Policy.to_json` makes it, with a location; None removes it."""
    with _editing_location(store) as document:
        document["policy"] = policy


def write_layout(store: Store, layout: str | None) -> None:
    """Store the layout of a location's new versions; None removes the choice."""
    with _editing_location(store) as document:
        document["layout"] = layout


def _editing_version(store: Store, key: int | str, drafts: Drafts | None = None) -> AbstractContextManager[Document]:
    empty = {"schema": VERSION_SCHEMA, "uuid" if isinstance(key, str) else "version": key}
    return _editing(store, version_file(key), empty, parse_version, drafts)


def _editing_location(store: Store, drafts: Drafts | None = None) -> AbstractContextManager[Document]:
    return _editing(store, f"{META_DIR}/{LOCATION_FILE}", {"schema": LOCATION_SCHEMA}, parse_location, drafts)


def _check_again(document: Document, check: Callable[[Document], object], path: str) -> None:
    """Raise UsageError for what could not be read again: nothing may damage the metadata that is there."""
    try:
        check(json.loads(json.dumps(document, allow_nan=False)))
    except (TypeError, ValueError, EdlCkptError) as error:
        why = error.message if isinstance(error, CorruptError) else str(error)
        raise UsageError(f"this cannot be recorded ({why}); nothing was changed", path=path) from None


@contextmanager
def _editing(
    store: Store, relative: str, empty: Document, check: Callable[[Document], object], drafts: Drafts | None
) -> Iterator[Document]:
    """Read a document, let the block change its keys, and write it back.

    An empty one is removed where that cannot remove another one. Nothing is written when the block raises an exception.
    """
    path = f"{store.location}/{relative}"
    try:
        existing = read_document(drafts or store, relative) or {}
        check(existing)
    except EdlCkptError as error:
        raise type(error)(
            error.message,
            path=path,
            hint=error.hint or "repair the file or move it away; nothing was changed",
        ) from None
    document = empty | existing
    yield document
    _check_again(document, check, path)
    if json.dumps(document) == json.dumps(existing):  # to Python, 1 and true are equal
        return
    document = {key: value for key, value in document.items() if value not in ({}, [], "", None)}
    if set(document) <= set(empty) and not (existing and lists_marks(store)):
        prove_lock(store.location)
        with COMMIT:
            (drafts or store).remove(relative)
        return
    text = json.dumps(document, indent=2, sort_keys=False, ensure_ascii=False, allow_nan=False) + "\n"
    data = name_bytes(text)
    names = max((len(document.get(key, ())) for key in ("metrics", "tags")), default=0)
    if len(data) > MAX_BYTES or names > MAX_NAMES:  # or it could not be read again
        limits = f"{MAX_NAMES} tags, as many metrics, and {MAX_BYTES} bytes in all"
        raise UsageError(f"too much metadata: at most {limits}", path=path)
    if drafts is not None:
        drafts.write_small(relative, data)
    else:
        write_proved(store, relative, data)


class MetadataCopies:
    """Copies the metadata of versions to one location, whose lock the caller holds for all of them.

    No copy may read the metadata of all versions: for a thousand of them that would be a million reads. So the tags and
    the modes of the target are read once, and of the source only what belongs to a version.
    """

    def __init__(self, target: Store, *, reporter: Reporter = WARNINGS) -> None:
        self._target = target
        self._reporter = reporter
        self._modes: dict[str, str] | None = None
        self._holders: dict[str, set[int | str]] | None = None
        """The versions of the target by their tags."""
        self._origins: dict[tuple[str, int | str], tuple[str, ...]] = {}
        """The tags of versions of the source that the target has too."""

    def copy(self, source: Version, drafts: Drafts | None = None) -> None:
        """Copy the metadata of a version to its copy in the target, with the modes of its metrics; perhaps as `Drafts`.

        Metrics and tags that the copy has under other names stay. A tag names one version: another version of the
        target loses a tag that comes with the copy, with a warning, unless both have it in the source. A file by itself
        has no metadata.
        """
        if source.is_alone:
            return
        store = open_store(source.location)
        document = read_document(store, version_file(source.key)) or {}
        document.pop("uuid", None)
        if source.uuid and source.metadata:  # Determined's own is in a file beside the shards
            document["metadata"] = dict(source.metadata)
        if not document:
            return

        with _editing_version(self._target, source.key_of_copies, drafts) as existing:
            existing.update(_merged(existing, document))
        self._copy_modes(store, {*document.get("metrics", ()), *source.metrics}, drafts)
        for tag in document.get("tags", ()):
            self._move_tag(tag, source, store, drafts)

    def _copy_modes(self, store: Store, metrics: set[str], drafts: Drafts | None) -> None:
        if not metrics:
            return
        origin = _read_whole(store, (LOCATION_FILE,)).modes
        if self._modes is None:
            self._modes = dict(_read_whole(self._target, (LOCATION_FILE,)).modes)
        new = {n: m for n, m in origin.items() if n in metrics and self._modes.get(n) != m}
        if new:
            write_modes(self._target, new, drafts)
            self._modes |= new

    def _move_tag(self, tag: str, source: Version, origin: Store, drafts: Drafts | None) -> None:
        if self._holders is None:
            self._holders = {}
            for key, metadata in _read_whole(self._target).versions.items():
                for present in metadata.tags:
                    self._holders.setdefault(present, set()).add(key)
        holders = self._holders.setdefault(tag, set())
        own = stored_key(source.key_of_copies)
        for key in sorted(holders - {own}, key=str):
            if tag not in self._tags_at(origin, key):
                _erase_stored_tag(self._target, key, tag, drafts)
                holders.discard(key)
                self._reporter.warn(
                    f"{self._target.location}: the tag {tag!r} moves from version {key} to {source.key_of_copies}"
                )
        holders.add(own)

    def _tags_at(self, origin: Store, key: int | str) -> tuple[str, ...]:
        where = str(origin.location), key
        if where not in self._origins:
            found = _read_whole(origin, (f"{key}.json",)).versions.get(key)
            self._origins[where] = () if found is None else found.tags
        return self._origins[where]


def _erase_stored_tag(store: Store, key: int | str, tag: str, drafts: Drafts | None) -> None:
    """Remove a tag from the version whose metadata is stored under a key."""
    empty = {"schema": VERSION_SCHEMA, "uuid" if isinstance(key, str) else "version": key}
    with _editing(store, f"{META_DIR}/{key}.json", empty, parse_version, drafts) as document:
        document["tags"] = [t for t in document.get("tags", ()) if t != tag]


def _read_whole(store: Store, names: Sequence[str] | None = None) -> LocationMetadata:
    """Return what is known of versions; raises the error of a file that is there and cannot be read now."""
    found = read_metadata(store, names)
    for metadata in found.versions.values():
        if metadata.unread is not None:
            raise metadata.unread.error()
    if found.fault is not None and is_unread(found.fault):
        raise found.fault
    return found


def _merged(existing: Document, new: Document) -> Document:
    """Return a document with the keys of both; where they differ, the value of the second."""
    merged = existing | new
    for key in ("metrics", "steps", "metadata"):
        if key in existing and key in new:
            merged[key] = existing[key] | new[key]
    if "tags" in existing and "tags" in new:
        merged["tags"] = sorted({*existing["tags"], *new["tags"]})
    return merged
