"""Parquet as pandas, pyarrow, polars and DuckDB read it at the path that was given; skipped where one is missing."""

from __future__ import annotations

import os
import resource
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from checkpoints import only
from edl_ckpt.core import diff_versions, save_checkpoint
from edl_ckpt.core.base.errors import CorruptError, NoSpaceError, NotFoundError, RefusedError, UsageError
from edl_ckpt.core.model.versions import Version
from edl_ckpt.core.operations.export import Selection, export_version
from edl_ckpt.core.operations.importing import import_arrays
from edl_ckpt.core.operations.save import Table
from frameworks import need

pytestmark = [pytest.mark.frameworks, pytest.mark.filterwarnings("default")]
IDS = np.arange(0, 300, 3)
WIDE = np.random.default_rng(1).random((100, 8), np.float32)
NARROW = np.random.default_rng(2).random((100, 4), np.float32)


@pytest.fixture
def run(tmp_path: Path) -> Version:
    """Return a version with tables of two widths, and dense variables."""
    tables = {"user": Table(IDS, WIDE), "_a/item": Table(IDS + 1, NARROW), "none": Table(IDS[:0], WIDE[:0])}
    variables: dict[str, Any] = {"dense/kernel:0": np.ones((3, 2)), "step": np.array(7)}
    return save_checkpoint(str(tmp_path / "run"), 7, 3, variables=variables, tables=tables)


def by_pandas(path: str) -> list[dict[str, Any]]:
    """Read rows as pandas does."""
    return list(need("pandas").read_parquet(path).to_dict("records"))


def by_pyarrow(path: str) -> list[dict[str, Any]]:
    """Read rows as pyarrow does."""
    need("pyarrow")
    return list(need("pyarrow.parquet").read_table(path).to_pylist())


@pytest.fixture(autouse=True)
def own_interrupts() -> Iterator[None]:
    """Take SIGINT back from polars, whose handler does not wake up a thread that waits: later tests would hang."""
    yield
    signal.signal(signal.SIGINT, signal.getsignal(signal.SIGINT))


def by_polars(path: str) -> list[dict[str, Any]]:
    """Read rows as polars does."""
    return list(need("polars").read_parquet(path).to_dicts())


def by_duckdb(path: str) -> list[dict[str, Any]]:
    """Read rows as DuckDB does: its older releases want a pattern for a directory."""
    duckdb = need("duckdb")
    where = f"{path}/*.parquet" if os.path.isdir(path) else path
    found = duckdb.sql(f"select * from '{where}'")
    return [dict(zip(found.columns, row, strict=True)) for row in found.fetchall()]


READERS: dict[str, Callable[[str], list[dict[str, Any]]]] = {
    "pandas": by_pandas,
    "pyarrow": by_pyarrow,
    "polars": by_polars,
    "duckdb": by_duckdb,
}


@pytest.mark.parametrize("reader", sorted(READERS))
def test_one_table_is_one_file(run: Version, tmp_path: Path, reader: str) -> None:
    """One table is a file with the columns `id` and `vector`; nothing else is written when nothing else is chosen."""
    need("pyarrow")
    export_version(run, str(tmp_path / "user.parquet"), selection=Selection(tables=("user",)))
    rows = READERS[reader](str(tmp_path / "user.parquet"))
    assert [row["id"] for row in rows] == IDS.tolist()
    assert np.array_equal(np.array([row["vector"] for row in rows], np.float32), WIDE)
    assert list(rows[0]) == ["id", "vector"]
    assert sorted(os.listdir(tmp_path)) == ["run", "user.parquet"]
    if reader == "polars":
        vectors = need("polars").read_parquet(tmp_path / "user.parquet")["vector"].to_numpy()
        assert vectors.shape == WIDE.shape


