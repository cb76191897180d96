"""The differences between two versions, across shard counts, generations and locations.

Fingerprints answer first: variables and tables with equal digests are equal, and only the others are compared by value.
`tables.py` says how.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final

from edl_ckpt.core.base.job import WARNINGS, FunctionWork, Reporter, expect, together
from edl_ckpt.core.base.parallel import Advance
from edl_ckpt.core.catalog.listing import VersionLike, as_version
from edl_ckpt.core.cluster.choice import ExecutorLike, job_of
from edl_ckpt.core.operations.diff.pairs import NamePairs, paired
from edl_ckpt.core.operations.diff.results import DenseDiff, DiffResult
from edl_ckpt.core.operations.diff.tables import PART_BYTES, BothOpened, BothValue, RowOptions, diff_dense, diff_tables
from edl_ckpt.core.proof.fingerprint import value_bytes
from edl_ckpt.core.proof.values import fingerprint
from edl_ckpt.core.reading.reader import open_checkpoint

_VARIABLES_AT_ONCE: Final = 64
"""The most variables of one task: most are so small that a task of its own would outweigh each."""
_LEAST_TASK_BYTES: Final = 256 << 10


def _diff_variables(both: BothOpened, names: Sequence[str], _: Advance, *, options: RowOptions) -> list[DenseDiff]:
    return [diff_dense(*both, name, options.tolerance) for name in names]


def diff_versions(
    a: VersionLike,
    b: VersionLike,
    *,
    tolerance: float = 0.0,
    top: int = 0,
    rows: bool = False,
    names: NamePairs | None = None,
    workers: int | None = None,
    executor: ExecutorLike | None = None,
    part_bytes: int = PART_BYTES,
    reporter: Reporter = WARNINGS,
) -> DiffResult:
    """Compare two versions by value: elements are equal when they differ by at most `tolerance`, or are both NaN.

    `names` pairs names of b with those of a, and the result has the latter. For each table the result has the `top`
    rows that changed most; with `rows`, every row that differs. Tables that differ need temporary files of their size,
    in the system's directory for them. Raises the errors of reading, CorruptError for an id that occurs twice,
    NoSpaceError when there is no space for the temporary files. With a `distributed.Client` as `executor`, its workers
    read the versions, and have such files; measures may then differ in their last digits. With `rows`, this process
    compares the tables.

    >>> diff = diff_versions("run@100", "run@200")
    >>> diff.equal, [(table.name, table.status) for table in diff.tables]
    (False, [('user', 'changed')])
    """
    a, b, options = as_version(a), as_version(b), RowOptions(tolerance, top, rows, part_bytes)
    job = job_of(executor, [a, b], workers=workers, reporter=reporter)
    with open_checkpoint(a) as one, open_checkpoint(b) as opened:
        two = opened if names is None else paired(one, opened, names)
        both = BothOpened(one, two)
        total = value_bytes(one) + value_bytes(two)
        expect(reporter, 2 * total)  # tables that differ are read again
        reporter.start("fingerprints", total)
        first, second = (fingerprint(each, job) for each in both)
        variables = sorted({*one.variable_names, *two.variable_names})
        sizes = {v.name: v.size_bytes for each in both for shard in each.shards for v in shard.variables}
        changed = [name for name in variables if first.variables.get(name) != second.variables.get(name)]
        limit = max(job.executor.task_bytes(sum(sizes[name] for name in changed)), _LEAST_TASK_BYTES)
        some = together(((name, sizes[name]) for name in changed), limit, most=_VARIABLES_AT_ONCE)
        work = FunctionWork(BothValue.of(both), partial(_diff_variables, options=options))
        with job.silent().run(work, both, some) as results:
            found = {each.name: each for diffs in results for each in diffs}
        dense = tuple(found.get(name) or DenseDiff(name, "equal", 0.0, 0.0, 0.0) for name in variables)
        same = {name for name, digest in first.tables.items() if second.tables.get(name) == digest}
        tables = diff_tables(both, same, options, job)
        one.check_unchanged()
        two.check_unchanged()
    equal = all(v.status == "equal" for v in dense) and all(t.status == "equal" for t in tables)
    return DiffResult(a.ref, b.ref, equal, tolerance, dense, tables, first.text, second.text)
