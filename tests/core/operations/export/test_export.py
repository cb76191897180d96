from __future__ import annotations

import base64
import csv
import json
import math
import os
import resource
import shutil
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.numpy import load_file

import elasticdl_rules
from builders import models, write_checkpoint, write_unchecked
from checkpoints import noted_reads, only
from edl_ckpt.core import fingerprint_checkpoint, open_checkpoint, save_checkpoint, verify_version
from edl_ckpt.core.base.errors import (
    CorruptError,
    EdlCkptError,
    NoSpaceError,
    NotFoundError,
    RefusedError,
    UnsupportedError,
    UsageError,
)
from edl_ckpt.core.model.versions import Version
from edl_ckpt.core.operations.export import _BY_WORD, FORMATS, ExportResult, Selection, export_version
from edl_ckpt.core.operations.importing import import_arrays
from edl_ckpt.core.operations.save import Table
from edl_ckpt.core.reading.casts import cast_floats
from edl_ckpt.core.sorting.partition import PartitionedTable
from edl_ckpt.core.sources.elasticdl.initial_rows import initial_rows
from edl_ckpt.core.storage.files import PreallocatedFile
from edl_ckpt.proto import model_v4_pb2
from oracle import Model
from places import GOLDEN


def load(path: Path) -> dict[str, Any]:
    """Open what was exported with the format's own library."""
    if path.suffix == ".safetensors":
        return dict(load_file(str(path)))
    if path.suffix == ".npz":
        with zipfile.ZipFile(path) as file:
            assert file.testzip() is None
        with np.load(path) as archive:
            arrays = dict(archive.items())
        tensors = json.loads(arrays.pop("__edl_ckpt__").tobytes())["tensors"]
        assert [f"{key}.npy" for key in arrays] == [entry["file"] for entry in tensors.values()]
        assert all(key == name or "%" in key or "~" in key for key, name in zip(arrays, tensors, strict=True))
        return dict(zip(tensors, arrays.values(), strict=True))
    tensors = json.loads((path / "index.json").read_text())["tensors"]
    assert {f.name for f in path.iterdir()} - {"index.json"} == {entry["file"] for entry in tensors.values()}
    return {name: np.load(path / entry["file"], mmap_mode="r") for name, entry in tensors.items()}


@pytest.mark.parametrize("ending", ["safetensors", "npz", "npy"])
@pytest.mark.parametrize("case", ["current/ps3", "legacy/v1", "legacy/v3", "legacy/v0d"])
def test_golden(tmp_path: Path, ending: str, case: str, expected: Any) -> None:
    """Every variable and table that ElasticDL saved opens with the format's own library, equal to expected.json."""
    group, _, name = case.partition("/")
    model = expected["current"] if group == "current" else expected["legacy"][name]
    result = export_version(only(GOLDEN / case), str(tmp_path / f"m.{ending}"))
    assert result.proved
    arrays = load(tmp_path / f"m.{ending}")
    for variable, entry in model["dense"].items():
        assert arrays[variable].dtype == entry["dtype"]
        assert list(arrays[variable].shape) == entry["shape"]
        assert arrays[variable].tobytes() == base64.b64decode(entry["base64"])
    for table, entry in model["tables"].items():
        assert arrays[f"{table}.ids"].tolist() == entry["ids"]
        assert arrays[f"{table}.vectors"].shape[0] == len(entry["ids"])
        if entry["ids"]:
            assert arrays[f"{table}.vectors"].tobytes() == base64.b64decode(entry["vectors_base64"])
    assert set(arrays) == {*model["dense"], *(f"{t}.{k}" for t in model["tables"] for k in ("ids", "vectors"))}


def by_value(arrays: dict[str, Any], model: Model) -> None:
    """Assert that arrays are a model."""
    for name, (dtype, shape, data) in model.dense.items():
        assert (arrays[name].dtype, arrays[name].shape) == (dtype, shape)
        assert arrays[name].tobytes() == data
    for name, table in model.tables.items():
        ids = sorted(table.rows)
        assert arrays[f"{name}.ids"].tolist() == ids
        assert arrays[f"{name}.vectors"].tobytes() == b"".join(table.rows[i] for i in ids)


