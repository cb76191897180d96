"""Formats of arrays: safetensors, .npz, and a directory of .npy files. Each tensor is written once, front to back."""

from __future__ import annotations

import io
import json
import os
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import IO, Any, ClassVar, Final

import numpy as np

from edl_ckpt.core.operations.export.content_format import ContentFormat
from edl_ckpt.core.operations.export.interface import ExportContent, FormatTraits, Tensor
from edl_ckpt.core.operations.export.names import file_names
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

    traits: ClassVar = FormatTraits("safetensors", endings=(".safetensors",))

    @property
    def is_directory(self) -> bool:
        """Return True when the version is split."""
        limit = self.request.max_shard_bytes
        return limit is not None and self.request.version.size_bytes > limit

    def write(self, content: ExportContent, path: str) -> None:
        """Write one file, or `model-00001-of-0000N.safetensors` and `model.safetensors.index.json`."""
        if not self.is_directory:
            write_safetensors(content.tensors, _metadata(content), path)
            return
        weights: dict[str, str] = {}
        groups = self._groups(content.tensors)
        for number, group in enumerate(groups, start=1):
            name = f"model-{number:05}-of-{len(groups):05}.safetensors"
            write_safetensors(group, _metadata(content), os.path.join(path, name))
            weights |= {tensor.name: name for tensor in group}
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


def _metadata(content: ExportContent) -> dict[str, str]:
    notes = {name: asdict(note) for name, note in content.notes.items()}
    return {**content.metadata, "tables": json.dumps(notes)}


def write_safetensors(tensors: Sequence[Tensor], metadata: Mapping[str, str], path: str) -> None:
    """Write one safetensors file."""
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
    with storage_errors(path), open(path, "xb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for tensor in tensors:
            _write_chunks(tensor, file)
        _flush(file)


class NpyDirectory(ContentFormat):
    """One .npy file for each tensor, memory-mappable, and `index.json` with names, tables and metadata."""

    traits: ClassVar = FormatTraits("npy", endings=(".npy",), is_directory=True)

    def write(self, content: ExportContent, path: str) -> None:
        """Write the files; the name of a file is that of its tensor, with %XX for characters that could make a path.

        A long name is shortened; the index has the whole.
        """
        files = file_names(tensor.name for tensor in content.tensors)
        for tensor in content.tensors:
            target = os.path.join(path, f"{files[tensor.name]}.npy")
            with storage_errors(target), open(target, "xb") as file:
                file.write(npy_header(tensor))
                _write_chunks(tensor, file)
                _flush(file)
        _write_json(os.path.join(path, INDEX), index_document(content, files))


class Npz(ContentFormat):
    """An uncompressed .npz, which numpy opens; members are named as in `NpyDirectory`, with `index.json` among them."""

    traits: ClassVar = FormatTraits("npz", endings=(".npz",))

    def write(self, content: ExportContent, path: str) -> None:
        """Write the archive."""
        files = file_names(tensor.name for tensor in content.tensors)
        with storage_errors(path), open(path, "xb") as file:
            with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
                for tensor in content.tensors:
                    info = zipfile.ZipInfo(f"{files[tensor.name]}.npy")
                    with archive.open(info, "w", force_zip64=True) as member:
                        member.write(npy_header(tensor))
                        _write_chunks(tensor, member)
                archive.writestr(zipfile.ZipInfo(INDEX), json.dumps(index_document(content, files), indent=1))
            _flush(file)


def index_document(content: ExportContent, files: Mapping[str, str]) -> dict[str, Any]:
    """Return the content of `index.json`: the file and dtype of each tensor, notes on tables, metadata."""
    return {
        "schema": INDEX_SCHEMA,
        "tensors": {t.name: {"file": f"{files[t.name]}.npy", "dtype": t.dtype.name} for t in content.tensors},
        "tables": {name: asdict(note) for name, note in content.notes.items()},
        "metadata": dict(content.metadata),
    }


def npy_header(tensor: Tensor) -> bytes:
    """Return the head of an .npy file; bfloat16, which numpy lacks, is written as the uint16 of the same bits."""
    name = "uint16" if tensor.dtype.name == "bfloat16" else tensor.dtype.name
    head = io.BytesIO()
    described = {
        "descr": np.lib.format.dtype_to_descr(np.dtype(name).newbyteorder("<")),
        "fortran_order": False,
        "shape": tensor.shape,
    }
    np.lib.format.write_array_header_1_0(head, described)
    return head.getvalue()


def _write_chunks(tensor: Tensor, file: IO[bytes]) -> None:
    written = 0
    for chunk in tensor.chunks():
        file.write(chunk.data)
        written += chunk.nbytes
    if written != tensor.size_bytes:
        raise AssertionError(f"{tensor.name}: wrote {written} bytes (expected {tensor.size_bytes})")


def _write_json(path: str, document: dict[str, Any]) -> None:
    with storage_errors(path), open(path, "x", encoding="utf-8") as file:
        json.dump(document, file, indent=1)
        _flush(file)


def _flush(file: IO[Any]) -> None:
    file.flush()
    os.fsync(file.fileno())
