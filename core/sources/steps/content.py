"""The content of a version while it is indexed: each format adds its variables and tables to the shards."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, InitVar, dataclass, field, replace
from typing import Final

from edl_ckpt.core.base.errors import CorruptError, EdlCkptError, UnsupportedError
from edl_ckpt.core.base.parallel import run_parallel
from edl_ckpt.core.model.tables import (
    Box,
    DenseEntry,
    Encoding,
    Extent,
    FileNote,
    GatheredRows,
    IdRun,
    Problem,
    ShardIndex,
    StoredSum,
    TableEntry,
    TableInfo,
)
from edl_ckpt.core.model.versions import ShardFile, Version
from edl_ckpt.core.sources.interface import OnFault
from edl_ckpt.core.sources.steps.shown import is_shown
from edl_ckpt.core.storage.interface import RangeReader

INITIALIZER: Final = "uniform"
"""For rows of new ids, where a table goes to ElasticDL, as an import of arrays writes it. No other system keeps one."""


@dataclass(slots=True)
class ShardContent:
    """A shard while it is indexed."""

    file: ShardFile
    infos: list[TableInfo] = field(default_factory=list)
    variables: list[DenseEntry] = field(default_factory=list)
    tables: list[TableEntry] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    sums: list[StoredSum] = field(default_factory=list)
    notes: list[FileNote] = field(default_factory=list)
    text_crcs: list[tuple[str, int]] = field(default_factory=list)
    gathered: list[GatheredRows] = field(default_factory=list)
    borrowed: list[ShardFile] = field(default_factory=list)

    def gather(self, rows: GatheredRows) -> int:
        """Add rows that are read like a file, and return the number of that file for an `Extent` of them."""
        self.gathered.append(rows)
        return len(self.file.files) + len(self.gathered) - 1

    def number(self, file: ShardFile) -> int:
        """Return the number of a file for a `Box` of this shard; one of another shard is borrowed.

        For own files it is the number for every other `Extent` too.
        """
        known = [*self.file.files, *self.borrowed]
        for number, one in enumerate(known):
            if one is file:
                return number
        self.borrowed.append(file)
        return len(known)

    def id_run(self, file: ShardFile, start: int, end: int, encoding: Encoding, rows: int) -> IdRun:
        """Return the ids of so many rows in a file; those in the file of another shard are borrowed by a box."""
        number = self.number(file)
        if number < len(self.file.files):
            return IdRun(start, end, encoding, file=number)
        box = Box(Extent(start, end, file=number), encoding.itemsize, rows)
        return IdRun(0, end - start, encoding, file=self.gather(GatheredRows(rows, encoding.itemsize, (box,))))

    def as_index(self, version: int) -> ShardIndex:
        """Return what was added."""
        return ShardIndex(
            self.file,
            version,
            "",
            tuple(replace(info, initializer=info.initializer or INITIALIZER) for info in self.infos),
            tuple(self.variables),
            tuple(self.tables),
            tuple(self.problems),
            gathered=tuple(self.gathered),
            borrowed=tuple(self.borrowed),
            sums=tuple(self.sums),
            notes=tuple(self.notes),
            text_crcs=tuple(self.text_crcs),
        )


@dataclass(frozen=True, slots=True)
class Found:
    """A file of a version: its shard, and its reader, None where it was not opened."""

    shard: ShardContent
    file: ShardFile
    reader: RangeReader | None

    @property
    def number(self) -> int:
        """Return the number of the file in its own shard."""
        return self.shard.number(self.file)


@dataclass(eq=False, repr=False)
class Content:
    """The shards of a version by their numbers, and its files by their paths in it, those that formats may claim."""

    version: Version
    readers: InitVar[Mapping[str, RangeReader]]
    workers: int = 1
    """So many files are read at a time, where each read takes a request."""
    on_fault: OnFault | None = None
    _: KW_ONLY
    tables: bool = True
    """False where formats that store tensors leave them as they are."""

    def __post_init__(self, readers: Mapping[str, RangeReader]) -> None:
        self.shards = {shard.ps_id: ShardContent(shard) for shard in self.version.shards}
        shown = [
            (shard, file)
            for shard in self.shards.values()
            for file in shard.file.files
            if is_shown(self.version.name_of(file.path))
        ]
        opened = run_parallel(readers.get, [file.path for _, file in shown], self.workers)
        self.files = {
            self.version.name_of(file.path): Found(shard, file, reader)
            for (shard, file), reader in zip(shown, opened, strict=True)
        }

    def fail(self, shard: ShardContent, error: EdlCkptError) -> None:
        """Leave a damaged shard out, where the caller takes its error; else raise the error."""
        if self.on_fault is None:
            raise error
        if self.shards.pop(shard.file.ps_id, None) is not None:
            self.on_fault(shard.file, error)

    def indexes(self) -> list[ShardIndex]:
        """Return the shards whose files are sound, in order."""
        return [shard.as_index(self.version.version) for _, shard in sorted(self.shards.items())]


def problem_of(error: CorruptError | UnsupportedError, name: str, offset: int | None = None) -> Problem:
    """Return the fault of a tensor as a problem of its shard; what is unsupported is left out, and stops nothing."""
    offset = offset if error.offset is None else error.offset
    if isinstance(error, CorruptError):
        return Problem(error.code, name, offset, error.message)
    return Problem("unsupported-item", name, offset, error.message, warning=True, unread=True)