@given(models(), st.integers(1, 5), st.sampled_from(["safetensors", "npz", "npy"]), st.sampled_from([64 << 20, 40]))
def test_any_model(
    tmp_path_factory: pytest.TempPathFactory, model: Model, ps_num: int, ending: str, part_bytes: int
) -> None:
    """Any model, in one part or in many, is what the format's own library reads."""
    place = tmp_path_factory.mktemp("m")
    write_checkpoint(place / "run", model, ps_num)
    names = [*model.dense, *(f"{t}.{k}" for t in model.tables for k in ("ids", "vectors"))]
    if len(set(names)) == len(names):
        export_version(only(place / "run"), str(place / f"m.{ending}"), part_bytes=part_bytes)
        by_value(load(place / f"m.{ending}"), model)
    shutil.rmtree(place)


def stored_rows(run: Version, table: str) -> tuple[list[int], bytes]:
    """Return the ids and rows of a table, as the protobuf library finds them in shard after shard."""
    ids: list[int] = []
    rows = b""
    for path in sorted(Path(run.path).iterdir()):
        slices = model_v4_pb2.Model.FromString(path.read_bytes()).embedding_tables[table]
        ids += slices.ids
        rows += slices.concat_tensors.tensor_content
    return ids, rows


@pytest.mark.parametrize("ending", ["safetensors", "npz", "npy", "csv", "jsonl"])
def test_stored_order(tmp_path: Path, ending: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """`order="stored"` writes the rows of shard after shard as they lie, and reads nothing twice for it."""
    monkeypatch.setattr(PartitionedTable, "__enter__", lambda _: pytest.fail("the table was cut into parts"))
    ids = np.random.default_rng(1).permutation(20_000)
    tables = {"t": Table(ids, np.random.default_rng(2).random((20_000, 3), np.float32))}
    run = save_checkpoint(str(tmp_path / "run"), 7, 3, variables={"v": np.arange(5)}, tables=tables)
    chosen = Selection(tables=("t",) if ending in {"csv", "jsonl"} else (), order="stored")
    result = export_version(run, str(tmp_path / f"m.{ending}"), selection=chosen)
    expected, rows = stored_rows(run, "t")
    assert expected != sorted(expected)
    if ending == "csv":
        found = np.loadtxt(tmp_path / "m.csv", np.float64, delimiter=",", skiprows=1)
        assert (found[:, 0].tolist(), found[:, 1:].astype(np.float32).tobytes()) == (expected, rows)
    elif ending == "jsonl":
        lines = [json.loads(line) for line in (tmp_path / "m.jsonl").read_text().splitlines()]
        assert [line["id"] for line in lines] == expected
        assert np.array([line["vector"] for line in lines], np.float32).tobytes() == rows
    else:
        arrays = load(tmp_path / f"m.{ending}")
        assert (arrays["t.ids"].tolist(), arrays["t.vectors"].tobytes()) == (expected, rows)
        assert result.proved
        imported = import_arrays(str(tmp_path / f"m.{ending}"), str(tmp_path / "new"), 7, 2)
        assert imported.fingerprint == result.fingerprint
        assert verify_version(only(tmp_path / "new")).ok


def test_stored_order_is_refused(run: Version, tmp_path: Path) -> None:
    """A matrix and a merged checkpoint have no such order, and no other word is one."""
    with pytest.raises(UsageError, match="a matrix has its rows in the order of ids"):
        Selection(order="stored", dense_rows="auto")
    with pytest.raises(UsageError, match="a checkpoint is merged from all shards"):
        export_version(run, str(tmp_path / "m.ckpt"), selection=Selection(order="stored"))
    with pytest.raises(UsageError, match="order must be id or stored, got 'sorted'"):
        Selection(order="sorted")


@pytest.mark.parametrize("order", ["id", "stored"])
def test_each_value_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, order: str) -> None:
    """Of the source, an export reads each value once, and neighbouring variables in one read."""
    ids = np.random.default_rng(1).permutation(50_000)
    tables = {"t": Table(ids, np.ones((50_000, 16), np.float32)), "other": Table(ids[:10], np.ones((10, 2)))}
    variables: dict[str, Any] = {f"v{k:04}": np.full(20, k) for k in range(1000)}
    run = save_checkpoint(str(tmp_path / "run"), 7, 3, variables=variables, tables=tables)
    reads = noted_reads(monkeypatch)
    chosen = Selection(tables=("t",), variables=("v00*",), order=order)
    export_version(run, str(tmp_path / "m.safetensors"), selection=chosen, part_bytes=200_000)
    id_bytes = 3 * 50_000
    passes = 3 if order == "id" else 2
    assert run.size_bytes - id_bytes - 60_000 < sum(reads) < run.size_bytes + (passes - 1) * id_bytes + 10_000
    assert len(reads) < 60


