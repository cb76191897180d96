"""All tensors of a bundle, as variables, tables and items of the shards that have their bytes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from edl_ckpt.core.base.errors import CorruptError, UnsupportedError
from edl_ckpt.core.base.words import base_name
from edl_ckpt.core.model.tables import (
    Problem,
)
from edl_ckpt.core.sources.bundle.data_files import DataFile, DataFiles, add_tensor
from edl_ckpt.core.sources.bundle.index import Index
from edl_ckpt.core.sources.bundle.slices import add_slices
from edl_ckpt.core.sources.bundle.tables import add_table, find_tables
from edl_ckpt.core.sources.steps.content import Content, Found


def add_tensors(content: Content, index: Index, opened: Mapping[int, Found], path: str) -> None:
    """Add every tensor whose bytes are in open files; a shard whose file ends too early is left out.

    `path` is that of the index.
    """
    files = {number: DataFile(found.shard, found.file, found.number) for number, found in opened.items()}
    for number, error in _cut_short(index, files):
        content.fail(files.pop(number).shard, error)
    used: set[str] = set()
    for table in find_tables(index):
        used.update(name for name, _ in table.tensors)
        add_table(table, files)
    for name, tensor in index.tensors.items():
        file = files.get(tensor.shard)
        try:
            if tensor.slices:
                add_slices(index, name, tensor, files)
            elif file is not None and name not in used:
                add_tensor(name, tensor, file)
            elif name not in used and files:
                fault = Problem("missing-file", name, None, "the file with its values cannot be read", warning=True)
                next(iter(files.values())).shard.problems.append(fault)
        except CorruptError as error:  # TensorFlow reads the others, and so do we
            home = (file or next(iter(files.values()))).shard
            home.problems.append(Problem(error.code, name, error.offset, f"{base_name(path)}: {error.message}"))
        except UnsupportedError as error:
            error.path = error.path or path
            _fail_all([file] if file else files.values(), content, error)


def _fail_all(files: Iterable[DataFile], content: Content, error: UnsupportedError) -> None:
    """Leave out the shards of some files, each once."""
    shards = {id(file.shard): file.shard for file in files}
    for shard in shards.values():
        content.fail(shard, error)


def _cut_short(index: Index, files: DataFiles) -> list[tuple[int, CorruptError]]:
    """Return the data files that end before one of their tensors does, and what is wrong."""
    faults: list[tuple[int, CorruptError]] = []
    tensors = (*index.tensors.items(), *index.slices.items())
    for number, end in index.ends().items():
        if number not in files or end <= files[number].file.size_bytes:
            continue
        file = files[number].file
        for name, tensor in tensors:
            if tensor.shard == number and tensor.end > file.size_bytes:
                message = f"{name!r} ends after the end of the file (at byte {tensor.end} of {file.size_bytes})"
                faults.append((number, CorruptError(message, path=file.path, offset=tensor.start)))
                break
    return faults
