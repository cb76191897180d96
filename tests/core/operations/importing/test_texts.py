"""Rows in text and in Parquet, as an export and as other tools write them: the same values, or what is wrong."""

from __future__ import annotations

import errno
import io
import json
import os
import re
import resource
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpoints import only
from edl_ckpt.core import Table, fingerprint_checkpoint, open_checkpoint, save_checkpoint, verify_version
from edl_ckpt.core.base.errors import (
    CorruptError,
    EdlCkptError,
    EdlCkptWarning,
    NoSpaceError,
    UnsupportedError,
    UsageError,
)
from edl_ckpt.core.operations.export import Selection, export_version
from edl_ckpt.core.operations.importing import NameMap, import_arrays
from edl_ckpt.core.operations.importing.columns import chosen_columns
from edl_ckpt.core.operations.importing.texts import _is_float32
from forked import run_forked
from frameworks import need

RNG = np.random.default_rng(29)
IDS = np.unique(RNG.integers(-(1 << 62), 1 << 62, 50))[::-1].copy()
VECTORS = RNG.standard_normal((50, 12)).astype(np.float32)
TEXTS = ("csv", "jsonl", "vec")


def imported(source: Path, target: Path, name: str, **names: Any) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Import a file of rows; return the ids and rows of its one table, ids descending as in `IDS`."""
    import_arrays(str(source), str(target), 1, 3, names=NameMap(**names))
    assert verify_version(only(target), level="deep").ok
    with open_checkpoint(only(target)) as checkpoint:
        assert [*checkpoint.tables] == [name]
        ids, rows = checkpoint.tables[name].to_numpy()
    order = np.argsort(ids)[::-1]
    return ids[order], rows[order]


def check(source: Path, target: Path, name: str, **names: Any) -> None:
    """The file has the ids and rows of this module, bit for bit."""
    ids, rows = imported(source, target, name, **names)
    np.testing.assert_array_equal(ids, IDS)
    assert rows.dtype == np.float32
    np.testing.assert_array_equal(rows, VECTORS)


def refused(source: Path, error: type[EdlCkptError], words: str, **names: Any) -> None:
    """The import names the file and says why; nothing is written."""
    with pytest.raises(error, match=re.escape(words)) as caught:
        import_arrays(str(source), str(source.parent / "run"), 1, 2, names=NameMap(**names))
    assert source.name in str(caught.value)
    assert not (source.parent / "run").exists()


SPECIAL = [np.nan, np.inf, -np.inf, -0.0, 1e-45, 3.4028235e38, 1e-20, 1.1754944e-38, 16777216.0, 0.1]


@pytest.mark.parametrize("ending", TEXTS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_an_export_comes_back(tmp_path: Path, ending: str, dtype: str) -> None:
    """Rows that went out as text come in with the fingerprint that they had, whatever the floats."""
    values = RNG.standard_normal((300, 10)).astype(dtype) * np.array(10.0, dtype) ** RNG.integers(-37, 37, (300, 10))
    values[0] = SPECIAL
    ids = np.unique(RNG.integers(-(1 << 62), 1 << 62, 300))
    tables = {"users": Table(ids, values.astype(dtype))}
    save_checkpoint(tmp_path / "run", 1, 2, variables={}, tables=tables, layout="elasticdl")
    export_version(only(tmp_path / "run"), tmp_path / f"users.{ending}", selection=Selection(tables=("users",)))
    if dtype == "float64":
        with pytest.warns(EdlCkptWarning, match="more digits than float32 keeps.*convert_version.*users.*float32"):
            result = import_arrays(tmp_path / f"users.{ending}", tmp_path / "new", 1, 3, layout="elasticdl")
    else:
        result = import_arrays(tmp_path / f"users.{ending}", tmp_path / "new", 1, 3, layout="elasticdl")
    with open_checkpoint(only(tmp_path / "run")) as checkpoint:
        assert fingerprint_checkpoint(checkpoint).text == result.fingerprint
    assert result.rows == 300


@given(st.lists(st.floats(width=32), min_size=1))
def test_each_float32_is_known(values: list[float]) -> None:
    """Each float32 is known by its shortest decimals, those of numpy, and by nine digits."""
    single = np.array(values, np.float32)
    assert _is_float32(single.astype(str).astype(np.float64))
    assert _is_float32(np.array([f"{x:.9g}" for x in single.tolist()], np.float64))


@given(st.lists(st.floats(allow_nan=False), min_size=1))
def test_what_is_taken_for_float32_keeps_its_digits(values: list[float]) -> None:
    """Numbers that become float32 are at most half of a unit in the eighth digit off what is printed for them."""
    numbers = np.array(values)
    with np.errstate(over="ignore"):
        single = numbers.astype(np.float32)
    if _is_float32(numbers):
        np.testing.assert_allclose(single.astype(np.float64), numbers, rtol=1e-7, atol=1e-45)
    else:
        assert (single != numbers).any()


COLUMNS: dict[str, tuple[list[str], NameMap, tuple[str, list[str]] | None]] = {
    "ours": (["id", "v0", "v1"], NameMap(), ("id", ["v0", "v1"])),
    "list": (["label", "id", "vector"], NameMap(), ("id", ["vector"])),
    "other names": (["user_id", "embedding", "clicks"], NameMap(), ("user_id", ["embedding"])),
    "by number": (["x1", "x10", "x2", "key"], NameMap(), ("key", ["x1", "x2", "x10"])),
    "matrix of pandas": (["", "0", "1", "id"], NameMap(), ("id", ["0", "1"])),
    "glob": (["id", "a", "b", "year"], NameMap(vector_column="[ab]"), ("id", ["a", "b"])),
    "named": (["u", "w", "vector"], NameMap(id_column="u", vector_column="w"), ("u", ["w"])),
    "glob over ids": (["u", "u0", "u1"], NameMap(id_column="u", vector_column="u*"), ("u", ["u0", "u1"])),
    "two ids": (["user_id", "item_id", "vector"], NameMap(), None),
    "two vectors": (["id", "user_vec", "item_vec"], NameMap(), None),
    "two families": (["id", "x0", "x1", "y0", "y1"], NameMap(), None),
    "a year": (["id", "label2020"], NameMap(), None),
    "no ids": (["x0", "x1"], NameMap(), None),
    "not there": (["id", "vector"], NameMap(id_column="uid"), None),
    "glob of nothing": (["id", "vector"], NameMap(vector_column="x*"), None),
    "twice": (["id", "x0", "x0"], NameMap(), None),
    "ids twice": (["id", "id", "vector"], NameMap(), None),
    "none": ([], NameMap(), None),
}


@pytest.mark.parametrize("case", COLUMNS)
def test_columns(case: str) -> None:
    """Columns tell ids from vectors by their names, or an error shows the options; elements are in numeric order."""
    columns, names, expected = COLUMNS[case]
    if expected:
        assert chosen_columns(columns, names, "f") == expected
        return
    with pytest.raises(UnsupportedError, match="do not tell ids from vectors") as caught:
        chosen_columns(columns, names, "f")
    assert "--id-column NAME --vector-column NAME" in str(caught.value.hint)


BAD: dict[str, tuple[str, str, str]] = {
    "a word": ("t.csv", "id,v0\n1,0.5\n2,x\n", "line 3: could not convert string 'x' to float64 in column 2"),
    "half an id": ("t.csv", "id,v0\n1.5,0.5\n", "line 2: could not convert string '1.5' to int64 in column 1"),
    "a large id": ("t.csv", f"id,v0\n{1 << 63},0.5\n", "line 2: could not convert"),
    "few": ("t.csv", "id,v0,v1\n1,0.5,1\n2,0.5\n3,1,1\n", "line 3: the dtype passed requires 3 columns but 2"),
    "many": ("t.csv", "id,v0\n1,0.5,7\n", "line 2: the dtype passed requires 2 columns but 3"),
    "a long field": ("t.csv", "x" * 200_000 + ",y\n1,2\n", "line 1: field larger than field limit"),
    "an empty line": ("t.csv", "id,v0\n1,0.5\n\n2,1\n", "line 3: it is empty"),
    "a missing value": ("t.csv", "id,v0,v1\n1,,0.5\n", "line 2: could not convert string ''"),
    "cut": ("t.vec", "3 2\n1 0.5 1\n2 0.5 1\n", "has 2 rows, and its first line says 3"),
    "longer": ("t.vec", "1 2\n1 0.5 1\n2 0.5 1\n", "has 2 rows, and its first line says 1"),
    "words": ("t.vec", "2 1\n1 0.5\nthe 0.5\n", "line 3: could not convert string 'the' to int64"),
    "no head": ("t.vec", "1 0.5 0.25\n", "line 1: "),
    "a large head": (
        "t.vec",
        "99999999999999999 2\n1 1 1\n",
        "line 1: the file is too short for 99999999999999999 rows",
    ),
    "a long row": ("t.vec", "0 999999999999\n", "line 1: "),
    "no JSON": ("t.jsonl", '{"id": 1, "vector": [1]}\n{"id": 2, "vector": [1\n', "line 2: "),
    "no first JSON": ("t.jsonl", "id,v0\n", "line 1: "),
    "other length": (
        "t.jsonl",
        '{"id": 1, "vector": [1]}\n{"id": 2, "vector": [1, 2]}\n',
        "line 2: 2 values, expected 1",
    ),
    "no id": ("t.jsonl", '{"id": 1, "vector": [1]}\n{"vector": [1]}\n', "line 2: no value for 'id'"),
    "an id of text": ("t.jsonl", '{"id": "1", "vector": [1]}\n', "line 1: 'id' is no whole number of 64 bits"),
    "half an id too": ("t.jsonl", '{"id": 1.5, "vector": [1]}\n', "line 1: 'id' is no whole number of 64 bits"),
    "a large id too": (
        "t.jsonl",
        f'{{"id": {1 << 63}, "vector": [1]}}\n',
        "line 1: 'id' is no whole number of 64 bits",
    ),
    "an empty line too": ("t.jsonl", '{"id": 1, "vector": [1]}\n\n', "line 2: it is empty"),
    "null": ("t.jsonl", '{"id": 1, "vector": [1, null]}\n', "line 1: a value is null"),
    "two in a line": ("t.jsonl", '{"id": 1, "vector": [1]}, {"id": 2, "vector": [1]}\n', "line 1: "),
    "deep": ("t.jsonl", '{"id": 1, "vector": [1]}\n' + "[" * 200_000 + "\n", "line 2: "),
}


@pytest.mark.parametrize("case", BAD)
def test_the_line_that_is_no_row_is_named(tmp_path: Path, case: str) -> None:
    """Text that is damaged is refused with its file, line and, where there is one, column."""
    name, text, words = BAD[case]
    (tmp_path / name).write_text(text)
    refused(tmp_path / name, CorruptError, words)


def test_a_line_deep_in_a_text(tmp_path: Path) -> None:
    """The number of a line counts the blocks before it; ids that occur twice are found over blocks."""
    lines = [f"{k},{k / 8},0.25\n" for k in range(300_000)]
    lines[200_000] = "200000,0.5,o.25\n"
    (tmp_path / "t.csv").write_text("id,v0,v1\n" + "".join(lines))
    refused(tmp_path / "t.csv", CorruptError, "line 200002: could not convert string 'o.25' to float64 in column 3")
    lines[200_000] = "7,0.5,0.25\n"
    (tmp_path / "t.csv").write_text("id,v0,v1\n" + "".join(lines))
    refused(tmp_path / "t.csv", CorruptError, "7")


def test_nulls_far_from_nan(tmp_path: Path) -> None:
    """A NaN in one line and the word null in another are no fault, and no row is lost."""
    rows = [{"id": k, "vector": ["NaN" if k == 3 else 1.5], "note": "null" if k == 90 else ""} for k in range(100)]
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    import_arrays(tmp_path / "t.jsonl", tmp_path / "run", 1, 2)
    assert [finding.code for finding in verify_version(only(tmp_path / "run"), level="deep").findings] == ["nan"]
    with open_checkpoint(only(tmp_path / "run")) as checkpoint:
        ids, vectors = checkpoint.tables["t"].to_numpy()
    assert (len(ids), np.isnan(vectors).nonzero()[0].tolist()) == (100, [ids.tolist().index(3)])


def test_a_large_text_takes_little_memory(tmp_path: Path) -> None:
    """60 MB of CSV are imported with 96 MiB of memory that is not a file's."""
    block = "".join(f"{{}}{k:04d},{','.join(['0.12345678'] * 12)}\n" for k in range(10_000))
    with open(tmp_path / "t.csv", "w", encoding="utf-8") as file:
        file.write(",".join(["id", *(f"v{k}" for k in range(12))]) + "\n")
        file.writelines(block.replace("{}", str(number)) for number in range(1, 46))
    assert (tmp_path / "t.csv").stat().st_size > 60_000_000

    def act() -> None:
        used = int(re.findall(r"VmData:\s*([0-9]+)", Path("/proc/self/status").read_text())[0]) << 10
        resource.setrlimit(resource.RLIMIT_DATA, (used + (96 << 20),) * 2)
        assert import_arrays(str(tmp_path / "t.csv"), str(tmp_path / "run"), 1, 2).rows == 450_000

    assert run_forked(act) == 0


