"""The differences between two versions, across shard counts, generations and locations.

Fingerprints answer first: variables and tables with equal digests are equal, and only the others are compared by value.
`tables.py` says how.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from typing import Final

from edl_ckpt.core.checkpoint.catalog import VersionLike, as_version
from edl_ckpt.core.checkpoint.elsewhere import CheckpointValue
from edl_ckpt.core.checkpoint.fingerprint import value_bytes
from edl_ckpt.core.checkpoint.reader import open_checkpoint
from edl_ckpt.core.checkpoint.values import fingerprint_by
from edl_ckpt.core.cluster.choice import ExecutorLike, executor_of
from edl_ckpt.core.operations.diff.dense import diff_dense
from edl_ckpt.core.operations.diff.results import HISTOGRAM_EDGES, DenseDiff, DiffResult, RowChange, TableDiff
from edl_ckpt.core.operations.diff.tables import PART_BYTES, BothOpened, BothWork, TableOptions, diff_tables
from edl_ckpt.core.parallel import Advance, default_workers
from edl_ckpt.core.progress import WARNINGS, Reporter
from edl_ckpt.core.storage import open_store

_VARIABLES_AT_ONCE: Final = 64
"""Variables of one task: most are so small that a task of its own would outweigh each."""
__all__ = ["HISTOGRAM_EDGES", "DenseDiff", "DiffResult", "RowChange", "TableDiff", "diff_versions"]


@dataclass(frozen=True, slots=True)
class _DenseWork(BothWork):
    """The changes of dense variables; a task is the names of some."""

    def do(self, opened: BothOpened, task: tuple[str, ...], advance: Advance) -> list[DenseDiff]:  # noqa: ARG002
        return [diff_dense(opened.one, opened.two, name, self.options.tolerance) for name in task]


def diff_versions(
    a: VersionLike,
    b: VersionLike,
    *,
    tolerance: float = 0.0,
    top: int = 0,
    rows: bool = False,
    workers: int | None = None,
    executor: ExecutorLike | None = None,
    part_bytes: int = PART_BYTES,
    reporter: Reporter = WARNINGS,
) -> DiffResult:
    """Compare two versions by value: elements are equal when they differ by at most `tolerance`, or are both NaN.

    For each table the result has the `top` rows that changed most; with `rows`, every row that differs. Tables that
    differ need temporary files of their size, in the system's directory for them. Raises the errors of reading,
    CorruptError for an id that occurs twice, NoSpaceError when there is no space for the temporary files. With a
    `distributed.Client` as `executor`, its workers read the versions, and have such files; measures may then differ in
    their last digits. With `rows`, this process compares the tables.
    """
    a, b = as_version(a), as_version(b)
    chosen = executor_of(executor, [a, b], workers=workers, reporter=reporter)
    remote = any(open_store(v.location).properties.round_trips for v in (a, b))
    count = default_workers(remote=remote) if chosen.elsewhere else chosen.threads
    with (
        open_checkpoint(a) as one,
        open_checkpoint(b) as two,
    ):
        reporter.start("fingerprints", value_bytes(one) + value_bytes(two))
        first, second = (fingerprint_by(each, chosen, reporter=reporter) for each in (one, two))
        names = sorted({*one.variable_names, *two.variable_names})
        changed = [name for name in names if first.variables.get(name) != second.variables.get(name)]
        options = TableOptions(tolerance, top, rows, part_bytes, count)
        work = _DenseWork(CheckpointValue.of(one), CheckpointValue.of(two), options)
        step = _VARIABLES_AT_ONCE if chosen.elsewhere else 1
        some = (tuple(changed[at : at + step]) for at in range(0, len(changed), step))
        with closing(chosen.run(work, BothOpened(one, two), some, lambda _: None)) as results:
            found = {each.name: each for diffs in results for each in diffs}
        variables = tuple(found.get(name) or DenseDiff(name, "equal", 0.0, 0.0, 0.0) for name in names)
        same = {name for name, digest in first.tables.items() if second.tables.get(name) == digest}
        tables = diff_tables(one, two, same, options, chosen, reporter)
        one.check_unchanged()
        two.check_unchanged()
    equal = all(v.status == "equal" for v in variables) and all(t.status == "equal" for t in tables)
    return DiffResult(a.ref, b.ref, equal, tolerance, variables, tables, first.text, second.text)
