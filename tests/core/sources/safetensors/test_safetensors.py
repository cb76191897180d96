"""safetensors files and sets: what Hugging Face's libraries saved from torch is read in place, and damage is named."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from edl_ckpt.core import open_checkpoint, save_checkpoint, verify_version
from edl_ckpt.core.model.versions import State
from edl_ckpt.core.operations.export import export_version
from foreign import SYSTEMS, assert_rows, copied, step, truth

FOLDER = SYSTEMS / "safetensors"
PAIRS = {"user.ids", "user.vectors"}


OTHERS = {"model.scale", "model.phase"}
"""Of dtypes that numpy cannot save."""


def bits(array: Any) -> bytes:
    """Return the bytes of an array, whatever its dtype is."""
    return np.ascontiguousarray(array).tobytes()


@pytest.mark.parametrize(("number", "shards"), [(100, 1), (200, 3), (300, 2)])
def test_values_are_those_of_torch(number: int, shards: int) -> None:
    """Each tensor of a file, a set, and several sets equals the one that was saved, bit for bit, with its shape."""
    version, expected = step(FOLDER, number), truth("safetensors", number)
    assert (version.layout.system, version.state, version.ps_num) == ("safetensors", State.COMPLETE, shards)
    with open_checkpoint(version) as checkpoint:
        assert set(checkpoint.variable_names) - OTHERS == set(expected) - PAIRS
        for name in set(expected) - PAIRS:
            value = checkpoint.variable(name, bits=True)
            assert (value.shape, bits(value)) == (expected[name].shape, bits(expected[name])), name
    assert verify_version(version, level="deep").ok


def test_a_table_in_two_files() -> None:
    """The ids and the vectors of a table may be in two files of a set."""
    files = json.loads((FOLDER / "checkpoint-200/model.safetensors.index.json").read_text())["weight_map"]
    expected = truth("safetensors", 200)
    order = np.argsort(expected["user.ids"])
    with open_checkpoint(step(FOLDER, 200)) as checkpoint:
        assert checkpoint.table_names == ["user"]
        assert_rows(checkpoint, "user", expected["user.ids"][order], expected["user.vectors"][order])
    assert {files[name] for name in PAIRS}


def test_dtypes_that_tables_lack_are_variables() -> None:
    """Float8 and complex tensors are variables with their dtype."""
    with open_checkpoint(step(FOLDER, 100)) as checkpoint:
        entries = [entry for entry in checkpoint.shards[0].variables if not entry.dtype.is_ours]
    found = {entry.name: (entry.dtype.name, entry.size_bytes) for entry in entries}
    assert found == {"model.scale": ("float8_e4m3fn", 16), "model.phase": ("complex64", 24)}


@pytest.mark.parametrize("limit", [None, 300])
def test_our_own_exports_are_tables(tmp_path: Path, limit: int | None) -> None:
    """An export of a version, as one file or as a set, has the same variables and tables."""
    rows = {"a": (np.array([5, -2, 9]), np.arange(12, dtype=np.float32).reshape(3, 4)), "b": _empty()}
    save_checkpoint(str(tmp_path / "run"), 1, 2, variables={"w": np.ones((20, 3))}, tables=rows)
    target = tmp_path / "steps/step_7"
    target.mkdir(parents=True)
    name = "set" if limit else "m.safetensors"
    export_version(f"{tmp_path}/run@1", str(target / name), format_name="safetensors", max_shard_bytes=limit)
    version = step(tmp_path / "steps", 7)
    with open_checkpoint(version) as checkpoint, open_checkpoint(f"{tmp_path}/run@1") as original:
        assert checkpoint.table_names == original.table_names
        assert checkpoint.variable_names == original.variable_names
        assert_rows(checkpoint, "a", np.array([-2, 5, 9]), original.table("a").to_numpy().vectors)
    assert verify_version(version, level="deep").ok


def _empty() -> tuple[Any, Any]:
    return np.empty(0, np.int64), np.empty((0, 2), np.float32)


def test_parts_of_a_table_are_one_table(tmp_path: Path) -> None:
    """Where an index says which tensors are parts of which table, as a cluster exports it, the parts are one table."""
    (tmp_path / "step_1").mkdir()
    weights: dict[str, str] = {}
    parts = [f"t.0000{number}-of-00002" for number in (1, 2)]
    for number, part in enumerate(parts):
        tensors = {f"{part}.ids": np.array([number, number + 8]), f"{part}.vectors": np.full((2, 3), number, "<f4")}
        save_file(tensors, str(tmp_path / f"step_1/model-0000{number + 1}-of-00002.safetensors"))
        weights |= dict.fromkeys(tensors, f"model-0000{number + 1}-of-00002.safetensors")
    note = {kind: [f"{part}.{kind}" for part in parts] for kind in ("ids", "vectors")}
    document: dict[str, Any] = {"metadata": {"tables": {"t": note}}, "weight_map": weights}
    index = tmp_path / "step_1/model.safetensors.index.json"
    index.write_text(json.dumps(document))
    with open_checkpoint(step(tmp_path, 1)) as checkpoint:
        assert checkpoint.table_names == ["t"]
        assert_rows(checkpoint, "t", np.array([0, 1, 8, 9]), np.repeat([[0], [1], [0], [1]], 3, axis=1).astype("<f4"))
    for damaged in (3, {"t": 3}, {"t": {"vectors": 3}}, {"t": {"vectors": [3]}}):
        document["metadata"]["tables"] = damaged
        index.write_text(json.dumps(document))
        with open_checkpoint(step(tmp_path, 1)) as checkpoint:
            assert checkpoint.table_names == parts


def test_a_missing_file_of_a_set(tmp_path: Path) -> None:
    """A file that the index lists, or that the numbers of the others announce, is missed by its name."""
    folder = copied("safetensors", 200, tmp_path)
    (folder / "model-00002-of-00003.safetensors").unlink()
    assert step(tmp_path, 200).lacks == ("model-00002-of-00003.safetensors is missing",)
    (folder / "model.safetensors.index.json").unlink()
    assert step(tmp_path, 200).lacks == ("model-00002-of-00003.safetensors is missing",)
    assert step(tmp_path, 200).ps_num == 3


def test_a_file_that_the_index_does_not_list(tmp_path: Path) -> None:
    """A file that another save left is not read: no loader reads it."""
    folder = copied("safetensors", 200, tmp_path)
    save_file({"model.steps": np.zeros(3)}, str(folder / "model-00001-of-00002.safetensors"))
    version = step(tmp_path, 200)
    assert (version.state, version.ps_num) == (State.COMPLETE, 3)
    with open_checkpoint(version) as checkpoint:
        assert checkpoint["model.steps"] == 7


@pytest.mark.parametrize(
    "index",
    [
        b"{",
        b"[]",
        b'{"weight_map": 3}',
        b'{"weight_map": {"a": 3}}',
        b'{"weight_map": {"a": "../a.safetensors"}}',
        b'{"weight_map": {"a": "/etc/passwd"}}',
        b'{"weight_map": {"a": "a.safetensors", "a": "b.safetensors"}}',
        b"[" * 100_000,
    ],
)
def test_a_damaged_index(tmp_path: Path, index: bytes) -> None:
    """A step whose index is damaged, or leads out of its directory, is not whole, and `verify` says so."""
    folder = copied("safetensors", 200, tmp_path)
    (folder / "model.safetensors.index.json").write_bytes(index)
    version = step(tmp_path, 200)
    assert version.state in {State.INCOMPLETE, State.WRITING}
    assert version.lacks
    assert not verify_version(version).ok


def test_tensors_that_the_index_lists_elsewhere(tmp_path: Path) -> None:
    """A tensor that is not in the file that the index lists for it is an error of `verify`."""
    folder = copied("safetensors", 200, tmp_path)
    index = folder / "model.safetensors.index.json"
    document = json.loads(index.read_text())
    document["weight_map"]["model.mask"] = "model-00003-of-00003.safetensors"
    index.write_text(json.dumps(document))
    findings = verify_version(step(tmp_path, 200)).findings
    assert [(f.code, f.subject) for f in findings if f.severity == "error"] == [("malformed", "model.mask")]


def test_a_torn_file(tmp_path: Path) -> None:
    """A file that was cut off is an error of `verify`, with its shard; the other shards are checked."""
    file = copied("safetensors", 200, tmp_path) / "model-00001-of-00003.safetensors"
    os.truncate(file, file.stat().st_size - 1)
    (finding,) = (f for f in verify_version(step(tmp_path, 200)).findings if f.severity == "error")
    assert (finding.code, finding.shard, finding.path) == ("truncated", 0, str(file))
