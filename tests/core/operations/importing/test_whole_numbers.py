"""Whole numbers in texts stay what they are, or are refused; each table that goes out as text comes back equal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from checkpoints import only, stored_rows
from edl_ckpt.core import Selection, Table, export_version, open_checkpoint, save_checkpoint
from edl_ckpt.core.base.errors import CorruptError
from edl_ckpt.core.operations.importing import import_arrays

ENDINGS = (".csv", ".jsonl", ".vec")
BIG = (1 << 53) + 1
CASES: dict[str, npt.NDArray[Any]] = {
    "int64": np.array([[BIG, -BIG], [np.iinfo(np.int64).min, np.iinfo(np.int64).max]], np.int64),
    "uint64": np.array([[BIG, 0], [np.iinfo(np.uint64).max, 1]], np.uint64),
    "small": np.array([[1, -2], [3, 1 << 40]], np.int64),
    "float16": np.array([[1.19e-07, 0.1], [65504, -1e-3]], np.float16),
    "float32": np.array([[1e-42, 0.1], [3.4e38, np.nan]], np.float32),
    "float64": np.array([[1 / 3, 2.0**70], [1e300, -1e-300]], np.float64),
    "bool": np.array([[True, False], [False, False]]),
}


def text_of(values: list[Any], ending: str) -> str:
    """Return a text with one row."""
    if ending == ".csv":
        return "id," + ",".join(f"v{k}" for k in range(len(values))) + f"\n0,{','.join(map(str, values))}\n"
    if ending == ".vec":
        return f"1 {len(values)}\n0 {' '.join(map(str, values))}\n"
    return f'{{"id": 0, "vector": [{", ".join(map(str, values))}]}}\n'


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("case", CASES)
def test_a_table_comes_back_as_it_went_out(tmp_path: Path, case: str, ending: str) -> None:
    """Values are equal, and so is the dtype of what no float holds."""
    values = CASES[case]
    if case == "bool" and ending == ".vec":
        pytest.skip("word2vec has no bool")
    save_checkpoint(tmp_path / "run", 1, 2, tables={"t": Table(np.array([7, 8]), values)})
    export_version(only(tmp_path / "run"), tmp_path / f"t{ending}")
    import_arrays(tmp_path / f"t{ending}", tmp_path / "back", 1, 2)
    with open_checkpoint(only(tmp_path / "back")) as back:
        rows = back.table("t").to_numpy([7, 8]).vectors
    assert np.array_equal(rows, values.astype(rows.dtype), equal_nan=case.startswith("float"))
    assert np.array_equal(rows.astype(values.dtype), values, equal_nan=case.startswith("float"))
    assert case not in {"int64", "uint64", "bool"} or rows.dtype == values.dtype


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("number", [BIG, -BIG, 1152921504606846977, (1 << 64) - 1])
def test_one_large_number_makes_whole_numbers_of_all(tmp_path: Path, ending: str, number: int) -> None:
    """2^53 + 1 is not rounded, in the first block or a later one."""
    path = tmp_path / f"g{ending}"
    lines = text_of([1], ending).splitlines(keepends=True)
    rows = [lines[-1].replace("0", str(id_), 1) for id_ in range(1000)] + [
        text_of([number], ending).splitlines(keepends=True)[-1].replace("0", "5000", 1)
    ]
    head = ["1001 1\n"] if ending == ".vec" else lines[:-1]
    path.write_text("".join([*head, *rows]))
    import_arrays(path, tmp_path / "new", 1, 1)
    with open_checkpoint(only(tmp_path / "new")) as opened:
        assert opened.table("g").to_numpy([5000]).vectors.tolist() == [[number]]
        assert opened.table("g").to_numpy([3]).vectors.tolist() == [[1]]


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("values", [[BIG, 0.5], [(1 << 64) + 1], [-1, (1 << 64) - 1], [BIG, 1e300]])
def test_what_no_dtype_holds_is_refused(tmp_path: Path, ending: str, values: list[Any]) -> None:
    """The error names the line, and nothing is written."""
    path = tmp_path / f"g{ending}"
    path.write_text(text_of(values, ending))
    with pytest.raises(CorruptError, match=r"line [12]"):
        import_arrays(path, tmp_path / "new", 1, 1)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_power_of_two_stays_a_float(tmp_path: Path, ending: str) -> None:
    """A whole number that float32 or float64 holds makes no whole numbers of a table."""
    path = tmp_path / f"g{ending}"
    path.write_text(text_of([1 << 60, 0.5], ending))
    import_arrays(path, tmp_path / "new", 1, 1)
    with open_checkpoint(only(tmp_path / "new")) as opened:
        assert opened.table("g").to_numpy([0]).vectors.tolist() == [[float(1 << 60), 0.5]]


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_table_without_rows_comes_back(tmp_path: Path, ending: str) -> None:
    """It has no rows then either."""
    empty = Table(np.zeros(0, np.int64), np.zeros((0, 3), np.float32))
    save_checkpoint(tmp_path / "run", 1, 2, tables={"t": empty})
    export_version(only(tmp_path / "run"), tmp_path / f"t{ending}", selection=Selection(tables=("t",)))
    import_arrays(tmp_path / f"t{ending}", tmp_path / "back", 1, 2)
    with open_checkpoint(only(tmp_path / "back")) as back:
        assert back.table_names == ["t"]
        assert len(stored_rows(back.table("t")).ids) == 0
