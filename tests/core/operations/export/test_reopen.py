"""A new file is opened by the reader of its format before it becomes visible."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edl_ckpt.core import save_checkpoint
from edl_ckpt.core.base.errors import EdlCkptError
from edl_ckpt.core.operations.export import export_version
from edl_ckpt.core.sources.bundle import index
from edl_ckpt.core.sources.bundle import writing as bundles
from edl_ckpt.core.sources.safetensors import writing


def _with_other_header(change: Callable[[dict[str, Any]], None]) -> Callable[..., bytes]:
    real = writing.header

    def header(*arguments: Any) -> bytes:
        data = real(*arguments)
        document = json.loads(data[8:])
        change(document)
        text = json.dumps(document).encode()
        return data[:8] + text.ljust(len(data) - 8)

    return header


def _swap(document: dict[str, Any]) -> None:
    document["a"], document["b"] = document["b"], document["a"]


def _reshape(document: dict[str, Any]) -> None:
    document["a"]["shape"] = [2, 3]


def _overlap(document: dict[str, Any]) -> None:
    document["b"]["data_offsets"] = document["a"]["data_offsets"]


@pytest.mark.parametrize("change", [_swap, _reshape, _overlap])
@pytest.mark.parametrize("limit", [None, 40])
def test_a_wrong_header(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[dict[str, Any]], None], limit: int | None
) -> None:
    """A header that gives a tensor another place, another shape or none is found, and no file becomes visible."""
    values = {"a": np.arange(6, dtype=np.float32), "b": np.ones(6, np.float32)}
    save_checkpoint(str(tmp_path / "run"), 1, 1, variables=values, tables={})
    if limit and change is not _reshape:
        pytest.skip("in a set each file has one tensor")
    monkeypatch.setattr(writing, "header", _with_other_header(lambda d: change(d) if "a" in d else None))
    with pytest.raises(EdlCkptError, match="reads back differently; nothing was published"):
        export_version(f"{tmp_path / 'run'}@1", str(tmp_path / "m.safetensors"), max_shard_bytes=limit)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["run"]


def test_a_wrong_index_of_a_bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An index that says another shape is found too."""
    save_checkpoint(str(tmp_path / "run"), 1, 1, variables={"a": np.ones(6, np.float32)}, tables={})
    real = index.index_bytes

    def other(shards: int, tensors: Any) -> bytes:
        return real(shards, [(name, tensor._replace(shape=(3, 2))) for name, tensor in tensors])

    monkeypatch.setattr(bundles, "index_bytes", other)
    with pytest.raises(EdlCkptError, match="the place of 'a' in the new file"):
        export_version(f"{tmp_path / 'run'}@1", str(tmp_path / "m"), format_name="tensorflow")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["run"]