# What other tools write


def pandas_frame(wide: bool = False) -> Any:
    """Return the rows as pandas has them: a column of arrays, or a column for each element, in any order."""
    pandas = need("pandas")
    if not wide:
        return pandas.DataFrame({"id": IDS, "vector": list(VECTORS)})
    frame = pandas.DataFrame(VECTORS, columns=[f"x{k}" for k in range(12)])
    frame["user_id"], frame["label"] = IDS, "a"
    return frame[sorted(frame.columns)]


def as_parquet(frame: Any, path: Path) -> None:
    """Let pandas write Parquet, for which it needs another library."""
    need("pyarrow")
    frame.to_parquet(path)


def write_with_duckdb(query: str) -> Callable[[Path], Any]:
    """Return what lets DuckDB write a table."""

    def write(path: Path) -> None:
        arrow = need("pyarrow")
        vectors = arrow.array(VECTORS.tolist(), arrow.list_(arrow.float32()))
        rows, frame = arrow.table({"id": IDS, "vector": vectors}), pandas_frame(wide=True)
        assert len(rows) == len(frame)  # DuckDB finds both by their names
        need("duckdb").execute(query.format(path=path))

    return write


def write_with_gensim(path: Path) -> None:
    vectors = need("gensim.models").KeyedVectors(12)
    vectors.add_vectors([str(i) for i in IDS], VECTORS)
    vectors.save_word2vec_format(str(path))


