"""Servers of a job for tests: models that they save, each its own shard."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from edl_ckpt.core import CheckpointSaver, SavedShard, ServerPart, Table, partition
from edl_ckpt.core.base.choices import LayoutName
from edl_ckpt.core.base.progress import SILENT, Reporter
from oracle import Model


def arrays_of(model: Model) -> tuple[dict[str, Any], dict[str, Table]]:
    """Return a model of the oracle as arrays."""
    dense = {n: np.frombuffer(data, dtype).reshape(shape) for n, (dtype, shape, data) in model.dense.items()}
    tables = {}
    for name, table in model.tables.items():
        ids = np.array(list(table.rows), np.int64)
        values = np.frombuffer(b"".join(table.rows.values()), table.dtype or "float32")
        tables[name] = Table(ids, values.reshape(len(ids), table.dim), table.initializer)
    return dense, tables


def small_parts(ps_num: int, value: float = 1.0, rows: int = 60) -> tuple[ServerPart, ...]:
    """Return the parts of a small model of one value: three variables, and two tables, one of them without rows."""
    dense = {f"w{i}": np.full((3, i + 1), value, np.float32) for i in range(3)}
    ids = np.arange(rows, dtype=np.int64)
    none = Table(ids[:0], np.zeros((0, 3), np.float64), "normal")
    return partition(dense, {"t": Table(ids, np.full((rows, 4), value, np.float32)), "none": none}, ps_num)


def save_part(
    location: str | Path,
    version: int,
    ps_id: int,
    ps_num: int,
    *,
    value: float = 1.0,
    run: str = "a run",
    layout: LayoutName | None = "elasticdl",
    keep: int = 0,
    wait_seconds: float = 60.0,
    reporter: Reporter = SILENT,
) -> SavedShard:
    """Save one server's part of `small_parts`."""
    part = small_parts(ps_num, value)[ps_id]
    with CheckpointSaver(
        location,
        ps_id=ps_id,
        ps_num=ps_num,
        run=run,
        layout=layout,
        keep_checkpoint_max=keep,
        wait_seconds=wait_seconds,
        reporter=reporter,
    ) as saver:
        return saver.save(version, part.dense, part.tables)


def save_all(location: str | Path, version: int, ps_num: int, **options: Any) -> SavedShard:
    """Save all parts of `small_parts`, one server after the other; return the last one's result."""
    return [save_part(location, version, ps_id, ps_num, **options) for ps_id in range(ps_num)][-1]


def values_of(version_dir: Path) -> dict[str, set[float]]:
    """Return the values in each shard of a version of `small_parts`, read with the protobuf library."""
    from edl_ckpt.proto import model_v4_pb2

    found: dict[str, set[float]] = {}
    for path in sorted(version_dir.iterdir()):
        shard = model_v4_pb2.Model.FromString(path.read_bytes())
        content = b"".join(tensor.tensor_content for tensor in shard.dense_parameters.values())
        content += shard.embedding_tables["t"].concat_tensors.tensor_content
        found[path.name] = set(np.frombuffer(content, np.float32).tolist())
    return found
