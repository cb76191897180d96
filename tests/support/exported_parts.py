"""What a cluster has exported, read as other people read it: with safetensors and its index, or with pyarrow."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open

from edl_ckpt.core.operations.export.cluster import files, run
from frameworks import need


def cut_small(monkeypatch: pytest.MonkeyPatch, size_bytes: int) -> None:
    """Let a cluster cut tables into files of so many bytes, and read them in smaller pieces."""
    monkeypatch.setattr(files, "LEAST_FILE_BYTES", size_bytes)
    monkeypatch.setattr(run, "PIECE_BYTES", size_bytes // 2)
    monkeypatch.setattr("edl_ckpt.core.cluster.executor.ClusterExecutor.all_threads", 1 << 20)


def tensors(path: Path) -> dict[str, Any]:
    """Return all tensors of a file of safetensors, or of several by their index, with those of tables joined."""
    if path.is_file():
        return _of_file(path)
    index = json.loads((path / "model.safetensors.index.json").read_text())
    files = {name: _of_file(path / name) for name in sorted(set(index["weight_map"].values()))}
    found = {name: files[file][name] for name, file in index["weight_map"].items()}
    assert sum(len(own) for own in files.values()) == len(found)
    assert index["metadata"]["total_size"] == sum(array.nbytes for array in found.values())
    for table, note in index["metadata"].get("tables", {}).items():
        for kind in ("ids", "vectors"):
            found[f"{table}.{kind}"] = np.concatenate([found.pop(name) for name in note[kind]])
    return found


def _of_file(path: Path) -> dict[str, Any]:
    with safe_open(path, "numpy") as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no mapping


def tables(path: Path) -> dict[str, tuple[list[int], list[list[Any]]]]:
    """Return (ids, vectors) of each table in a Parquet file or a directory of them, in the order of the files."""
    parquet = need("pyarrow.parquet")
    found: dict[str, tuple[list[int], list[list[Any]]]] = {}
    for file in [path] if path.is_file() else sorted(path.glob("*.parquet")):
        read = parquet.read_table(file)
        name = (read.schema.metadata or {}).get(b"table", b"").decode()
        ids, vectors = found.setdefault(name, ([], []))
        ids += read["id"].to_pylist()
        vectors += read["vector"].to_pylist() if "vector" in read.schema.names else []
    return found


def same_content(here: Path, there: Path) -> None:
    """Both have the same tensors, or the same rows of tables, in the same order."""
    if here.name.endswith("parquet"):
        assert repr(tables(there)) == repr(tables(here))
        dense = [path.with_suffix(".dense") / "dense.safetensors" for path in (here, there)]
        assert dense[0].exists() == dense[1].exists()
        here, there = dense
        if not here.exists():
            return
    ours, theirs = tensors(here), tensors(there)
    assert ours.keys() == theirs.keys()
    for name, array in ours.items():
        assert (array.dtype, array.shape, array.tobytes()) == (
            theirs[name].dtype,
            theirs[name].shape,
            theirs[name].tobytes(),
        )
