"""The files of a version that are no shards, carried to its copy whole."""

from __future__ import annotations

import os

from edl_ckpt.core.base.errors import CorruptError, NotFoundError
from edl_ckpt.core.base.memory import check_memory
from edl_ckpt.core.base.progress import Reporter
from edl_ckpt.core.base.words import escaped
from edl_ckpt.core.model.versions import Version
from edl_ckpt.core.state.lock_proof import prove_lock
from edl_ckpt.core.state.paths import FILES_DIR
from edl_ckpt.core.storage import Store, open_store
from edl_ckpt.core.storage.interface import lists_marks


def carry_other_files(version: Version, target: Store, *, reporter: Reporter) -> None:
    """Copy the other files in a directory of Determined, and compare them; the caller holds the lock of the target.

    A file that is there with the same bytes is left alone. Memory use: the largest file. Links, and files that cannot
    be read or whose names lead outside, are left out, with a warning.
    """
    source, top = open_store(version.location), version.uuid
    shards = {shard.path for shard in version.shards}
    is_disk = version.location.local_path is not None

    def inside(relative: str) -> bool:
        below = relative.startswith(f"{top}/") and not (is_disk and os.path.islink(source.path(relative)))
        return relative == top or below

    found = source.below(top, inside) if lists_marks(source) else source.entries(inside)
    others = [e for e in found if e.relative.startswith(f"{top}/") and e.path not in shards]
    for entry in others:
        is_dir = entry.is_dir or entry.relative.endswith("/")  # as consoles of S3 write directories
        if entry.fault or entry.linked or (not is_dir and {"", ".", ".."} & set(entry.relative.split("/"))):
            reporter.warn(f"{escaped(entry.path)}: a link, unreadable, or a name that leads outside: not copied")
        elif not is_dir:
            data, name = _content(source, entry.path, entry.size_bytes), f"{FILES_DIR}/{entry.relative}"
            if _present(target, name, len(data)) != data:
                prove_lock(target.location)
                target.write_small(name, data)
                if _present(target, name, len(data)) != data:
                    raise CorruptError("the written bytes differ from those that were read", path=target.path(name))


def _content(store: Store, path: str, size_bytes: int) -> bytes:
    check_memory(size_bytes, "a file of the checkpoint", path)
    with store.open(path) as reader:
        return reader.read(0, reader.size_bytes)


def _present(store: Store, relative: str, size_bytes: int) -> bytes | None:
    try:
        return _content(store, store.path(relative), size_bytes)
    except NotFoundError:
        return None
