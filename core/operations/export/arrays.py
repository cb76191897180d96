"""Formats of arrays: safetensors, .npz, and a directory of .npy files. Each tensor has its place from the beginning."""

from __future__ import annotations

import io
import json
import os
import zipfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import IO, Any, ClassVar, Final

import numpy as np

from edl_ckpt.core.checkpoint.reader import Checkpoint
from edl_ckpt.core.operations.export.content_format import ContentFormat
from edl_ckpt.core.operations.export.interface import ExportContent, FormatTraits, Tensor
from edl_ckpt.core.operations.export.names import NOTES, file_names, member_names
from edl_ckpt.core.operations.export.places import Crc32, OutputFile, Place, finish_outputs, reads_back_differently
from edl_ckpt.core.operations.export.target import ExportTarget
from edl_ckpt.core.storage.faults import storage_errors

INDEX: Final = "index.json"
INDEX_SCHEMA: Final = "edl-ckpt/arrays/1"
SAFETENSORS_DTYPES: Final = {
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
}
_ALIGN: Final = 8


class Safetensors(ContentFormat):
    """Source: the format's page at huggingface/safetensors: u64 header size, JSON header, tensors without holes.

    A version larger than `max_shard_bytes` becomes a directory of several files, with the index that huggingface's
    loaders read.
    """

    traits: ClassVar = FormatTraits("safetensors", endings=(".safetensors",), spools=False, sized=True, spreads=True)

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
        path = target.path
        if not self._is_split:
            write_safetensors(content, {path: content.tensors}, _notes(content), target)
            return
        weights: dict[str, str] = {}
        groups = self._groups(content.tensors)
        files: dict[str, Sequence[Tensor]] = {}
        for number, group in enumerate(groups, start=1):
            name = f"model-{number:05}-of-{len(groups):05}.safetensors"
            files[os.path.join(path, name)] = group
            weights |= {tensor.name: name for tensor in group}
        write_safetensors(content, files, _notes(content), target)
        total = sum(tensor.size_bytes for tensor in content.tensors)
        index = {"metadata": {"total_size": total}, "weight_map": weights}
        _write_json(os.path.join(path, "model.safetensors.index.json"), index)

    def _groups(self, tensors: Sequence[Tensor]) -> list[list[Tensor]]:
        """Return the tensors of each file, in order: as many as fit, and at least one."""
        groups: list[list[Tensor]] = [[]]
        limit = self.request.max_shard_bytes or 0
        for tensor in tensors:
            if groups[-1] and sum(t.size_bytes for t in groups[-1]) + tensor.size_bytes > limit:
                groups.append([])
            groups[-1].append(tensor)
        return groups


def _notes(content: ExportContent) -> dict[str, str]:
    return {"tables": json.dumps({name: asdict(note) for name, note in content.notes.items()})}


def write_safetensors(
    content: ExportContent, files: Mapping[str, Sequence[Tensor]], notes: Mapping[str, str], target: ExportTarget
) -> None:
    """Write safetensors files, given by their paths, with these tensors; their metadata are also `notes`.

    Loaders of PyTorch's weights refuse a file whose metadata has no `format`.
    """
    places: dict[str, Place] = {}
    outputs: dict[str, OutputFile] = {}
    heads: dict[str, bytes] = {}
    for path, tensors in files.items():
        heads[path] = _header(tensors, {"format": "pt", **content.metadata, **notes})
        at = len(heads[path])
        outputs[path] = target.new_file(path, at + sum(tensor.size_bytes for tensor in tensors))
        for tensor in tensors:
            places[tensor.name] = Place(outputs[path], at)
            at += tensor.size_bytes
    with ExitStack() as stay_open:
        if len(outputs) == 1:
            stay_open.enter_context(next(iter(outputs.values())).kept_open())
        content.fill(places)
    pending, fingerprint = (each["fingerprint"].encode() for each in (content.metadata, content.finish()))
    for path, head in heads.items():
        outputs[path].write(0, head.replace(pending, fingerprint, 1))
    finish_outputs(list(outputs.values()))


