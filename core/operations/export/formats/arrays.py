"""Formats of arrays: safetensors, .npz, and a directory of .npy files. Each tensor has its place from the beginning."""

from __future__ import annotations

import io
import json
import os
import zipfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar, Final

import numpy as np

from edl_ckpt.core.base.job import together
from edl_ckpt.core.kernel.checksums import Crc32
from edl_ckpt.core.operations.export.cluster.run import MOST_NAMES, PartFile, PartsFormat, Span, numbered, sizes_of
from edl_ckpt.core.operations.export.formats.content_format import ContentFormat
from edl_ckpt.core.operations.export.formats.names import NOTES, file_names, member_names
from edl_ckpt.core.operations.export.interface import ExportContent, FormatTraits, Tensor
from edl_ckpt.core.operations.export.output.places import (
    OutputFile,
    Place,
    finish_outputs,
    flush_file,
    reads_back_differently,
)
from edl_ckpt.core.operations.export.output.target import ExportTarget, NewFile
from edl_ckpt.core.reading.reader import Checkpoint
from edl_ckpt.core.sources.safetensors.writing import file_of_several, header, index_of
from edl_ckpt.core.storage.faults import storage_errors

INDEX: Final = "index.json"
SHARDED: Final = "model.safetensors.index.json"
"""The index of several files of safetensors."""
INDEX_SCHEMA: Final = "edl-ckpt/arrays/1"


def _write_part(content: ExportContent, path: str, new_file: NewFile) -> None:
    """Write one of the files of a cluster."""
    write_safetensors(content, {path: content.tensors}, _notes(content), new_file)


class Safetensors(PartsFormat):
    """Source: the format's page at huggingface/safetensors: u64 header size, JSON header, tensors without holes.

    A version larger than `max_shard_bytes` becomes a directory of several files, with the index that huggingface's
    loaders read.
    """

    traits: ClassVar = FormatTraits("safetensors", endings=(".safetensors",), spools=False)

    def is_directory(self, checkpoint: Checkpoint) -> bool:
        """Return True when the version is split."""
        del checkpoint
        return self._is_split

    @property
    def _is_split(self) -> bool:
        limit = self.request.max_shard_bytes
        return limit is not None and self.request.version.size_bytes > limit

    def write(self, content: ExportContent, target: ExportTarget) -> None:
        """Write one file, or `model-00001-of-0000N.safetensors` and `model.safetensors.index.json`."""
        files = self._files(content, target.path)
        write_safetensors(content, files, _notes(content), target.new_file)
        if self._is_split:
            write_json(os.path.join(target.path, SHARDED), _split_index(content, files))

    def planned(self, content: ExportContent, path: str, beside: str) -> Mapping[str, int | None]:
        """Return all files with their sizes."""
        del beside
        files = self._files(content, path)
        sizes = {name: safetensors_bytes(content, tensors, _notes(content)) for name, tensors in files.items()}
        if self._is_split:
            sizes[os.path.join(path, SHARDED)] = len(document_bytes(_split_index(content, files)))
        return sizes

    index: ClassVar = SHARDED
    write_part = staticmethod(_write_part)

    def part_bytes(self, content: ExportContent) -> int | None:
        """Return the size of a file."""
        return safetensors_bytes(content, content.tensors, _notes(content))

    def part_files(
        self, content: ExportContent, spans: Mapping[str, Sequence[Span]], path: str, beside: str, size_bytes: int
    ) -> list[PartFile]:
        """Return files of many small tensors, then those of each range of a large table, which its tensors name."""
        del beside
        sizes = sizes_of(content)
        whole = [(name, size) for name, size in sizes.items() if not name[1] or len(spans[name[0]]) == 1]
        files = []
        for group in together(whole, size_bytes, most=MOST_NAMES):
            tables = (spans[name][0] for name, is_table in group if is_table)
            files.append(PartFile("", tuple(name for name, is_table in group if not is_table), tuple(tables)))
        cut = (span for own in spans.values() if len(own) > 1 for span in own)
        files += (PartFile("", (), (span._replace(title=f"{span.table}.{numbered(span)}"),)) for span in cut)
        files = files or [PartFile("")]
        names = (os.path.join(path, file_of_several(number, len(files))) for number in range(len(files)))
        return [file._replace(path=name) for file, name in zip(files, names, strict=True)]

    def end_parts(
        self, content: ExportContent, files: Sequence[PartFile], path: str, metadata: Mapping[str, str]
    ) -> None:
        """Write the index; its metadata name the tensors of each table, in order."""
        weights: dict[str, str] = {}
        titles: dict[str, list[str]] = {}
        for file in files:
            names = [*file.variables, *(f"{s.title}.{kind}" for s in file.spans for kind in ("ids", "vectors"))]
            weights |= dict.fromkeys(names, os.path.basename(file.path))
            for span in file.spans:
                titles.setdefault(span.table, []).append(span.title)
        tables = {
            name: asdict(note) | {kind: [f"{title}.{kind}" for title in titles[name]] for kind in ("ids", "vectors")}
            for name, note in content.notes.items()
        }
        write_json(os.path.join(path, SHARDED), _index(content, weights, {**metadata, "tables": tables}))

    def _files(self, content: ExportContent, path: str) -> dict[str, Sequence[Tensor]]:
        """Return the tensors of each file."""
        if not self._is_split:
            return {path: content.tensors}
        sized = ((tensor, tensor.size_bytes) for tensor in content.tensors)
        groups = list(together(sized, self.request.max_shard_bytes or 0)) or [[]]
        names = (file_of_several(number, len(groups)) for number in range(len(groups)))
        return {os.path.join(path, name): group for name, group in zip(names, groups, strict=True)}


