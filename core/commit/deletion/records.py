"""What is in the trash: each deletion, with the versions that its record names and their metadata.

edl-ckpt makes only directories in the trash; other entries are ignored.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from typing import Any, Final

from edl_ckpt.core.base.errors import EdlCkptError, NotFoundError
from edl_ckpt.core.base.words import neighbours
from edl_ckpt.core.model.versions import Version
from edl_ckpt.core.sources.registry import number_named
from edl_ckpt.core.state.document import MAX_BYTES, parse_document
from edl_ckpt.core.state.metadata import unread_fault
from edl_ckpt.core.state.paths import TRASH_DIR, metadata_owner, seal_file, version_file
from edl_ckpt.core.storage import LocalStore
from edl_ckpt.core.storage.beneath import Directory
from edl_ckpt.core.storage.files import NEW
from edl_ckpt.core.storage.local import is_gone

RECORD_SCHEMA: Final = "edl-ckpt/trash/1"
RECORD: Final = "record.json"
META: Final = "meta"
"""The directory of a deletion that has the metadata of its versions."""
DROP: Final = "drop-"
"""The name of a deletion that is being removed begins so."""
_LAST_MOMENT: Final = 253_402_300_800
"""The end of the year 9999: no later time can be printed."""
_MAX_DEPTH: Final = 64


def kept_name(version: Version) -> str:
    """Return the name of a version in the trash: loose files are in a directory with the name of their index."""
    name = os.path.basename(version.path)
    return f"{name}.index" if is_several(version) else name


def is_several(version: Version) -> bool:
    """Say whether a version is several files in a location, and no directory or file alone."""
    return version.is_file and any(file.path != version.path for file in version.files)


@dataclass(frozen=True, slots=True)
class TrashEntry:
    """One deletion in the trash: its directory, its time in seconds since the epoch, the names in it.

    `recorded` has those that its record names as deleted versions, `metadata` the files of their metadata that are
    still there.
    """

    path: str
    time: float
    keep: bool
    names: tuple[str, ...]
    size_bytes: int
    recorded: tuple[str, ...] = ()
    metadata: tuple[str, ...] = ()
    fault: EdlCkptError | None = None
    """Why its record, which is there, cannot be read now; then it stays, and its time is that of the directory."""
    replaced: int | None = None
    """The number of its one version if another of that name took its place, None for deletions."""

    @property
    def numbers(self) -> set[int]:
        """Return the numbers of the versions that can be put back, wholly or, after a kill, their metadata alone."""
        owners = {metadata_owner(name) for name in self.metadata}
        return {number for number in owners | set(map(number_named, self.recorded)) if isinstance(number, int)}

    def part(self, number: int) -> TrashEntry:
        """Return the entry with one version only."""
        recorded = tuple(name for name in self.recorded if number_named(name) == number)
        metadata = tuple(name for name in self.metadata if metadata_owner(name) == number)
        return replace(self, recorded=recorded, metadata=metadata)


def metadata_names(number: int) -> tuple[str, str]:
    """Return the names of a version's files in a directory of metadata: its metadata, and its seal."""
    return os.path.basename(version_file(number)), os.path.basename(seal_file(number))


def list_trash(path: str) -> list[TrashEntry]:
    """Return the deletions in the trash of a location on a disk, the newest first.

    What is no directory there is none of ours, and is left out.
    """
    if is_gone(path):
        return []
    with Directory.open(path) as root, root.find(TRASH_DIR) as top:
        names = (name for name in top.names() if not name.startswith(DROP) and top.is_directory(name))
        entries = [_read_entry(top, name) for name in names]
    return sorted(entries, key=lambda entry: (entry.time, entry.path), reverse=True)


def _read_entry(top: Directory, name: str) -> TrashEntry:
    with top.enter(name) as inside:
        record, damage = read_record(inside)
        present = [each for each in inside.names() if not is_record(each)]
        recorded = record.get("time")
        versions = tuple(each for each in present if is_recorded(each, record))
        is_replaced = record.get("replaced") is True and len(versions) == 1 and inside.is_directory(versions[0])
        modified = os.fstat(inside.fd).st_mtime
        return TrashEntry(
            os.path.join(top.path, name),
            float(recorded) if isinstance(recorded, int | float) and 0 <= recorded < _LAST_MOMENT else modified,
            bool(record.get("keep", True)),  # `reshard` writes no record of files that are not its own
            tuple(present),
            _tree_bytes(inside.fd),
            versions,
            recorded_metadata(inside, record),
            damage if damage is not None and unread_fault(damage, name) else None,
            number_named(versions[0]) if is_replaced else None,
        )


