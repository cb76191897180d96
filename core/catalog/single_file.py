"""A checkpoint in one file, which a reference names: a version of one shard.

A single-file checkpoint of 2019, or one merged shard, is a version under any name. Its number comes from the model in
the file. Nothing next to the file belongs to it: no seal, no metadata, no other version.
"""

from __future__ import annotations

import os
import stat

from edl_ckpt.core.base.errors import (
    CorruptError,
    IncompleteError,
    UnsupportedError,
    UsageError,
)
from edl_ckpt.core.model.versions import CheckpointRef, ShardFile, State, Version
from edl_ckpt.core.sources.recognised import recognised_file
from edl_ckpt.core.sources.registry import ALONE, directory_named, shard_named, version_named
from edl_ckpt.core.storage import Location, open_store
from edl_ckpt.core.storage.faults import storage_errors
from edl_ckpt.core.storage.user_files import check_input


def named_file(ref: CheckpointRef) -> Version | None:
    """Return the checkpoint in the file that a reference names; None when it names a location or one of its versions.

    At a URL, where it takes a request to know, only names with the ending of a checkpoint count as files. Raises
    UsageError for a version in a file, which has only one, and the errors of `file_version`.
    """
    place, path = ref.location, ref.location.local_path
    whole = f"{place}@{ref.version}"
    if path is not None and ref.version != "latest" and not os.path.lexists(path) and os.path.isfile(whole):
        place, path = place.with_url(whole), whole  # an '@' in its name
        ref = CheckpointRef(place, "latest")
    name = place.split()[1]
    named = version_named(name)
    if (named and named.is_file) or place.system not in {"", *ALONE.systems}:
        return None  # a version of the location that it lies in, or of no interest
    if not name.endswith(ALONE.endings) if path is None else not _is_file(path):
        return None
    if ref.version != "latest":
        raise UsageError(f"a file has one version, so '@{ref.version}' cannot follow it", path=place.url)
    return file_version(place)


def _is_file(path: str) -> bool:
    """Say whether a path is not that of a directory; one that cannot be looked at is left to the listing."""
    try:
        return not stat.S_ISDIR(os.stat(path).st_mode)
    except FileNotFoundError:
        return os.path.lexists(path)
    except OSError:
        return False


def file_version(location: Location) -> Version | None:
    """Return the checkpoint in a file as a complete version of one shard; None when there is no such file.

    Raises CorruptError for a file that does not begin as a checkpoint does, UnsupportedError where it begins as one of
    another format, IncompleteError for one shard of several, UsageError for a pipe, a device or a socket.
    """
    folder, name = location.split()
    path = location.local_path
    store = open_store(folder)
    if path is None:
        stat = store.stat(name)
        if stat is None:
            return None
        path = store.path(name)
        size = stat.size_bytes
        modified = stat.modified
    else:
        check_input(path)
        if not _is_file(path):
            return None
        with storage_errors(path):
            local = os.stat(path)
        size, modified = local.st_size, local.st_mtime
    _check_alone(folder, path)
    with store.open(path) as reader:
        try:
            number = ALONE.number_in_file(reader, name)
        except CorruptError as error:
            if words := recognised_file(reader):
                raise UnsupportedError(words, path=path, code="other-format") from error
            raise
    shard = ShardFile(0, 1, path, size, modified)
    return Version(folder, number, path, ALONE.alone, State.COMPLETE, 1, (shard,), modified=modified)


def _check_alone(folder: Location, path: str) -> None:
    """Raise IncompleteError for the file of one shard of several."""
    parts = shard_named(path.rpartition("/")[2])
    if parts is None or parts.ps_num == 1:
        return
    above, name = folder.split()
    number = directory_named(name)
    place = f"{above}@{number}" if number is not None else "the directory with all of them"
    raise IncompleteError(
        f"one shard of {parts.ps_num} is not a whole version", path=path, hint=f"name the version instead: {place}"
    )