def _split_index(content: ExportContent, files: Mapping[str, Sequence[Tensor]]) -> dict[str, Any]:
    weights = {tensor.name: os.path.basename(path) for path, tensors in files.items() for tensor in tensors}
    return _index(content, weights, {})


def _index(content: ExportContent, weights: Mapping[str, str], metadata: Mapping[str, Any]) -> dict[str, Any]:
    return index_of(weights, sum(tensor.size_bytes for tensor in content.tensors), metadata)


def _notes(content: ExportContent) -> dict[str, str]:
    return {"tables": json.dumps({name: asdict(note) for name, note in content.notes.items()})}


def safetensors_bytes(content: ExportContent, tensors: Sequence[Tensor], notes: Mapping[str, str]) -> int:
    """Return the size of a file that `write_safetensors` writes."""
    return len(_head(tensors, content.metadata, notes)) + sum(tensor.size_bytes for tensor in tensors)


def write_safetensors(
    content: ExportContent, files: Mapping[str, Sequence[Tensor]], notes: Mapping[str, str], new_file: NewFile
) -> None:
    """Write safetensors files, given by their paths, with these tensors; their metadata are also `notes`."""
    places: dict[str, Place] = {}
    outputs: dict[str, OutputFile] = {}
    for path, tensors in files.items():
        at = len(_head(tensors, content.metadata, notes))
        outputs[path] = new_file(path, at + sum(tensor.size_bytes for tensor in tensors))
        for tensor in tensors:
            places[tensor.name] = Place(outputs[path], at)
            at += tensor.size_bytes
    with ExitStack() as stay_open:
        if len(outputs) == 1:
            stay_open.enter_context(next(iter(outputs.values())))
        content.fill(places)
    metadata = content.finish()
    for path, tensors in files.items():
        outputs[path].write(0, _head(tensors, metadata, notes))
    finish_outputs(list(outputs.values()))


def _head(tensors: Sequence[Tensor], metadata: Mapping[str, str], notes: Mapping[str, str]) -> bytes:
    """Return the head of a file."""
    return header({tensor.name: tensor for tensor in tensors}, {**metadata, **notes})


class NpyDirectory(ContentFormat):
    """One .npy file for each tensor, memory-mappable, and `index.json` with names, tables and metadata."""

    traits: ClassVar = FormatTraits("npy", endings=(".npy",), is_directory=True, spools=False)

    def write(self, content: ExportContent, target: ExportTarget) -> None:
        """Write the files; the name of a file is that of its tensor, with %XX for characters that could make a path.

        A long name is shortened; the index has the whole.
        """
        places: dict[str, Place] = {}
        files = file_names(tensor.name for tensor in content.tensors)
        for tensor in content.tensors:
            head = npy_header(tensor)
            path = os.path.join(target.path, f"{files[tensor.name]}.npy")
            file = target.new_file(path, len(head) + tensor.size_bytes)
            file.write(0, head)
            places[tensor.name] = Place(file, len(head))
        content.fill(places)
        write_json(os.path.join(target.path, INDEX), index_document(content, files, content.finish()))
        finish_outputs([place.file for place in places.values()])

    def planned(self, content: ExportContent, path: str, beside: str) -> Mapping[str, int | None]:
        """Return all files with their sizes."""
        del beside
        files = file_names(tensor.name for tensor in content.tensors)
        sizes = {f"{files[t.name]}.npy": len(npy_header(t)) + t.size_bytes for t in content.tensors}
        sizes[INDEX] = len(document_bytes(index_document(content, files, content.metadata)))
        return {os.path.join(path, name): size for name, size in sorted(sizes.items())}