def polars_frame() -> Any:
    polars = need("polars")
    return polars.DataFrame({"id": IDS, "vector": VECTORS}, schema_overrides={"vector": polars.List(polars.Float32)})


JUDGES: dict[str, tuple[str, Callable[[Path], Any]]] = {
    "pandas lists": ("a.parquet", lambda path: as_parquet(pandas_frame(), path)),
    "pandas wide": ("a.parquet", lambda path: as_parquet(pandas_frame(wide=True), path)),
    "pandas index": ("a.parquet", lambda path: as_parquet(pandas_frame().set_index("id"), path)),
    "pandas CSV": ("a.csv", lambda path: pandas_frame(wide=True).to_csv(path, index=False)),
    "pandas CSV with its index": ("a.csv", lambda path: pandas_frame(wide=True).to_csv(path)),
    "pandas CSV in quotes": ("a.csv", lambda path: pandas_frame(wide=True).to_csv(path, quoting=1)),
    "pandas CSV of Windows": ("a.csv", lambda path: pandas_frame(wide=True).to_csv(path, lineterminator="\r\n")),
    "pandas CSV of Excel": ("a.csv", lambda path: pandas_frame(wide=True).to_csv(path, encoding="utf-8-sig")),
    "pandas JSON": ("a.jsonl", lambda path: pandas_frame().to_json(path, orient="records", lines=True)),
    "pandas wide JSON": ("a.jsonl", lambda path: pandas_frame(wide=True).to_json(path, orient="records", lines=True)),
    "polars": ("a.parquet", lambda path: polars_frame().write_parquet(path)),
    "polars JSON": ("a.jsonl", lambda path: polars_frame().write_ndjson(path)),
    "DuckDB": ("a.parquet", write_with_duckdb("COPY rows TO '{path}'")),
    "DuckDB CSV": ("a.csv", write_with_duckdb("COPY frame TO '{path}'")),
    "gensim": ("a.vec", write_with_gensim),
}


