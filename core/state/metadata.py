"""Metadata of versions (metrics, tags, a note, keys) and of their location (modes of metrics, a policy), as it is read.

It is in small JSON files under `.edl-ckpt-0/meta-0/`, where ElasticDL's scan does not look: `{version}.json` for each
version that has metadata, and `location.json`. People can read them without this tool, and a copy of the directory
takes them along (`docs/format.md`, section State, shows one). Keys that we do not know are kept. A damaged file is
reported, and the others are still read. `annotate.py` writes the files.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from edl_ckpt.core.base.errors import (
    CorruptError,
    EdlCkptError,
    RefusedError,
    UnavailableError,
    UnsupportedError,
    UsageError,
)
from edl_ckpt.core.base.parallel import SMALL_READS, run_parallel
from edl_ckpt.core.state.document import MAX_BYTES, MAX_SUMS_BYTES, parse_document
from edl_ckpt.core.state.index import Known
from edl_ckpt.core.state.metric_modes import MODES
from edl_ckpt.core.state.paths import JOURNAL, LOCATION_FILE, META_DIR, described_key, is_document, sealed_version
from edl_ckpt.core.storage.faults import Fault
from edl_ckpt.core.storage.interface import Store

VERSION_SCHEMA: Final = "edl-ckpt/meta/1"
LOCATION_SCHEMA: Final = "edl-ckpt/location/1"
_NOT_FINITE: Final = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
MAX_USER_BYTES: Final = 1 << 16
"""The metadata that a user gives a version has at most so many bytes as JSON: listings read all of it."""
MAX_NAMES: Final = 10_000
"""A version has at most so many tags, and so many metrics: listings show all of them."""


@dataclass(frozen=True, slots=True)
class VersionMetadata:
    """The metadata of one version; `steps` has the step of each metric that was measured at another step."""

    metrics: Mapping[str, float] = field(default_factory=dict)
    steps: Mapping[str, int] = field(default_factory=dict)
    tags: tuple[str, ...] = ()
    note: str = ""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """What users recorded by keys of their own: any JSON values."""
    fault: str = ""
    unread: Fault | None = None
    """Why the file, which is there and may be whole, cannot be read now."""


@dataclass(frozen=True, slots=True)
class LocationMetadata:
    """The metadata of a location; `policy` is a document of `retention.Policy.to_json`, None when none is stored."""

    versions: Mapping[int | str, VersionMetadata] = field(default_factory=dict)
    """By the key of the version: its number, or the UUID of its directory."""
    modes: Mapping[str, str] = field(default_factory=dict)
    policy: Mapping[str, Any] | None = None
    problems: tuple[str, ...] = ()
    sealed: frozenset[int | str] = frozenset()
    """The versions that have a seal (`seal.py`)."""
    fault: EdlCkptError | None = None
    """Why the modes and the policy cannot be read, None when they can."""
    known: Known = field(default_factory=Known, compare=False, repr=False)
    """What is known of the files without reading them, by the `marks` of their listing."""
    marks: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)


def read_metadata(
    store: Store, names: Iterable[str] | Mapping[str, str] | None = None, known: Known | None = None
) -> LocationMetadata:
    """Return the metadata of a location. Damaged files are named in `problems`; foreign files are ignored.

    `names` are those of the files in META_DIR, when a listing has them already; a mapping also has their marks. What
    `known` has under its mark is not read, and what is read is kept there.
    """
    known = Known() if known is None else known
    marks = names if isinstance(names, Mapping) else {}
    versions: dict[int | str, VersionMetadata] = {}
    modes: Mapping[str, str] = {}
    policy: Mapping[str, Any] | None = None
    problems: list[str] = []
    fault: EdlCkptError | None = None
    present = sorted(store.names(META_DIR) if names is None else names)
    wanted = [name for name in present if is_document(name)]
    documents = _read_documents(store, wanted, known, marks)
    for name in wanted:
        key, document = described_key(name), documents[name]
        try:
            if document is None:  # deleted since the listing
                continue
            if isinstance(document, EdlCkptError):
                raise document
            if key is not None:
                versions[key] = parse_version(document)
            else:
                modes, policy = parse_location(document)
        except EdlCkptError as error:
            problems.append(f"{store.location}/{META_DIR}/{name}: {error.message}")
            if key is not None:
                versions[key] = VersionMetadata(fault=error.message, unread=unread_fault(error, name))
            else:
                fault = error
    return LocationMetadata(versions, modes, policy, tuple(problems), sealed_versions(present), fault, known, marks)


def sealed_versions(names: Iterable[str]) -> frozenset[int | str]:
    """Return the stored keys of the versions that have a seal, from the names of the files in META_DIR.

    >>> sealed_versions(["100.json", "100.seal.json", "location.json"])
    frozenset({100})
    """
    return frozenset(key for key in map(sealed_version, names) if key is not None)


def is_unread(error: EdlCkptError) -> bool:
    """Say whether an error is one of reading a file, and not of what the file contains."""
    return not isinstance(error, UsageError | CorruptError | UnsupportedError | RefusedError)


def unread_fault(error: EdlCkptError, path: str) -> Fault | None:
    """Return an error of reading a file as a value, None for damage of the file.

    A file that a newer edl-ckpt wrote is not damaged: it is UnsupportedError.
    """
    return Fault.of(error, path) if is_unread(error) or isinstance(error, UnsupportedError) else None


def _read_documents(
    store: Store, names: Sequence[str], known: Known, marks: Mapping[str, str]
) -> dict[str, dict[str, Any] | EdlCkptError | None]:
    """Return the document in each file of META_DIR, or the error of reading it; None where it is gone.

    On a remote store several files are read at a time: a thousand requests one by one would take minutes.
    """

    def read(name: str) -> dict[str, Any] | EdlCkptError | None:
        relative = f"{META_DIR}/{name}"
        try:
            data = store.read_small(relative)
            document = None if data is None else parse_document(data, f"{store.location}/{relative}")
        except UnavailableError:
            raise  # a fault of the storage, not of the file
        except EdlCkptError as error:
            return error
        if document is not None:
            known.keep(name, marks.get(name, ""), document, data)
        return document

    found: dict[str, dict[str, Any] | EdlCkptError | None] = {
        name: known.document(name, marks.get(name, "")) for name in names
    }
    unknown = [name for name in names if found[name] is None]
    if not unknown:
        return found
    with store.kept_open(META_DIR):
        documents = list(run_parallel(read, unknown, store.properties.at_a_time(SMALL_READS)))
    return found | dict(zip(unknown, documents, strict=True))


class Drafts:
    """Documents as they will be when a version becomes visible: they are read from a store, and written to memory."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.location = store.location
        self.files: dict[str, bytes] = {}
        """What was written, by base names and in that order; b'' for a document that goes."""

    def read_small(self, relative: str) -> bytes | None:
        """Return a document, None when there is none."""
        draft = self.files.get(relative.rpartition("/")[2])
        return self._store.read_small(relative) if draft is None else draft or None

    def write_small(self, relative: str, data: bytes) -> None:
        """Keep a document in memory."""
        self.files[relative.rpartition("/")[2]] = data

    def remove(self, relative: str) -> None:
        """Note that a document goes."""
        self.write_small(relative, b"")