@pytest.mark.parametrize("reader", sorted(READERS))
def test_several_tables_are_a_directory(run: Version, tmp_path: Path, reader: str) -> None:
    """A directory is read as one dataset, whatever the widths of its tables; each file is read by itself too."""
    need("pyarrow")
    result = export_version(run, str(tmp_path / "m.parquet"))
    assert result.proved
    read = READERS[reader]
    rows = read(str(tmp_path / "m.parquet"))
    expected = {"user": (IDS, WIDE), "_a/item": (IDS + 1, NARROW)}
    for name, (ids, vectors) in expected.items():
        own = sorted((row for row in rows if row["table"] == name), key=lambda row: int(row["id"]))
        assert [row["id"] for row in own] == ids.tolist()
        assert np.array_equal(np.array([list(row["vector"]) for row in own], np.float32), vectors)
    assert len(rows) == 200
    assert sorted(os.listdir(tmp_path / "m.parquet")) == ["%5Fa%2Fitem.parquet", "none.parquet", "user.parquet"]
    assert np.array_equal([list(row["vector"]) for row in read(str(tmp_path / "m.parquet/user.parquet"))], WIDE)
    dense = load_file(str(tmp_path / "m.dense/dense.safetensors"))
    assert (int(dense["step"]), dense["dense/kernel:0"].shape) == (7, (3, 2))


def test_files_of_a_directory(run: Version, tmp_path: Path) -> None:
    """A directory is imported with what is beside it; one of its files is imported alone; a lost one is named."""
    need("pyarrow")
    result = export_version(run, str(tmp_path / "m.parquet"))
    assert import_arrays(str(tmp_path / "m.parquet"), str(tmp_path / "new"), 7, 2).fingerprint == result.fingerprint
    import_arrays(str(tmp_path / "m.parquet/user.parquet"), str(tmp_path / "new"), 8, 2)
    alone = next(iter(diff_versions(run, f"{tmp_path / 'new'}@8").tables))
    assert {table.name: table.status for table in diff_versions(run, f"{tmp_path / 'new'}@8").tables} == {
        "user": "equal",
        "_a/item": "removed",
        "none": "removed",
    }, alone
    shutil.copytree(tmp_path / "m.parquet", tmp_path / "lost.parquet")
    with pytest.raises(NotFoundError, match="are not next to it"):
        import_arrays(str(tmp_path / "lost.parquet"), str(tmp_path / "new"), 9, 2)
    (tmp_path / "m.parquet/none.parquet").unlink()
    with pytest.raises(CorruptError, match="there are Parquet files of 2 tables, and 3 were exported"):
        import_arrays(str(tmp_path / "m.parquet"), str(tmp_path / "new"), 9, 2)


def test_what_is_beside_is_of_the_same_export(run: Version, tmp_path: Path) -> None:
    """Dense variables of another version are found; a directory of somebody else is not replaced, with force too."""
    need("pyarrow")
    other = save_checkpoint(str(tmp_path / "other"), 1, 1, variables={"v": np.ones(2)}, tables={"t": Table(IDS, WIDE)})
    export_version(run, str(tmp_path / "m.parquet"))
    export_version(other, str(tmp_path / "n.parquet"))
    with pytest.raises(RefusedError, match="exists already"):
        export_version(other, str(tmp_path / "m.parquet"))
    (tmp_path / "m.dense/mine.txt").write_text("mine")
    with pytest.raises(RefusedError, match=r"contains 'mine\.txt'"):
        export_version(other, str(tmp_path / "m.parquet"), force=True)
    (tmp_path / "m.dense/mine.txt").unlink()
    shutil.rmtree(tmp_path / "n.dense")
    shutil.copytree(tmp_path / "m.dense", tmp_path / "n.dense")
    with pytest.raises(CorruptError, match="not of the same export"):
        import_arrays(str(tmp_path / "n.parquet"), str(tmp_path / "new"), 9, 2)
    with pytest.raises(RefusedError, match="is a directory, and this output is a file"):
        export_version(other, str(tmp_path / "m.parquet"), force=True)
    shutil.rmtree(tmp_path / "m.parquet")
    export_version(other, str(tmp_path / "m.parquet"), force=True)
    assert (tmp_path / "m.parquet").is_file()
    import_arrays(str(tmp_path / "m.parquet"), str(tmp_path / "new"), 9, 2)
    assert diff_versions(other, only(tmp_path / "new")).equal
    assert sorted(p for p in os.listdir(tmp_path) if p.startswith((".", "m."))) == ["m.dense", "m.parquet"]


