"""Files and links of other systems that name one version of a location: what a job would start from.

A version that is named is guarded: after its deletion the job would start anew without a word, or fail. Sources: the
file `checkpoint` of tf.train, `latest` of DeepSpeed, `latest_checkpointed_iteration.txt` of Megatron-LM and verl, links
as people and jobs make them, and `best_model_checkpoint` in the state of a transformers Trainer.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from edl_ckpt.core.base.errors import CorruptError, EdlCkptError
from edl_ckpt.core.catalog.small_reads import read_small
from edl_ckpt.core.model.listings import Listing
from edl_ckpt.core.model.versions import Version
from edl_ckpt.core.sources.bundle.state_file import NAME, parse_state
from edl_ckpt.core.storage import LocalStore, Location, ObjectStore, open_store
from edl_ckpt.core.storage.faults import Fault
from edl_ckpt.core.storage.interface import Entry
from edl_ckpt.core.storage.links import Identity, led_through

_NAMES: Final = ("latest", "latest_universal")
"""Files with the name of a directory."""
_NUMBERS: Final = ("latest_checkpointed_iteration.txt",)
"""Files with the number of a version."""
_TRAINER: Final = "trainer_state.json"
_MOST_BYTES: Final = 64 << 20
"""The state of a Trainer has a line for each time that it logged."""


@dataclass(frozen=True, slots=True)
class Pointers:
    """What names versions of one location."""

    location: Location
    named: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """By the path of a version, the files and links that name it, as paths in the location."""
    unread: Mapping[str, str] = field(default_factory=dict)
    """The files that are there and cannot be read now, with the reason: they may name any version."""


def pointers_at(listing: Listing) -> Pointers:
    """Return what names the versions of a listing; small files are read only where the listing has them.

    A file that is damaged names nothing.
    """
    store = open_store(listing.location)
    versions = [version for version in listing.versions if not version.uuid]
    named: defaultdict[str, list[str]] = defaultdict(list)
    unread: dict[str, str] = {}
    files = {entry.name for entry in listing.foreign if entry.is_file}
    wanted = [name for name in (NAME, *_NAMES, *_NUMBERS, _TRAINER) if name in files]
    states = [f"{name}/{_TRAINER}" for name in _newest_with_state(versions)]
    for name in (*wanted, *states):
        try:
            data = _read(store, name)
        except EdlCkptError as error:
            unread[name] = error.message
            continue
        for version in _named(versions, name, data):
            named[version.path].append(name)
    if listing.location.local_path is not None:
        for path, name in _linked(listing, versions, unread):
            named[path].append(name)
    return Pointers(listing.location, dict(named), unread)


def _read(store: LocalStore | ObjectStore, name: str) -> bytes:
    """Return the bytes of a small file of a location."""
    state = store.stat(name)
    if state is None:
        return b""
    entry = Entry(name, store.path(name), False, state.size_bytes, 0.0)
    return read_small(store, entry, _MOST_BYTES)


def _newest_with_state(versions: Sequence[Version]) -> Iterator[str]:
    """Yield the directory of the newest version that has the state of a Trainer: it knows of all before it."""
    for version in reversed(versions):
        if version.has_only_shards or version.is_file:
            continue
        if any(version.name_of(file.path) == _TRAINER for file in version.files):
            yield version.path.rpartition("/")[2]
            return


def _named(versions: Sequence[Version], name: str, data: bytes) -> list[Version]:
    """Return the versions that the content of a file names."""
    if name in _NUMBERS:
        words = data.split()
        number = int(words[0]) if words and words[0].isdigit() and len(words[0]) < 20 else None
        return [version for version in versions if version.number is not None and version.number == number]
    if name == NAME:
        return _of_path(versions, _newest_bundle(data))
    if name in _NAMES:
        return _of_path(versions, data.decode("utf-8", "replace").strip())
    return _of_path(versions, _best_model(data))


def _newest_bundle(data: bytes) -> str:
    """Return `model_checkpoint_path` of TensorFlow's file `checkpoint`; '' where there is none."""
    with suppress(CorruptError):  # TensorFlow finds nothing in a damaged one either
        return parse_state(data).newest
    return ""


def _best_model(data: bytes) -> str:
    """Return the path of the best checkpoint in the state of a Trainer; '' where there is none."""
    with suppress(ValueError, RecursionError):
        document = json.loads(data)
        best = document.get("best_model_checkpoint") if isinstance(document, dict) else None
        return best if isinstance(best, str) else ""
    return ""


def _of_path(versions: Sequence[Version], path: str) -> list[Version]:
    """Return the versions that a path leads to: by its last name, or by a directory on it.

    The path may be of another machine, so only names are compared.
    """
    for name in reversed([part for part in path.replace("\\", "/").split("/") if part]):
        found = [version for version in versions if version.path.rpartition("/")[2] == name]
        if found:
            return found
    return []


def _linked(listing: Listing, versions: Sequence[Version], unread: dict[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the versions that links at a location lead to, into or through, each with the name of the link.

    A link of which this cannot be said now is put into `unread`, with the reason.
    """
    root = listing.location.local_path or "."
    links = [entry.name for entry in listing.foreign if os.path.islink(os.path.join(root, entry.name))]
    if not links:
        return
    owners: dict[Identity, str] = {}
    for version in versions:
        for path in [file.path for file in version.files] if version.is_file else [version.path]:
            try:
                state = os.lstat(path)
            except FileNotFoundError:
                continue
            except OSError as error:
                unread.update(dict.fromkeys(links, Fault.of(error, path).message))
                return
            owners[state.st_dev, state.st_ino] = version.path
    for name in links:
        try:
            reached = [owners.get(identity) for identity in led_through(os.path.join(root, name))]
        except EdlCkptError as error:
            unread[name] = error.message
            continue
        for path in dict.fromkeys(filter(None, reached)):
            yield path, name
