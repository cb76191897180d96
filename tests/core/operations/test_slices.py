"""Slices of variables and tables: what numpy would return, and no other bytes."""

from __future__ import annotations

import io
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis.extra import numpy as hnp

from checkpoints import noted_reads, stored_rows
from edl_ckpt.core import open_checkpoint, save_checkpoint, slice_table, slice_variable
from edl_ckpt.core.base.errors import CorruptError, NotFoundError, UsageError
from edl_ckpt.core.model.versions import Version
from edl_ckpt.core.operations.save import Table
from edl_ckpt.core.reading.slices import parse_index
from program import PROGRAM, document, edl

CUBE = np.random.default_rng(1).random((30, 20, 10), np.float32)
WIDE = np.random.default_rng(2).random((6, 40_000), np.float32)
ROWS = np.random.default_rng(3).random((20_000, 16), np.float32)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Version:
    """Return a version of three shards with variables of several shapes and tables."""
    ids = np.random.default_rng(4).permutation(1 << 20)[:20_000]
    variables: dict[str, Any] = {"cube": CUBE, "wide": WIDE, "scalar": np.array(7), "none": np.ones((0, 3))}
    tables = {"t": Table(ids, ROWS), "empty": Table(ids[:0], ROWS[:0])}
    return save_checkpoint(str(tmp_path_factory.mktemp("run")), 1, 3, variables=variables, tables=tables)


@given(index=hnp.basic_indices((30, 20, 10), allow_newaxis=False))
def test_variables_as_numpy(run: Version, index: Any) -> None:
    """Any index of integers, slices and `...` gives what numpy gives, as a value and as a text."""
    expected = np.asarray(CUBE[index])
    values, dtype = slice_variable(run, "cube", index)
    assert (dtype.name, values.shape) == ("float32", expected.shape)
    assert values.tobytes() == expected.tobytes()
    parts = index if isinstance(index, tuple) else (index,)
    words = [
        "..." if part is ... else str(part) if not isinstance(part, slice) else
        ":".join("" if each is None else str(each) for each in (part.start, part.stop, part.step))
        for part in parts
    ]  # fmt: skip
    if words:
        assert slice_variable(run, "cube", ", ".join(words))[0].tobytes() == expected.tobytes()


@given(index=hnp.basic_indices((20_000, 16), allow_newaxis=False))
def test_tables_as_numpy(run: Version, index: Any) -> None:
    """The rows of a table count shard after shard; both axes stay, and each row has its id."""
    with open_checkpoint(run) as checkpoint:
        whole = stored_rows(checkpoint.table("t"))
    keep = np.empty((20_000, 16), np.int32)
    keep[:] = np.arange(20_000)[:, None]
    rows = np.unique(keep[index])
    found = slice_table(run, "t", index)
    assert np.array_equal(found.vectors.reshape(-1), np.asarray(whole.vectors[index]).reshape(-1))
    if len(rows):
        assert np.array_equal(np.sort(found.ids), np.sort(whole.ids[rows]))
        assert found.vectors.shape == (len(found.ids), len(found.columns or ()))


def test_order_and_edges(run: Version) -> None:
    """Ids go with their rows backwards too; an empty slice, an empty table and a scalar are what numpy has."""
    with open_checkpoint(run) as checkpoint:
        whole = stored_rows(checkpoint.table("t"))
    backwards = slice_table(run, "t", "::-7, 3:1:-1")
    assert np.array_equal(backwards.ids, whole.ids[::-7])
    assert np.array_equal(backwards.vectors, whole.vectors[::-7, 3:1:-1])
    assert slice_table(run, "t", "5:5").vectors.shape == (0, 16)
    assert slice_table(run, "empty", ":").vectors.shape == (0, 16)
    assert slice_variable(run, "scalar", "...")[0].tolist() == 7
    assert slice_variable(run, "none", ":, 1")[0].shape == (0,)