class Npz(ContentFormat):
    """An uncompressed .npz: the keys of numpy are the names of the tensors, and those of `NOTES` its index as JSON."""

    traits: ClassVar = FormatTraits("npz", endings=(".npz",), spools=False)

    def write(self, content: ExportContent, target: ExportTarget) -> None:
        """Write the archive."""
        path = target.path
        files = member_names(tensor.name for tensor in content.tensors)
        members, end = self._members(content.tensors, files)
        output = OutputFile(path, end)
        places = {m.tensor.name: Place(output, m.info.header_offset + m.head_bytes, m.crc) for m in members}
        with output:
            content.fill(places)
            for member in members:
                head = npy_header(member.tensor)
                member.crc.add(-len(head), head)
                member.info.CRC = member.crc.value()
                output.write(member.info.header_offset, member.info.FileHeader(zip64=True) + head)
        index = json.dumps(index_document(content, files, content.finish())).encode()
        with storage_errors(path), open(path, "r+b") as file:
            file.seek(end)
            with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
                for member in members:
                    archive.filelist.append(member.info)
                    archive.NameToInfo[member.info.filename] = member.info
                archive.writestr(zipfile.ZipInfo(f"{NOTES}.npy"), _npy_head("uint8", (len(index),)) + index)
                meant = _entries(archive)
            flush_file(file)
        output.finish()
        _check_end(path, meant, index)

    def _members(self, tensors: Sequence[Tensor], files: Mapping[str, str]) -> tuple[list[_Member], int]:
        """Return where each member of the archive begins, and where the last one ends."""
        members: list[_Member] = []
        at = 0
        for tensor in tensors:
            info = zipfile.ZipInfo(f"{files[tensor.name]}.npy")
            info.header_offset, info.CRC = at, 0
            head = npy_header(tensor)
            info.file_size = info.compress_size = len(head) + tensor.size_bytes
            head_bytes = len(info.FileHeader(zip64=True)) + len(head)
            members.append(_Member(tensor, info, head_bytes))
            at += head_bytes + tensor.size_bytes
        return members, at


def _entries(archive: zipfile.ZipFile) -> list[tuple[str, int, int, int]]:
    """Return what the directory of an archive says of its members."""
    return [(each.filename, each.header_offset, each.file_size, each.CRC) for each in archive.infolist()]


def _check_end(path: str, meant: Sequence[tuple[str, int, int, int]], index: bytes) -> None:
    """Raise EdlCkptError unless the end of an archive reads back: its directory, and the index with its CRC-32."""
    with storage_errors(path):
        try:
            with zipfile.ZipFile(path) as archive:
                same = _entries(archive) == meant and archive.read(f"{NOTES}.npy").endswith(index)
        except zipfile.BadZipFile:
            same = False
    if not same:
        raise reads_back_differently("the directory of the archive", path)


@dataclass(frozen=True, slots=True)
class _Member:
    """A tensor in an archive, and how many bytes stand before its values."""

    tensor: Tensor
    info: zipfile.ZipInfo
    head_bytes: int
    crc: Crc32 = field(default_factory=Crc32)


def index_document(content: ExportContent, files: Mapping[str, str], metadata: Mapping[str, str]) -> dict[str, Any]:
    """Return the index of .npy files or members: the file and dtype of each tensor, notes on tables, metadata."""
    return {
        "schema": INDEX_SCHEMA,
        "tensors": {t.name: {"file": f"{files[t.name]}.npy", "dtype": t.dtype.name} for t in content.tensors},
        "tables": {name: asdict(note) for name, note in content.notes.items()},
        "metadata": dict(metadata),
    }


def npy_header(tensor: Tensor) -> bytes:
    """Return the head of an .npy file; bfloat16, which numpy lacks, is written as the uint16 of the same bits."""
    return _npy_head("uint16" if tensor.dtype.name == "bfloat16" else tensor.dtype.name, tensor.shape)


def _npy_head(dtype: str, shape: tuple[int, ...]) -> bytes:
    head = io.BytesIO()
    descr = np.lib.format.dtype_to_descr(np.dtype(dtype).newbyteorder("<"))
    described = {"descr": descr, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(head, described)
    return head.getvalue()


def document_bytes(document: dict[str, Any]) -> bytes:
    """Return what `write_json` writes."""
    return json.dumps(document, indent=1).encode()


def write_json(path: str, document: dict[str, Any]) -> None:
    """Write a document to a new file, and read it back."""
    text = document_bytes(document)
    with storage_errors(path), open(path, "x+b") as file:
        file.write(text)
        flush_file(file)
        file.seek(0)
        if file.read() != text:
            raise reads_back_differently(os.path.basename(path), path)
