from __future__ import annotations

import math
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import elasticdl_rules
from builders import models, write_checkpoint
from checkpoints import noted_reads, only
from edl_ckpt.core import reshard_version, save_checkpoint
from edl_ckpt.core.base.errors import CorruptError, IncompleteError
from edl_ckpt.core.model.versions import Version
from edl_ckpt.core.operations.diff import diff_versions
from edl_ckpt.core.operations.diff.results import HISTOGRAM_EDGES, DiffResult
from edl_ckpt.core.operations.save import Table
from oracle import Model
from places import GOLDEN


def planted(tmp_path: Path) -> tuple[Version, Version]:
    """Return a 4-shard and a 7-shard version that differ in exactly what the test below says."""
    random = np.random.default_rng(11)
    ids = np.unique(random.integers(-(2**40), 2**40, 30_000))
    rows = random.standard_normal((len(ids), 8)).astype(np.float32)
    kernel = random.standard_normal((64, 3)).astype(np.float32)
    same = Table(np.arange(100, dtype=np.int64), np.ones((100, 2)))
    variables: dict[str, Any] = {
        "kernel": kernel,
        "bias": np.zeros(3, np.float32),
        "old": np.ones(2),
        "wide": np.ones(4, np.float32),
    }
    tables = {"t": Table(ids, rows), "same": same, "gone": same}
    a = save_checkpoint(str(tmp_path / "a"), 1, 4, variables=variables, tables=tables)
    moved = rows.copy()
    moved[100] += 3
    moved[200, 0] += 0.5
    moved[300] += 1e-7
    keep = np.ones(len(ids), np.bool_)
    keep[:50] = False
    more = np.arange(2**50, 2**50 + 33, dtype=np.int64)
    held = Table(np.concatenate([ids[keep], more]), np.concatenate([moved[keep], np.zeros((33, 8), np.float32)]))
    changed = kernel.copy()
    changed[5, 1] += 2
    b = save_checkpoint(
        str(tmp_path / "b"),
        9,
        7,
        variables={"kernel": changed, "bias": np.zeros(3, np.float32), "new": np.ones(2), "wide": np.ones(4)},
        tables={"t": held, "same": same, "fresh": same},
    )
    return a, b


@pytest.mark.parametrize("part_bytes", [64 << 20, 5000])
def test_planted_changes(tmp_path: Path, part_bytes: int) -> None:
    """Exactly the planted changes are found between 4 and 7 shards, in one part or in hundreds."""
    a, b = planted(tmp_path)
    found = diff_versions(a, b, top=2, rows=True, part_bytes=part_bytes)
    assert not found.equal
    tables = {t.name: t for t in found.tables}
    assert {n: t.status for n, t in tables.items()} == {
        "t": "changed",
        "same": "equal",
        "gone": "removed",
        "fresh": "added",
    }
    t = tables["t"]
    assert (t.added, t.removed, t.changed) == (33, 50, 3)
    assert t.unchanged == list_rows(a) - 50 - 3
    assert [round(r.max_abs, 3) for r in t.top] == [3.0, 0.5]
    assert math.isclose(t.top[0].l2, 3 * math.sqrt(8), rel_tol=1e-5)
    assert math.isclose(t.l2 or 0, math.sqrt(9 * 8 + 0.25), rel_tol=1e-5)
    assert sum(t.histogram) == 3
    assert len(t.histogram) == len(HISTOGRAM_EDGES) + 1
    assert sorted(status for _, status, _ in t.rows) == ["added"] * 33 + ["changed"] * 3 + ["removed"] * 50
    variables = {v.name: v for v in found.variables}
    assert {n: v.status for n, v in variables.items()} == {
        "kernel": "changed",
        "bias": "equal",
        "old": "removed",
        "new": "added",
        "wide": "changed",
    }
    assert math.isclose(variables["kernel"].max_abs or 0, 2, rel_tol=1e-6)
    assert variables["wide"].what == "dtype float32 -> float64"
    assert variables["wide"].max_abs == 0
    near = diff_versions(a, b, tolerance=1e-3, part_bytes=part_bytes)
    assert next(t for t in near.tables if t.name == "t").changed == 2


