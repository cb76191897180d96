"""Carrying out an import: values stream once to their places, and the written version is read back and proved."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from edl_ckpt.core.checkpoint.fingerprint import ContentSketch
from edl_ckpt.core.checkpoint.proof import prove_version
from edl_ckpt.core.checkpoint.target import TargetShard, check_beside
from edl_ckpt.core.commit import open_output
from edl_ckpt.core.commit.interface import LockedLocation, Written
from edl_ckpt.core.commit.recovery import location_lock
from edl_ckpt.core.format import bulk, placement
from edl_ckpt.core.format.shard_layout import write_groups
from edl_ckpt.core.memory import peak_memory_bytes
from edl_ckpt.core.operations.importing.arrays import ArrayData, chunks
from edl_ckpt.core.operations.importing.names import ImportedTable
from edl_ckpt.core.operations.importing.plan import ImportPlan
from edl_ckpt.core.parallel import default_workers
from edl_ckpt.core.progress import SILENT, Reporter
from edl_ckpt.core.state.lock import LOCK_WAIT_SECONDS
from edl_ckpt.core.state.seal import Seal
from edl_ckpt.core.storage.interface import Sink
from edl_ckpt.core.words import counted, describe, escaped, size

_BATCH_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class ImportResult:
    """The new version; the source and the version that was read back both have its `fingerprint`.

    `from_ps` is the number of shards of a source that is a checkpoint, None for arrays.
    """

    ref: str
    output: str
    from_ps: int | None
    to_ps: int
    version: int
    size_bytes: int
    bytes_read: int
    bytes_written: int
    rows: int
    seconds: float
    peak_memory_bytes: int
    fingerprint: str
    shards: tuple[TargetShard, ...]
    forced: str | None = None
    """Why a source that is a checkpoint did not match its seal, where `force` went on."""

    def __repr__(self) -> str:
        return describe(
            "ImportResult",
            escaped(self.ref),
            counted(self.to_ps, "shard"),
            counted(self.rows, "row"),
            size(self.size_bytes),
        )


def execute_import(
    plan: ImportPlan,
    *,
    purpose: str = "import",
    wait_seconds: float = LOCK_WAIT_SECONDS,
    reporter: Reporter = SILENT,
) -> ImportResult:
    """Write a planned version, prove it, make it visible and seal it, with the lock of the target held.

    The source must still be open. `purpose` names the command to those that wait for the lock. Raises LockedError when
    another command holds the lock for longer than `wait_seconds`, NoSpaceError before anything is written when there is
    no room, EdlCkptError when the proof fails.
    """
    lock = location_lock(plan.target.location, purpose, create=True, wait_seconds=wait_seconds, reporter=reporter)
    with lock as place:
        return write_import(plan, place, purpose=purpose, reporter=reporter)


def write_import(
    plan: ImportPlan, place: LockedLocation, *, purpose: str = "import", reporter: Reporter = SILENT
) -> ImportResult:
    """Do the work of `execute_import` for a caller that holds the lock of the target."""
    begin = time.perf_counter()
    target, arrays = plan.target, plan.survey.arrays
    fingerprint = ""
    check_beside(target.location, target.layout, target.beside)
    with open_output(place, target.layout, target.number, purpose=purpose, spool=True) as output:
        files = output.create([layout.size_bytes for layout in plan.layouts])
        sketch = _Write(plan, files, reporter).run()

        def prove(written: Written) -> Seal:
            nonlocal fingerprint
            workers = default_workers(remote=not written.staged)
            seal = prove_version(written.version, sketch, staged=written.staged, workers=workers, reporter=reporter)
            fingerprint = seal.fingerprint
            return seal

        output.publish(prove)
        bytes_written = sum(file.bytes_written for file in files)
    return ImportResult(
        ref=f"{target.location}@{target.number}",
        output=target.location.url,
        from_ps=None,
        to_ps=plan.survey.to_ps,
        version=target.number,
        size_bytes=plan.size_bytes,
        bytes_read=arrays.bytes_read,
        bytes_written=bytes_written,
        rows=plan.rows,
        seconds=time.perf_counter() - begin,
        peak_memory_bytes=peak_memory_bytes(),
        fingerprint=fingerprint,
        shards=plan.shards,
    )


class _Write:
    """The pass over the arrays: every value is read once and written at its offset."""

    def __init__(self, plan: ImportPlan, files: Sequence[Sink], reporter: Reporter) -> None:
        self._plan = plan
        self._files = files
        self._reporter = reporter
        self._sketch = ContentSketch()

    def run(self) -> ContentSketch:
        """Write everything; return the sketch of the values that were read."""
        arrays = self._plan.survey.arrays
        for file, layout in zip(self._files, self._plan.layouts, strict=True):
            for offset, data in layout.between:
                file.write(offset, data)
        self._reporter.start("importing", arrays.size_bytes)
        for name, array in arrays.variables.items():
            self._write_variable(name, array)
        for table in arrays.tables:
            self._write_table(table)
        return self._sketch

    def _write_variable(self, name: str, array: ArrayData) -> None:
        owner = placement.variable_owner(name, len(self._files))
        offset = self._plan.layouts[owner].dense_at[name]
        for start in range(0, max(array.size_bytes, 1), _BATCH_BYTES):
            data = array.read(start, min(_BATCH_BYTES, array.size_bytes - start))
            self._sketch.add_dense(name, array.size_bytes, start, data)
            self._files[owner].write(offset + start, data.data)
            self._reporter.advance(len(data))

    def _write_table(self, table: ImportedTable) -> None:
        """Write the rows of a table, and their ids as varints, each shard's in the order of the source."""
        ps_num = len(self._files)
        ids_at = np.array([layout.ids_at[table.name] for layout in self._plan.layouts], np.int64)
        values_at = np.array([layout.values_at[table.name] for layout in self._plan.layouts], np.int64)
        for start, values in chunks(table.vectors, table.row_bytes, _BATCH_BYTES):
            ids = table.read_ids(start, len(values))
            owner, lengths = bulk.owners(ids, ps_num), bulk.varint_lengths(ids)
            rows, id_bytes = bulk.tally(owner, lengths, ps_num)
            self._sketch.add_rows(table.name, ids, values)
            varints = bulk.group_varints(bulk.encode_varints(ids), lengths, owner, id_bytes)
            write_groups(self._files, varints, id_bytes, ids_at)
            ids_at += id_bytes
            if table.row_bytes:
                grouped = np.empty_like(values)
                bulk.group_rows(values, owner, rows, grouped)
                write_groups(self._files, grouped.reshape(-1), rows * table.row_bytes, values_at)
                values_at += rows * table.row_bytes
            self._reporter.advance(values.nbytes + ids.nbytes)
