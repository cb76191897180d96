"""Saving the shard of one server: what is written, where, and what is refused."""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import elasticdl_rules
from builders import models
from checkpoints import files_of, numbers, only, save_small
from edl_ckpt.core import CheckpointSaver, Table, TableBatches, partition, restore, verify_version
from edl_ckpt.core.base.errors import CorruptError, NoSpaceError, RefusedError, UnsupportedError, UsageError
from edl_ckpt.core.model.versions import State
from edl_ckpt.core.storage.files import PreallocatedFile
from edl_ckpt.proto import model_v4_pb2
from examples import examples
from oracle import Model, read_model
from reporters import Recorder
from saving import arrays_of, save_all, save_part, small_parts


@examples(5)
@given(models(), st.integers(1, 9), st.integers(1, 5), st.booleans())
def test_shards_are_the_model(model: Model, ps_num: int, restored: int, batches: bool) -> None:
    """Whatever the model and the number of servers: the protobuf library finds it in the shards, whole.

    Each row and variable is where ElasticDL looks for it, the version is sealed, a deep verify finds no error, and a
    restore to any other number of servers has each row once.
    """
    dense, tables = arrays_of(model)
    with tempfile.TemporaryDirectory() as place:
        for ps_id, part in enumerate(partition(dense, tables, ps_num)):
            given_tables: dict[str, Any] = {**part.tables}
            if batches:
                given_tables = {name: in_batches(table) for name, table in given_tables.items()}
            with CheckpointSaver(place, ps_id=ps_id, ps_num=ps_num, run="a run", layout="elasticdl") as saver:
                saved = saver.save(model.version, part.dense, given_tables)
        assert (saved.complete, saved.sealed) == (True, True)
        version = only(place)
        read = read_model(Path(version.path).iterdir())
        assert (read.version, read.dense) == (model.version, model.dense)
        for name, table in model.tables.items():
            got = read.tables[name]
            assert (got.dim, got.initializer, got.rows) == (table.dim, table.initializer, table.rows)
        result = verify_version(version, level="deep")
        errors = [f.code for f in result.findings if f.severity == "error"]
        assert [code for code in errors if code not in {"nan", "inf", "huge-value", "unknown-initializer"}] == []
        assert (result.sealed, result.fingerprint) == (True, version.fingerprint)
        parts = [restore(version, ps_id=i, ps_num=restored) for i in range(restored)]
        for name, table in model.tables.items():
            assert sorted(i for part in parts for i in part.tables[name].ids.tolist()) == sorted(table.rows)
        assert elasticdl_rules.leftovers(Path(place)) == []


def in_batches(table: Table, size: int = 7) -> TableBatches:
    """Return a table as batches of a few rows."""
    ids, vectors = np.asarray(table.ids), np.asarray(table.vectors)

    def batches() -> Any:
        for start in range(0, len(ids), size):
            yield ids[start : start + size], vectors[start : start + size]

    return TableBatches(batches, vectors.shape[1], vectors.dtype.name, table.initializer)


def test_an_empty_table_keeps_dim_dtype_and_initializer(tmp_path: Path) -> None:
    """A table without rows, here or anywhere, is described in each shard as ElasticDL's servers need it."""
    save_all(tmp_path, 7, 2)
    for path in (tmp_path / "version-7").iterdir():
        shard = model_v4_pb2.Model.FromString(path.read_bytes())
        infos = {info.name: (info.dim, info.initializer, info.dtype) for info in shard.embedding_table_infos}
        assert infos == {"none": (3, "normal", 2), "t": (4, "uniform", 1)}
        empty = shard.embedding_tables["none"].concat_tensors
        assert (empty.dtype, [d.size for d in empty.tensor_shape.dim]) == (2, [0, 3])


@pytest.mark.parametrize("ps_num", [1, 4])
def test_elasticdl_finds_each_moment_valid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ps_num: int) -> None:
    """Whenever ElasticDL's scan looks, before and after each step of a save, it finds the newest complete version.

    No version's directory is ever empty.
    """
    save_all(tmp_path, 1, ps_num)
    seen: set[str | None] = set()
    rename, fsync, mkdir = os.rename, os.fsync, os.mkdir

    def look(real: Any) -> Any:
        def call(*args: Any, **more: Any) -> Any:
            seen.add(elasticdl_rules.latest_valid(tmp_path))
            done = real(*args, **more)
            seen.add(elasticdl_rules.latest_valid(tmp_path))
            assert all(list(path.iterdir()) for path in tmp_path.glob("version-*"))
            return done

        return call

    for name, real in (("rename", rename), ("fsync", fsync), ("mkdir", mkdir)):
        monkeypatch.setattr(os, name, look(real))
    for ps_id in range(ps_num - 1):
        save_part(tmp_path, 2, ps_id, ps_num)
        assert seen == {"version-1"}
    save_part(tmp_path, 2, ps_num - 1, ps_num)
    assert seen == {"version-1", "version-2"}