@pytest.mark.parametrize("shared", [0, 40])
def test_few_rows_against_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shared: int) -> None:
    """Rows without a counterpart among few others are counted by their ids; without any, values are read once."""
    random = np.random.default_rng(5)
    ids = np.unique(random.integers(-(2**60), 2**60, 8000))
    rows = random.integers(0, 100, (len(ids), 8)).astype(np.float64)
    few = np.concatenate([ids[100 : 100 + shared], np.arange(60)])
    many = save_checkpoint(str(tmp_path / "a"), 1, 3, variables={}, tables={"t": (ids, rows)})
    other = save_checkpoint(str(tmp_path / "b"), 1, 2, variables={}, tables={"t": (few, np.ones((len(few), 8)))})
    reads = noted_reads(monkeypatch)
    for a, b in ((many, other), (other, many)):
        reads.clear()
        found = diff_versions(a, b, part_bytes=5000)
        if not shared:
            assert sum(reads) < rows.nbytes + 5 * 10 * len(ids)
        assert found.tables == tuple(
            replace(t, rows=()) for t in diff_versions(a, b, part_bytes=5000, rows=True).tables
        )
        (table,) = found.tables
        assert (table.changed, table.unchanged) == (shared, 0)
        assert sorted((table.added, table.removed)) == [60, len(ids) - shared]


def list_rows(version: Version) -> int:
    """Return how many rows the table t has."""
    from edl_ckpt.core import open_checkpoint

    with open_checkpoint(version) as checkpoint:
        return sum(entry.rows for _, entry in checkpoint.entries("t"))


@pytest.mark.parametrize("case", ["current/ps3", "legacy/v1", "legacy/v3", "legacy/v0d", "legacy/v1c-slots"])
def test_equal_after_reshard(tmp_path: Path, case: str) -> None:
    """A version equals itself in another generation and with another shard count."""
    version = only(GOLDEN / case)
    reshard_version(version, 5, output=str(tmp_path))
    found = diff_versions(version, only(tmp_path))
    assert found.equal
    assert found.fingerprint_a == found.fingerprint_b
    assert all(t.added == t.removed == t.changed == 0 for t in found.tables)


def oracle(a: Model, b: Model) -> dict[str, tuple[int, int, int, int]]:
    """Return (added, removed, changed, unchanged) of each table of both models, by value in plain Python."""
    counts = {}
    for name in a.tables.keys() & b.tables.keys():
        one, two = a.tables[name], b.tables[name]
        both = one.rows.keys() & two.rows.keys()
        changed = 0
        for i in both:
            x = np.frombuffer(one.rows[i], one.dtype) if one.dtype else np.empty(0)
            y = np.frombuffer(two.rows[i], two.dtype) if two.dtype else np.empty(0)
            with np.errstate(all="ignore"):
                changed += x.shape != y.shape or not bool(np.all((x == y) | ((x != x) & (y != y))))  # noqa: PLR0124
        counts[name] = (len(two.rows) - len(both), len(one.rows) - len(both), changed, len(both) - changed)
    return counts


@given(models(), models(), st.integers(1, 5), st.integers(1, 5), st.booleans())
def test_counts_equal_the_oracle(
    tmp_path_factory: pytest.TempPathFactory, a: Model, b: Model, first: int, second: int, share: bool
) -> None:
    """For any two models in any shard counts, the counts are those of plain Python; a model equals itself."""
    if share:  # tables of one name in both, some rows in common
        b.tables |= {name: table for name, table in a.tables.items() if name not in b.dense}
    places = [tmp_path_factory.mktemp("m") for _ in range(2)]
    for place, model, ps_num in zip(places, (a, b), (first, second), strict=True):
        write_checkpoint(place, model, ps_num)
    found = diff_versions(only(places[0]), only(places[1]), part_bytes=200)
    counts = {t.name: (t.added, t.removed, t.changed, t.unchanged) for t in found.tables}
    for name, expected in oracle(a, b).items():
        assert counts[name] == expected
    assert set(counts) == a.tables.keys() | b.tables.keys()
    assert {v.name for v in found.variables} == a.dense.keys() | b.dense.keys()
    for place in places:
        assert diff_versions(only(place), only(place)).equal
        shutil.rmtree(place)