def _header(tensors: Sequence[Tensor], metadata: Mapping[str, str]) -> bytes:
    """Return the bytes before the first tensor."""
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
    at = 0
    for tensor in tensors:
        span = [at, at + tensor.size_bytes]
        header[tensor.name] = {
            "dtype": SAFETENSORS_DTYPES[tensor.dtype.name],
            "shape": list(tensor.shape),
            "data_offsets": span,
        }
        at = span[1]
    text = json.dumps(header, ensure_ascii=False).encode("utf-8", "surrogatepass")
    text += b" " * (-len(text) % _ALIGN)
    return len(text).to_bytes(8, "little") + text


class NpyDirectory(ContentFormat):
    """One .npy file for each tensor, memory-mappable, and `index.json` with names, tables and metadata."""

    traits: ClassVar = FormatTraits("npy", endings=(".npy",), is_directory=True, spools=False, sized=True, spreads=True)

    def write(self, content: ExportContent, target: ExportTarget) -> None:
        """Write the files; the name of a file is that of its tensor, with %XX for characters that could make a path.

        A long name is shortened; the index has the whole.
        """
        path, files = target.path, file_names(tensor.name for tensor in content.tensors)
        places: dict[str, Place] = {}
        for tensor in content.tensors:
            head = npy_header(tensor)
            file = target.new_file(os.path.join(path, f"{files[tensor.name]}.npy"), len(head) + tensor.size_bytes)
            file.write(0, head)
            places[tensor.name] = Place(file, len(head))
        content.fill(places)
        _write_json(os.path.join(path, INDEX), index_document(content, files))
        finish_outputs([place.file for place in places.values()])


class Npz(ContentFormat):
    """An uncompressed .npz: the keys of numpy are the names of the tensors, and those of `NOTES` its index as JSON."""

    traits: ClassVar = FormatTraits("npz", endings=(".npz",), spools=False)

    def write(self, content: ExportContent, target: ExportTarget) -> None:
        """Write the archive."""
        path = target.path
        files = member_names(tensor.name for tensor in content.tensors)
        members, end = self._members(content.tensors, files)
        output = OutputFile(path, end)
        places = {m.tensor.name: Place(output, m.info.header_offset + m.head_bytes, Crc32()) for m in members}
        with output:
            content.fill(places)
            for member in members:
                place, head = places[member.tensor.name], npy_header(member.tensor)
                assert place.crc is not None  # noqa: S101 - all of them were made with one
                place.crc.add(-len(head), head)
                member.info.CRC = place.crc.value()
                output.write(member.info.header_offset, member.info.FileHeader(zip64=True) + head)
        index = json.dumps(index_document(content, files)).encode()
        with storage_errors(path), open(path, "r+b") as file:
            file.seek(end)
            with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
                for member in members:
                    archive.filelist.append(member.info)
                    archive.NameToInfo[member.info.filename] = member.info
                archive.writestr(zipfile.ZipInfo(f"{NOTES}.npy"), _npy_head("uint8", (len(index),)) + index)
                meant = _entries(archive)
            _flush(file)
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


def index_document(content: ExportContent, files: Mapping[str, str]) -> dict[str, Any]:
    """Return the index of .npy files or members: the file and dtype of each tensor, notes on tables, metadata."""
    return {
        "schema": INDEX_SCHEMA,
        "tensors": {t.name: {"file": f"{files[t.name]}.npy", "dtype": t.dtype.name} for t in content.tensors},
        "tables": {name: asdict(note) for name, note in content.notes.items()},
        "metadata": dict(content.finish()),
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


def _write_json(path: str, document: dict[str, Any]) -> None:
    text = json.dumps(document, indent=1).encode()
    with storage_errors(path), open(path, "x+b") as file:
        file.write(text)
        _flush(file)
        file.seek(0)
        if file.read() != text:
            raise reads_back_differently(os.path.basename(path), path)


def _flush(file: IO[Any]) -> None:
    file.flush()
    os.fsync(file.fileno())