def test_need_to_checkpoint(tmp_path: Path) -> None:
    """By steps, as ElasticDL's servers decide: `version % checkpoint_steps == 0`; 0 steps is never."""
    saver = CheckpointSaver(tmp_path, checkpoint_steps=50)
    assert [v for v in range(160) if saver.need_to_checkpoint(v)] == [0, 50, 100, 150]
    assert not any(CheckpointSaver(tmp_path).need_to_checkpoint(v) for v in (0, 50))


BAD: dict[str, tuple[dict[str, Any], dict[str, Any], type[Exception], str]] = {
    "a row of another server": (
        {},
        {"t": Table(np.array([2, 5]), np.ones((2, 3)))},
        UsageError,
        "table 't': id 5 belongs to server 1 of 2, not 0",
    ),
    "a variable of another server": ({"w0": np.ones(2), "w1": np.ones(2)}, {}, UsageError, "belongs to server 1 of 2"),
    "an id twice": ({}, {"t": Table(np.array([2, 8, 2]), np.ones((3, 1)))}, CorruptError, "id 2 occurs twice"),
    "an id in two batches": (
        {},
        {"t": TableBatches([(np.array([2, 4]), np.ones((2, 1), "f4")), (np.array([2]), np.ones((1, 1), "f4"))], 1)},
        CorruptError,
        "id 2 occurs twice",
    ),
    "a batch of another dtype": (
        {},
        {"t": TableBatches([(np.array([2]), np.ones((1, 1)))], 1)},
        UsageError,
        "a batch of float64, expected float32",
    ),
    "a batch of another dim": (
        {},
        {"t": TableBatches([(np.array([2]), np.ones((1, 2), "f4"))], 1)},
        UsageError,
        r"expected vectors \[1, 1\]",
    ),
    "no batch": (
        {},
        {
            "t": TableBatches([np.ones(3)], 1)  # type: ignore[list-item]
        },
        UsageError,
        r"a batch must be \(ids, vectors\)",
    ),
    "ids of another kind": (
        {},
        {"t": Table(np.ones(2), np.ones((2, 1)))},
        UsageError,
        "ids of table 't' must be whole",
    ),
    "more ids than rows": ({}, {"t": (np.array([2, 4]), np.ones((1, 1)))}, UsageError, r"expected vectors \[2, dim\]"),
    "no table": ({}, {"t": np.ones(3)}, UsageError, "expected Table"),
    "a dtype": (
        {},
        {"t": Table(np.array([2]), np.ones((1, 1), "c8"))},
        UnsupportedError,
        "cannot hold 't' .complex64.",
    ),
    "no mapping": (None, {}, UsageError, "dense must be a mapping of names, got NoneType"),  # type: ignore[dict-item]
    "no array": ({"w0": object()}, {}, UsageError, "w0"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_values_change_nothing(tmp_path: Path, case: str) -> None:
    """What a shard must not contain is refused before anything is made, with its table or variable by name."""
    dense, tables, error, words = BAD[case]
    place = tmp_path / "run"
    saver = CheckpointSaver(place, ps_id=0, ps_num=2)
    with pytest.raises(error, match=words):
        saver.save(7, dense, tables)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "options",
    [
        {"ps_id": 2},
        {"ps_id": -1},
        {"ps_num": 0},
        {"checkpoint_steps": -1},
        {"keep_checkpoint_max": -1},
        {"layout": "x"},
    ],
    ids=str,
)
def test_bad_options(tmp_path: Path, options: dict[str, Any]) -> None:
    """Options that cannot be are refused where they are given."""
    with pytest.raises(UsageError):
        CheckpointSaver(tmp_path, **{"ps_num": 2, **options})


def test_batches_that_change(tmp_path: Path) -> None:
    """Batches must be the same rows both times; else the save fails, and nothing is visible."""
    turns = iter([[2, 4, 6], [2, 4, 8]])

    def batches() -> Any:
        yield np.array(next(turns)), np.ones((3, 1), np.float32)

    with pytest.raises(UsageError, match="other ids when they were taken the second time"):
        CheckpointSaver(tmp_path / "run").save(1, {}, {"t": TableBatches(batches, 1)})
    assert [p for p in tmp_path.rglob("*") if p.is_file()] == []


@pytest.mark.parametrize("there", ["design", "elasticdl"])
def test_layout_follows_the_location(tmp_path: Path, there: str) -> None:
    """Every server follows the layout that is there; of an empty location all say the same, with one warning each."""
    reporter = Recorder()
    for ps_id in range(2):
        save_part(tmp_path / "empty", 1, ps_id, 2, layout=None, reporter=reporter)
    assert [p.name for p in sorted((tmp_path / "empty").iterdir())] == [".edl-ckpt-0", "version_1"]
    assert [text.partition(": ")[2][:41] for text in reporter.warnings] == [
        "written in the design layout: ElasticDL r",
    ]
    save_all(tmp_path / "run", 1, 1, layout=there)
    save_all(tmp_path / "run", 2, 3, layout=None)
    separator = "_" if there == "design" else "-"
    assert (tmp_path / "run" / f"version{separator}2").is_dir()


def test_a_number_in_another_layout_is_refused(tmp_path: Path) -> None:
    """One number has one version: two directories of it would be two checkpoints of one name."""
    save_small(tmp_path, 7)
    before = files_of(tmp_path)
    with pytest.raises(RefusedError, match="version 7 exists there already in another layout"):
        save_part(tmp_path, 7, 0, 2, layout="design")
    with pytest.raises(UsageError, match="is one version's directory"):
        save_part(tmp_path / "version-7", 7, 0, 2)
    assert files_of(tmp_path) == before


def test_a_full_disk_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When there is no room, before or on the way, the error says so and nothing of the shard stays."""
    save_all(tmp_path, 1, 1)
    before = files_of(tmp_path)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", full)
        with pytest.raises(NoSpaceError):
            save_all(tmp_path, 2, 1)
    assert files_of(tmp_path) == before
    with monkeypatch.context() as patched:
        patched.setattr(os, "posix_fallocate", full)
        with pytest.raises(NoSpaceError):
            save_all(tmp_path, 2, 1)
    assert files_of(tmp_path) == before
    assert sorted(p.name for p in tmp_path.iterdir()) == [".edl-ckpt-0", "version-1"]


def test_a_damaged_disk_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The seal has the checksums of what the server had in memory: a byte that the disk changes is found."""
    write = PreallocatedFile.write

    def flip(self: PreallocatedFile, offset: int, data: memoryview | bytes) -> None:
        changed = bytearray(data)
        if self.path.endswith("variables-0-of-1.ckpt") and len(changed) == 60 * 4 * 4:
            changed[77] ^= 4
        write(self, offset, bytes(changed))

    monkeypatch.setattr(PreallocatedFile, "write", flip)
    assert save_all(tmp_path, 1, 1).sealed
    result = verify_version(only(tmp_path), level="deep")
    assert {f.code for f in result.findings if f.severity == "error"} == {"checksum-mismatch", "fingerprint-mismatch"}
    assert {f.subject for f in result.findings if f.code == "checksum-mismatch"} == {"t"}


def test_access_follows_the_location(tmp_path: Path) -> None:
    """A new shard has the group and mode that the location gives, a replacing one those of the shard before it."""
    tmp_path.chmod(0o2770)
    save_all(tmp_path, 1, 2)
    assert stat.S_IMODE((tmp_path / "version-1").stat().st_mode) & stat.S_ISGID
    path = tmp_path / "version-1/variables-0-of-2.ckpt"
    path.chmod(0o640)
    assert save_part(tmp_path, 1, 0, 2).replaced
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_large_tables_and_many_chunks(tmp_path: Path) -> None:
    """A shard of many chunks, blocks of ids and pieces: rows without an order, ids of all lengths, all tables."""
    random = np.random.default_rng(11)
    ids = random.permutation(np.unique(random.integers(-(2**63), 2**63 - 1, 200_000)) // 3 * 3)
    ids = np.unique(ids)[random.permutation(len(np.unique(ids)))]
    tables: dict[str, Any] = {
        "wide": Table(ids[:900], random.standard_normal((900, 1500))),
        "narrow": Table(ids, random.integers(0, 9, (len(ids), 5)).astype(np.int8)),
        "none": Table(ids[:0], np.zeros((0, 0), np.float32)),
    }
    dense: dict[str, Any] = {"w": random.standard_normal((700, 900)), "0": np.zeros((0, 3)), "b": np.float32(2)}
    with CheckpointSaver(tmp_path, layout="elasticdl") as saver:
        saved = saver.save(1, dense, tables)
    assert saved.rows == 900 + len(ids)
    version = only(tmp_path)
    result = verify_version(version, level="deep")
    assert (result.ok, result.fingerprint) == (True, version.fingerprint)
    part = restore(version, ps_id=0, ps_num=1)
    assert np.array_equal(part.tables["narrow"].ids, ids)
    assert np.array_equal(part.tables["narrow"].vectors, tables["narrow"].vectors)
    assert np.array_equal(part.tables["wide"].vectors, tables["wide"].vectors)
    assert np.array_equal(part.variables["w"], dense["w"])
    assert version.state is State.COMPLETE


def test_small_parts_cover_all_servers() -> None:
    """Each variable and row of a model is in one part, and each part has all tables."""
    parts = small_parts(4)
    assert sorted(name for part in parts for name in part.dense) == ["w0", "w1", "w2"]
    tables: list[Any] = [part.tables["t"] for part in parts]
    assert sorted(i for table in tables for i in table.ids.tolist()) == list(range(60))
    assert {tuple(sorted(part.tables)) for part in parts} == {("none", "t")}


def test_a_relative_location_stays_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that changes its working directory goes on saving where it began."""
    monkeypatch.chdir(tmp_path)
    saver = CheckpointSaver("run")
    saver.save(1, {"w": np.ones(3)}, {})
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir("elsewhere")
    saver.save(2, {"w": np.ones(3)}, {})
    assert numbers(tmp_path / "run") == [1, 2]
