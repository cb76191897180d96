"""Parquet, written with pyarrow, an extra that never has a whole table in memory.

Several threads read rows; pyarrow encodes each batch as a row group, in the order of the rows.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar, Final

from edl_ckpt.core.base.errors import UnsupportedError
from edl_ckpt.core.base.parallel import run_all
from edl_ckpt.core.operations.export.cluster.files import PartFile, Span, numbered, sizes_of
from edl_ckpt.core.operations.export.cluster.run import PartsFormat
from edl_ckpt.core.operations.export.formats.arrays import (
    METADATA_FILE,
    OF_NUMPY,
    file_names,
    metadata_document,
    write_json,
    write_safetensors,
)
from edl_ckpt.core.operations.export.formats.parquet_file import TableFile, table_file
from edl_ckpt.core.operations.export.interface import ExportContent, FormatTraits, TableRows, Tensor
from edl_ckpt.core.operations.export.output.places import FLUSHERS
from edl_ckpt.core.operations.export.output.target import DENSE_FILE, ExportTarget, NewFile
from edl_ckpt.core.reading.reader import Checkpoint
from edl_ckpt.core.storage.location import Location

PARQUET: Final = ".parquet"
"""The ending of a Parquet file."""
PARTS_FILE: Final = f"_{METADATA_FILE}"
"""What a cluster says of a directory of Parquet files."""


def _write_part(content: ExportContent, path: str, new_file: NewFile) -> None:
    """Write one of the files of a cluster: rows of a table, or the dense variables."""
    if not content.tables and content.tensors:
        write_dense(content, path, content.tensors, new_file)
        return
    table = next(iter(content.tables), None)
    file = table_file(content, table, path, checked=True)
    file.finish(description(content, content.metadata, table))


class Parquet(PartsFormat):
    """One table is one file, columns `id` and `vector`. Several are a directory with a file for each.

    A reader may take the directory for one dataset, so its files have one schema: a `vector` is a list of any length
    there, and a third column, `table`, names the table. For the same reason the directory has nothing else in it. Dense
    variables are in a directory beside the output, and the footer of each file says how many there are.
    """

    traits: ClassVar = FormatTraits(
        "parquet", endings=(PARQUET,), lacked_dtypes=frozenset({"bfloat16"}), other_dtypes=OF_NUMPY
    )

    def directories(self, checkpoint: Checkpoint) -> tuple[bool, Location | None]:
        """Return a directory for several tables, and beside it that of the dense variables, if there are any.

        A version without any table is a file without rows.
        """
        chosen, goal = self.request.selection, self.request.goal
        several = len(chosen.choose_tables(checkpoint.table_names, checkpoint.slots)) > 1
        dense = chosen.written_variables(checkpoint)
        beside = goal.with_url(dense_directory(goal.url)) if dense else None
        return several or self.request.cluster is not None, beside

    def planned(self, content: ExportContent, path: str, beside: str) -> Mapping[str, int | None]:
        """Return the files of all tables, and that of the dense variables; only the values tell their sizes."""
        dense = [os.path.join(beside, DENSE_FILE)] if beside else []
        return dict.fromkeys([*self._files(content, path).values(), *dense])

    index: ClassVar = PARTS_FILE
    write_part = staticmethod(_write_part)

    def part_files(
        self, content: ExportContent, spans: Mapping[str, Sequence[Span]], path: str, beside: str, size_bytes: int
    ) -> list[PartFile]:
        """Return the files of each table, and that of the dense variables."""
        del size_bytes
        names, in_tables = table_file_names(spans), sizes_of(content)
        files = [
            PartFile(os.path.join(path, f"{names[table]}-{numbered(span)}{PARQUET}"), (), (span,))
            for table, own in spans.items()
            for span in own
        ]
        files = files or [PartFile(os.path.join(path, f"none{PARQUET}"))]
        dense = tuple(name for name, is_table in in_tables if not is_table)
        return [*files, PartFile(os.path.join(beside, DENSE_FILE), dense)] if dense else files

    def end_parts(
        self, content: ExportContent, files: Sequence[PartFile], path: str, metadata: Mapping[str, str]
    ) -> None:
        """Write the notes for importers, under a name that readers of a directory pass over."""
        in_it = sum(file.path.startswith(os.path.join(path, "")) for file in files)
        whole = {"tables": content.counts.tables, "variables": content.counts.variables}
        write_json(
            os.path.join(path, PARTS_FILE), {**metadata_document(content, metadata), "whole": whole, "files": in_it}
        )

    def write(self, content: ExportContent, target: ExportTarget) -> None:
        """Write the files; UnsupportedError for a table as a matrix, which has no ids."""
        if content.tables and not content.notes:
            raise UnsupportedError("a Parquet file contains ids and vectors; `dense_rows` is for other formats")
        files = self._files(content, target.path)
        outputs = {table: table_file(content, table, path) for table, path in files.items()}
        if target.beside:
            used = {name for note in content.notes.values() for name in (note.ids, note.vectors)}
            dense = [tensor for tensor in content.tensors if tensor.name not in used]
            write_dense(content, os.path.join(target.beside, DENSE_FILE), dense, target.new_file)
        metadata = content.finish()

        def finish(written: tuple[TableRows | None, TableFile]) -> None:
            table, output = written
            output.finish(description(content, metadata, table))

        run_all(finish, outputs.items(), FLUSHERS)

    def _files(self, content: ExportContent, path: str) -> dict[TableRows | None, str]:
        """Return the path of the file for each table; None is the table of a version that has none."""
        if len(content.tables) < 2:
            return {next(iter(content.tables), None): path}
        names = table_file_names(table.name for table in content.tables)
        return {table: os.path.join(path, f"{names[table.name]}{PARQUET}") for table in content.tables}


def table_file_names(names: Iterable[str]) -> dict[str, str]:
    """Return the names of files for tables, without an ending; readers of a directory pass over those with a `_`."""
    files = file_names(names)
    return {name: f"%5F{file[1:]}" if file.startswith("_") else file for name, file in files.items()}


def write_dense(content: ExportContent, path: str, dense: Sequence[Tensor], new_file: NewFile) -> None:
    """Write the dense variables of a Parquet export."""
    write_safetensors(content, dense, {"tables": "{}"}, path, new_file)


def dense_directory(url: str) -> str:
    """Return the path or URL of the directory for the dense variables of a Parquet export.

    >>> dense_directory("s3://bucket/m.parquet"), dense_directory("tables/")
    ('s3://bucket/m.dense', 'tables.dense')
    """
    stem = url.rstrip("/")
    return (stem[: -len(PARQUET)] if stem.lower().endswith(PARQUET) else stem) + ".dense"


def description(content: ExportContent, metadata: Mapping[str, str], table: TableRows | None) -> dict[str, str]:
    """Return what an importer must know of a table, and of the whole export, for the footer of its Parquet file."""
    note = {} if table is None else {table.name: content.notes[table.name].to_json()}
    whole = {"tables": content.counts.tables, "variables": content.counts.variables}
    return {"edl-ckpt": json.dumps({**metadata, "tables": note, "whole": whole})}
