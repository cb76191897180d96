"""The order of the pieces is arithmetic on a plan, and so is what their parts take."""

from __future__ import annotations

from math import gcd

import numpy as np
import pytest

from edl_ckpt.core.catalog.target import Target
from edl_ckpt.core.model.dtypes import DTYPES
from edl_ckpt.core.model.tables import TableInfo
from edl_ckpt.core.model.versions import ShardFile, State, Version
from edl_ckpt.core.moving.input import PieceCounts, SurveyedTable
from edl_ckpt.core.moving.plan import open_part_bytes
from edl_ckpt.core.operations.reshard.execute import ReshardPlan, Survey, plan_reshard
from edl_ckpt.core.reading.pieces import IdsAt
from edl_ckpt.core.sources.elasticdl.names import DESIGN
from edl_ckpt.core.storage import Location, open_store

MIB = 1 << 20
ROW_BYTES, ID_BYTES, ROWS = 64, 6, 60_000


def plan(from_ps: int, to_ps: int, pieces_each: int = 12, tables: int = 1) -> ReshardPlan:
    """Return the plan of a reshard of tables with pieces of 4 MiB, of which each target gets its share."""
    shards = tuple(ShardFile(i, from_ps, f"run/version-7/{i}", 1, 0.0) for i in range(from_ps))
    names = [f"t{t}" for t in range(tables)]
    counts: list[PieceCounts] = []
    stretches: list[IdsAt] = []
    for name in names:
        for shard in shards:
            targets = np.arange(to_ps) % gcd(from_ps, to_ps) == shard.ps_id % gcd(from_ps, to_ps)
            rows = np.where(targets, ROWS // int(targets.sum()), 0).astype(np.int64)
            for _ in range(pieces_each):
                counts.append(PieceCounts(name, rows, rows * ID_BYTES))
                stretches.append(IdsAt(shard.ps_id, 0, 0, 0, 0))
    survey = Survey(
        source=Version(Location("run"), 7, "run/version-7", DESIGN, State.COMPLETE, from_ps, shards),
        to_ps=to_ps,
        number=7,
        variables=(),
        tables=tuple(SurveyedTable(TableInfo(n, ROW_BYTES // 4, "zeros"), DTYPES["float32"]) for n in names),
        counts=tuple(counts),
        stretches=tuple(stretches),
    )
    return plan_reshard(survey, Target(open_store("out"), DESIGN, 7, "out/version_7"))


def open_at_most(made: ReshardPlan, part_bytes: int) -> int:
    """Return what is open at a time, by sets: every part that a later piece will write to again."""
    steps: list[dict[tuple[int, int], int]] = []
    for number in made.order:
        counts, route = made.survey.counts[number], made.routes[number]
        touched = {}
        for target in np.flatnonzero(counts.rows).tolist():
            size = int(made.layouts.size_bytes[target])
            values, ids = int(route.values_at[target]), int(route.ids_at[target])
            ends = values + int(counts.rows[target]) * ROW_BYTES, ids + int(counts.id_bytes[target])
            for start, end in zip((values, ids), ends, strict=True):
                for part in (start // part_bytes, (end - 1) // part_bytes):
                    touched[target, part] = min(part_bytes, size - part * part_bytes)
        steps.append(touched)
    most, opened = 0, dict[tuple[int, int], int]()
    for step, touched in enumerate(steps):
        later = set().union(*steps[step + 1 :])
        opened = {part: size for part, size in (opened | touched).items() if part in later}
        most = max(most, sum(opened.values()))
    return most


@pytest.mark.parametrize(("from_ps", "to_ps"), [(8, 4), (8, 16), (4, 8), (8, 9), (3, 7), (8, 32), (1, 5), (5, 1)])
@pytest.mark.parametrize("tables", [1, 3])
def test_open_parts(from_ps: int, to_ps: int, tables: int) -> None:
    """A look at every step finds no more open parts than the estimate, and not far fewer."""
    made = plan(from_ps, to_ps, pieces_each=4, tables=tables)
    assert (
        open_at_most(made, 5 * MIB) <= open_part_bytes(made, 5 * MIB) <= max(4 * open_at_most(made, 5 * MIB), 15 * MIB)
    )


def test_few_shards_at_a_time() -> None:
    """Where one number divides the other, the open parts fit in 64 MiB, whatever the number of shards."""
    for from_ps, to_ps in [(8, 4), (8, 16), (8, 32), (64, 128), (128, 16), (4, 4)]:
        assert open_part_bytes(plan(from_ps, to_ps), 5 * MIB) <= 64 * MIB
    assert open_part_bytes(plan(8, 31, pieces_each=60), 5 * MIB) > 128 * MIB


def test_order() -> None:
    """Pieces of the same remainder go together, each table after the other, each shard from its first row on."""
    made = plan(6, 4, pieces_each=2, tables=2)  # two remainders
    order = made.order
    assert sorted(order) == list(range(24))
    shards = [made.survey.stretches[k].shard for k in order]
    assert shards == [*([0, 0, 2, 2, 4, 4] * 2), *([1, 1, 3, 3, 5, 5] * 2)]
    assert order[:12] == sorted(order[:12])
    assert order[12:] == sorted(order[12:])
