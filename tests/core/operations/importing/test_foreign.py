"""Arrays as other tools write them: in any order of bytes and indexes, Parquet with plain lists, TensorFlow's files."""

from __future__ import annotations

import os
import re
import resource
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from checkpoints import only
from edl_ckpt.core import fingerprint_checkpoint, open_checkpoint, verify_version
from edl_ckpt.core.base.errors import CorruptError, IncompleteError, UnsupportedError
from edl_ckpt.core.operations.importing import import_arrays
from forked import run_forked
from frameworks import need

RNG = np.random.default_rng(7)


def imported(source: Path, target: Path) -> str:
    """Import files, and return the fingerprint of the version, which is whole."""
    result = import_arrays(str(source), str(target), 1, 3)
    assert verify_version(only(target), level="deep").ok
    with open_checkpoint(only(target)) as checkpoint:
        assert fingerprint_checkpoint(checkpoint).text == result.fingerprint
    return result.fingerprint


@pytest.mark.parametrize("archive", [False, True])
def test_orders(tmp_path: Path, archive: bool) -> None:
    """Big-endian and column-major arrays become what the same arrays in C order become, in files and archives."""
    plain: dict[str, Any] = {
        "t.ids": np.arange(100, 0, -1),
        "t.vectors": RNG.random((100, 7), np.float32),
        "cube": RNG.random((3, 4, 5)),
        "small": RNG.integers(0, 9, (6, 2), np.int16),
        "scalar": np.array(0.5),
        "none": np.zeros((0, 4), np.float32),
    }
    others = [
        {name: np.asarray(array, order="F") for name, array in plain.items()},
        {name: array.astype(array.dtype.newbyteorder(">")) for name, array in plain.items()},
        {name: np.asarray(array.astype(array.dtype.newbyteorder(">")), order="F") for name, array in plain.items()},
    ]
    found = set[str]()
    for number, arrays in enumerate([plain, *others]):
        source = tmp_path / f"{number}{'.npz' if archive else ''}"
        if archive:
            np.savez_compressed(source, **arrays)
        else:
            source.mkdir()
            for name, array in arrays.items():
                np.save(source / f"{name}.npy", array)
        found.add(imported(source, tmp_path / f"run{number}"))
    assert len(found) == 1


def test_orders_take_little_memory(tmp_path: Path) -> None:
    """An array of 96 MiB in column order and big-endian is imported with 64 MiB of memory that is not a file's."""
    (tmp_path / "m").mkdir()
    np.save(tmp_path / "m/v.npy", np.asfortranarray(np.ones((1 << 20, 24), ">f4")))

    def act() -> None:
        used = int(re.findall(r"VmData:\s*([0-9]+)", Path("/proc/self/status").read_text())[0]) << 10
        resource.setrlimit(resource.RLIMIT_DATA, (used + (64 << 20),) * 2)
        imported(tmp_path / "m", tmp_path / "run")

    assert run_forked(act) == 0


# Parquet


def write_parquet(path: Path, vectors: Any, kind: Any = None, **columns: Any) -> None:
    parquet, arrow = need("pyarrow.parquet"), need("pyarrow")
    table = {"id": np.arange(len(vectors)), "vector": arrow.array(vectors, kind)} | columns
    parquet.write_table(arrow.table(table), path, row_group_size=10)


@pytest.mark.frameworks
def test_parquet_with_plain_lists(tmp_path: Path) -> None:
    """Lists without a size in their type, as pandas, pyarrow and Spark write them, become a table."""
    arrow, pandas = need("pyarrow"), need("pandas")
    vectors = RNG.random((25, 4), np.float32)
    write_parquet(tmp_path / "fixed.parquet", vectors.tolist(), arrow.list_(arrow.float32(), 4))
    expected = imported(tmp_path / "fixed.parquet", tmp_path / "fixed")
    for name in ("list_", "large_list"):
        place = tmp_path / name
        place.mkdir()
        write_parquet(place / "fixed.parquet", vectors.tolist(), getattr(arrow, name)(arrow.float32()))
        assert imported(place / "fixed.parquet", place / "run") == expected
    (tmp_path / "pandas").mkdir()
    frame = pandas.DataFrame({"id": np.arange(25), "vector": list(vectors)})
    frame.to_parquet(tmp_path / "pandas/fixed.parquet")
    assert imported(tmp_path / "pandas/fixed.parquet", tmp_path / "pandas/run") == expected


@pytest.mark.frameworks
@pytest.mark.parametrize(
    ("vectors", "message"),
    [
        ([[1.0, 2.0]] * 17 + [[1.0]] + [[1.0, 2.0]] * 9, "row 17 of column 'vector' has 1 value, expected 2"),
        ([[1.0, 2.0]] * 3 + [None], "column 'vector' contains nulls"),
        ([[1.0, 2.0]] * 3 + [[1.0, None]], "column 'vector' contains nulls"),
        ([None, [1.0, 2.0]], "a list of numbers"),
        ([], "a list of numbers"),
    ],
)
def test_parquet_that_is_no_table(tmp_path: Path, vectors: list[Any], message: str) -> None:
    """Lists of several lengths and nulls are refused with the row; nothing is made up for them."""
    arrow = need("pyarrow")
    write_parquet(tmp_path / "t.parquet", vectors, arrow.list_(arrow.float32()))
    with pytest.raises((CorruptError, UnsupportedError), match=message) as caught:
        import_arrays(str(tmp_path / "t.parquet"), str(tmp_path / "run"), 1, 1)
    assert str(tmp_path) in str(caught.value)
    assert not (tmp_path / "run").exists()


# TensorFlow


@pytest.mark.frameworks
def test_a_directory_of_tensorflow(tmp_path: Path) -> None:
    """Of a directory the newest checkpoint is imported, by its prefix or index that one, also after a move."""
    tf = need("tensorflow")
    manager = tf.train.CheckpointManager(tf.train.Checkpoint(v=tf.Variable([1.0, 2.0])), str(tmp_path / "old"), 3)
    manager.save()
    manager.checkpoint.v.assign([3.0, 4.0])
    manager.save()
    os.rename(tmp_path / "old", tmp_path / "tf")
    newest = imported(tmp_path / "tf", tmp_path / "run")
    assert imported(tmp_path / "tf/ckpt-2", tmp_path / "by-prefix") == newest
    assert imported(tmp_path / "tf/ckpt-2.index", tmp_path / "by-index") == newest
    assert imported(tmp_path / "tf/ckpt-1", tmp_path / "first") != newest
    with open_checkpoint(only(tmp_path / "run")) as checkpoint:
        names = [name for name in checkpoint.variable_names if name.startswith("v/")]
        assert [checkpoint.variable(name).tolist() for name in names] == [[3.0, 4.0]]
    (tmp_path / "tf/ckpt-2.index").unlink()
    with pytest.raises(IncompleteError, match="TensorFlow's file checkpoint names 2"):
        import_arrays(str(tmp_path / "tf"), str(tmp_path / "gone"), 1, 1)
