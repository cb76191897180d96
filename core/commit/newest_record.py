"""TensorFlow's file `checkpoint` at the root of a location that gets bundles from us: its `@latest`.

Without it `tf.train.latest_checkpoint` finds nothing there. Its first line is a comment that says whose it is. A file
without this line is of a job, which alone knows its order: it is never touched. None is written beside versions that
have no seal either: of a job's versions, such a file would say that their saves have ended.
"""

from __future__ import annotations

from typing import Final

from edl_ckpt.core.base.errors import EdlCkptError
from edl_ckpt.core.base.progress import Reporter
from edl_ckpt.core.catalog.listing import list_versions
from edl_ckpt.core.model.versions import State, Version
from edl_ckpt.core.sources import bundle
from edl_ckpt.core.sources.bundle.state_file import NAME, state_bytes
from edl_ckpt.core.state.lock_proof import prove_lock
from edl_ckpt.core.storage.interface import Store

MARK: Final = b"# edl-ckpt wrote this file, for tf.train.latest_checkpoint\n"
_INDEX: Final = ".index"


def note_newest(store: Store, *, newest: str = "", reporter: Reporter) -> None:
    """Write which version of TensorFlow is the newest at a location, the lock of which this thread holds.

    It is the one of the name `newest`, if that is there, else the one of the highest number. What cannot be written is
    a warning: the versions are in place.
    """
    try:
        data = _noted(store, newest)
        if data is not None:
            prove_lock(store.location)
            store.write_small(NAME, data)
    except EdlCkptError as error:
        reporter.warn(f"tf.train.latest_checkpoint does not find the new version: {error.message} ({NAME})")


def _noted(store: Store, newest: str) -> bytes | None:
    """Return the content of the file; None where there is nothing to write."""
    old = store.read_small(NAME)
    if old is not None and not old.startswith(MARK):
        return None
    versions = [v for v in list_versions(store.location).versions if v.layout.system == bundle.ABOUT.name]
    if any(version.state is not State.COMPLETE or not version.fingerprint for version in versions):
        return None
    prefixes = {version.name: prefix for version in sorted(versions, key=_order) if (prefix := _prefix(version))}
    if not prefixes:
        return None
    last = prefixes.pop(newest, "") or prefixes.popitem()[1]
    data = MARK + state_bytes(last, [*prefixes.values(), last])
    return None if data == old else data


def _order(version: Version) -> tuple[int, str]:
    """Return what versions are sorted by: those without a number come first."""
    return -1 if version.number is None else version.number, version.name


def _prefix(version: Version) -> str:
    """Return the path of a version's bundle below its location.

    It is '' for a SavedModel, for several bundles, and for a name that no text has.
    """
    if not version.name.isprintable():
        return ""
    if version.is_file:
        return version.name
    indexes = [name for name in version.sizes if name.endswith(_INDEX)]
    if len(indexes) != 1 or "/" in indexes[0]:
        return ""
    return f"{version.name}/{indexes[0].removesuffix(_INDEX)}"
