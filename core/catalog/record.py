"""Records of other systems at a location: which version is the newest by them, and the order of versions.

Of TensorFlow's versions the file `checkpoint` decides: `@latest` is what `tf.train.latest_checkpoint` returns, or there
is none, with a reason
(tensorflow/python/checkpoint/checkpoint_management.py, `latest_checkpoint`, `get_checkpoint_state`). A path that is
relative is one below the location. Of an absolute path that leads to nothing the last part counts: the location may
have been moved or copied, and there TensorFlow finds no checkpoint at all.

Of torch's steps and of safetensors, what the job's loader would take is the newest one, if it is good; otherwise the
numbers decide, and a warning says so. These are Megatron-LM's and verl's `latest_checkpointed_iteration.txt`
(megatron/training/checkpointing.py, `read_metadata`), DeepSpeed's `latest` (deepspeed/runtime/engine.py,
`load_checkpoint`), and Lightning's `hpc_ckpt_N.ckpt` and `last.ckpt`
(lightning/pytorch/trainer/connectors/checkpoint_connector.py, `_hpc_resume_path`; callbacks/model_checkpoint.py,
`_find_last_checkpoints`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from edl_ckpt.core.base.errors import EdlCkptError
from edl_ckpt.core.base.patterns import LatePattern
from edl_ckpt.core.base.words import escaped
from edl_ckpt.core.catalog.small_reads import read_small
from edl_ckpt.core.model.listings import Listing, Record
from edl_ckpt.core.model.versions import Version
from edl_ckpt.core.sources import bundle
from edl_ckpt.core.sources.bundle.state_file import NAME, STATE_BYTES, name_in, parse_state
from edl_ckpt.core.storage.interface import Entry, Store

_TAG: Final = "latest"
"""DeepSpeed's: the name of a directory."""
_ITERATION: Final = "latest_checkpointed_iteration.txt"
"""Megatron-LM's: the number of an iteration, or the word `release`."""
_NAMES_BYTES: Final = 4096
_LAST: Final = LatePattern(r"last(-v?[0-9]+)?\.ckpt", re.ASCII)
"""Lightning's names of the checkpoint that it saved last."""
_ENDED: Final = LatePattern(r"hpc_ckpt_([0-9]{1,18})\.ckpt", re.ASCII)
"""Lightning's names of the checkpoint of a job that a scheduler ended: it starts again from the highest number."""
_NUMBERED: Final = ("iter_{:07d}", "global_step_{}")
"""How Megatron-LM and verl name the directory of an iteration."""
_JOBS: Final = frozenset({"dcp", "safetensors", "torch", "torch-checkpointing"})
"""The systems of which other files than `checkpoint` say what is the newest."""
_ABSOLUTE: Final = LatePattern(r"/|[A-Za-z][A-Za-z0-9+.-]*://|[A-Za-z]:[\\/]|\\\\")


def with_record(store: Store, listing: Listing, entries: Iterable[Entry]) -> Listing:
    """Return a listing with what the files among the entries say of its versions; else as it is.

    Versions of TensorFlow are in the order of the file `checkpoint`.
    """
    systems = {version.layout.system for version in listing.versions}
    if not systems & {bundle.ABOUT.name, *_JOBS}:
        return listing
    top = {entry.name: entry for entry in entries if not entry.parent}
    if bundle.ABOUT.name not in systems or NAME not in top or top[NAME].is_dir:
        return replace(listing, record=_of_a_job(store, listing, top)) if systems & _JOBS else listing
    file = top[NAME]
    try:
        state = parse_state(read_small(store, file, STATE_BYTES), file.path)
    except EdlCkptError as error:
        return replace(listing, record=Record(bundle.ABOUT.name, fault=f"{file.path}: {error.message}"))
    versions = listing.versions
    if all(version.layout.system == bundle.ABOUT.name for version in versions):
        places = {name: place for place, name in enumerate(state.names)}
        versions = tuple(sorted(versions, key=lambda version: places.get(version.name, -1)))
    return replace(listing, versions=versions, record=_record(store, file, state.newest, versions))


def _record(store: Store, file: Entry, newest: str, versions: Sequence[Version]) -> Record:
    """Return which version the newest path is, or why it is none of these."""
    if not newest:
        return Record(bundle.ABOUT.name, fault=f"{file.path}: it names no newest checkpoint (model_checkpoint_path)")
    inside = _inside(store, newest)
    if inside is None:
        return Record(bundle.ABOUT.name, fault=f"{file.path}: it names {escaped(newest)}, which is in another place")
    folder, _, last = inside.partition("/")
    for version in versions:
        is_it = version.name == folder and (not last or f"{last}.index" in version.sizes)
        if is_it and version.layout.system == bundle.ABOUT.name:
            return Record(bundle.ABOUT.name, version.path)
    why = f"{file.path}: it names {escaped(newest)}, which is not there: tf.train.latest_checkpoint finds nothing"
    return Record(bundle.ABOUT.name, fault=why)


def _of_a_job(store: Store, listing: Listing, top: Mapping[str, Entry]) -> Record | None:
    """Return what a job's own file, or the name of a directory, says of the newest version; None where none does."""
    versions = [version for version in listing.versions if version.layout.system in _JOBS]
    for name in (_ITERATION, _TAG):
        if name in top and not top[name].is_dir:
            return _named_by(store, top[name], versions)
    ended = [name for name in top if _ENDED.fullmatch(name)]
    last = [name for name in top if _LAST.fullmatch(name)]
    names = [max(ended, key=lambda name: int(_ENDED.sub(r"\1", name)))] if ended else last
    found = {name: version for name in names if (version := _led_to(store, name, versions)) is not None}
    if not found:
        return None
    name = max(found, key=lambda name: found[name].modified)
    return Record(found[name].layout.system, found[name].path, decides=False, name=name)


def _named_by(store: Store, file: Entry, versions: Sequence[Version]) -> Record | None:
    """Return which version a job's file names, or that it names none of these; None for one that names nothing."""
    try:
        text = read_small(store, file, _NAMES_BYTES).decode("utf-8").strip()
    except (EdlCkptError, UnicodeDecodeError) as error:
        why = error.message if isinstance(error, EdlCkptError) else "it is no text"
        return Record("", fault=f"{file.path}: cannot be read: {why}", decides=False, name=file.name)
    names = [text] if text and "/" not in text and "\0" not in text else []
    if file.name == _ITERATION and text.isascii() and text.isdigit() and len(text) < 20:
        names = [form.format(int(text)) for form in _NUMBERED]
    found = next((led for name in names if (led := _led_to(store, name, versions)) is not None), None)
    if found is not None:
        return Record(found.layout.system, found.path, decides=False, name=file.name)
    if not names or "\n" in text:
        return None
    fault = f"{file.path}: it names {escaped(text)}, and no version here is that one"
    return Record("", fault=fault, decides=False, name=file.name)


def _led_to(store: Store, name: str, versions: Sequence[Version]) -> Version | None:
    """Return the version of a location that an entry of it is, or is a link to; None for any other entry."""
    is_link = store.location.local_path is not None and os.path.islink(store.path(name))
    real = os.path.realpath(store.path(name)) if is_link else ""
    for version in versions:
        if os.path.realpath(version.path) == real if is_link and not version.linked else version.name == name:
            return version
    return None


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