def read_document(store: Store | Drafts, relative: str) -> dict[str, Any] | None:
    """Return a JSON object of our state, None when there is no such file; UsageError when it is damaged."""
    data = store.read_small(relative)
    if data is None:
        return None
    name = relative.rpartition("/")[2]
    lists_checksums = name == JOURNAL or sealed_version(name) is not None
    return parse_document(data, f"{store.location}/{relative}", limit=MAX_SUMS_BYTES if lists_checksums else MAX_BYTES)


def parse_version(document: Mapping[str, Any]) -> VersionMetadata:
    """Return a version's metadata from its document; UsageError names the fault."""
    metrics, steps = document.get("metrics", {}), document.get("steps", {})
    tags, note = document.get("tags", []), document.get("note", "")
    if not isinstance(metrics, dict) or not isinstance(steps, dict):
        raise UsageError("damaged: metrics and steps must be objects")
    if not isinstance(tags, list) or not all(isinstance(tag, str) for tag in tags):
        raise UsageError("damaged: tags must be a list of strings")
    if not isinstance(note, str):
        raise UsageError("damaged: note must be a string")
    metadata = document.get("metadata", {})
    if not isinstance(metadata, dict):
        raise UsageError("damaged: metadata must be an object")
    if max(len(metrics), len(tags)) > MAX_NAMES:
        raise UsageError(f"damaged: more than {MAX_NAMES} tags or metrics")
    return VersionMetadata(
        {name: number(value, name) for name, value in metrics.items()},
        {name: step for name, step in steps.items() if isinstance(step, int)},
        tuple(tags),
        note,
        metadata,
    )


def parse_location(document: Mapping[str, Any]) -> tuple[Mapping[str, str], Mapping[str, Any] | None]:
    """Return (modes, policy) of a location's document; UsageError names the fault."""
    modes, policy = document.get("modes", {}), document.get("policy")
    if not isinstance(modes, dict) or not all(mode in MODES for mode in modes.values()):
        raise UsageError("damaged: modes must be 'max' or 'min' by metric")
    if policy is not None and not isinstance(policy, dict):
        raise UsageError("damaged: policy must be an object")
    return modes, policy


def read_layout(store: Store) -> str | None:
    """Return the name of the layout that was chosen for a location, None without a choice; UsageError for damage."""
    document = read_document(store, f"{META_DIR}/{LOCATION_FILE}") or {}
    layout = document.get("layout")
    if layout is not None and not isinstance(layout, str):
        raise UsageError("damaged: layout must be a string", path=f"{store.location}/{META_DIR}/{LOCATION_FILE}")
    return layout


def number(value: Any, name: str) -> float:
    """Return a metric's value from JSON, where NaN and infinities are strings; `json_number` is the inverse.

    >>> number("NaN", "auc"), number(1, "auc")
    (nan, 1.0)
    """
    if isinstance(value, str) and value in _NOT_FINITE:
        return _NOT_FINITE[value]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UsageError(f"damaged: metric {name!r} is {value!r}, not a number")
    try:
        return float(value)
    except OverflowError:
        raise UsageError(f"damaged: metric {name!r} is too large a number") from None
