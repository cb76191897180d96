"""A file of torch.save, opened: what its pickle contains, and which bytes of the file each storage is.

Since torch 1.6 it is a zip. Before, it was pickles in a row: a magic number, a version, facts of the machine, the
object, and the keys of the storages; then for each key the number of its elements, and the elements. Such a file has no
checksums. The tar files of torch 0.1 are not read.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from edl_ckpt.core.base.errors import CorruptError, EdlCkptError, UnsupportedError
from edl_ckpt.core.base.words import size
from edl_ckpt.core.model.dtypes import TENSOR_DTYPES
from edl_ckpt.core.sources.hostile import hostile_bytes
from edl_ckpt.core.sources.recognised import TORCHSCRIPT
from edl_ckpt.core.sources.torch.kinds import PICKLE, check_kind, is_legacy
from edl_ckpt.core.sources.torch.machine import EndsEarlyError, Items, Value, is_scalar, read
from edl_ckpt.core.sources.torch.sharding import Share
from edl_ckpt.core.sources.torch.tensors import ItemValues, StoredTensor, logical_bytes
from edl_ckpt.core.sources.torch.tree import FoundTensor, Tree, Unread, contents
from edl_ckpt.core.sources.torch.zips import CUT, Place, TorchZip, crc_behind, find_member, local_header
from edl_ckpt.core.storage.interface import RangeReader

MOST_PICKLE: Final = 256 << 20
"""A pickle of more bytes is not read."""
_FIRST_BYTES: Final = 1 << 20
_FEW_BYTES: Final = 64
_SHORT: Final = 64
_MOST_EXPANDED: Final = 64 << 20
"""An expanded tensor, whose elements share bytes, may have so many bytes, or as many as its file."""
_TOO_LARGE: Final = "its pickle has {}: one of more than {} is not read"


class FileTensor(NamedTuple):
    """A tensor of a file: the names in the path to it, its values by offsets in the file, and its part of a whole."""

    path: tuple[str, ...]
    values: ItemValues
    share: Share | None


class FileValue(NamedTuple):
    """A value that is no tensor: bytes [start, end) of the file."""

    path: tuple[str, ...]
    start: int
    end: int
    scalars: int | None
    content: bytes
    """The bytes, of many their digest: what tells whether two files have the same value."""


class FileSum(NamedTuple):
    """A member of the file with a checksum, and the path of the first tensor in it; () for the pickle."""

    path: tuple[str, ...]
    place: Place


@dataclass(frozen=True, slots=True)
class FileContents:
    """What a file of torch.save contains."""

    tensors: Sequence[FileTensor]
    values: Sequence[FileValue]
    unread: Sequence[Unread]
    sums: Sequence[FileSum]
    classes: Mapping[str, tuple[str, ...]]


def open_file(reader: RangeReader) -> FileContents:
    """Return what a file contains; its values are not read.

    Raises CorruptError for damage, UnsupportedError for other files and for kinds that are not read.
    """
    with hostile_bytes(reader.path):
        return _opened(reader)


def _opened(reader: RangeReader) -> FileContents:
    try:
        try:
            check_kind(reader)
        except CorruptError as error:
            if error.code != CUT:
                raise
            return _open_cut(reader, error)
        if is_legacy(reader.read(0, min(reader.size_bytes, _FEW_BYTES))):
            return _open_legacy(reader)
        return _open_zip(reader)
    except EdlCkptError as error:
        error.path = error.path or reader.path
        raise


def _open_zip(reader: RangeReader) -> FileContents:
    archive = TorchZip(reader)
    if b"constants.pkl" in archive:
        raise UnsupportedError(TORCHSCRIPT)
    if b"byteorder" in archive and archive.content(b"byteorder", 64)[0] != b"little":
        raise UnsupportedError("its values are big-endian")
    pickled, begin = archive.content(PICKLE, MOST_PICKLE)
    tree = _tree_of(pickled, begin)
    wanted = [b"data/" + tensor.tensor.key.encode(errors="replace") for tensor in tree.tensors]
    places = archive.places([name for name in dict.fromkeys(wanted) if name in archive])
    tensors: list[FileTensor] = []
    sums = [FileSum((), Place(begin, begin + len(pickled), archive.places([PICKLE])[PICKLE].crc))]
    for name, found in zip(wanted, tree.tensors, strict=True):
        place = places.get(name)
        if place is None:
            error = CorruptError(f"its zip has no {name.decode(errors='replace')}")
            tree.unread.append(Unread(found.path, error, begin))
            continue
        _add(tensors, tree, found, place, reader)
    first = {name: tensor.path for name, tensor in reversed([*zip(wanted, tree.tensors, strict=True)])}
    sums += [FileSum(first[name], place) for name, place in places.items()]
    return _contents(tree, tensors, sums, begin, pickled)


def is_zip(reader: RangeReader) -> bool:
    """Say whether a file of torch.save is a zip, and none from before torch 1.6."""
    return not is_legacy(reader.read(0, min(reader.size_bytes, _FEW_BYTES)))


def note_in(reader: RangeReader, name: str, most: int) -> bytes:
    """Return a small member of a zip by its name, such as the notes of an export; b"" where there is none."""
    head = reader.read(0, min(reader.size_bytes, _FEW_BYTES))
    archive = None if is_legacy(head) else TorchZip(reader)
    if archive is None or name.encode() not in archive:
        return b""
    return archive.content(name.encode(), most)[0]


def _tree_of(pickled: bytes, begin: int) -> Tree:
    """Return what a pickle contains that begins at a byte of a file; the offsets of errors are those of the file."""
    try:
        root, start, end = read(pickled)
        del end
        return contents(root, start, pickled)
    except (CorruptError, UnsupportedError) as error:
        error.offset = begin + (error.offset or 0)
        raise


def _contents(
    tree: Tree, tensors: Sequence[FileTensor], sums: Sequence[FileSum], begin: int, data: bytes
) -> FileContents:
    """Return the contents of a file whose pickle begins at a byte."""
    values = [
        FileValue(one.path, begin + one.start, begin + one.end, one.scalars, digest_of(data[one.start : one.end]))
        for one in tree.values
    ]
    unread = [one._replace(start=begin + one.start) for one in tree.unread]
    return FileContents(tensors, values, unread, sums, tree.classes)


def digest_of(content: bytes) -> bytes:
    """Return the bytes of a value, of many a digest of them."""
    return content if len(content) <= _SHORT else hashlib.blake2b(content, digest_size=16).digest()


def _add(tensors: list[FileTensor], tree: Tree, found: FoundTensor, place: Place, reader: RangeReader) -> None:
    """Add a tensor whose storage lies at a place, or what is wrong with it."""
    tensor, length = found.tensor, place.end - place.start
    values = tensor.values
    error: CorruptError | UnsupportedError | None = None
    if tensor.stored > length or tensor.needed > length:
        message = f"its shape {list(values.shape)} does not fit into {length} bytes"
        error = CorruptError(message, code="values-outside-content", offset=place.start)
    elif logical_bytes(values) > max(_MOST_EXPANDED, reader.size_bytes):
        message = f"its elements share bytes: written out it has {size(logical_bytes(values))}"
        error = UnsupportedError(message, offset=place.start)
    if error is not None:
        tree.unread.append(Unread(found.path, error, place.start))
        return
    placed = replace(values, first=place.start + values.first, start=place.start, end=place.end, crc=place.crc)
    tensors.append(FileTensor(found.path, placed, found.share))


def _open_cut(reader: RangeReader, error: CorruptError) -> FileContents:
    """Return what is left of a zip whose end is gone: the pickle is at its begin, and says how long each storage is.

    A storage is where the header of its own name is, right behind the one before. Raises the error of the missing end
    where the pickle is not whole.
    """
    header = local_header(reader.read(0, min(reader.size_bytes, _FIRST_BYTES)), 0)
    if header is None or not header.name.endswith(b"/" + PICKLE):
        raise error
    row = _Row(reader, header.end)
    try:
        root, start, data = row.next()
        tree = contents(root, start, data)
    except EndsEarlyError:
        raise error from None
    folder = header.name[: -len(PICKLE)]
    stored: dict[str, int] = {}
    for found in tree.tensors:
        stored.setdefault(found.tensor.key, found.tensor.stored)
    places: dict[str, Place | None] = {}
    at: int | None = row.at
    for key in sorted(stored, key=lambda key: (len(key), key)):
        name = folder + b"data/" + key.encode(errors="replace")
        begin = at if at is None else find_member(reader, at, name)
        places[key] = None if begin is None else Place(begin, begin + stored[key], 0)
        at = None if begin is None else begin + stored[key]
    tensors: list[FileTensor] = []
    sums: list[FileSum] = []
    first: dict[str, tuple[str, ...]] = {}
    for found in tree.tensors:
        place = places[found.tensor.key]
        if place is None or place.end > reader.size_bytes:
            needs = "its values are behind it" if place is None else f"its values go on to byte {place.end:,}"
            message = f"the file ends at byte {reader.size_bytes:,}; {needs}"
            lost = CorruptError(message, code=CUT, offset=reader.size_bytes)
            tree.unread.append(Unread(found.path, lost, reader.size_bytes))
            continue
        first.setdefault(found.tensor.key, found.path)
        _add(tensors, tree, found, place, reader)
    for key, path in first.items():
        place = places[key]
        crc = None if place is None else crc_behind(reader, place.end)
        if place is not None and crc is not None:
            sums.append(FileSum(path, place._replace(crc=crc)))
    return _contents(tree, tensors, sums, 0, data)


class _Row:
    """Pickles in a row from a byte of a file on, and what follows them."""

    def __init__(self, reader: RangeReader, at: int = 0) -> None:
        self._reader = reader
        self._data = reader.read(0, min(reader.size_bytes, _FIRST_BYTES))
        self.at = at

    def next(self) -> tuple[Value, int, bytes]:
        """Return the next object, its place, and the bytes that have it from their first one on."""
        while True:
            try:
                value, start, self.at = read(self._data, self.at)
            except EndsEarlyError:
                have, most = len(self._data), self._reader.size_bytes
                if have >= most:
                    raise
                if have >= MOST_PICKLE:
                    message = _TOO_LARGE.format(size(have), size(MOST_PICKLE))
                    raise UnsupportedError(message) from None
                self._data += self._reader.read(have, min(have, most - have))
            else:
                return value, start, self._data


def _open_legacy(reader: RangeReader) -> FileContents:
    row = _Row(reader)
    for _ in range(3):  # the magic number, the version of the format, facts of the machine
        facts, _, _ = row.next()
    if type(facts) is Items and _says_big_endian(facts):
        raise UnsupportedError("its values are big-endian")
    root, start, data = row.next()
    tree = contents(root, start, data)
    keys, _, _ = row.next()
    if type(keys) is not Items or not all(map(is_scalar, keys.values)):
        raise CorruptError("its pickles are not followed by the keys of its storages", offset=row.at)
    stored: dict[str, StoredTensor] = {}
    for found in tree.tensors:
        stored.setdefault(found.tensor.key, found.tensor)
    places = _places_in_row(reader, [str(key) for key in keys.values], stored, row.at)
    tensors: list[FileTensor] = []
    for found in tree.tensors:
        place = places.get(found.tensor.key)
        if place is None:
            error = CorruptError("the file has no storage for it", code="truncated", offset=reader.size_bytes)
            tree.unread.append(Unread(found.path, error, start))
        else:
            _add(tensors, tree, found, place, reader)
    return _contents(tree, tensors, [], 0, data)


def _says_big_endian(facts: Items) -> bool:
    return any(key == "little_endian" and value is False for key, _, value, _ in facts.pairs)


def _places_in_row(
    reader: RangeReader, keys: Sequence[str], stored: Mapping[str, StoredTensor], at: int
) -> Mapping[str, Place]:
    """Return where storages lie that follow each other, each behind its number of elements."""
    places: dict[str, Place] = {}
    for key in keys:
        if at + 8 > reader.size_bytes:
            message = f"the file ends at byte {reader.size_bytes:,}, before the storage {key!r:.40}"
            raise CorruptError(message, code="truncated", offset=reader.size_bytes)
        tensor = stored.get(key)
        count = int.from_bytes(reader.read(at, 8), "little")
        if tensor is None:
            raise UnsupportedError("it has a storage that no tensor which is read has: the others cannot be found")
        itemsize = tensor.stored // count if count and tensor.stored % count == 0 else 0
        if count and itemsize not in {1, TENSOR_DTYPES[tensor.values.dtype].itemsize}:
            raise CorruptError(f"the storage {key!r:.40} has another size than its pickle says", offset=at)
        begin, end = at + 8, at + 8 + tensor.stored
        if end > reader.size_bytes:
            message = f"the file ends at byte {reader.size_bytes:,}; its values go on to byte {end:,}"
            raise CorruptError(message, code="truncated", offset=at)
        places[key] = Place(begin, end, 0)
        at = end
    return places
