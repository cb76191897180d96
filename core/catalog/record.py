"""What the file `checkpoint` of a location says of TensorFlow's versions there: which is the newest, and their order.

`@latest` is what `tf.train.latest_checkpoint` returns, or there is none, with a reason
(tensorflow/python/checkpoint/checkpoint_management.py, `latest_checkpoint`, `get_checkpoint_state`). A path that is
relative is one below the location. Of an absolute path that leads to nothing the last part counts: the location may
have been moved or copied, and there TensorFlow finds no checkpoint at all.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from edl_ckpt.core.base.errors import EdlCkptError
from edl_ckpt.core.base.words import escaped
from edl_ckpt.core.catalog.small_reads import read_small
from edl_ckpt.core.model.versions import Listing, Record, Version
from edl_ckpt.core.sources.bundle import format as bundle
from edl_ckpt.core.sources.bundle.state_file import NAME, STATE_BYTES, name_in, parse_state
from edl_ckpt.core.storage.interface import Entry, Store

_ABSOLUTE: Final = re.compile(r"/|[A-Za-z][A-Za-z0-9+.-]*://|[A-Za-z]:[\\/]|\\\\")


def with_record(store: Store, listing: Listing, top: Iterable[Entry]) -> Listing:
    """Return a listing in the order of the file `checkpoint` among the entries, with what it says; else as it is."""
    if not any(version.layout.system == bundle.system for version in listing.versions):
        return listing
    file = next((entry for entry in top if entry.name == NAME and not entry.is_dir and not entry.parent), None)
    if file is None:
        return listing
    try:
        state = parse_state(read_small(store, file, STATE_BYTES), file.path)
    except EdlCkptError as error:
        return replace(listing, record=Record(bundle.system, fault=f"{file.path}: {error.message}"))
    versions = listing.versions
    if all(version.layout.system == bundle.system for version in versions):
        places = {name: place for place, name in enumerate(state.names)}
        versions = tuple(sorted(versions, key=lambda version: places.get(version.name, -1)))
    return replace(listing, versions=versions, record=_record(store, file, state.newest, versions))


def _record(store: Store, file: Entry, newest: str, versions: Sequence[Version]) -> Record:
    """Return which version the newest path is, or why it is none of these."""
    if not newest:
        return Record(bundle.system, fault=f"{file.path}: it names no newest checkpoint (model_checkpoint_path)")
    inside = _inside(store, newest)
    if inside is None:
        return Record(bundle.system, fault=f"{file.path}: it names {escaped(newest)}, which is in another place")
    folder, _, last = inside.partition("/")
    for version in versions:
        is_it = version.name == folder and (not last or f"{last}.index" in version.sizes)
        if is_it and version.layout.system == bundle.system:
            return Record(bundle.system, version.path)
    why = f"{file.path}: it names {escaped(newest)}, which is not there: tf.train.latest_checkpoint finds nothing"
    return Record(bundle.system, fault=why)


def _inside(store: Store, newest: str) -> str | None:
    """Return a path below the location; None for one that leads to a checkpoint in another place."""
    if not _ABSOLUTE.match(newest):
        return os.path.normpath(newest)
    root = store.location.absolute.rstrip("/")
    if newest.startswith(f"{root}/"):
        return os.path.normpath(newest.removeprefix(f"{root}/"))
    index = f"{newest}.index"
    is_here = store.location.local_path is not None and os.path.exists(index)
    if is_here and os.path.realpath(index) != os.path.realpath(store.path(f"{name_in(newest)}.index")):
        return None
    return name_in(newest)
