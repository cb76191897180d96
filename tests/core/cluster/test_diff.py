"""A diff on a cluster: the same as on this machine, but for the last digits of measures."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from builders import write_unchecked
from checkpoints import at
from edl_ckpt.core import CorruptError, DiffResult, Table, diff_versions, reshard_version, save_checkpoint
from edl_ckpt.core.operations.diff import tables as by_tables


def without_digits(result: DiffResult) -> DiffResult:
    """Return a diff whose measures have as many digits as both sides must agree on."""

    def short(value: float | None) -> float | None:
        return None if value is None else float(f"{value:.9g}")

    return replace(
        result,
        tables=tuple(
            replace(
                t,
                l2=short(t.l2),
                relative=short(t.relative),
                top=tuple(replace(row, l2=float(f"{row.l2:.9g}")) for row in t.top),
            )
            for t in result.tables
        ),
    )


def save_two(location: Path) -> None:
    """Save versions 1, on four servers, and 2, on six, whose tables and variables differ in every way."""
    random = np.random.default_rng(5)
    ids = np.unique(random.integers(-(2**40), 2**40, 30_000))
    rows = random.standard_normal((len(ids), 8), np.float32)
    changed = rows.copy()
    changed[::7] += 1
    few = ids[:500]
    variables = {"same": np.ones(5), "other": np.arange(3000.0), "gone": np.zeros(2)}
    tables = {
        "large": Table(ids, rows),
        "equal": Table(ids[:900], rows[:900]),
        "small": Table(few, rows[:500]),
        "gone": Table(few, rows[:500]),
    }
    save_checkpoint(location, 1, 4, variables=variables, tables=tables)
    del variables["gone"]
    tables = {
        "large": Table(ids[100:], changed[100:]),
        "equal": Table(ids[:900], rows[:900]),
        "small": Table(few, changed[:500]),
        "new": Table(few, rows[:500]),
    }
    save_checkpoint(location, 2, 6, variables=variables | {"other": np.arange(3000.0) + 1}, tables=tables)


@pytest.mark.parametrize("options", [{}, {"top": 5}, {"rows": True}, {"tolerance": 2.0}], ids=str)
def test_alike(tmp_path: Path, client: Any, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Counts, statuses, histograms, rows and top rows are the same."""
    monkeypatch.setattr(by_tables, "_SMALL_BYTES", 100_000)
    save_two(tmp_path)
    here, there = (diff_versions(at(tmp_path, 1), at(tmp_path, 2), executor=e, **options) for e in (None, client))
    assert not here.equal
    assert without_digits(there) == without_digits(here)


def test_equal(tmp_path: Path, processes: Any) -> None:
    """A version and its reshard are equal."""
    save_two(tmp_path / "a")
    reshard_version(at(tmp_path / "a", 1), 3, output=tmp_path / "b")
    assert diff_versions(at(tmp_path / "a", 1), at(tmp_path / "b", 1), executor=processes).equal


def test_misplaced_rows(tmp_path: Path, client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows in the wrong shards have their counterparts anywhere, and are found."""
    monkeypatch.setattr(by_tables, "_SMALL_BYTES", 100)
    ids, rows = np.arange(2000), np.ones((2000, 4), np.float32)
    for version in (1, 2):
        directory = write_unchecked(tmp_path, version, 2, {"t": Table(ids, rows * version)})
    first, second = (directory / f"variables-{i}-of-2.ckpt" for i in (0, 1))
    first.rename(tmp_path / "x")
    second.rename(first)
    (tmp_path / "x").rename(second)
    here, there = (diff_versions(at(tmp_path, 1), at(tmp_path, 2), executor=e) for e in (None, client))
    assert here.tables[0].changed == 2000
    assert without_digits(there) == without_digits(here)


def test_an_id_twice(tmp_path: Path, client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """An id that occurs twice in a table is the same error."""
    monkeypatch.setattr(by_tables, "_SMALL_BYTES", 100)
    ids, rows = np.array([*range(2000), 7]), np.ones((2001, 4), np.float32)
    for version in (1, 2):
        write_unchecked(tmp_path, version, 2, {"t": Table(ids, rows * version)})
    for executor in (None, client):
        with pytest.raises(CorruptError, match="table 't'") as caught:
            diff_versions(at(tmp_path, 1), at(tmp_path, 2), executor=executor)
        assert caught.value.code == "duplicate-id"
