"""The export as a checkpoint of torch.distributed, whose tables may get numbered rows."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import ClassVar, Final

from edl_ckpt.core.base.errors import UsageError
from edl_ckpt.core.catalog.listing import as_version
from edl_ckpt.core.converting.name_map import ROWS, NameMap
from edl_ckpt.core.model.tables import Extent
from edl_ckpt.core.operations.export.formats.arrays import Safetensors
from edl_ckpt.core.operations.export.formats.systems import SystemFormat
from edl_ckpt.core.operations.export.interface import (
    ExportPlan,
    ExportRequest,
    ExportResult,
    FormatTraits,
    Selection,
)
from edl_ckpt.core.sources.safetensors.indexing import read_header
from edl_ckpt.core.storage.interface import RangeReader
from edl_ckpt.core.storage.local import LocalReader
from edl_ckpt.core.storage.location import Location

_COMPARED_BYTES: Final = 1 << 20
"""So many bytes of ids are compared at a time."""


class Dcp(SystemFormat):
    """A checkpoint of torch.distributed.

    With `remap`, rows are numbered in the order of their ids, which are the tensor NAME.ids next to the table: first a
    temporary file of safetensors gets the matrices, and then they go out as tables of their numbers.
    """

    traits: ClassVar = FormatTraits("dcp", is_directory=True)

    def __init__(self, request: ExportRequest) -> None:
        self._to_number = request if request.selection.remap else None
        self._read: ExportResult | None = None
        """What is known of the version once it was read into the temporary file."""
        super().__init__(replace(request, selection=replace(request.selection, remap=False)))

    def plan(self) -> ExportPlan:
        """Return the files with their sizes; with `remap`, from the temporary file."""
        if self._to_number is None:
            return super().plan()
        with self._numbered(self._to_number) as request:
            return replace(Dcp(request).plan(), ref=self.request.version.ref)

    def export(self) -> ExportResult:
        """Write all files; with `remap`, from the temporary file."""
        if self._to_number is None:
            return super().export()
        with self._numbered(self._to_number) as request:
            done = replace(Dcp(request).export(), ref=self.request.version.ref, proved=False)
            if self._read is None:
                return done
            left_out = (*self._read.left_out, *done.left_out)
            items = replace(done.items, left_out=done.items.left_out + len(self._read.left_out))
            return replace(
                done,
                forced=self._read.forced,
                checksums=self._read.checksums,
                left_out=left_out,
                items=items,
                content=self._read.content,
                bytes_read=self._read.bytes_read + done.bytes_read,
            )

    @contextmanager
    def _numbered(self, request: ExportRequest) -> Iterator[ExportRequest]:
        """Yield the request for a temporary file whose tables are matrices, with their ids next to them."""
        if request.names and request.names.tables:
            raise UsageError("`remap` numbers the rows of all tables: no [tables] in the map")
        with tempfile.TemporaryDirectory(prefix="edl-ckpt-") as folder:
            goal = Location(os.path.join(folder, "numbered.safetensors"))
            rename = (*(request.names.rename.items() if request.names else ()), *request.rename)
            alone = replace(request, goal=goal, names=None, rename=rename, ranks=None, force=False)
            self._read = Safetensors(alone).export()
            with LocalReader(goal.url) as reader:
                tables = numbered_tables(reader)
            version = as_version(goal.url)
            yield replace(
                self.request,
                version=version,
                selection=Selection(),
                names=NameMap(tables=tables),
                rename=(),
                ranks=request.ranks or request.version.ps_num,
            )


def numbered_tables(reader: RangeReader) -> dict[str, dict[str, str]]:
    """Return the tables of a file with numbered rows, as a map has them; a companion has the ids of its table.

    Row k of a companion is that of the k-th id of its table, so its own ids are a copy, and go out once. One with other
    ids is a table of its own.
    """
    header = read_header(reader)
    notes: dict[str, dict[str, str]] = json.loads(header.metadata["tables"])
    ids = {tensor.name: Extent(tensor.start, tensor.end) for tensor in header.tensors}
    tables = {name: {"ids": ROWS, "vectors": note["vectors"]} for name, note in notes.items()}
    for name, note in notes.items():
        owner = notes.get(note.get("companion_of", ""))
        pair = [ids[each["ids"]] for each in (note, owner or {}) if each.get("ids") in ids]
        if len(pair) == 2 and _equal_bytes(reader, *pair):
            tables[name] |= {"companion_of": note["companion_of"], "slot": note["slot"], "same_ids": note["ids"]}
    return tables


def _equal_bytes(reader: RangeReader, one: Extent, other: Extent) -> bool:
    """Say whether two extents of a file have the same bytes."""
    steps = range(0, one.size_bytes, _COMPARED_BYTES)
    sizes = (min(_COMPARED_BYTES, one.size_bytes - at) for at in steps)
    return one.size_bytes == other.size_bytes and all(
        bytes(reader.read(one.start + at, size)) == bytes(reader.read(other.start + at, size))
        for at, size in zip(steps, sizes, strict=True)
    )
