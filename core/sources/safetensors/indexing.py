"""The tensors of safetensors files as variables and tables.

`NAME.ids` and `NAME.vectors`, with as many rows, are the table NAME, as edl-ckpt exports tables. They may be in two
files of a set. An export by several machines cuts tables into parts: the index of the set says which tensors are the
parts of which table, and each file has the rows of its parts. A tensor whose elements are not whole
bytes, or of a dtype that is unknown here, is an item.

The header of a safetensors file, and nothing behind it: which tensors there are, and which bytes are theirs.

Source: the format's page at huggingface/safetensors. The first 8 bytes are the size of the header, little-endian. The
header is a JSON object: each tensor's dtype, shape and bytes, counted from the end of the header. The tensors tile the
rest of the file. No header is trusted: nothing is read or allocated for a number in it that the file does not bear out.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeGuard

from edl_ckpt.core.base.errors import CorruptError, EdlCkptError, NotFoundError, UnsupportedError
from edl_ckpt.core.base.json_objects import parse_object
from edl_ckpt.core.base.parallel import run_parallel
from edl_ckpt.core.base.words import abridged, counted, ends_early
from edl_ckpt.core.model.dtypes import DTYPES, TENSOR_DTYPES, DType, item_type
from edl_ckpt.core.model.layouts import Placement
from edl_ckpt.core.model.tables import DenseEntry, Encoding, Extent, FileNote, IdRun, Problem, TableEntry, TableInfo
from edl_ckpt.core.sources.dcp.boxes import BoxValues, SavedTensor
from edl_ckpt.core.sources.dcp.indexing import add_variable
from edl_ckpt.core.sources.dcp.metadata import IndexedTensor, Item, SavedBox
from edl_ckpt.core.sources.dcp.tiling import untiled
from edl_ckpt.core.sources.recognised import recognised_file
from edl_ckpt.core.sources.safetensors.parts import INFO, Part, PartName, beside_wholes, hull, offsets_in, part_named
from edl_ckpt.core.sources.safetensors.sets import (
    ENDING,
    INDEX,
    listing,
    read_by_loaders,
    set_of,
    weight_map,
    without_torn_sets,
)
from edl_ckpt.core.sources.steps.content import Content, Found
from edl_ckpt.core.sources.steps.interface import read_head
from edl_ckpt.core.sources.torch.tensors import ItemValues
from edl_ckpt.core.storage.interface import RangeReader

MAX_HEADER_BYTES: Final = 100_000_000
"""As the safetensors library has it."""
TAGS: Final = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint64": "U64",
    "uint32": "U32",
    "uint16": "U16",
    "uint8": "U8",
    "bool": "BOOL",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e4m3fnuz": "F8_E4M3FNUZ",
    "float8_e5m2": "F8_E5M2",
    "float8_e5m2fnuz": "F8_E5M2FNUZ",
    "float8_e8m0fnu": "F8_E8M0",
    "float4_e2m1fn_x2": "F4",
    "complex64": "C64",
}
"""The name that the format has for each of our dtypes."""
_DTYPES: Final = {tag: TENSOR_DTYPES[name] for name, tag in TAGS.items()}
_PAIRS: Final = "F4"
"""Two elements are in a byte; PyTorch counts the bytes, and the header the elements."""
_BITS: Final = {tag: 8 * dtype.itemsize for tag, dtype in _DTYPES.items()} | {_PAIRS: 4, "F6_E2M3": 6, "F6_E3M2": 6}
_TOTAL_SIZE: Final = "total_size"
_MOST: Final = 1 << 62
"""No dimension and no offset is as large."""


@dataclass(frozen=True, slots=True)
class FileTensor:
    """A tensor of a file: its bytes are [start, end) of the file, C order, little-endian."""

    name: str
    tag: str
    """The format's name for its dtype, such as 'F32'."""
    shape: tuple[int, ...]
    start: int
    end: int

    @property
    def dtype(self) -> DType:
        """Return our dtype, or the type of an item."""
        if self.tag == _PAIRS and (not self.shape or self.shape[-1] % 2):
            return item_type(self.tag)
        return _DTYPES.get(self.tag) or item_type(self.tag)

    @property
    def dims(self) -> tuple[int, ...]:
        """Return its shape in elements of our dtype."""
        if self.tag == _PAIRS and not self.dtype.is_item:
            return (*self.shape[:-1], self.shape[-1] // 2)
        return self.shape


def tag_and_shape(dtype: DType, shape: tuple[int, ...]) -> tuple[str, tuple[int, ...]]:
    """Return how a header names a dtype, or a kind of item, and the shape that it gives a tensor of it.

    >>> tag_and_shape(TENSOR_DTYPES["float4_e2m1fn_x2"], (3, 2))
    ('F4', (3, 4))
    """
    if dtype.is_item:
        return dtype.name, shape
    tag = TAGS[dtype.name]
    return tag, (*shape[:-1], 2 * shape[-1]) if tag == _PAIRS else shape


@dataclass(frozen=True, slots=True)
class Header:
    """The tensors of a file in the order of their bytes, and its metadata."""

    tensors: tuple[FileTensor, ...]
    metadata: Mapping[str, str]


def read_header(reader: RangeReader) -> Header:
    """Return the header of a file; CorruptError unless its tensors tile the bytes behind it.

    Raises UnsupportedError for a file that is recognised as one of another format.
    """
    try:
        return _header(reader)
    except CorruptError as error:
        if words := recognised_file(reader):
            raise UnsupportedError(words, path=reader.path, code="other-format") from error
        raise


def boxes_in(reader: RangeReader) -> dict[str, Part]:
    """Return the box of each tensor of a file, where its header says so, as torch writes parts; else {}."""
    header = read_header(reader)
    return boxes_of(header, reader.path)


def boxes_of(header: Header, path: str) -> dict[str, Part]:
    """Return the box of each tensor of a header; errors as `offsets_in`."""
    return offsets_in(header.metadata, {tensor.name: tensor.shape for tensor in header.tensors}, path)


def _header(reader: RangeReader) -> Header:
    if reader.size_bytes < 8:
        raise CorruptError("too short for a safetensors file", code="truncated", path=reader.path, offset=0)
    size = int.from_bytes(reader.read(0, 8), "little")
    if size > reader.size_bytes - 8:
        fault = f"{ends_early(reader.size_bytes, 8 + size)}, in its header"
        raise CorruptError(fault, code="truncated", path=reader.path, offset=0)
    if size > MAX_HEADER_BYTES:
        fault = f"the header has {size} bytes (expected at most {MAX_HEADER_BYTES})"
        raise CorruptError(fault, path=reader.path, offset=0)
    document = parse_object(reader.read(8, size), reader.path, offset=8)
    metadata = document.pop("__metadata__", None) or {}
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise CorruptError("the metadata in the header are not texts by their names", path=reader.path, offset=8)
    tensors = [_tensor(name, entry, 8 + size, reader.path) for name, entry in document.items()]
    tensors.sort(key=lambda tensor: (tensor.start, tensor.end))
    _check_tiles(tensors, 8 + size, reader)
    return Header(tuple(tensors), metadata)


def _tensor(name: str, entry: Any, begin: int, path: str) -> FileTensor:
    """Return the tensor of an entry; CorruptError for a damaged one. Offsets are counted from byte `begin` on."""
    fields = entry if isinstance(entry, dict) else {}
    tag, shape, span = (fields.get(key) for key in ("dtype", "shape", "data_offsets"))
    if (
        not isinstance(tag, str)
        or not are_naturals(shape)
        or not are_naturals(span)
        or len(span) != 2
        or span[0] > span[1]
    ):
        raise CorruptError(f"the entry of {name!r} in the header is damaged", path=path, offset=8)
    start, end = span
    bits = _BITS.get(tag)  # of a newer dtype than these, nothing says how large an element is
    if bits is not None and _bits_of(shape, bits, most=8 * (end - start)) != 8 * (end - start):
        message = f"{name!r} has {counted(end - start, 'byte')} (expected as many as {tag} and its shape say)"
        raise CorruptError(message, code="content-size-mismatch", path=path, offset=begin + start)
    return FileTensor(name, tag, tuple(shape), begin + start, begin + end)


def are_naturals(value: Any) -> TypeGuard[list[int]]:
    """Say whether a value is a list of whole numbers that sizes of arrays may have."""
    return isinstance(value, list) and all(type(number) is int and 0 <= number < _MOST for number in value)


def _bits_of(shape: Sequence[int], bits: int, *, most: int) -> int:
    """Return the bits of an array, at most some number above `most`: a shape may have thousands of dimensions."""
    if 0 in shape:
        return 0
    for length in shape:
        bits *= length
        if bits > most:
            return bits
    return bits


def _check_tiles(tensors: Sequence[FileTensor], begin: int, reader: RangeReader) -> None:
    """Raise CorruptError unless tensors in the order of their bytes tile those from `begin` to the end of a file."""
    end = begin
    for tensor in tensors:
        if tensor.start != end:
            fault = "overlaps the tensor before it" if tensor.start < end else "leaves a hole before it"
            raise CorruptError(f"{tensor.name!r} {fault}", path=reader.path, offset=tensor.start)
        if tensor.end > reader.size_bytes:
            fault = f"{ends_early(reader.size_bytes, tensor.end)}, in {tensor.name!r}"
            raise CorruptError(fault, code="truncated", path=reader.path, offset=tensor.start)
        end = tensor.end
    if end != reader.size_bytes:
        fault = f"{counted(reader.size_bytes - end, 'byte')} at the end belong to no tensor"
        raise CorruptError(fault, path=reader.path, offset=end)


_NOTES: Final = "tables"
"""The text in the metadata of an export with notes on its tables, as JSON."""
_ROWS: Final = "rows"
"""Says in a note that the ids of a table are the numbers of its rows."""
_ID_BYTES: Final = 8
_IDS: Final = ".ids"
_VECTORS: Final = ".vectors"
_ENCODINGS: Final = {"I64": Encoding.INT64, "U64": Encoding.UINT64, "I32": Encoding.INT32}


@dataclass(frozen=True, slots=True)
class _OpenTensor:
    """A tensor and its file."""

    stored: FileTensor
    file: Found

    @property
    def extent(self) -> Extent:
        """Return its bytes, in the numbers of its own shard."""
        return Extent(self.stored.start, self.stored.end, file=self.file.number)


def index_files(content: Content) -> None:
    """Add the tensors of all files that are open."""
    documents, files, listed = _sets(content)
    paths = sorted(read_by_loaders(files, listed))
    headers = _read_headers(content, paths)
    _add_notes(content, documents, headers)
    sets = {path: set_of(path) for path in paths}
    for index, document in documents.items():
        sets |= dict.fromkeys(listed[index], index.removesuffix(INDEX))
        _check_weights(index, content.files[index], weight_map(document, index), headers)
    parts = {path: name for path, header in headers.items() if INFO in header.metadata and (name := part_named(path))}
    _pass_over(content, headers, beside_wholes(headers, parts))
    sets |= {path: f"{name.folder}{name.stem}" for path, name in parts.items()}
    has_several_sets = len({sets[path] for path in headers}) > 1
    tensors: dict[str, _OpenTensor] = {}
    boxes: dict[str, list[tuple[Part, _OpenTensor]]] = {}
    for path, header in headers.items():
        file = content.files[path]
        prefix = f"{sets[path]}/" if has_several_sets else ""
        if path in parts:
            _sort_by_tensor(content, file, header, prefix, boxes)
        else:
            _take_tensors(file, header, prefix, tensors)
    matrices = _matrices(headers) if content.tables else frozenset()
    for title in [title for title, tensor in tensors.items() if tensor.stored in matrices]:
        _add_matrix(title, tensors.pop(title))
    _add_tensors(tensors, _wholes(documents.values()), pairs=content.tables)
    lost = _lost_groups(content, headers)
    for title, found in boxes.items():
        _, first = found[0]
        name = part_named(content.version.name_of(first.file.file.path))
        _add_joined(title, found, is_lost=name is not None and _group(name) in lost)
    _warn_of_others(content, documents, listed)


def _take_tensors(file: Found, header: Header, prefix: str, tensors: dict[str, _OpenTensor]) -> None:
    """Add the whole tensors of one file to those of the files before it; one that another file has too is a problem."""
    for stored in header.tensors:
        first = tensors.setdefault(prefix + stored.name, _OpenTensor(stored, file))
        if first.stored is not stored:
            message = f"{first.file.file.path} has it too"
            file.shard.problems.append(Problem("duplicate-variable", stored.name, stored.start, message))


def _lost_groups(content: Content, headers: Collection[str]) -> set[tuple[str, str, int]]:
    """Return the groups of files with parts of which a file cannot be read, as of `_group`."""
    lost: set[tuple[str, str, int]] = set()
    for path in content.files:
        name = part_named(path)
        if name and path not in headers:
            lost.add(_group(name))
    return lost


def _group(name: PartName) -> tuple[str, str, int]:
    """Return what the files have in common that have the boxes of the same tensors."""
    return name.folder, name.stem, name.number


def _pass_over(content: Content, headers: dict[str, Header], paths: Collection[str]) -> None:
    """Take files of parts out of those that are read: their tensors are there whole, as loaders read them."""
    for path in paths:
        del headers[path]
    if paths and headers:
        shard = content.files[min(headers)].shard
        message = (
            f"{counted(len(paths), 'file')} with parts of the same tensors, not read: {abridged(sorted(paths), 2)}"
        )
        shard.problems.append(Problem("passed-over", min(paths), None, message, warning=True))


def _warn_of_others(content: Content, documents: Mapping[str, object], listed: Mapping[str, set[str]]) -> None:
    """Add a warning for a file with the name of a set: transformers loads it, and not the set."""
    for index in documents:
        single = index.removesuffix(INDEX) + ENDING
        if single in content.files and single not in listed[index]:
            message = f"transformers loads this file first; the set of {index} was read"
            content.files[index].shard.problems.append(Problem("passed-over", single, None, message, warning=True))


def _add_notes(content: Content, documents: Mapping[str, Mapping[str, Any]], headers: Mapping[str, Header]) -> None:
    """Add the metadata of headers and of indexes, but for the size that follows from the tensors."""
    for path, header in headers.items():
        notes = (FileNote(path, key, text) for key, text in header.metadata.items())
        content.files[path].shard.notes.extend(notes)
    for path, document in documents.items():
        for key, value in index_metadata(document).items():
            text = value if isinstance(value, str) else json.dumps(value)
            content.files[path].shard.notes.append(FileNote(path, key, text))


def index_metadata(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metadata of an index without `total_size`."""
    metadata = document.get("metadata")
    known = metadata if isinstance(metadata, dict) else {}
    return {key: value for key, value in known.items() if key != _TOTAL_SIZE}


def _sort_by_tensor(
    content: Content, file: Found, header: Header, before: str, boxes: dict[str, list[tuple[Part, _OpenTensor]]]
) -> None:
    """Add the boxes of one file to those of their tensors."""
    try:
        found = boxes_of(header, file.file.path)
    except CorruptError as error:
        content.fail(file.shard, error)
        return
    for stored in header.tensors:
        boxes.setdefault(before + stored.name, []).append((found[stored.name], _OpenTensor(stored, file)))


def _add_joined(title: str, found: Sequence[tuple[Part, _OpenTensor]], *, is_lost: bool) -> None:
    """Add a tensor that is the hull of its boxes to the shard of its first one."""
    home, stored = found[0][1].file, found[0][1].stored
    shape, dtype = hull(part for part, _ in found), stored.dtype
    fault = untiled(shape, [SavedBox(*part) for part, _ in found if 0 not in part.sizes]) if 0 not in shape else ""
    if len({(tensor.stored.tag, len(part.sizes)) for part, tensor in found}) > 1:
        fault = "its boxes have different dtypes or numbers of dimensions"
    if is_lost:
        message = "a file with values of it cannot be read"
        home.shard.problems.append(Problem("missing-file", title, None, message, warning=True))
    elif fault:
        home.shard.problems.append(Problem("malformed", title, stored.start, fault))
    elif dtype.is_item or stored.tag == _PAIRS:
        message = f"its boxes have elements of {stored.tag}, which are not whole bytes, and are not put together"
        fault_of_it = Problem("unsupported-item", title, stored.start, message, warning=True, unread=True)
        home.shard.problems.append(fault_of_it)
    else:
        pieces = [SavedBox(*part) for part, _ in found]
        parts = [_values_of(title, part, tensor, dtype) for part, tensor in found if 0 not in part.sizes or 0 in shape]
        add_variable(SavedTensor(IndexedTensor(title, dtype.name, shape, tuple(pieces)), parts))


def _values_of(title: str, part: Part, tensor: _OpenTensor, dtype: DType) -> BoxValues:
    """Return where the values of a box are: in C order in its file."""
    stored, sizes = tensor.stored, part.sizes
    strides = tuple(math.prod(sizes[n + 1 :]) * dtype.itemsize for n in range(len(sizes)))
    values = ItemValues(dtype.name, sizes, strides, stored.start, stored.start, stored.end, 0)
    item = Item(title, part.offsets, tensor.file.file.path, stored.start, stored.end)
    return BoxValues(SavedBox(*part), tensor.file, values, item)


def _sets(content: Content) -> tuple[dict[str, Mapping[str, Any]], set[str], dict[str, set[str]]]:
    """Return the documents of indexes that are read, the files that may be read, and those of each index."""
    found: dict[str, Mapping[str, Any] | CorruptError] = dict(_read_indexes(content))
    every = {
        path: None if isinstance(one, CorruptError) else listing(path, weight_map(one, path).values())
        for path, one in found.items()
    }
    paths, listed, torn = without_torn_sets({path for path in content.files if path.endswith(ENDING)}, every)
    for path, single in torn.items():
        message = f"the set is not whole; {single} was read, as by transformers"
        content.files[single].shard.problems.append(Problem("passed-over", path, None, message, warning=True))
    documents: dict[str, Mapping[str, Any]] = {}
    for path, one in found.items():
        if isinstance(one, CorruptError) and path not in torn:
            content.files[path].shard.problems.append(Problem(one.code, path, one.offset, one.message))
        elif not isinstance(one, CorruptError) and path in listed:
            documents[path] = one
    return documents, paths, listed


def _read_indexes(content: Content) -> Iterator[tuple[str, Mapping[str, Any] | CorruptError]]:
    """Yield the path and the document of each index, or why it is none."""
    for path, file in content.files.items():
        if not path.endswith(INDEX) or file.reader is None:
            continue
        try:
            document = parse_object(read_head(file.reader), file.file.path)
            weight_map(document, file.file.path)
        except CorruptError as error:
            yield path, error
        else:
            yield path, document


def _read_headers(content: Content, paths: Iterable[str]) -> dict[str, Header]:
    """Return the headers of files, those that are open and sound, by their paths in the version."""
    readers = {path: reader for path in paths if (reader := content.files[path].reader)}
    results = run_parallel(_try_header, readers.values(), content.workers)
    headers: dict[str, Header] = {}
    for path, header in zip(readers, results, strict=True):
        if isinstance(header, EdlCkptError):
            content.fail(content.files[path].shard, header)
        else:
            headers[path] = header
    return headers


def _try_header(reader: RangeReader) -> Header | EdlCkptError:
    try:
        return read_header(reader)
    except (CorruptError, NotFoundError, UnsupportedError) as error:
        return error


def _check_weights(index: str, file: Found, weights: Mapping[str, str], headers: Mapping[str, Header]) -> None:
    """Add a problem for the tensors that an index lists in a file, and that are not there."""
    folder = index[: index.rfind("/") + 1]
    names = {path: {stored.name for stored in header.tensors} for path, header in headers.items()}
    for name, file_name in weights.items():
        if folder + file_name not in names:
            message = f"{file_name} cannot be read"
            file.shard.problems.append(Problem("missing-file", name, None, message, warning=True))
    lost = [name for name, file_name in weights.items() if name not in names.get(folder + file_name, (name,))]
    if lost:
        message = f"{index} lists {counted(len(lost), 'tensor')} in files that do not have them"
        file.shard.problems.append(Problem("malformed", lost[0], None, message))


def _wholes(documents: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Return the table of each part of one, without the `.vectors` of its name, as indexes of our exports list them."""
    wholes: dict[str, str] = {}
    for document in documents:
        metadata = document.get("metadata")
        tables = metadata.get("tables") if isinstance(metadata, dict) else None
        for table, note in tables.items() if isinstance(tables, dict) else ():
            parts = note.get("vectors") if isinstance(note, dict) else None
            if isinstance(parts, list):
                wholes |= {part.removesuffix(_VECTORS): table for part in parts if isinstance(part, str)}
    return wholes


def _matrices(headers: Mapping[str, Header]) -> frozenset[FileTensor]:
    """Return the tensors that the notes of an export call tables whose ids are the numbers of their rows."""
    noted = set[str]()
    for header in headers.values():
        try:
            notes = json.loads(header.metadata.get(_NOTES, "{}"))
        except (ValueError, RecursionError):
            continue
        for note in notes.values() if isinstance(notes, dict) else ():
            if isinstance(note, dict) and note.get("ids") == _ROWS and isinstance(note.get("vectors"), str):
                noted.add(note["vectors"])
    every = (tensor for header in headers.values() for tensor in header.tensors)
    return frozenset(t for t in every if t.name in noted and _is_matrix(t))


def _is_matrix(tensor: FileTensor) -> bool:
    """Say whether a tensor can be a table by its dtype and its shape."""
    return tensor.dtype.name in DTYPES and len(tensor.shape) == 2 and all(tensor.shape)


def _add_matrix(name: str, tensor: _OpenTensor) -> None:
    """Add a table whose ids are the numbers of its rows to the shard that has it."""
    shard, (rows, dim), stored = tensor.file.shard, tensor.stored.shape, tensor.stored
    run = IdRun(0, _ID_BYTES * rows, Encoding.ROWS)
    entry = TableEntry(name, stored.dtype, dim, rows, tensor.extent, (run,), stored.start, placement=Placement.NONE)
    shard.tables.append(entry.described())
    shard.infos.append(TableInfo(name, dim, "", stored.start))


def _add_tensors(tensors: Mapping[str, _OpenTensor], wholes: Mapping[str, str], *, pairs: bool) -> None:
    """Add tensors to their shards: in `pairs` as parts of tables, or as variables and items."""
    for title, tensor in tensors.items():
        stored, shard = tensor.stored, tensor.file.shard
        if pairs and title.endswith(_IDS) and _is_pair(stored, tensors.get(title.removesuffix(_IDS) + _VECTORS)):
            continue
        ids = tensors.get(title.removesuffix(_VECTORS) + _IDS) if title.endswith(_VECTORS) else None
        if pairs and ids and _is_pair(ids.stored, tensor):
            part = stored.name.removesuffix(_VECTORS)
            names = {table.name for table in shard.tables}
            whole = title.removesuffix(stored.name) + wholes.get(part, part)
            _add_table(title.removesuffix(_VECTORS) if whole in names else whole, ids, tensor)
        else:
            shard.variables.append(DenseEntry(title, stored.dtype, stored.dims, tensor.extent, stored.start))


def _is_pair(ids: FileTensor, vectors: _OpenTensor | None) -> bool:
    """Say whether two tensors are the ids and the rows of a table."""
    if vectors is None or not vectors.stored.dtype.is_ours or ids.tag not in _ENCODINGS:
        return False
    shape = vectors.stored.shape
    return len(ids.shape) == 1 and len(shape) == 2 and shape[0] == ids.shape[0] and (shape[1] > 0 or not shape[0])


def _add_table(name: str, ids: _OpenTensor, vectors: _OpenTensor) -> None:
    """Add the rows of a table to the shard that has its vectors."""
    shard = vectors.file.shard
    rows, dim = vectors.stored.shape
    stored = ids.stored
    run = shard.id_run(ids.file.file, stored.start, stored.end, _ENCODINGS[stored.tag], rows)
    begin = min(vectors.stored.start, run.start if run.file == vectors.extent.file else vectors.stored.start)
    placement, dtype = Placement.NONE, vectors.stored.dtype
    entry = TableEntry(name, dtype, dim, rows, vectors.extent, (run,), begin, placement=placement)
    shard.tables.append(entry.described())
    shard.infos.append(TableInfo(name, dim, "", begin))