@pytest.mark.parametrize("what", ["ids", "rows", "variable"])
def test_what_was_written_is_read_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    """A bit that the file has otherwise than it was written is found, and nothing is published."""
    rows = np.random.default_rng(1).random((3000, 4), np.float32)
    tables = {"t": Table(np.arange(3000), rows)}
    run = save_checkpoint(str(tmp_path / "run"), 7, 2, variables={"v": np.arange(777)}, tables=tables)
    size = {"ids": 3000 * 8, "rows": rows.nbytes, "variable": 777 * 8}[what]
    plain = PreallocatedFile.write

    def flipped(self: PreallocatedFile, offset: int, data: memoryview) -> None:
        if len(data) == size:
            data = memoryview(bytearray(data))
            data[size // 2] ^= 4
        plain(self, offset, data)

    monkeypatch.setattr(PreallocatedFile, "write", flipped)
    with pytest.raises(EdlCkptError, match="nothing was published"):
        export_version(run, str(tmp_path / "m.safetensors"))
    assert os.listdir(tmp_path) == ["run"]


@pytest.mark.parametrize("ending", [".safetensors", ".npz", ".npy"])
def test_small_variables_are_read_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str) -> None:
    """Small variables are written together, and a bit that one of them has otherwise is found, with its name."""
    variables = {f"v{k:02}": np.full(100, k, np.float32) for k in range(40)}
    run = save_checkpoint(str(tmp_path / "run"), 7, 3, variables=variables, tables={})
    target = variables["v17"].tobytes()
    plain = PreallocatedFile.write
    writes: list[int] = []

    def flipped(self: PreallocatedFile, offset: int, data: memoryview) -> None:
        changed = bytearray(data)
        at = changed.find(target)
        if at >= 0:
            changed[at + 5] ^= 4
        writes.append(len(changed))
        plain(self, offset, memoryview(changed))

    monkeypatch.setattr(PreallocatedFile, "write", flipped)
    with pytest.raises(EdlCkptError, match="'v17' reads back differently; nothing was published"):
        export_version(run, str(tmp_path / f"m{ending}"))
    assert os.listdir(tmp_path) == ["run"]
    if ending == ".safetensors":
        assert writes == [40 * 400]


@pytest.mark.parametrize(
    ("name", "where"),
    [
        ("m.safetensors", b"__metadata__"),
        ("m.npz", b"NUMPY"),
        ("m.npz", b"PK\x01\x02"),
        ("m.npy", b"NUMPY"),
        ("m.npy", b'"tensors"'),
    ],
)
def test_what_is_no_value_is_read_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, where: bytes
) -> None:
    """A bit of a header, an index or a directory that the file has otherwise is found, and nothing is published."""
    run = save_checkpoint(tmp_path / "run", 7, 2, variables={"v": np.arange(777)}, tables={})
    flushed = os.fsync

    def flip(fd: int) -> None:
        """Stand for a disk that has another bit than it was given."""
        flushed(fd)
        path = Path(os.readlink(f"/proc/self/fd/{fd}"))
        data = path.read_bytes() if path.is_file() and "run" not in path.parts else b""
        at = data.find(where)
        if at >= 0:
            with path.open("r+b") as file:
                file.seek(at + 1)
                file.write(bytes([data[at + 1] ^ 1]))

    def written(self: PreallocatedFile, offset: int, data: memoryview | bytes) -> None:
        plain(self, offset, data)
        if where in bytes(data):
            flip(self._fd)

    plain = PreallocatedFile.write
    monkeypatch.setattr(PreallocatedFile, "write", written)
    monkeypatch.setattr(os, "fsync", flip)
    with pytest.raises(EdlCkptError, match="reads back differently; nothing was published"):
        export_version(run, tmp_path / name)
    assert os.listdir(tmp_path) == ["run"]


