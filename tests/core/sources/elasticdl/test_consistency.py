"""The shards of one version are compared without files: each contradiction is a problem in plain words."""

from __future__ import annotations

from dataclasses import replace

import pytest

from edl_ckpt.core.model.dtypes import DTYPES
from edl_ckpt.core.model.tables import DenseEntry, Extent, IdRun, ShardIndex, TableEntry, TableInfo
from edl_ckpt.core.model.versions import ShardFile, State, Version
from edl_ckpt.core.sources.elasticdl.consistency import cross_check
from edl_ckpt.core.sources.elasticdl.names import DESIGN
from edl_ckpt.core.storage import Location

F32, F64 = DTYPES["float32"], DTYPES["float64"]
INFO = TableInfo("t", 4, "uniform", 10, 1)
ROWS = TableEntry("t", F32, 4, 1, Extent(30, 46), (IdRun(46, 47),), 20)
NO_ROWS = TableEntry("t", None, 0, 0, Extent(0, 0), (), 20)
WEIGHTS = DenseEntry("w", F32, (1,), Extent(60, 64), 50)


def shard(ps_id: int) -> ShardIndex:
    """A shard of version 7 that nothing is wrong with."""
    return ShardIndex(ShardFile(ps_id, 2, f"s{ps_id}", 64, 0.0), 7, "v4", (INFO,), (), (ROWS,))


A, B = shard(0), shard(1)

NO_INFO = "this shard has no info for the table: ElasticDL's Python restore raises KeyError"

CONTRADICTIONS: dict[str, tuple[list[ShardIndex], dict[str, str]]] = {
    "nothing": ([A, B], {}),
    "no shards": ([], {}),
    "versions": (
        [A, replace(B, version=8)],
        {
            "1 version-mismatch version 0": "this shard has version 8, shard 0 has version 7:"
            " ElasticDL's Python restore fails"
        },
    ),
    "directory": (
        [replace(A, version=8), replace(B, version=8)],
        {"0 directory-version-mismatch version 0": "all shards have version 8, the directory name has version 7"},
    ),
    "directory of one": (
        [replace(A, version=8)],
        {"0 directory-version-mismatch version 0": "the shard has version 8, the directory name has version 7"},
    ),
    "variable twice": (
        [replace(A, variables=(WEIGHTS,)), replace(B, variables=(WEIGHTS,))],
        {
            "1 misplaced-variable w 50": "the variable belongs to shard 0",
            "1 duplicate-variable w 50": "shard 0 has this variable too:"
            " the order of the listing decides which one is restored",
        },
    ),
    "infos": (
        [A, replace(B, infos=(replace(INFO, initializer="zeros"),))],
        {
            "1 info-mismatch t 10": "this info has dim 4 and initializer 'zeros',"
            " another one has dim 4 and initializer 'uniform'"
        },
    ),
    "info in one": ([A, replace(B, infos=())], {"1 missing-table-info t 20": NO_INFO}),
    "info in none": (
        [replace(A, infos=(), tables=(NO_ROWS,))],
        {
            "0 missing-table-info t 20": NO_INFO,
            "0 lost-info t 20": "no shard has an info for the table: its initializer is lost",
        },
    ),
    "dtypes": (
        [A, replace(B, tables=(replace(ROWS, dtype=F64),))],
        {"1 info-mismatch t 20": "the vectors are float64 of dim 4 in this shard and float32 of dim 4 in another one"},
    ),
    "dims": (
        [replace(A, tables=(replace(ROWS, dim=8),)), replace(B, tables=(NO_ROWS,))],
        {"0 info-mismatch t 20": "the vectors have dim 8, the info has dim 4"},
    ),
}


@pytest.mark.parametrize(("shards", "problems"), CONTRADICTIONS.values(), ids=CONTRADICTIONS)
def test_contradiction_is_named(shards: list[ShardIndex], problems: dict[str, str]) -> None:
    """Each problem has its shard, its subject and its place, and gives the figures of both sides."""
    version = Version(Location("run"), 7, "run/version_7", DESIGN, State.COMPLETE, 2, tuple(s.file for s in shards))
    found = cross_check(version, shards)
    assert [(f"{s.file.ps_id if s else ''} {p.code} {p.subject} {p.offset}", p.message) for s, p in found] == list(
        problems.items()
    )
