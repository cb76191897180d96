"""Formats of frameworks, each written with its own library where that is installed: Parquet, PyTorch, TensorFlow.

Each library is an extra, imported where it is used; none of them ever has a whole table in memory.
"""

from __future__ import annotations

import json
import os
import shutil
import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import asdict
from typing import Any, ClassVar, Final

import numpy as np

from edl_ckpt.core.errors import UnsupportedError
from edl_ckpt.core.format.model import DTYPES
from edl_ckpt.core.libraries import library
from edl_ckpt.core.operations.export.arrays import write_safetensors
from edl_ckpt.core.operations.export.content_format import ContentFormat
from edl_ckpt.core.operations.export.interface import ExportContent, FormatTraits, Tensor
from edl_ckpt.core.operations.export.names import file_names
from edl_ckpt.core.operations.export.places import Crc32, OutputFile, Place
from edl_ckpt.core.storage.faults import storage_errors
from edl_ckpt.core.storage.files import flush_file

DENSE_FILE: Final = "dense.safetensors"
CHECKPOINT_PREFIX: Final = "model"
METADATA_FILE: Final = "edl-ckpt.json"
_MOST_OPEN: Final = 200
"""Parquet files that are open at a time."""
_NOTES: Final = "__edl_ckpt__"
_SLICE_BYTES: Final = 64 << 20


def missing_names(module: Any) -> frozenset[str]:
    """Return the names of the dtypes that a library does not have."""
    return frozenset(name for name in DTYPES if not hasattr(module, name))


def metadata_document(content: ExportContent) -> dict[str, Any]:
    """Return what an importer must know beside the values."""
    return _document(content, content.finish())


def _document(content: ExportContent, metadata: Mapping[str, str]) -> dict[str, Any]:
    return {**metadata, "tables": {name: asdict(note) for name, note in content.notes.items()}}


class Parquet(ContentFormat):
    """A directory with a Parquet file for each table, columns `id` and `vector`, and dense.safetensors beside them."""

    traits: ClassVar = FormatTraits(
        "parquet", endings=(".parquet",), is_directory=True, lacked_dtypes=frozenset({"bfloat16"})
    )

    def write(self, content: ExportContent, path: str) -> None:
        """Write the files; UnsupportedError for a table as a matrix, which has no ids."""
        arrow, parquet = library("pyarrow", "arrow"), library("pyarrow.parquet", "arrow")
        files = file_names(table.name for table in content.tables)
        if content.tables and not content.notes:
            raise UnsupportedError("a Parquet file contains ids and vectors; --dense-rows is for other formats")
        dtypes = {tensor.name: tensor.dtype.name for tensor in content.tensors}
        if len(content.tables) > _MOST_OPEN:
            content.finish()  # reads everything now: no more than so many files can wait for the fingerprint
        used = {name for note in content.notes.values() for name in (note.ids, note.vectors)}
        dense = [tensor for tensor in content.tensors if tensor.name not in used]
        notes = json.dumps(_document(content, {k: v for k, v in content.metadata.items() if k != "fingerprint"}))
        with ExitStack() as waiting:
            for table in content.tables:
                values = arrow.from_numpy_dtype(np.dtype(dtypes[content.notes[table.name].vectors]))
                columns = [("id", arrow.int64()), ("vector", arrow.list_(values, table.dim))]
                schema = arrow.schema(columns, metadata={"edl-ckpt": notes, "table": table.name})
                target = os.path.join(path, f"{files[table.name]}.parquet")
                with ExitStack() as file, storage_errors(target):
                    writer = file.enter_context(
                        parquet.ParquetWriter(target, schema, use_dictionary=False, write_statistics=["id"])
                    )
                    for ids, vectors in table.batches():
                        flat = arrow.array(np.ascontiguousarray(vectors).reshape(-1), values)
                        column = arrow.FixedSizeListArray.from_arrays(flat, table.dim)
                        writer.write_table(arrow.Table.from_arrays([arrow.array(ids), column], schema=schema))
                    file.callback(_describe, writer, content)
                    if len(content.tables) <= _MOST_OPEN:
                        waiting.push(file.pop_all())
            write_safetensors(content, {os.path.join(path, DENSE_FILE): dense}, {"tables": "{}"})
        for name in files.values():
            flush_file(os.path.join(path, f"{name}.parquet"))


def _describe(writer: Any, content: ExportContent) -> None:
    """Write what the schema says into the footer of a Parquet file, with the fingerprint."""
    writer.add_key_value_metadata({"edl-ckpt": json.dumps(metadata_document(content))})