def test_safetensors_is_lazy_and_tells(tmp_path: Path) -> None:
    """Slices can be had without reading the rest; the metadata has version, fingerprint, initializers and metrics."""
    version = only(GOLDEN / "current/ps2")
    with open_checkpoint(version) as checkpoint:
        text = fingerprint_checkpoint(checkpoint).text
    export_version(version, str(tmp_path / "m.safetensors"))
    with safe_open(str(tmp_path / "m.safetensors"), "np") as file:
        metadata = file.metadata()
        assert metadata["version"] == "120"
        assert (metadata["format"], metadata["schema"]) == ("pt", "edl-ckpt/export/1")
        assert metadata["fingerprint"] == text
        assert json.loads(metadata["metrics"]) == {}
        assert json.loads(metadata["tables"])["emb_a/embeddings:0"]["initializer"] == "uniform"
        assert file.get_slice("emb_a/embeddings:0.vectors")[2:4].shape == (2, 4)


def test_sharded_safetensors(tmp_path: Path) -> None:
    """Above the size asked for there are several files, and an index that says which tensor is where."""
    version = only(GOLDEN / "current/ps2")
    result = export_version(version, str(tmp_path / "m.safetensors"), max_shard_bytes=500)
    index = json.loads((tmp_path / "m.safetensors/model.safetensors.index.json").read_text())
    assert len(result.files) > 3
    for name, file in index["weight_map"].items():
        assert name in load_file(str(tmp_path / "m.safetensors" / file))


def test_checkpoint(tmp_path: Path) -> None:
    """As a checkpoint it is one merged shard that verifies, in a directory or as a bare file."""
    version = only(GOLDEN / "current/ps4")
    export_version(version, str(tmp_path / "out"), format_name="checkpoint")
    result = export_version(version, str(tmp_path / "m.ckpt"))
    merged = only(tmp_path / "out")
    assert merged.ps_num == 1
    assert verify_version(merged).ok
    assert (tmp_path / "m.ckpt").stat().st_size == merged.size_bytes == result.files[0].size_bytes
    assert sorted(os.listdir(tmp_path)) == ["m.ckpt", "out"]
    with pytest.raises(UsageError):
        export_version(version, str(tmp_path / "n.ckpt"), selection=Selection(tables=("*",)))


@pytest.fixture
def run(tmp_path: Path) -> Version:
    """Return a version with tables of 1,000 and 5 rows and two variables."""
    ids = np.arange(1000, dtype=np.int64) * 3
    rows = np.arange(4000, dtype=np.float32).reshape(1000, 4) * 100
    small = Table(np.array([0, 2, 7], np.int64), np.array([[1.5], [2.5], [3.5]]), "uniform")
    variables = {"a/kernel": np.array([1e30, 1.0], np.float64), "b": np.arange(3)}
    tables = {"big": Table(ids, rows), "small": small}
    return save_checkpoint(str(tmp_path / "run"), 7, 3, variables=variables, tables=tables)


def exported(run: Version, tmp_path: Path, name: str, **options: Any) -> tuple[ExportResult, dict[str, Any]]:
    """Export and load."""
    result = export_version(run, str(tmp_path / name), **options)
    return result, load(tmp_path / name)


def test_selection(run: Version, tmp_path: Path) -> None:
    """Globs choose tables and variables, one kind without the other; what matches nothing is named."""
    assert set(exported(run, tmp_path, "1.npz", selection=Selection(tables=("s*",)))[1]) == {
        "small.ids",
        "small.vectors",
    }
    assert set(exported(run, tmp_path, "2.npz", selection=Selection(variables=("a/*", "b")))[1]) == {"a/kernel", "b"}
    with pytest.raises(NotFoundError, match=r"no table matches 'x\*'"):
        export_version(run, str(tmp_path / "3.npz"), selection=Selection(tables=("x*",)))


def test_formats_by_the_names_of_their_readers(run: Version, tmp_path: Path) -> None:
    """A format that does not exist is answered with the one that this reader takes, and every such answer exists."""
    for name in _BY_WORD:
        with pytest.raises(UsageError) as caught:
            export_version(run, str(tmp_path / "out"), format_name=name)  # type: ignore[arg-type]
        assert caught.value.hint == f"for {name}: --format {_BY_WORD[name]}"
    assert set(_BY_WORD.values()) <= set(FORMATS)
    assert not set(_BY_WORD) & set(FORMATS)