def saved(tmp_path: Path, name: str, values: list[float]) -> Version:
    """Save one row and one variable of these values."""
    rows = np.array([values], np.float32)
    table = Table(np.array([5], np.int64), rows)
    return save_checkpoint(str(tmp_path / name), 1, 1, variables={"v": rows}, tables={"t": table})


def measures(found: DiffResult) -> tuple[int, float | None, float | None]:
    """Return the changed rows, and the largest change of the table and of the variable."""
    return found.tables[0].changed, found.tables[0].max_abs, found.variables[0].max_abs


def test_nan_and_infinity(tmp_path: Path) -> None:
    """NaN equals NaN and infinity itself; to and from them is a change, whatever the tolerance."""
    plain = saved(tmp_path, "a", [1.0, math.nan, math.inf, 0.0])
    assert diff_versions(plain, saved(tmp_path, "b", [1.0, math.nan, math.inf, -0.0])).equal
    assert measures(diff_versions(plain, saved(tmp_path, "c", [1.5, math.nan, math.inf, 0.0])))[:2] == (1, 0.5)
    for other in ([1.0, 0.0, math.inf, 0.0], [math.nan, math.nan, math.inf, 0.0]):
        found = diff_versions(plain, saved(tmp_path, f"d{other[0]}", other), tolerance=1e9)
        changed, table, variable = measures(found)
        assert changed == 1
        assert math.isnan(table or 0)
        assert math.isnan(variable or 0)
    infinite = diff_versions(plain, saved(tmp_path, "e", [1.0, math.nan, -math.inf, 0.0]), tolerance=1e9)
    assert measures(infinite) == (1, math.inf, math.inf)


@pytest.mark.parametrize(
    ("dtype", "a", "b", "apart"),
    [
        ("int64", 2**62, 2**62 + 1, 1.0),
        ("int64", -(2**63), 2**63 - 1, 2.0**64),
        ("uint64", 2**64 - 1, 2**64 - 2, 1.0),
        ("int8", -128, 127, 255.0),
    ],
)
def test_whole_numbers_are_exact(tmp_path: Path, dtype: str, a: int, b: int, apart: float) -> None:
    """Whole numbers that differ beyond float64's 53 bits differ, in variables and in rows, by what they differ."""
    places = []
    for name, value in (("a", a), ("b", b)):
        rows = np.array([[value]], dtype)
        table = Table(np.array([5], np.int64), rows)
        places.append(save_checkpoint(str(tmp_path / name), 1, 1, variables={"v": rows}, tables={"t": table}))
    found = diff_versions(*places)
    assert not found.equal
    assert measures(found) == (1, apart, apart)
    assert diff_versions(*places, tolerance=apart).equal


def test_other_dim(tmp_path: Path) -> None:
    """Rows of another dim cannot be compared: all are changed, and the table says why."""
    a, b = saved(tmp_path, "a", [1.0, 2.0]), saved(tmp_path, "b", [1.0, 2.0, 3.0])
    table = diff_versions(a, b).tables[0]
    assert (table.changed, table.max_abs, table.what) == (1, None, "dim 2 -> 3")


def test_bad_versions() -> None:
    """What cannot be read ends the comparison as it ends every other operation."""
    good = only(GOLDEN / "bad/dir-version-differs")
    with pytest.raises(IncompleteError):
        diff_versions(good, only(GOLDEN / "bad/missing-shard"))
    with pytest.raises(CorruptError):
        diff_versions(only(GOLDEN / "bad/truncated"), good)


def test_nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Temporary files have no names: nothing is left of them, and both locations are as they were."""
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    a, b = planted(tmp_path)
    diff_versions(a, b, part_bytes=50_000)
    assert os.listdir(temporary) == []
    assert elasticdl_rules.visible(tmp_path / "a") == {"version_1"}
