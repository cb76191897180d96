"""The tensors of safetensors files as variables and tables.

`NAME.ids` and `NAME.vectors`, with as many rows, are the table NAME, as edl-ckpt exports tables. They may be in two
files of a set. An export by several machines cuts tables into parts: the index of the set says which tensors are the
parts of which table, and each file has the rows of its parts. A dtype that our checkpoints cannot contain is a blob.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from edl_ckpt.core.base.errors import CorruptError, EdlCkptError, NotFoundError
from edl_ckpt.core.base.json_objects import parse_object
from edl_ckpt.core.base.parallel import run_parallel
from edl_ckpt.core.base.words import counted
from edl_ckpt.core.model.layouts import Placement
from edl_ckpt.core.model.tables import Blob, DenseEntry, Encoding, Extent, Problem, TableEntry, TableInfo
from edl_ckpt.core.sources.safetensors.header import FileTensor, Header, read_header
from edl_ckpt.core.sources.safetensors.sets import ENDING, INDEX, listing, read_by_loaders, set_of, weight_map
from edl_ckpt.core.sources.steps.content import Content, Found
from edl_ckpt.core.sources.steps.interface import HEAD_BYTES
from edl_ckpt.core.storage.interface import RangeReader

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
    documents = dict(_read_indexes(content))
    listed = {index: listing(index, weight_map(document, index).values()) for index, document in documents.items()}
    paths = sorted(read_by_loaders((path for path in content.files if path.endswith(ENDING)), listed))
    headers = _read_headers(content, paths)
    sets = {path: set_of(path) for path in paths}
    for index, document in documents.items():
        sets |= dict.fromkeys(listed[index], index.removesuffix(INDEX))
        _check_weights(index, content.files[index], weight_map(document, index), headers)
    several = len(set(sets.values())) > 1
    tensors: dict[str, _OpenTensor] = {}
    for path, header in headers.items():
        file, before = content.files[path], f"{sets[path]}/" if several else ""
        for stored in header.tensors:
            first = tensors.setdefault(before + stored.name, _OpenTensor(stored, file))
            if first.stored is not stored:
                message = f"{first.file.file.path} has it too"
                file.shard.problems.append(Problem("duplicate-variable", stored.name, stored.start, message))
    _add_tensors(tensors, _wholes(documents.values()), pairs=content.tables)


def _read_indexes(content: Content) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the path and the document of each index that is sound; another one is a problem of its shard."""
    for path, file in content.files.items():
        if not path.endswith(INDEX) or file.reader is None:
            continue
        try:
            document = parse_object(file.reader.read(0, min(file.reader.size_bytes, HEAD_BYTES)), file.file.path)
            weight_map(document, file.file.path)
        except CorruptError as error:
            file.shard.problems.append(Problem(error.code, path, error.offset, error.message))
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
    except (CorruptError, NotFoundError) as error:
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


def _add_tensors(tensors: Mapping[str, _OpenTensor], wholes: Mapping[str, str], *, pairs: bool) -> None:
    """Add tensors to their shards: in `pairs` as parts of tables, as variables or as blobs."""
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
        elif stored.dtype is None:
            shard.blobs.append(Blob(title, stored.tag, tensor.extent))
        else:
            shard.variables.append(DenseEntry(title, stored.dtype, stored.shape, tensor.extent, stored.start))


def _is_pair(ids: FileTensor, vectors: _OpenTensor | None) -> bool:
    """Say whether two tensors are the ids and the rows of a table."""
    if vectors is None or vectors.stored.dtype is None or ids.tag not in _ENCODINGS:
        return False
    shape = vectors.stored.shape
    return len(ids.shape) == 1 and len(shape) == 2 and shape[0] == ids.shape[0] and (shape[1] > 0 or not shape[0])


def _add_table(name: str, ids: _OpenTensor, vectors: _OpenTensor) -> None:
    """Add the rows of a table to the shard that has its vectors."""
    shard, (rows, dim), stored = vectors.file.shard, vectors.stored.shape, ids.stored
    run = shard.id_run(ids.file.file, stored.start, stored.end, _ENCODINGS[stored.tag], rows)
    begin = min(vectors.stored.start, run.start if run.file == vectors.extent.file else vectors.stored.start)
    placement, dtype = Placement.NONE, vectors.stored.dtype
    entry = TableEntry(name, dtype, dim, rows, vectors.extent, (run,), begin, placement=placement)
    shard.tables.append(entry.described())
    shard.infos.append(TableInfo(name, dim, "", begin))