def write_record(
    trash: Directory,
    numbers: Sequence[int],
    names: Sequence[str],
    *,
    keep: bool = True,
    replaced: bool = False,
    files: Mapping[str, Mapping[str, str]] | None = None,
) -> None:
    """Write the record of a deletion of these versions, or of one that was replaced; `files` are their loose files."""
    about = {"keep": keep, "replaced": replaced, "versions": list(numbers), "names": list(names), "files": files or {}}
    trash.replace(RECORD, json.dumps({"schema": RECORD_SCHEMA, "time": time.time(), **about}).encode())


def recorded_metadata(inside: Directory, record: dict[str, Any]) -> tuple[str, ...]:
    """Return the files in a deletion with the metadata of the versions that its record names."""
    numbers = record.get("versions")
    if not isinstance(numbers, list) or not inside.is_directory(META):
        return ()
    names = {name for number in numbers if isinstance(number, int) for name in metadata_names(number)}
    with inside.enter(META) as meta:
        return tuple(name for name in meta.names() if name in names and meta.is_file(name))


def is_recorded(name: str, record: dict[str, Any]) -> bool:
    """Say whether a record names this version; older records have the numbers only."""
    number, names = number_named(name), record.get("names")
    listed = isinstance(record.get("versions"), list) and number is not None and number in record["versions"]
    return listed and (names is None or (isinstance(names, list) and name in names))


def last_deletion(store: LocalStore, number: int | None = None) -> TrashEntry:
    """Return what `put_back` would put back: the last deletion, or of the last one that has a version only that.

    Raises NotFoundError when there is none, and the error of reading a newer record: an older deletion is not the last.
    """
    known: set[int] = set()
    for entry in list_trash(store.root):
        if entry.fault is not None:
            raise entry.fault
        if number is None and entry.numbers:
            return entry
        if number in entry.numbers:
            return entry.part(number)
        known |= entry.numbers
    if number is None or not known:
        hint = "undo restores only versions that `prune --trash` deleted or `reshard --keep-old` replaced"
        raise NotFoundError("nothing to undo", path=store.location.url, hint=hint)
    near = ", ".join(map(str, neighbours(number, known, 8)))
    raise NotFoundError(f"no version {number} in the trash", path=store.location.url, hint=f"versions there: {near}")


def damaged_records(top: Directory) -> Iterator[tuple[str, str]]:
    """Yield the entries of an open trash whose records are damaged, and why; not those that cannot be read now."""
    for name in top.names():
        if not name.startswith(DROP) and top.is_directory(name):
            with top.enter(name) as inside:
                damage = read_record(inside)[1]
            if damage is not None and not unread_fault(damage, name):
                yield name, damage.message


def is_record(name: str) -> bool:
    """Say whether a name in an entry is not that of a version: the record, or a record that was being written."""
    return name in {RECORD, META} or (name.startswith(f".{RECORD}.") and name.endswith(NEW))


def has_content(inside: Directory) -> bool:
    """Say whether a deletion has a version, or metadata of one."""
    if not all(map(is_record, inside.names())):
        return True
    with inside.find(META) if inside.is_directory(META) else nullcontext() as meta:
        return meta is not None and bool(meta.names())


def read_record(inside: Directory) -> tuple[dict[str, Any], EdlCkptError | None]:
    """Return the record of an entry, {} when it has none, and why it cannot be read or used."""
    try:
        data = inside.read(RECORD, MAX_BYTES)
        return (parse_document(data, inside.join(RECORD)) if data else {}), None
    except EdlCkptError as error:
        return {}, error


def _tree_bytes(directory: int) -> int:
    """Return the bytes of all files in an open directory; a file that is removed meanwhile counts as nothing."""
    total = 0
    with suppress(OSError):
        for top, _, names, fd in os.fwalk(dir_fd=directory, topdown=True):
            if top.count("/") > _MAX_DEPTH:
                break
            for name in names:
                with suppress(OSError):
                    total += os.stat(name, dir_fd=fd, follow_symlinks=False).st_size
    return total
