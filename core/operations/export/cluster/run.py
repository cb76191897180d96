"""An export on a cluster: a look at the ids, a plan of files, a task for each, and the proof of all of them."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Final

from edl_ckpt.core.base.errors import EdlCkptError
from edl_ckpt.core.base.parallel import run_parallel
from edl_ckpt.core.cluster.executor import ClusterExecutor
from edl_ckpt.core.commit.publish.uploads import Sending
from edl_ckpt.core.operations.export.cluster.plan import (
    FilesPlan,
    cut_tables,
    file_bytes,
    sizes_of,
    with_sums,
)
from edl_ckpt.core.operations.export.cluster.work import PartWork, digest_of, unsummed
from edl_ckpt.core.operations.export.content.ids import LookedAt, look, rows_claimed
from edl_ckpt.core.operations.export.content.metadata import metadata_of
from edl_ckpt.core.operations.export.content.reader import ContentReader
from edl_ckpt.core.operations.export.content.selection import STORED
from edl_ckpt.core.operations.export.formats.content_format import PartsFormat
from edl_ckpt.core.operations.export.interface import (
    ExportContent,
    ExportOutcome,
    ExportRequest,
)
from edl_ckpt.core.operations.export.output.target import PartsTarget, open_parts_target
from edl_ckpt.core.proof.fingerprint import ContentSketch, fingerprint_of
from edl_ckpt.core.proof.trust import check_trust
from edl_ckpt.core.proof.values import OpenedValues, ValueOptions, ValuesWork
from edl_ckpt.core.reading.picklable import CheckpointValue
from edl_ckpt.core.reading.places import PieceAt, dense_at, in_sketched_tasks
from edl_ckpt.core.reading.reader import Checkpoint, open_checkpoint
from edl_ckpt.core.reading.scan import DensePiece
from edl_ckpt.core.sorting.partition import sample_step

PIECE_BYTES: Final = 16 << 20
"""The most bytes of rows, with their ids, in one piece."""
_REQUESTS: Final = 32
"""Uploads that are begun at a time."""


@dataclass(frozen=True, slots=True)
class ClusterPlan:
    """What the workers would write."""

    reader: ContentReader
    content: ExportContent
    looked: LookedAt
    files: FilesPlan
    file_bytes: int
    """About how large each file is."""


@contextmanager
def planned_parts(
    chosen: PartsFormat, checkpoint: Checkpoint, cluster: ClusterExecutor, path: str, beside: str
) -> Iterator[ClusterPlan]:
    """Yield the plan of an export to a directory, and perhaps to another one beside; no value is read."""
    request = chosen.request
    metadata = {name: text for name, text in metadata_of(request.version).items() if name != "fingerprint"}
    metadata["export"] = uuid.uuid4().hex
    version_bytes = request.version.size_bytes
    ranges = -(-version_bytes // file_bytes(cluster, version_bytes, request.max_shard_bytes))
    rows = {name: rows_claimed(checkpoint, name) for name in checkpoint.table_names}
    steps = {name: sample_step(count, ranges) or max(count, 1) for name, count in rows.items()}
    looked = look(checkpoint, cluster, steps, min(cluster.task_bytes(version_bytes), PIECE_BYTES))
    ids = looked.ids(checkpoint)
    with ContentReader(checkpoint, request.selection, metadata, "", ids, reporter=request.reporter) as reader:
        content = reader.content()
        total = sum(tensor.size_bytes for tensor in content.tensors)
        size = file_bytes(cluster, total, request.max_shard_bytes)
        spans = cut_tables(content, looked, size, stored=request.selection.order == STORED)
        files = chosen.part_files(content, spans, path, beside, size)
        yield ClusterPlan(reader, content, looked, with_sums(checkpoint, files, sizes_of(content)), min(size, total))


def export_on_cluster(chosen: PartsFormat, cluster: ClusterExecutor) -> ExportOutcome:
    """Write the selected content to a directory; nothing becomes visible unless all of it is written."""
    request = chosen.request
    trust = check_trust(request.version, force=not request.use_seal, reporter=request.reporter)
    with open_checkpoint(request.version) as checkpoint:
        chosen.check_dtypes(checkpoint)
        beside = chosen.beside(checkpoint)
        with open_parts_target(request.goal, is_directory=True, force=request.force, beside=beside) as target:
            meeting = target.meet()
            cluster.share(meeting)
            with planned_parts(chosen, checkpoint, cluster, target.path, target.beside) as plan:
                total = sum(tensor.size_bytes for tensor in plan.content.tensors)
                cluster.share(meeting, total)
                request.reporter.start("exporting", 2 * total)
                done = _Proof(checkpoint, plan)
                done.write(chosen, cluster, target)
                fingerprint = done.fingerprint(cluster, request)
                trust.confirm(fingerprint)
                metadata = {**plan.content.metadata, "fingerprint": fingerprint}
                chosen.end_parts(plan.content, plan.files.files, target.path, metadata)
            checkpoint.check_unchanged()
            proved = request.selection.is_lossless and chosen.traits.is_lossless
            counts, files = plan.content.counts, target.publish()
            return ExportOutcome(files, counts, fingerprint, proved, done.overflowed, trust.forced)


class _Proof:
    """The sums of all that was written, against those of all that a checkpoint has."""

    def __init__(self, checkpoint: Checkpoint, plan: ClusterPlan) -> None:
        self.overflowed = 0
        self._checkpoint, self._plan = checkpoint, plan
        self._sums = ContentSketch()
        self._digests: list[tuple[bytes, ...]] = []

    def write(self, chosen: PartsFormat, cluster: ClusterExecutor, target: PartsTarget) -> None:
        """Let the workers write all files."""
        plan, content = self._plan, self._plan.content
        paths = [file.path for file in plan.files.files]
        parts = list(run_parallel(target.part, paths, min(_REQUESTS, len(paths))))
        if parts[0].is_temporary:
            cluster.check_temporary(2 * plan.file_bytes, len(paths))  # the file, and what it is sorted in
        source, selection = CheckpointValue.of(self._checkpoint), chosen.request.selection
        work = PartWork(
            source,
            selection,
            dict(content.metadata),
            content.counts,
            plan.looked,
            plan.files,
            parts,
            chosen.write_part,
        )
        tasks, advance = range(len(paths)), chosen.request.reporter.advance
        with closing(cluster.run(work, Sending(self._checkpoint, 0), tasks, advance)) as results:
            for path, done in zip(paths, results, strict=True):
                target.take(path, done.written)
                self._sums.add(done.sums)
                self._digests.append(done.digests)
                self.overflowed += done.overflowed

    def fingerprint(self, cluster: ClusterExecutor, request: ExportRequest) -> str:
        """Return the fingerprint of the checkpoint: read what no task summed, and compare it with what was written."""
        summed = set().union(*self._plan.files.summed)
        checkpoint, task_bytes = self._checkpoint, cluster.task_bytes(self._checkpoint.version.size_bytes)
        rest: list[PieceAt] = [
            at for at in dense_at(checkpoint, task_bytes) if (at.piece(checkpoint).entry.name, False) not in summed
        ]
        for table, places in self._plan.looked.places.items():
            rest += places if (table, True) not in summed else ()
        if rest:
            tasks = in_sketched_tasks(checkpoint, rest, task_bytes)
            request.reporter.start("fingerprint", sum(map(self._size_of, rest)))
            work = ValuesWork(CheckpointValue.of(checkpoint), ValueOptions())
            with closing(cluster.run(work, OpenedValues(checkpoint), tasks, request.reporter.advance)) as results:
                for values in results:
                    self._sums.add(values.sketch)
        self._compare()
        return fingerprint_of(checkpoint, self._sums).text

    def _size_of(self, at: PieceAt) -> int:
        piece = at.piece(self._checkpoint)
        return piece.size if isinstance(piece, DensePiece) else piece.rows * piece.entry.row_bytes

    def _compare(self) -> None:
        """Raise EdlCkptError unless what was read twice was the same both times."""
        for number, digests in enumerate(self._digests):
            names = unsummed(self._plan.files, number)
            if digests != tuple(digest_of(self._sums, name) for name in names):
                self._checkpoint.check_unchanged()
                raise EdlCkptError(
                    "values were read differently the second time; nothing was published",
                    path=self._checkpoint.version.path,
                    hint="check the memory and the network of the workers, and try again",
                )