def test_remote(run: Version, tmp_path: Path) -> None:
    """At a URL both outputs are uploaded, and both are read back."""
    need("pyarrow")
    goal = "memory://parquet/m.parquet"
    result = export_version(run, goal)
    assert {file.path.rpartition("/parquet/")[2].partition("/")[0] for file in result.files} == {"m.parquet", "m.dense"}
    assert import_arrays(goal, str(tmp_path / "new"), 7, 2).fingerprint == result.fingerprint
    one = export_version(run, "memory://parquet/user.parquet", selection=Selection(tables=("user",)))
    assert [file.path.rpartition("/")[2] for file in one.files] == ["user.parquet"]
    import_arrays("memory://parquet/user.parquet", str(tmp_path / "new"), 8, 2)


def test_lists_of_other_lengths(tmp_path: Path) -> None:
    """A file whose lists do not have the noted length is an error (5), however many elements it has."""
    import json

    arrow, parquet = need("pyarrow"), need("pyarrow.parquet")
    note = {"ids": "t.ids", "vectors": "t.vectors", "initializer": "", "dim": 2, "dtype": "float32"}
    table = arrow.table({"id": [1, 2], "vector": arrow.array([[1.0], [2.0, 3.0, 4.0]], arrow.list_(arrow.float32()))})
    metadata = {"table": "t", "edl-ckpt": json.dumps({"tables": {"t": note}, "whole": {"tables": 1, "variables": 0}})}
    parquet.write_table(table.replace_schema_metadata(metadata), tmp_path / "t.parquet")
    with pytest.raises(CorruptError, match="row 0 of column 'vector' has 1 value, expected 2"):
        import_arrays(str(tmp_path / "t.parquet"), str(tmp_path / "new"), 1, 1)


def test_rows_without_elements(tmp_path: Path) -> None:
    """A table whose rows have no element survives, although Arrow has no list of the fixed size 0."""
    need("pyarrow")
    run = save_checkpoint(str(tmp_path / "run"), 1, 1, variables={}, tables={"t": Table(IDS, np.ones((100, 0)))})
    export_version(run, str(tmp_path / "t.parquet"))
    imported = import_arrays(str(tmp_path / "t.parquet"), str(tmp_path / "new"), 1, 2)
    assert imported.fingerprint == run.fingerprint


def test_no_stream_for_several(run: Version) -> None:
    """Several files do not go into a stream."""
    need("pyarrow")
    with pytest.raises(UsageError, match="several files; a stream takes one"):
        export_version(run, "/dev/stdout", format_name="parquet")
    with pytest.raises(RefusedError, match="is a device"):
        export_version(run, "/dev/null", format_name="parquet")
    export_version(run, "/dev/null", format_name="parquet", selection=Selection(tables=("user",)))


def test_an_export_that_fails_leaves_nothing_and_says_why(tmp_path: Path) -> None:
    """A write that fails inside pyarrow ends the export with the error of storage; nothing is left."""
    need("pyarrow")
    tables = {"t": Table(np.arange(30_000), np.ones((30_000, 2), np.float32))}
    version = save_checkpoint(str(tmp_path / "run"), 1, 2, variables={}, tables=tables)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, hard))
    try:
        with pytest.raises(NoSpaceError, match="File too large"):
            export_version(version, tmp_path / "out.parquet")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not list(tmp_path.glob("*out*"))


def test_many_tables_need_few_open_files(tmp_path: Path) -> None:
    """The files of many tables are closed until the footers are written."""
    need("pyarrow")
    tables = {f"t{number}": Table(np.arange(3), np.ones((3, 2), np.float32)) for number in range(300)}
    version = save_checkpoint(str(tmp_path / "run"), 1, 2, variables={}, tables=tables)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (150, hard))
    try:
        export_version(version, tmp_path / "out", format_name="parquet")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert len(list((tmp_path / "out").glob("*.parquet"))) == 300