def test_options_of_other_formats(run: Version, tmp_path: Path) -> None:
    """What a format has no use for is refused, and a text does not count the variables that it cannot have."""
    matrix = Selection(tables=("big",), dense_rows="auto")
    for name, options, words in (
        ("1.npz", {"max_shard_bytes": 1000}, "`max_shard_bytes` is for safetensors"),
        ("1.csv", {"selection": matrix}, "`dense_rows` is for other formats"),
    ):
        with pytest.raises(UsageError, match=words):
            export_version(run, str(tmp_path / name), **options)
        assert not (tmp_path / name).exists()
    result = export_version(run, str(tmp_path / "1.csv"), selection=Selection(tables=("big",)))
    assert (result.variables, result.tables, result.rows) == (0, 1, 1000)


def test_casts(run: Version, tmp_path: Path) -> None:
    """Floats are cast, whole numbers are not; finite values that become infinite are counted."""
    result, arrays = exported(run, tmp_path, "1.safetensors", selection=Selection(dtype="float16"))
    rows = np.arange(4000, dtype=np.float32).reshape(1000, 4) * 100
    assert arrays["big.vectors"].dtype == np.float16
    with np.errstate(over="ignore"):
        assert np.array_equal(arrays["big.vectors"], rows.astype(np.float16))
    assert result.overflowed == int(np.count_nonzero(rows > 65519)) + 1
    assert arrays["b"].dtype == np.int64
    assert not result.proved
    export_version(run, str(tmp_path / "2.npy"), selection=Selection(dtype="bfloat16"))
    bits = np.load(tmp_path / "2.npy" / "small.vectors.npy")
    assert (bits.astype(np.uint32) << 16).view(np.float32).ravel().tolist() == [1.5, 2.5, 3.5]
    index = json.loads((tmp_path / "2.npy/index.json").read_text())
    assert index["tensors"]["small.vectors"]["dtype"] == "bfloat16"


@pytest.mark.parametrize("value", [0.0, -0.0, 1.0, 1.00390625, 1.01171875, 3.4e38, math.inf, math.nan, -1e-30])
def test_bfloat16_rounds_to_even(value: float) -> None:
    """bfloat16 is rounded to nearest even; infinity stays, NaN stays NaN, and only finite overflows are counted."""
    data, overflowed = cast_floats(np.array([value], np.float32), "bfloat16")
    back = float((data.view("<u2").astype(np.uint32) << 16).view(np.float32)[0])
    if math.isnan(value):
        assert math.isnan(back)
    elif value == 3.4e38:
        assert (back, overflowed) == (math.inf, 1)
    else:
        assert overflowed == 0
        assert back == value or abs(back - value) <= abs(value) * 2**-8


def test_matrix(run: Version, tmp_path: Path) -> None:
    """A table as a matrix has row i at i; others are zeros, or drawn by its initializer, the same for a seed."""
    _, arrays = exported(run, tmp_path, "1.npz", selection=Selection(tables=("small",), dense_rows="auto"))
    assert arrays["small"].ravel().tolist() == [1.5, 0, 2.5, 0, 0, 0, 0, 3.5]
    one = Selection(tables=("small",), dense_rows=5000, fill="initializer", seed=3)
    _, drawn = exported(run, tmp_path, "2.npz", selection=one)
    _, again = exported(run, tmp_path, "3.npz", selection=one, part_bytes=16)
    assert np.array_equal(drawn["small"], again["small"])
    assert drawn["small"][[0, 2, 7]].ravel().tolist() == [1.5, 2.5, 3.5]
    with open_checkpoint(run) as checkpoint:
        rows = initial_rows(checkpoint.infos["small"], np.arange(5000), seed=3)
    assert np.array_equal(np.delete(drawn["small"], [0, 2, 7]), np.delete(rows, [0, 2, 7]))
    assert len(np.unique(rows)) > 4900
    with pytest.raises(UsageError, match="1 id is outside of 0 to 6"):
        export_version(run, str(tmp_path / "4.npz"), selection=Selection(tables=("small",), dense_rows=7))
    _, many = exported(run, tmp_path, "5.npz", selection=Selection(tables=("big",), dense_rows="auto"), part_bytes=900)
    assert np.array_equal(many["big"][::3], np.arange(4000, dtype=np.float32).reshape(1000, 4) * 100)
    assert not many["big"][1::3].any()