class Torch(ContentFormat):
    """A state_dict that `torch.load(weights_only=True)` opens: tables as NAME.ids and NAME.vectors.

    PyTorch itself writes the archive for tensors without values and leaves room for them (`skip_data`). The values are
    streamed into that room, and the archive's checksums corrected.
    """

    traits: ClassVar = FormatTraits("torch", endings=(".pt", ".pth"), spools=False)

    def lacked_dtypes(self, *, in_table: bool) -> frozenset[str]:
        """Return what the installed PyTorch lacks: unsigned integers came late."""
        del in_table
        return missing_names(library("torch", "torch"))

    def write(self, content: ExportContent, path: str) -> None:
        """Write the file."""
        torch = library("torch", "torch")
        fake = library("torch._subclasses.fake_tensor", "torch")
        pending = json.dumps(_document(content, content.metadata)).encode()
        with fake.FakeTensorMode():
            empty = {t.name: torch.empty(t.shape, dtype=getattr(torch, t.dtype.name)) for t in content.tensors}
            empty[_NOTES] = torch.empty(len(pending), dtype=torch.uint8)
        with storage_errors(path), torch.serialization.skip_data(materialize_fake_tensors=True):
            torch.save(empty, path)
        with storage_errors(path), zipfile.ZipFile(path) as archive:
            members = {i.filename.rpartition("/data/")[2]: i for i in archive.infolist() if "/data/" in i.filename}
            directory = archive.start_dir
        output = OutputFile(path)
        with output, open(path, "r+b", buffering=0) as file:  # a buffer would bring back old values
            places = {
                tensor.name: Place(output, _data_offset(file, members[str(number)]), Crc32())
                for number, tensor in enumerate(content.tensors)
            }
            content.fill(places)
            notes, member = json.dumps(metadata_document(content)).encode(), members[str(len(content.tensors))]
            output.write(_data_offset(file, member), notes)
            sums = {member.filename: zlib.crc32(notes)}
            for number, tensor in enumerate(content.tensors):
                crc = places[tensor.name].crc
                assert crc is not None  # noqa: S101 - all of them were made with one
                sums[members[str(number)].filename] = crc.value()
            with storage_errors(path):
                for info in members.values():
                    if info.filename in sums:
                        _set_sum(file, info, sums[info.filename])
                _set_sums(file, directory, sums)
                file.flush()
                os.fsync(file.fileno())


def _data_offset(file: Any, member: zipfile.ZipInfo) -> int:
    """Return where the bytes of a member begin."""
    file.seek(member.header_offset)
    name, extra = struct.unpack("<HH", file.read(30)[26:30])
    return member.header_offset + 30 + int(name) + int(extra)


def _set_sum(file: Any, member: zipfile.ZipInfo, crc: int) -> None:
    """Set the checksum beside the bytes of a member: in its header, or behind them."""
    if not member.flag_bits & 8:
        file.seek(member.header_offset + 14)
        file.write(struct.pack("<I", crc))
        return
    file.seek(_data_offset(file, member) + member.file_size)
    if file.read(4) == b"PK\x07\x08":
        file.seek(0, os.SEEK_CUR)
        file.write(struct.pack("<I", crc))


def _set_sums(file: Any, start: int, sums: dict[str, int]) -> None:
    """Set the checksums in the archive's directory."""
    file.seek(start)
    data = file.read()
    at = 0
    while data[at : at + 4] == b"PK\x01\x02":
        name, extra, comment = struct.unpack("<HHH", data[at + 28 : at + 34])
        title = data[at + 46 : at + 46 + name].decode("utf-8", "replace")
        if title in sums:
            file.seek(start + at + 16)
            file.write(struct.pack("<I", sums[title]))
        at += 46 + name + extra + comment


class TensorFlow(ContentFormat):
    """A checkpoint that `tf.train.load_checkpoint` lists and reads: `model.index` and its data, in a directory.

    Large tensors are saved slice by slice and merged, as TensorFlow does with partitioned variables.
    """

    traits: ClassVar = FormatTraits("tensorflow", is_directory=True)

    def lacked_dtypes(self, *, in_table: bool) -> frozenset[str]:
        """Return what the installed TensorFlow lacks."""
        del in_table
        return missing_names(library("tensorflow", "tensorflow"))

    def write(self, content: ExportContent, path: str) -> None:
        """Write the checkpoint with the prefix `model`."""
        tf = library("tensorflow", "tensorflow")
        parts = os.path.join(path, "parts")
        prefixes: list[str] = []
        with storage_errors(path):
            os.mkdir(parts)
            for tensor in content.tensors:
                for spec, values in _slices(tf, tensor):
                    prefixes.append(os.path.join(parts, str(len(prefixes))))
                    tf.raw_ops.SaveV2(
                        prefix=prefixes[-1], tensor_names=[tensor.name], shape_and_slices=[spec], tensors=[values]
                    )
            if prefixes:
                target = os.path.join(path, CHECKPOINT_PREFIX)
                tf.raw_ops.MergeV2Checkpoints(
                    checkpoint_prefixes=prefixes, destination_prefix=target, delete_old_dirs=False
                )
            shutil.rmtree(parts)
            with open(os.path.join(path, METADATA_FILE), "x", encoding="utf-8") as file:
                json.dump(metadata_document(content), file, indent=1)
            for name in os.listdir(path):
                flush_file(os.path.join(path, name))


def _slices(tf: Any, tensor: Tensor) -> Iterator[tuple[str, Any]]:
    """Yield (shape and slice, values) of a tensor, by rows of at most `_SLICE_BYTES`."""
    dtype = getattr(tf, tensor.dtype.name)
    numpy_dtype = dtype.as_numpy_dtype
    if not tensor.shape or not tensor.size_bytes:
        data = b"".join(chunk.tobytes() for chunk in tensor.chunks())
        yield "", tf.constant(np.frombuffer(data, numpy_dtype).reshape(tensor.shape), dtype)
        return
    row_bytes = tensor.size_bytes // tensor.shape[0]
    shape = " ".join(map(str, tensor.shape))
    rest = ":-" * (len(tensor.shape) - 1)
    start, buffer = 0, bytearray()

    def cut(count: int) -> tuple[str, Any]:
        data = np.frombuffer(bytes(buffer[: count * row_bytes]), numpy_dtype)
        del buffer[: count * row_bytes]
        return f"{shape} {start},{count}{rest}", tf.constant(data.reshape(count, *tensor.shape[1:]), dtype)

    step = max(_SLICE_BYTES // row_bytes, 1)
    for chunk in tensor.chunks():
        buffer += chunk.data
        while len(buffer) >= step * row_bytes:
            yield cut(step)
            start += step
    if buffer:
        yield cut(len(buffer) // row_bytes)
