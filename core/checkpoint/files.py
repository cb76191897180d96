"""A checkpoint in one file under any name: a single-file checkpoint of 2019, or one merged shard, as a version.

The number comes from the model in the file, since the name may be anything. Nothing beside the file belongs to it: no
seal, no metadata, no other version.
"""

from __future__ import annotations

import os
import stat

from edl_ckpt.core.errors import CorruptError, IncompleteError, NotFoundError, RefusedError, UsageError
from edl_ckpt.core.format.model import CheckpointRef, ShardFile, State, Version
from edl_ckpt.core.format.names import FREE_FILE, number_in_name, parse_shard_file, parse_single_file, parse_version_dir
from edl_ckpt.core.storage import LocalStore, Location, open_store
from edl_ckpt.core.storage.faults import storage_errors
from edl_ckpt.core.storage.interface import RangeReader
from edl_ckpt.core.storage.regular import check_input
from edl_ckpt.core.words import command


def named_file(ref: CheckpointRef) -> Version | None:
    """Return the checkpoint in the file that a reference names; None when it names a location or one of its versions.

    At a URL, where it takes a request to know, only names with the ending of a checkpoint count as files. Raises
    UsageError for a version in a file, which has only one, and the errors of `file_version`.
    """
    place, path = ref.location, ref.location.local_path
    whole = f"{place}@{ref.version}"
    if path is not None and ref.version != "latest" and not os.path.lexists(path) and os.path.isfile(whole):
        place, path, ref = Location(whole), whole, CheckpointRef(Location(whole), "latest")  # an '@' in its name
    name = place.split()[1]
    if parse_single_file(name) is not None:
        return None  # a version of the location that it lies in
    if not name.endswith((".ckpt", ".chkpt")) if path is None else not _is_file(path):
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


def check_is_no_file(location: Location) -> None:
    """Raise NotFoundError for a file where a location is needed; a URL costs a request, and is not looked at."""
    path = location.local_path
    if path is not None and os.path.isfile(path):
        raise NotFoundError(
            "a file, and not the directory of a location",
            path=path,
            hint="if it is a checkpoint, make a version of it: "
            + command("import", str(path), "LOCATION@VERSION", "--ps", "N"),
        )


def check_in_location(version: Version) -> None:
    """Raise RefusedError for a checkpoint in a file by itself, which has no location that could be changed."""
    if version.layout == FREE_FILE:
        raise RefusedError(
            "a file by itself is in no location: it has no metrics, tags, note or seal, and is never replaced",
            path=version.path,
            hint="make a version of it: " + command("import", version.path, f"LOCATION@{version.version}", "--ps", "N"),
        )


def file_version(location: Location) -> Version | None:
    """Return the checkpoint in a file as a complete version of one shard; None when there is no such file.

    Raises CorruptError for a file that does not begin as a checkpoint does, IncompleteError for one shard of several,
    UsageError for a pipe, a device or a socket.
    """
    folder, name = location.split()
    path = location.local_path
    store = open_store(folder)
    if path is None:
        assert not isinstance(store, LocalStore)  # noqa: S101 - for the type: it is not on the local disk
        stat = store.stat(name)
        if stat is None:
            return None
        path, size = store.path(name), stat.size_bytes
    else:
        check_input(path)
        if not _is_file(path):
            return None
        with storage_errors(path):
            size = os.stat(path).st_size
    _check_alone(folder, path)
    with store.open(path) as reader:
        number = _number(reader, name)
    modified = store.modified(name)
    shard = ShardFile(0, 1, path, size, modified)
    return Version(folder, number, path, FREE_FILE, State.COMPLETE, 1, (shard,), modified=modified)


def _check_alone(folder: Location, path: str) -> None:
    """Raise IncompleteError for the file of one shard of several."""
    parts = parse_shard_file(path.rpartition("/")[2])
    if parts is None or parts[1] == 1:
        return
    above, name = folder.split()
    parsed = parse_version_dir(name)
    place = f"{above}@{parsed[1]}" if parsed else "the directory with all of them"
    raise IncompleteError(
        f"one shard of {parts[1]} is not a whole version", path=path, hint=f"name the version instead: {place}"
    )


def _number(reader: RangeReader, name: str) -> int:
    """Return the version in a model, read from its first fields; without any, the number at the end of the name."""
    from edl_ckpt.core.format.wire import BYTES, VARINT, Cursor, signed32  # numpy: most references name no file

    if not reader.size_bytes:
        raise CorruptError("the file is empty (0 bytes)", code="empty-file", path=reader.path, offset=0)
    cursor = Cursor(reader)
    at, known = 0, False
    try:
        while at < cursor.size_bytes:
            found = cursor.field(at, cursor.size_bytes)
            if found.number == 1 and found.wire_type == VARINT:
                return signed32(found.value)
            if found.number not in {2, 3, 4, 5} or found.wire_type != BYTES:  # the fields of all generations
                break  # a field that no reader knows, or damage: whoever reads the rest says what it is
            at, known = found.end, True
    except CorruptError:
        if not known:
            raise _no_checkpoint(reader) from None
    if not known:
        raise _no_checkpoint(reader)
    return number_in_name(name) or 0


def _no_checkpoint(reader: RangeReader) -> CorruptError:
    return CorruptError(
        "not a checkpoint: its first bytes are no field of a model",
        path=reader.path,
        offset=0,
        hint="arrays of other tools become a version with: edl-ckpt import FILE LOCATION@VERSION --ps N",
    )
