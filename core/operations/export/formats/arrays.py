"""Formats of arrays: safetensors, .npz, .npy files, and those of PyTorch and TensorFlow, which need neither.

Each tensor has its place from the beginning: files are laid out from names and shapes. Names from checkpoints become
names of files and of members of archives, reversible where that is possible. The name of a file is never a path and
never too long. A member of an archive has the name itself, wherever an archive can have it.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any, ClassVar, Final
from urllib.parse import quote, unquote

import numpy as np

from edl_ckpt.core.base.names import name_bytes
from edl_ckpt.core.base.packing import together
from edl_ckpt.core.model.shapes import check_dimensions
from edl_ckpt.core.operations.export.cluster.files import MOST_NAMES, PartFile, Span, numbered, sizes_of
from edl_ckpt.core.operations.export.cluster.run import PartsFormat
from edl_ckpt.core.operations.export.formats.content_format import LaidOut, write_laid_out
from edl_ckpt.core.operations.export.interface import WEIGHT, ExportContent, FormatTraits, Tensor
from edl_ckpt.core.operations.export.output.places import (
    flush_file,
    reads_back_differently,
)
from edl_ckpt.core.operations.export.output.reopen import StoredAt, in_bundle, in_npz, in_safetensors
from edl_ckpt.core.operations.export.output.target import NewFile
from edl_ckpt.core.reading.reader import Checkpoint
from edl_ckpt.core.sources.bundle.data_files import WRITTEN_DTYPES
from edl_ckpt.core.sources.bundle.writing import lay_out
from edl_ckpt.core.sources.dcp.writing import OF_TORCH, lay_out_state
from edl_ckpt.core.sources.safetensors.indexing import TAGS
from edl_ckpt.core.sources.safetensors.writing import SetLayout, file_of_several, index_of, lay_out_files
from edl_ckpt.core.sources.steps.file_layout import Array, FileLayout, Slab
from edl_ckpt.core.sources.zip_layout import NumpyZip, ZipFileLayout, ZipMember, lay_out_zip
from edl_ckpt.core.storage.faults import storage_errors
from edl_ckpt.core.storage.location import Location

OF_NUMPY: Final = frozenset({"complex64", "complex128"})
"""What numpy has of the dtypes that no table has."""
_SAFE: Final = " !#$&'()+,-.;=@[]^_`{}~"
_DEVICES: Final = {"CON", "PRN", "AUX", "NUL", *(f"{name}{k}" for name in ("COM", "LPT") for k in range(1, 10))}
_MAX_BYTES: Final = 200
_UNSAFE_IN_ARCHIVES: Final = re.compile(r"\0|\\|\A/|(?<![^/])\.(?=\.?(?:/|\Z))|[\ud800-\udfff]")
_KEPT_BYTES: Final = 79
_DIGEST_BYTES: Final = 20
_MAX_MEMBER_BYTES: Final = 65_000
"""Of the name of a member: its length has 16 bits."""
NOTES: Final = "__edl_ckpt__"
"""The array of bytes, JSON, that an archive has for importers; no tensor has this name there."""


def escaped_file_name(name: str) -> str:
    """Return a name as one component of a path: %XX stands for characters that could make a path.

    >>> escaped_file_name("dense/kernel:0"), escaped_file_name("../../etc/passwd"), escaped_file_name("CON")
    ('dense%2Fkernel%3A0', '%2E.%2F..%2Fetc%2Fpasswd', '%43ON')
    """
    quoted = quote(name, safe=_SAFE)
    if quoted[:1] in {".", ""} or quoted.partition(".")[0].upper() in _DEVICES:
        quoted = f"%{ord(quoted[0]):02X}{quoted[1:]}" if quoted else "%"
    return quoted


def original_name(name: str) -> str:
    """Return the name that `escaped_file_name` escaped.

    >>> original_name(escaped_file_name("a/b.. %"))
    'a/b.. %'
    """
    return "" if name == "%" else unquote(name)


def file_names(names: Iterable[str]) -> dict[str, str]:
    """Return the name of a file for each name, no two alike even where case does not count.

    It is `escaped_file_name`, unless that is too long or taken: then its beginning, '~' and a digest of the name. Such
    a name cannot be turned back, so the writer records the true one.

    >>> file_names(["a", "A"])["a"], len(file_names(["x" * 500])["x" * 500])
    ('a', 120)
    """
    return _distinct(names, escaped_file_name, _MAX_BYTES, lambda written: {written.casefold()})


def member_names(names: Iterable[str]) -> dict[str, str]:
    """Return the key of each name in an .npz archive: the name itself, unless an archive cannot have it.

    %XX stands for NUL, where readers cut a name; for half of a surrogate pair, which UTF-8 lacks; for a backslash; for
    a slash at the begin, and the first dot of the components '.' and '..', which would lead out of the directory where
    somebody unpacks the archive; for the first character of `NOTES`; and for the dot of 'a.npy' beside 'a', because
    numpy takes that key for the file of 'a'. A name that is then too long or taken is shortened and gets a digest, as
    in `file_names`.

    >>> list(member_names(["dense/kernel:0", "../a", "a", "a.npy"]).values())
    ['dense/kernel:0', '%2E./a', 'a', 'a%2Enpy']
    """
    names = list(names)
    escape = partial(_escaped_member, there=set(names))
    return _distinct(names, escape, _MAX_MEMBER_BYTES, lambda written: {written, f"{written}.npy"})


def _distinct(
    names: Iterable[str], escape: Callable[[str], str], most_bytes: int, keys: Callable[[str], set[str]]
) -> dict[str, str]:
    """Return each name escaped, or shortened where that is too long, or where one before it has one of its keys."""
    chosen: dict[str, str] = {}
    taken: set[str] = set()
    for name in names:
        written = escaped = escape(name)
        salt = b""
        while len(name_bytes(written)) > most_bytes or not taken.isdisjoint(keys(written)):
            written = _shortened(escaped, name_bytes(name) + salt)
            salt += b"~"  # for the next turn: the true name of another tensor may look like this one
        taken |= keys(written)
        chosen[name] = written
    return chosen


def _escaped_member(name: str, there: Container[str]) -> str:
    """Return a name with %XX for what a member of an archive beside the names `there` cannot have."""
    if name == NOTES:
        return f"%{ord(name[0]):02X}{name[1:]}"
    escaped = _UNSAFE_IN_ARCHIVES.sub(lambda found: f"%{ord(found[0]):02X}", name)
    if escaped.endswith(".npy") and name.removesuffix(".npy") in there:
        escaped = f"{escaped.removesuffix('.npy')}%2Enpy"
    return escaped


def _shortened(escaped: str, data: bytes) -> str:
    """Return the beginning of an escaped name, cut between its characters, with a digest of some bytes."""
    start = re.sub(r"%[0-9A-F]?$", "", escaped[:_KEPT_BYTES])
    return f"{start}~{hashlib.blake2b(data, digest_size=_DIGEST_BYTES).hexdigest()}"


INDEX: Final = "index.json"
SHARDED: Final = "model.safetensors.index.json"
"""The index of several files of safetensors."""
METADATA_FILE: Final = "edl-ckpt.json"
INDEX_SCHEMA: Final = "edl-ckpt/arrays/1"


def _write_part(content: ExportContent, path: str, new_file: NewFile) -> None:
    """Write one of the files of a cluster."""
    write_safetensors(content, content.tensors, _notes(content), path, new_file)


class Safetensors(LaidOut, PartsFormat):
    """Source: the format's page at huggingface/safetensors: u64 header size, JSON header, tensors without holes.

    A version larger than `max_shard_bytes` becomes a directory of several files, with the index that huggingface's
    loaders read.
    """

    traits: ClassVar = FormatTraits(
        "safetensors",
        endings=(".safetensors",),
        spools=False,
        keeps_matrices=True,
        other_dtypes=frozenset(TAGS),
        keeps_texts=True,
    )

    def directories(self, checkpoint: Checkpoint) -> tuple[bool, Location | None]:
        """Return a directory when the version is split, and none beside it."""
        is_directory, beside = super().directories(checkpoint)
        return is_directory or self._is_split, beside

    @property
    def _is_split(self) -> bool:
        limit = self.request.max_shard_bytes
        return limit is not None and self.request.version.size_bytes > limit

    def layout(self, content: ExportContent, metadata: Mapping[str, str]) -> FileLayout:
        """Return the layout of one file, or of `model-00001-of-0000N.safetensors` and their index."""
        files: dict[str, Sequence[Tensor]] = {"": content.tensors}
        if self._is_split:
            sized = ((tensor, tensor.size_bytes) for tensor in content.tensors)
            groups = list(together(sized, self.request.max_shard_bytes or 0)) or [[]]
            files = {file_of_several(number, len(groups)): group for number, group in enumerate(groups)}
        named = {file: {tensor.name: tensor for tensor in tensors} for file, tensors in files.items()}
        return lay_out_files(named, {**metadata, **_notes(content)}, SHARDED if self._is_split else "")

    def reopened(self, path: str, files: Sequence[str]) -> Mapping[str, StoredAt]:
        """Return the tensors in the headers."""
        return in_safetensors(path, files)

    index: ClassVar = SHARDED
    write_part = staticmethod(_write_part)

    def part_bytes(self, content: ExportContent) -> int | None:
        """Return the size of a file."""
        return _one_file(content.tensors, _notes(content), content.metadata).files[""]

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
            name: note.to_json() | {kind: [f"{title}.{kind}" for title in titles[name]] for kind in ("ids", "vectors")}
            for name, note in content.notes.items()
        }
        total_bytes = sum(tensor.size_bytes for tensor in content.tensors)
        write_json(os.path.join(path, SHARDED), index_of(weights, total_bytes, {**metadata, "tables": tables}))


def _notes(content: ExportContent) -> dict[str, str]:
    return {"tables": json.dumps({name: note.to_json() for name, note in content.notes.items()})}


def write_safetensors(
    content: ExportContent, tensors: Sequence[Tensor], notes: Mapping[str, str], path: str, new_file: NewFile
) -> None:
    """Write a safetensors file with these tensors; its metadata are also `notes`."""
    write_laid_out(content, tensors, partial(_one_file, tensors, notes), path, new_file)


def _one_file(tensors: Sequence[Tensor], notes: Mapping[str, str], metadata: Mapping[str, str]) -> SetLayout:
    return lay_out_files({"": {tensor.name: tensor for tensor in tensors}}, {**metadata, **notes})


class NpyDirectory(LaidOut):
    """One .npy file for each tensor, memory-mappable, and `index.json` with names, tables and metadata.

    The name of a file is that of its tensor, with %XX for characters that could make a path. A long name is shortened;
    the index has the whole.
    """

    traits: ClassVar = FormatTraits(
        "npy", endings=(".npy",), is_directory=True, spools=False, keeps_matrices=True, other_dtypes=OF_NUMPY
    )

    def layout(self, content: ExportContent, metadata: Mapping[str, str]) -> FileLayout:
        """Return the layout of all files."""
        files = file_names(tensor.name for tensor in content.tensors)
        heads = {f"{files[tensor.name]}.npy": npy_header(tensor) for tensor in content.tensors}
        places = {t.name: (file, len(head)) for t, (file, head) in zip(content.tensors, heads.items(), strict=True)}
        sizes = {places[t.name][0]: places[t.name][1] + t.size_bytes for t in content.tensors}
        heads[INDEX] = document_bytes(index_document(content, files, metadata))
        return SetLayout({**sizes, INDEX: len(heads[INDEX])}, places, heads)


class Npz(LaidOut):
    """An uncompressed .npz: the keys of numpy are the names of the tensors, and those of `NOTES` its index as JSON."""

    traits: ClassVar = FormatTraits("npz", endings=(".npz",), spools=False, keeps_matrices=True, other_dtypes=OF_NUMPY)

    def layout(self, content: ExportContent, metadata: Mapping[str, str]) -> FileLayout:
        """Return the layout of the archive."""
        keys = member_names(tensor.name for tensor in content.tensors)
        members: dict[str, ZipMember] = {}
        for tensor in content.tensors:
            head = npy_header(tensor)
            members[tensor.name] = ZipMember(_member(keys[tensor.name]), len(head) + tensor.size_bytes, head=head)
        index = json.dumps(index_document(content, keys, metadata)).encode()
        notes = _npy_head("uint8", (len(index),)) + index
        plan = lay_out_zip([*members.values(), ZipMember(_member(NOTES), len(notes), notes)], NumpyZip())
        return ZipFileLayout(plan, {name: member.name for name, member in members.items()})

    def reopened(self, path: str, files: Sequence[str]) -> Mapping[str, StoredAt]:
        """Return the tensors in the directory."""
        del self, files
        return in_npz(path, _member(NOTES))


def _member(key: str) -> str:
    """Return the name of the member of an .npz archive that numpy shows under a key."""
    return f"{key}.npy"


def index_document(content: ExportContent, files: Mapping[str, str], metadata: Mapping[str, str]) -> dict[str, Any]:
    """Return the index of .npy files or members: the file and dtype of each tensor, notes on tables, metadata."""
    return {
        "schema": INDEX_SCHEMA,
        "tensors": {t.name: {"file": f"{files[t.name]}.npy", "dtype": t.dtype.name} for t in content.tensors},
        "tables": {name: note.to_json() for name, note in content.notes.items()},
        "metadata": dict(metadata),
    }


def npy_header(tensor: Tensor) -> bytes:
    """Return the head of an .npy file; bfloat16, which numpy lacks, is written as the uint16 of the same bits."""
    check_dimensions(tensor.name, tensor.shape)
    return _npy_head("uint16" if tensor.dtype.name == "bfloat16" else tensor.dtype.name, tensor.shape)


@lru_cache(1 << 12)
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


def metadata_document(content: ExportContent, metadata: Mapping[str, str]) -> dict[str, Any]:
    """Return what an importer must know beside the values."""
    return {**metadata, "tables": {name: note.to_json() for name, note in content.notes.items()}}


def _notes_file(content: ExportContent, metadata: Mapping[str, str]) -> bytes:
    """Return the notes for importers: as many bytes for the metadata before `finish` as after it."""
    return document_bytes(metadata_document(content, metadata))


def _arrays(content: ExportContent) -> list[Array]:
    """Return the tensors, each in one piece."""
    slabs = [(tensor, Slab(0, (0,) * len(tensor.shape), tensor.shape)) for tensor in content.tensors]
    return [Array(tensor.name, tensor.dtype, tensor.shape, (slab,)) for tensor, slab in slabs]


class Torch(LaidOut):
    """A state_dict that `torch.load(weights_only=True)` opens: tables as NAME.ids and NAME.vectors.

    The notes for importers are one more member of the archive, which PyTorch passes over: a module's `load_state_dict`
    gets no key that it does not have. A table that becomes a matrix is NAME.weight, as the parameter of a
    `torch.nn.Embedding` NAME is.
    """

    traits: ClassVar = FormatTraits(
        "torch", endings=(".pt", ".pth"), spools=False, keeps_matrices=True, matrix_ending=WEIGHT, other_dtypes=OF_TORCH
    )

    def layout(self, content: ExportContent, metadata: Mapping[str, str]) -> FileLayout:
        """Return the layout of one file."""
        return lay_out_state(_arrays(content), {METADATA_FILE: _notes_file(content, metadata)})


CHECKPOINT_PREFIX: Final = "model"


class TensorFlow(LaidOut):
    """A checkpoint that `tf.train.load_checkpoint` lists and reads: `model.index` and its data, in a directory.

    A file `checkpoint` there leads `tf.train.latest_checkpoint` to it, wherever the directory is moved.
    """

    traits: ClassVar = FormatTraits(
        "tensorflow",
        is_directory=True,
        spools=False,
        keeps_matrices=True,
        other_dtypes=WRITTEN_DTYPES,
    )

    def layout(self, content: ExportContent, metadata: Mapping[str, str]) -> FileLayout:
        """Return the layout of a bundle; UnsupportedError for a name that it cannot have."""
        return lay_out(
            CHECKPOINT_PREFIX, _arrays(content), with_state=True, others={METADATA_FILE: _notes_file(content, metadata)}
        )

    def reopened(self, path: str, files: Sequence[str]) -> Mapping[str, StoredAt]:
        """Return the tensors in the index."""
        return in_bundle(path, files)