def test_unknown_initializer(tmp_path: Path) -> None:
    """An initializer that nobody knows is unsupported, and the hint names the way without one; nothing is written."""
    table = Table(np.array([0, 2]), np.ones((2, 1), np.float32), initializer="nobody")
    version = save_checkpoint(str(tmp_path / "run"), 1, 1, variables={}, tables={"t": table})
    drawn = Selection(dense_rows=5, fill="initializer")
    with pytest.raises(UnsupportedError, match="'nobody'") as caught:
        export_version(version, str(tmp_path / "t.npz"), selection=drawn)
    assert caught.value.hint == "try: --fill zeros"
    assert not (tmp_path / "t.npz").exists()


def test_rows(run: Version, tmp_path: Path) -> None:
    """CSV, JSON lines, word2vec and projector have one table, ids ascending, floats that read back as they were."""
    big = Selection(tables=("big",))
    rows = np.arange(4000, dtype=np.float32).reshape(1000, 4) * 100
    for part_bytes in (64 << 20, 1000):
        for name in ("t.csv", "t.jsonl", "t.vec"):
            export_version(run, str(tmp_path / name), selection=big, force=True, part_bytes=part_bytes)
        with (tmp_path / "t.csv").open() as file:
            table = list(csv.reader(file))
        assert table[0] == ["id", "v0", "v1", "v2", "v3"]
        assert np.array_equal(np.array(table[1:], np.float32), np.c_[np.arange(1000) * 3, rows].astype(np.float32))
        lines = [json.loads(line) for line in (tmp_path / "t.jsonl").read_text().splitlines()]
        assert lines[5] == {"id": 15, "vector": rows[5].tolist()}
        words = (tmp_path / "t.vec").read_text().splitlines()
        assert (words[0], len(words)) == ("1000 4", 1001)
    export_version(run, str(tmp_path / "p"), format_name="projector", selection=big, limit=7)
    assert (tmp_path / "p/metadata.tsv").read_text().split() == [str(3 * k) for k in range(7)]
    assert len((tmp_path / "p/vectors.tsv").read_text().splitlines()) == 7
    with pytest.raises(UsageError, match="takes one table"):
        export_version(run, str(tmp_path / "x.csv"))


def test_targets(run: Version, tmp_path: Path) -> None:
    """A target that exists is refused without force, and replaced whole with it; none lies among checkpoints."""
    for name in ("m.npz", "m.npy"):
        export_version(run, str(tmp_path / name))
        with pytest.raises(RefusedError, match="exists"):
            export_version(run, str(tmp_path / name))
        export_version(run, str(tmp_path / name), selection=Selection(variables=("b",)), force=True)
        assert set(load(tmp_path / name)) == {"b"}
    for inside in ("m.npz", "version_7/m.npz"):
        with pytest.raises(RefusedError, match="among checkpoints"):
            export_version(run, str(tmp_path / "run" / inside))
    with pytest.raises(NotFoundError):
        export_version(run, str(tmp_path / "none" / "m.npz"))
    assert sorted(os.listdir(tmp_path)) == ["m.npy", "m.npz", "run"]
    assert elasticdl_rules.visible(tmp_path / "run") == {"version_7"}


def test_nothing_half_written(run: Version, tmp_path: Path) -> None:
    """A full disk, met half-way or before, leaves nothing behind and the old target as it was."""
    export_version(run, str(tmp_path / "m.npz"), selection=Selection(variables=("b",)))
    before = (tmp_path / "m.npz").read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    import signal

    old = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, hard))
    try:
        for name in ("m.npz", "n.npy", "n.safetensors", "n.ckpt"):
            with pytest.raises(NoSpaceError):
                export_version(run, str(tmp_path / name), force=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, old)
    assert sorted(os.listdir(tmp_path)) == ["m.npz", "run"]
    assert (tmp_path / "m.npz").read_bytes() == before


def test_duplicates_are_refused(tmp_path: Path) -> None:
    """An id that occurs twice has no place in an export; it is named."""
    ids = np.array([4, 4, 8], np.int64)
    write_unchecked(tmp_path / "run", 1, 2, {"t": Table(ids, np.ones((3, 2)))})
    run = only(tmp_path / "run")
    with pytest.raises(CorruptError, match="table 't': id 4 occurs twice"):
        export_version(run, str(tmp_path / "m.npz"))
    assert os.listdir(tmp_path) == ["run"]