@pytest.mark.frameworks
@pytest.mark.parametrize("judge", JUDGES)
def test_what_other_tools_write(tmp_path: Path, judge: str) -> None:
    """Rows that another tool wrote have the values that it was given."""
    name, write = JUDGES[judge]
    write(tmp_path / name)
    ids, rows = imported(tmp_path / name, tmp_path / "run", "a")
    np.testing.assert_array_equal(ids, IDS)
    if "pandas" in judge and "JSON" in judge:  # which has ten decimals
        np.testing.assert_allclose(rows, VECTORS, atol=1e-10)
    else:
        np.testing.assert_array_equal(rows, VECTORS)


@pytest.mark.frameworks
def test_the_parts_of_a_directory(tmp_path: Path) -> None:
    """Files that Spark names as parts are one table with the directory's name; empty parts count as well."""
    parquet, arrow = need("pyarrow.parquet"), need("pyarrow")
    (tmp_path / "users.parquet").mkdir()
    for number, (start, end) in enumerate([(0, 0), (0, 20), (20, 50)]):
        kind = arrow.list_(arrow.float32())
        table = arrow.table({"id": IDS[start:end], "features": arrow.array(VECTORS[start:end].tolist(), kind)})
        parquet.write_table(table, tmp_path / f"users.parquet/part-0000{number}-c0.snappy.parquet")
    (tmp_path / "users.parquet/_SUCCESS").touch()
    check(tmp_path / "users.parquet", tmp_path / "run", "users")