@pytest.mark.parametrize(
    ("name", "index", "words"),
    [
        ("cube", "30", "index 30 is out of bounds for axis 0 with size 30"),
        ("cube", "0,0,-11", "index -11 is out of bounds for axis 2 with size 10"),
        ("cube", "0,0,0,0", "too many indices: the array has 3 dimensions, and 4 were given"),
        ("cube", "...,...", "an index can only have a single"),
        ("cube", "::0", "the step of a slice cannot be zero"),
        ("cube", "a", "'a' is not a slice"),
        ("cube", "", "'' is not a slice"),
        ("cube", "1:2:3:4", "is not a slice"),
        ("cube", "9" * 40, "is not a slice"),
        ("scalar", "0", "too many indices"),
    ],
)
def test_wrong_indices(run: Version, name: str, index: str, words: str) -> None:
    """What numpy refuses is a usage error with its words; so is what is no index."""
    with pytest.raises(UsageError, match=words):
        slice_variable(run, name, index)
    with pytest.raises(UsageError, match="expected an integer"):
        slice_variable(run, "cube", [0, 1])  # type: ignore[arg-type]
    with pytest.raises(NotFoundError):
        slice_variable(run, "nothing", "0")


def test_only_the_slice_is_read(run: Version, monkeypatch: pytest.MonkeyPatch) -> None:
    """A slice reads its bytes, and gaps of less than a page; a column with gaps of 160 KB reads no more than it is."""
    reads = noted_reads(monkeypatch)
    slice_variable(run, "none", "0:0")
    headers = sum(reads)
    for index, most in (("2:4, 100:200", 2 * 400), (":, 5", 6 * 4), ("1", 160_000), ("0:1, ::2", 160_000)):
        reads.clear()
        values, _ = slice_variable(run, "wide", index)
        assert np.array_equal(values, eval(f"WIDE[{index}]"))
        assert sum(reads) <= most + headers
    reads.clear()
    slice_table(run, "t", "-3:")
    assert sum(reads) < 3 * 64 + 20_000 * 3 + 4 * headers


def test_parsing() -> None:
    """Blanks, brackets and a last comma are as in Python."""
    for words in ("0:10,3", "[0:10, 3]", " [ 0 : 10 , 3 , ] "):
        assert parse_index(words) == np.s_[0:10, 3]
    assert parse_index("5") == (5,)
    assert parse_index("::") == (slice(None),)


def test_damage(tmp_path: Path) -> None:
    """A slice of a shard that was cut is an error."""
    run = save_checkpoint(str(tmp_path), 1, 1, variables={"v": np.ones(5000)}, tables={})
    os.truncate(run.shards[0].path, 1000)
    with pytest.raises(CorruptError):
        slice_variable(run, "v", "4000:")


def test_command(run: Version) -> None:
    """`get --slice` prints rows, documents and an array; stdout has nothing beside an array."""
    result = document("get", run.ref, "--variable", "cube", "--slice", "0:2, 3, ::5")
    assert (result["shape"], result["slice"]) == ([2, 2], "0:2, 3, ::5")
    assert np.array_equal(np.array(result["values"], np.float32), CUBE[0:2, 3, ::5])
    table = document("get", run.ref, "--table", "t", "--slice", "0:3, 4:6")
    assert (table["dim"], table["columns"], len(table["rows"])) == (2, [4, 5], 3)
    csv = edl("get", run.ref, "--table", "t", "--slice", "0:3, 4:6", "--csv").stdout.splitlines()
    assert (csv[0], len(csv)) == ("id,v4,v5", 4)
    line = json.loads(edl("get", run.ref, "--table", "t", "--slice", "0, 4", "--jsonl").stdout)
    assert list(line) == ["id", "v4"]
    words = [*PROGRAM, "get", run.ref, "--variable", "cube", "--slice", "1:3", "--npy", "-"]
    done = subprocess.run(words, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert np.array_equal(np.load(io.BytesIO(done.stdout)), CUBE[1:3])
    for wrong in (["--slice", "0"], ["--table", "t", "--slice", "0", "--id", "3"], ["--variable", "cube", "--id", "3"]):
        assert edl("get", run.ref, *wrong).returncode == 2
