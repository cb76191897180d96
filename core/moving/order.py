"""The order in which the stretches of a move go, and the parts of uploads that are open on the way.

With N shards before and M after, the rows of shard i go to shards j with i = j modulo gcd(N, M), and to no others,
unless they are misplaced. So the shards of one remainder are moved together, one remainder after the other: only
M / gcd(N, M) shards are being written at a time, each of them from front to back. The order changes nothing of the
result.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from edl_ckpt.core.kernel import bulk
from edl_ckpt.core.moving.plan import MovePlan, StretchRoute
from edl_ckpt.core.moving.sparse import PieceCounts

_STEP_BYTES: Final = 512 << 10
"""Bytes of ids that are a step in the arithmetic on open parts: about those of a piece."""
_MAX_STEPS: Final = 16


def stretch_order(plan: MovePlan) -> list[int]:
    """Return the numbers of the survey's stretches in the order in which they move."""
    stretches, groups = plan.survey.stretches, plan.groups
    return sorted(range(len(stretches)), key=lambda number: stretches[number].shard % groups)


def open_part_bytes(plan: MovePlan, least_part_bytes: int) -> int:
    """Return the most bytes of parts that wait for further bytes at a time, when stretches move in their order.

    Arithmetic on the plan: a part is open from the first stretch that writes to it until the last one.
    """
    sizes = plan.layouts.size_bytes
    parts = np.maximum(least_part_bytes, sizes // 10_000 + 1)
    base = np.concatenate(([0], np.cumsum(-(-sizes // parts))))
    first = np.full(int(base[-1]), -1, np.int64)
    last = np.full(int(base[-1]), -1, np.int64)
    for step, (targets, starts, ends) in enumerate(_writes(plan)):
        for places in (starts, ends - 1):
            touched = base[targets] + places // parts[targets]
            fresh = touched[first[touched] < 0]
            first[fresh] = step
            last[touched] = step
    waiting = np.flatnonzero(last > first)
    if not len(waiting):
        return 0
    of = np.searchsorted(base, waiting, side="right") - 1
    taken = np.minimum(parts[of], sizes[of] - (waiting - base[of]) * parts[of])
    change = np.zeros(int(last.max()) + 2, np.int64)
    np.add.at(change, first[waiting], taken)
    np.subtract.at(change, last[waiting], taken)
    return int(np.cumsum(change).max())


def _writes(plan: MovePlan) -> Iterator[tuple[bulk.I64, bulk.I64, bulk.I64]]:
    """Yield the (targets, starts, ends) of what each step writes.

    Those are the small tables, and then, for each group, its variables and each of its stretches.
    """
    every = np.arange(plan.to_ps)
    for table in plan.survey.small:
        number = plan.layouts.number(table.table)
        yield every, plan.layouts.tables_at[number], plan.layouts.tables_at[number + 1]
    groups, survey, row_bytes = plan.groups, plan.survey, plan.row_bytes
    dense: list[list[tuple[int, int, int]]] = [[] for _ in range(groups)]
    for variable in survey.variables:
        owner, at = plan.layouts.dense_at(variable.name)
        if variable.size_bytes:
            dense[owner % groups].append((owner, at, at + variable.size_bytes))
    group = -1
    for number in stretch_order(plan):
        while group < survey.stretches[number].shard % groups:
            group += 1
            yield _columns(dense[group])
        counts, route = survey.counts[number], plan.routes[number]
        yield from _steps_of(counts, route, row_bytes[counts.table])
    for rest in dense[group + 1 :]:
        yield _columns(rest)


def _steps_of(
    counts: PieceCounts, route: StretchRoute, row_bytes: int
) -> Iterator[tuple[bulk.I64, bulk.I64, bulk.I64]]:
    """Yield the same of a stretch, about as its pieces write: rows of all targets are mixed in it."""
    used = np.flatnonzero(counts.rows)
    steps = min(-(-int(counts.id_bytes.sum()) // _STEP_BYTES), _MAX_STEPS)
    for step in range(steps):
        for_rows, for_ids = (
            [at + size * part // steps for part in (step, step + 1)]
            for at, size in (
                (route.values_at[used], counts.rows[used] * row_bytes),
                (route.ids_at[used], counts.id_bytes[used]),
            )
        )
        some = for_rows[1] > for_rows[0]
        yield (
            np.concatenate((used[some], used)),
            np.concatenate((for_rows[0][some], for_ids[0])),
            np.concatenate((for_rows[1][some], for_ids[1])),
        )


def _columns(writes: Sequence[tuple[int, int, int]]) -> tuple[bulk.I64, bulk.I64, bulk.I64]:
    targets, starts, ends = np.array(writes, np.int64).reshape(-1, 3).T
    return targets, starts, ends