@pytest.mark.frameworks
@pytest.mark.parametrize(
    ("columns", "error", "words"),
    [
        ({"user": [1], "x0": [0.5], "x1": [0.25]}, UnsupportedError, "got user, x0, x1"),
        (
            {"id": [1, 2], "x0": [0.5, None], "x1": [0.5, 1.0]},
            CorruptError,
            "column 'x0' contains nulls, in rows 0 to 1",
        ),
        ({"id": [1], "x0": [0.5], "x1": ["a"]}, UnsupportedError, "a checkpoint of ElasticDL cannot hold"),
        ({"id": ["a"], "x0": [0.5]}, UnsupportedError, "a checkpoint of ElasticDL cannot hold"),
        ({"id": [1.5], "x0": [0.5]}, UsageError, "ids must be whole numbers"),
        ({"id": [1, 1], "x0": [0.5, 1]}, CorruptError, "1"),
    ],
)
def test_parquet_that_is_no_table(
    tmp_path: Path, columns: dict[str, Any], error: type[EdlCkptError], words: str
) -> None:
    """Columns that are no ids and no numbers are refused with the file and what is wrong."""
    need("pyarrow.parquet").write_table(need("pyarrow").table(columns), tmp_path / "t.parquet")
    refused(tmp_path / "t.parquet", error, words)


@pytest.mark.frameworks
def test_wide_columns_become_one_dtype(tmp_path: Path) -> None:
    """Columns of several dtypes become the one that has all of their values; a glob takes some of them."""
    arrow = need("pyarrow")
    columns = {"id": [5], "x0": arrow.array([0.1], arrow.float32()), "x1": arrow.array([1 << 40], arrow.int64())}
    need("pyarrow.parquet").write_table(arrow.table(columns), tmp_path / "t.parquet")
    _, rows = imported(tmp_path / "t.parquet", tmp_path / "run", "t")
    assert (rows.dtype.name, rows.tolist()) == ("float64", [[float(np.float32(0.1)), float(1 << 40)]])
    _, rows = imported(tmp_path / "t.parquet", tmp_path / "one", "t", vector_column="x0")
    assert (rows.dtype.name, rows.tolist()) == ("float32", [[float(np.float32(0.1))]])


@pytest.mark.parametrize(("name", "option"), [("t.npz", "id_column"), ("t.vec", "key"), ("t.csv", "key")])
def test_options_of_other_files(tmp_path: Path, name: str, option: str) -> None:
    """An option that says nothing about a file is refused, so that nobody waits for what it would do."""
    np.savez(tmp_path / "t.npz", a=np.arange(3))
    (tmp_path / "t.vec").write_text("1 1\n1 1\n")
    (tmp_path / "t.csv").write_text("id,v0\n1,1\n")
    refused(tmp_path / name, UsageError, "--key is for .pt", **{option: "a"})


def test_far_files(tmp_path: Path) -> None:
    """Errors name the URL, not the temporary copy; options that do not fit are refused there too."""
    import fsspec

    version = save_checkpoint(str(tmp_path / "a"), 1, 1, variables={"b": np.ones(2)}, layout="elasticdl")
    export_version(version, str(tmp_path / "a.safetensors"))
    good = (tmp_path / "a.safetensors").read_bytes()
    for name, data in (("bad.npz", b"no archive"), ("bad.csv", b"id,x0\n1,word\n"), ("a.safetensors", good)):
        fsspec.filesystem("memory").pipe(f"/far-rows/{name}", data)
        error, words = (UsageError, "--key") if name == "a.safetensors" else (CorruptError, f"memory://far-rows/{name}")
        with pytest.raises(error, match=words):
            import_arrays(f"memory://far-rows/{name}", str(tmp_path / "run"), 1, 2, names=NameMap(key="model"))
    assert not (tmp_path / "run").exists()


def test_a_full_temporary_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What cannot be put aside is no fault of the file that is read."""

    class Full(io.BytesIO):
        def write(self, *_: object) -> int:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(tempfile, "TemporaryFile", Full)
    (tmp_path / "t.csv").write_text("id,v0\n1,0.5\n")
    with pytest.raises(NoSpaceError) as caught:
        import_arrays(str(tmp_path / "t.csv"), str(tmp_path / "run"), 1, 2)
    assert caught.value.path == tempfile.gettempdir()
