"""Arrays in files of other tools, opened for ranged reads: safetensors, .npz, directories of .npy.

No header is trusted: every offset, size and shape is checked against the file before anything is read or allocated.
Nothing is ever unpickled. Files that only a framework's own library can read come through `texts.py` and `parquet.py`.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import tempfile
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from itertools import pairwise
from typing import Any, Final, Self

from edl_ckpt.core.base.errors import CorruptError, EdlCkptError, NotFoundError, UnsupportedError, UsageError
from edl_ckpt.core.base.json_objects import parse_object
from edl_ckpt.core.converting.changes import LeftOut, left_out_of
from edl_ckpt.core.converting.lacking import check_held
from edl_ckpt.core.converting.name_map import NameMap
from edl_ckpt.core.model.dtypes import DTYPES, DType, dtype_named
from edl_ckpt.core.model.versions import Version
from edl_ckpt.core.operations.export.formats.arrays import (
    CHECKPOINT_PREFIX,
    INDEX,
    METADATA_FILE,
    NOTES,
    SHARDED,
    original_name,
)
from edl_ckpt.core.operations.export.formats.parquet import PARQUET, dense_directory
from edl_ckpt.core.operations.export.output.target import DENSE_FILE
from edl_ckpt.core.operations.importing.archives import StoredMember, check_directory, unpacked
from edl_ckpt.core.operations.importing.bundle_arrays import arrays_of, bundle_at, names_of
from edl_ckpt.core.operations.importing.npy import check_shape, in_order, npy_header
from edl_ckpt.core.operations.importing.parquet import read_parquet
from edl_ckpt.core.operations.importing.range_stream import RangeStream, as_stream
from edl_ckpt.core.operations.importing.source import ArrayData, FileExtent, joined, naming
from edl_ckpt.core.operations.importing.stream import ArrayStream
from edl_ckpt.core.operations.importing.texts import TEXTS, read_rows
from edl_ckpt.core.operations.importing.torch_files import read_torch
from edl_ckpt.core.proof.fingerprint import ContentSketch, Forms
from edl_ckpt.core.proof.items import confirm_zip
from edl_ckpt.core.proof.trust import Trust
from edl_ckpt.core.reading.reader import open_checkpoint
from edl_ckpt.core.reading.stored_sums import NO_SUMS, StoredSums, SumsCompared
from edl_ckpt.core.sources.safetensors.indexing import MAX_HEADER_BYTES, read_header
from edl_ckpt.core.sources.systems import ELASTICDL
from edl_ckpt.core.storage import Location, ObjectStore, open_objects, open_store
from edl_ckpt.core.storage.faults import storage_errors
from edl_ckpt.core.storage.inside import path_inside
from edl_ckpt.core.storage.interface import RangeReader
from edl_ckpt.core.storage.local import LocalReader
from edl_ckpt.core.storage.user_files import check_input, is_file

_COLUMNS: Final = ("id_column", "vector_column")
_NOTES_FILE: Final = f"{NOTES}.npy"
_FETCH_BYTES: Final = 8 << 20
ARRAY_ENDINGS: Final = (".safetensors", ".npz", ".npy", ".pt", ".pth", ".parquet", ".json", *TEXTS)
"""The endings of files that contain arrays, so no checkpoint."""
_INPUT: Final = re.compile(r"\.(npy|json|safetensors|parquet|index|data-[0-9].*)$|^checkpoint$")
"""Names of files in a directory that some format reads, and of those that belong to a TensorFlow checkpoint."""


class ArraySource:
    """All arrays of a file or a directory; a context manager. `notes` name its tables, where it has any notes.

    Arrays that are `shared` are read by other processes: UnsupportedError for those that this one must unpack. What
    these read of an archive has checksums that nobody has compared yet: those of its `members`.
    """

    def __init__(
        self, source: Location, names: NameMap | None = None, *, shared: bool = False, trust: Trust | None = None
    ) -> None:
        self.location = source
        self.trust = trust or Trust(None, None, force=False, source=source.url)
        """What decides about values whose checksum in the files is another one."""
        self.compared = NO_SUMS
        """How many checksums were compared while the source was opened."""
        self.shared = shared
        self.names = names or NameMap()
        self.warnings: list[str] = []
        self._takes: tuple[str, ...] = ()
        """Which options of a map what is here can have."""
        self.path = source.url
        self.arrays: dict[str, ArrayData] = {}
        self.notes: dict[str, dict[str, Any]] = {}
        self._fingerprint: object = None
        """The fingerprint that an export recorded here."""
        self._exports: set[object] = set()
        """The names of the exports of a cluster that wrote the files."""
        self._document: Mapping[str, Any] = {}
        """The notes that an export left, other than those on tables."""
        self.members: list[StoredMember] = []
        self.left_out: tuple[LeftOut, ...] = ()
        """What a checkpoint has and no shard contains."""
        self.sums: StoredSums | None = None
        """What is summed of the values of a checkpoint that have checksums in its files."""
        self._archive: RangeReader | None = None
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        try:
            self._open()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _open(self) -> None:
        local = self.location.local_path
        if local is None and self.path.lower().endswith(".safetensors"):
            with suppress(NotFoundError):  # a directory may have that name, or nothing
                self._open_safetensors(self.path)
                self._check_some()
                return
        if local is None and self.shared:
            self._open_far()
            self._check_some()
            return
        self.path = local or self.path
        if local is not None:
            self._check_inputs()
        bundle = bundle_at(self.location)
        if bundle is not None:
            self._open_bundle(bundle)
        else:
            self.path = local or self._fetch()
            try:
                self._open_files()
            except EdlCkptError as error:
                error.path = error.path and error.path.replace(self.path, self.location.url, 1)
                raise
        self._check_some()

    def _open_files(self) -> None:
        """Open files of this machine."""
        alone = os.path.join(self.path, METADATA_FILE)
        if os.path.exists(alone):  # TensorFlow writes no checkpoint without a tensor
            self._take_document(self._json(alone), alone)
        elif os.path.isdir(self.path):
            self._open_folder()
        elif self.path.lower().endswith(".safetensors"):
            self._open_safetensors(self.path)
        elif self.path.lower().endswith(".npz"):
            self._open_npz()
        elif self.path.lower().endswith(".npy"):
            stem = original_name(os.path.basename(self.path)[: -len(".npy")])
            self._add_npy((stem, ""), self._reader(self.path))
        elif self.path.lower().endswith(PARQUET):
            self._open_parquet()
        elif self.path.lower().endswith(tuple(TEXTS)):
            self._takes = _COLUMNS
            self._spool(read_rows(self.path, self.names, self.warnings.append))
        else:
            with storage_errors(self.path):
                os.stat(self.path)
            if not self.path.lower().endswith((".pt", ".pth")):
                raise UnsupportedError(
                    "unknown kind of file; expected .safetensors, .npz, .pt, .parquet, .csv, .jsonl, .vec, a directory"
                    " of .npy or Parquet files, a TensorFlow checkpoint, or a checkpoint of ElasticDL",
                    path=self.path,
                )
            self._takes = ("key",)
            with LocalReader(self.path) as reader:
                self.compared += confirm_zip(reader, os.path.basename(self.path), self.trust)
                self._spool(read_torch(reader, self.names.key, self._take_document))

    def _open_bundle(self, version: Version) -> None:
        """Open the arrays of a bundle where they are, with the notes of an export beside it, or else its tables."""
        self._check_not_shared()
        self.path = version.path
        checkpoint = self._stack.enter_context(open_checkpoint(version))
        self.sums = checkpoint.watch()
        self.left_out = left_out_of(checkpoint, ELASTICDL)
        for array in arrays_of(checkpoint):
            self._add(array)
        folder, slash, _ = version.shards[0].path.rpartition("/")
        with suppress(NotFoundError):
            path = f"{folder}{slash}{METADATA_FILE}"
            self._take_document(self._json(path), path)
            return
        self._take_notes({name: names_of(name) for name in checkpoint.table_names}, self.path)

    def _check_some(self) -> None:
        if any(getattr(self.names, asked) for asked in {"key", *_COLUMNS} - {*self._takes}):
            message = "--key is for .pt; --id-column and --vector-column are for Parquet, CSV and JSON lines"
            raise UsageError(message, path=self.path)
        if not self.arrays and self._fingerprint != Forms().fingerprint(ContentSketch()).text:
            raise NotFoundError("no array in it", path=self.path)

    def _open_far(self) -> None:
        """Open what processes of a cluster read from a bucket: an archive, or a directory."""
        if self.path.lower().endswith(".npz"):
            self._open_npz()
        elif self.path.lower().endswith((PARQUET, ".pt", ".pth", *TEXTS)):
            self._check_not_shared()
        else:
            self._open_folder()

    def _names(self) -> list[str]:
        """Return the names in the directory."""
        if self.location.local_path is not None or not self.shared:
            with storage_errors(self.path):
                return sorted(os.listdir(self.path))
        _, name, below = self._listed()
        return sorted(relative.removeprefix(f"{name}/") for relative in below)

    def _listed(self) -> tuple[ObjectStore, str, list[str]]:
        """Return the store with a remote source, its name there, and the paths of the files right below it."""
        folder, name = self.location.split()
        store = open_objects(folder)
        below = [each for each in store.tree(name) if each.count("/") == 1 and not each.endswith("/")]
        if not below and store.stat(name) is None:
            raise NotFoundError("no such file or directory", path=self.path)
        return store, name, below

    def _json(self, path: str) -> dict[str, Any]:
        """Return the document in a file."""
        reader = self._reader(path)
        return parse_object(reader.read(0, min(reader.size_bytes, MAX_HEADER_BYTES)), path)

    def _check_inputs(self) -> None:
        """Raise UsageError for a pipe, device or socket among what is read: libraries open files by their names."""
        check_input(self.path)
        folder = self.path if os.path.isdir(self.path) else os.path.dirname(self.path) or "."
        shared = "" if folder == self.path else f"{os.path.basename(self.path)}."
        with suppress(OSError):
            for name in os.listdir(folder):
                if name.startswith(shared) and _INPUT.search(name):
                    check_input(os.path.join(folder, name))

    def _open_folder(self) -> None:
        names = self._names()
        if SHARDED in names:
            self._open_sharded()
        elif any(name == f"{CHECKPOINT_PREFIX}.index" or (name == METADATA_FILE and self.shared) for name in names):
            self._check_not_shared()  # in a bucket: `_open` knows those of this machine
        elif any(name.endswith(PARQUET) for name in names):
            if DENSE_FILE in names:  # as it was before they had a directory of their own
                self._open_safetensors(os.path.join(self.path, DENSE_FILE))
            self._open_parquet()
        elif names == [DENSE_FILE]:
            self._open_safetensors(os.path.join(self.path, DENSE_FILE))
        else:
            self._open_directory(names)

    def _open_parquet(self) -> None:
        """Open one file or a directory of them, and the dense variables beside it, of the same export.

        One file of several is imported alone.
        """
        self._takes = _COLUMNS
        self._spool(read_parquet(self.path, self.names, self._take_document, self.trust))
        if len(self._exports) > 1:
            raise CorruptError("its files are not of the same export", path=self.path)
        whole = self._document.get("whole")
        noted = whole if isinstance(whole, dict) else {}
        one_of_several = noted.get("tables") not in (0, 1) and not os.path.isdir(self.path)
        if not noted.get("variables") or one_of_several:
            return
        dense = os.path.join(dense_directory(self.path), DENSE_FILE)
        fingerprint = self._fingerprint
        if not is_file(dense):
            raise NotFoundError(
                f"the dense variables of {self.path} are not next to it",
                path=dense,
                hint="put the directory back, or export again",
            )
        self._open_safetensors(dense)
        if self._fingerprint != fingerprint and (self._fingerprint or len(self._exports) > 1):
            raise CorruptError(f"is not of the same export as {self.path}: their fingerprints differ", path=dense)

    def _check_not_shared(self) -> None:
        if self.shared:
            raise UnsupportedError(
                "the workers of a cluster import checkpoints, .safetensors, and little-endian .npy and .npz in C order",
                path=self.location.url,
                hint="without --cluster, this machine imports it",
            )

    def _spool(self, found: Iterator[ArrayStream]) -> None:
        """Write arrays from a library, one after the other, to a file without a name."""
        self._check_not_shared()
        heads: list[tuple[str, DType, tuple[int, ...]]] = []

        def pieces() -> Iterator[Iterator[memoryview]]:
            for name, dtype, shape, data in found:
                check_shape(name, shape, self.path)
                heads.append((name, dtype, shape))
                yield (some.data for some in data)

        with storage_errors(tempfile.gettempdir()):
            extents = self._spooled(pieces())
        for head, extent in zip(heads, extents, strict=True):
            array = ArrayData(*head, extent.base, extent.begin)
            self._add(array.checked(extent.size_bytes))

    def _spooled(self, pieces: Iterable[Iterable[memoryview | bytes]]) -> list[FileExtent]:
        """Write pieces to a file without a name; return where each of them is."""
        file = self._stack.enter_context(tempfile.TemporaryFile())  # noqa: SIM115 - closed with the stack
        ends = [0]
        for piece in pieces:
            file.writelines(piece)
            ends.append(file.tell())
        file.flush()
        whole = self._stack.enter_context(LocalReader(self.path, file))
        return [FileExtent(whole, start, end - start) for start, end in pairwise(ends)]

    def _reader(self, path: str) -> RangeReader:
        folder, _ = self.location.with_url(path).split()
        return self._stack.enter_context(open_store(folder).open(path))

    def _fetch(self) -> str:
        """Bring a remote file, or the files of a remote directory, to the local disk; return where it is."""
        self._check_not_shared()
        store, name, below = self._listed()
        wanted = below or [name]
        if any(relative.endswith(PARQUET) for relative in wanted):
            dense = f"{dense_directory(name)}/{DENSE_FILE}"
            wanted += [each for each in store.tree(dense_directory(name)) if each == dense]
        directory = self._stack.enter_context(tempfile.TemporaryDirectory(prefix="edl-ckpt-"))
        targets = {each: path_inside(directory, each, whole=store.path(each)) for each in wanted}
        for relative, target in targets.items():
            with storage_errors(target):
                os.makedirs(os.path.dirname(target), exist_ok=True)
            with (
                store.open(store.path(relative)) as reader,
                storage_errors(target),
                open(target, "xb") as file,
            ):
                shutil.copyfileobj(RangeStream(reader, 0, reader.size_bytes), file, _FETCH_BYTES)
                reader.check_unchanged()
        return path_inside(directory, name, whole=self.path)

    def _add(self, array: ArrayData) -> None:
        if array.name in self.arrays:
            raise CorruptError(f"{array.name!r} occurs twice", path=array.reader.path)
        self.arrays[array.name] = array

    def _open_sharded(self) -> None:
        index = os.path.join(self.path, SHARDED)
        document = self._json(index)
        weights = document.get("weight_map")
        if not isinstance(weights, dict) or not all(isinstance(f, str) for f in weights.values()):
            raise CorruptError("there is no weight_map in it", path=index)
        for name in sorted(set(weights.values())):
            if os.path.basename(name) != name or name in {"", ".", ".."}:
                raise CorruptError(f"weight_map names a file in another directory: {name!r}", path=index)
            self._open_safetensors(os.path.join(self.path, name))
        absent = sorted(set(weights) - set(self.arrays))
        if absent:
            raise CorruptError(f"weight_map names {absent[0]!r}, which is in none of its files", path=index)
        metadata = document.get("metadata")
        if isinstance(metadata, dict) and isinstance(metadata.get("tables"), dict):
            self._take_parts(metadata, index)

    def _take_parts(self, metadata: Mapping[str, Any], index: str) -> None:
        """Join the tables that a cluster has exported; their parts have notes of their own until then."""
        if self._exports - {metadata.get("export")}:
            raise CorruptError("is not of the same export as other files there", path=index)
        self.notes.clear()
        for name, note in metadata["tables"].items():
            named = {kind: f"{name}.{kind}" for kind in ("ids", "vectors")}
            for kind, whole in named.items():
                names = note.get(kind) if isinstance(note, dict) else None
                parts = [self.arrays.pop(part, None) for part in names] if naming(names) else [None]
                self._add(joined(whole, parts, index))
            self._take_notes({name: {**note, **named}}, index)
        self._fingerprint = metadata.get("fingerprint")

    def _open_safetensors(self, path: str) -> None:
        reader = self._reader(path)
        header = read_header(reader)
        if "tables" in header.metadata:
            tables = parse_object(header.metadata["tables"].encode("utf-8", "surrogatepass"), path)
            self._take_document({**header.metadata, "tables": tables}, path)
        named = [(tensor.name, tensor.dtype) for tensor in header.tensors]
        check_held("a checkpoint of ElasticDL", named, (), path=path, other_way="")
        for tensor in header.tensors:
            check_shape(tensor.name, tensor.shape, path)
            self._add(ArrayData(tensor.name, tensor.dtype, tensor.shape, reader, tensor.start))

    def _take_document(self, document: Mapping[str, Any], path: str) -> None:
        """Take what an export leaves for importers: notes on tables, and the fingerprint of everything.

        Files of a cluster have only the name of their export.
        """
        self._document = document
        self._take_notes(document.get("tables"), path)
        if isinstance(document.get("export"), str):
            self._exports.add(document["export"])
        self._fingerprint = document.get("fingerprint")

    def _take_notes(self, notes: object, path: str) -> None:
        for name, note in notes.items() if isinstance(notes, dict) else [("", None)]:
            if not isinstance(note, dict) or not all(isinstance(note.get(k), str) for k in ("ids", "vectors")):
                raise CorruptError(f"the notes on table {name!r} are damaged", path=path)
            self.notes[name] = note

    def _open_npz(self) -> None:
        """Open the members of an archive."""
        with storage_errors(self.path):
            try:
                self._archive = self._reader(self.path) if self.shared else None
                source = self.path if self._archive is None else as_stream(self._archive)
                archive = self._stack.enter_context(zipfile.ZipFile(source))
                check_directory(
                    archive, os.path.getsize(self.path) if self._archive is None else self._archive.size_bytes
                )
                names = archive.namelist()
                readers = self._members(archive, [name for name in names if name.endswith(".npy")])
                index = self._index_of(archive, names, dict(readers))
            except EdlCkptError:
                raise
            except Exception as error:
                if isinstance(error, OSError) and error.errno != errno.EINVAL:  # a seek to before the begin
                    raise
                raise CorruptError(f"not a readable .npz: {error}", path=self.path) from None
        known = self._tensors_by_file(index)
        for name, reader in readers:
            if name != _NOTES_FILE or INDEX in names:
                self._add_npy(known.get(name, (name.removesuffix(".npy"), "")), reader)

    def _index_of(
        self, archive: zipfile.ZipFile, names: Sequence[str], readers: Mapping[str, RangeReader]
    ) -> dict[str, Any]:
        """Return the index of an archive that an export wrote: an array of bytes, before that a text; else {}."""
        if INDEX in names:
            with archive.open(INDEX) as member:
                return parse_object(member.read(MAX_HEADER_BYTES), self.path)
        if _NOTES_FILE not in names:
            return {}
        reader = readers[_NOTES_FILE]
        offset = npy_header(reader, NOTES)[2]
        return parse_object(reader.read(offset, min(reader.size_bytes - offset, MAX_HEADER_BYTES)), self.path)

    def _members(self, archive: zipfile.ZipFile, names: list[str]) -> list[tuple[str, FileExtent]]:
        """Unpack members to a file without a name, which compares their checksums; shared ones stay where they are."""
        if self._archive is not None:
            self.members = [StoredMember(self._archive, archive.getinfo(name)) for name in names]
            return list(zip(names, self.members, strict=True))
        extents = self._spooled(unpacked(archive, name, self.path, self.trust) for name in names)
        self.compared += SumsCompared(len(names))
        return list(zip(names, extents, strict=True))

    def _open_directory(self, names: list[str]) -> None:
        index = self._json(os.path.join(self.path, INDEX)) if INDEX in names else {}
        known = self._tensors_by_file(index)
        for name in names:
            if name.endswith(".npy"):
                own = known.get(name, (original_name(name.removesuffix(".npy")), ""))
                self._add_npy(own, self._reader(os.path.join(self.path, name)))

    def _tensors_by_file(self, index: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
        """Take the notes in an index; return the name and the dtype of the tensor in each file that it lists.

        Entries of others are ignored. Raises CorruptError when the index has two names for a file.
        """
        metadata = index.get("metadata")
        noted = metadata if isinstance(metadata, dict) else {}
        self._take_document({**noted, "tables": index.get("tables", {})}, self.path)
        tensors = index.get("tensors")
        known: dict[str, tuple[str, str]] = {}
        for name, entry in tensors.items() if isinstance(tensors, dict) else ():
            file = entry.get("file") if isinstance(entry, dict) else None
            if isinstance(file, str) and known.setdefault(file, (name, str(entry.get("dtype"))))[0] != name:
                raise CorruptError(f"the index has two names for {file!r}", path=self.path)
        return known

    def _add_npy(self, own: tuple[str, str], reader: RangeReader) -> None:
        """Add the array of an .npy file, by its name and the dtype that an index has for it."""
        name, noted = own
        kind, shape, offset, fortran = npy_header(reader, name)
        dtype = dtype_named(name, kind.name, path=reader.path)
        if noted == "bfloat16" and dtype.name == "uint16":
            dtype = DTYPES["bfloat16"]
        array = ArrayData(name, dtype, shape, reader, offset).checked(reader.size_bytes - offset)
        if kind.byteorder == ">" or (fortran and len(shape) > 1):
            data = in_order(reader, kind, shape, offset, "F" if fortran else "C")
            self._spool(iter([(name, dtype, shape, data)]))
        elif isinstance(reader, FileExtent):
            self._add(replace(array, reader=reader.base, offset=reader.begin + offset))
        else:
            self._add(array)
