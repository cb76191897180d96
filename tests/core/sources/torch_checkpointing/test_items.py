"""Checkpoints of torch_checkpointing: `metadata.pkl` joins the items of ranks, whatever their files are."""

from __future__ import annotations

import pickle
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from edl_ckpt.core import list_versions, open_checkpoint, verify_version
from edl_ckpt.core.base.errors import EdlCkptError, UnsupportedError
from edl_ckpt.core.model.versions import State
from torch_files import save

WHOLE = np.arange(5 * 6, dtype=np.float32).reshape(5, 6)
MESH = {"device_type": "cpu", "mesh_shape": (2,), "mesh_data": (0, 1), "mesh_dim_names": None}


def described(placement: dict[str, Any], shape: list[int]) -> list[dict[str, Any]]:
    """Return how metadata describe a tensor on two ranks."""
    data = {"global_shape": shape, "dtype": "torch.float32", "mesh_spec": MESH, "placements": [placement]}
    return [{"sharding_metadata": {"type": "DTensorShardingMetadata", "data": data}, "ranks": (0, 1)}]


def write(folder: Path, *, version: str = "2.0", copies: tuple[float, float] = (1.0, 1.0)) -> None:
    """Write a step of two ranks: weights in safetensors, a value and a plain tensor in files of torch.save."""
    folder.mkdir()
    parts = (WHOLE[:, :3], WHOLE[:, 3:])
    for rank, part in enumerate(parts):
        save_file({"a.w": np.ascontiguousarray(part)}, folder / f"weights_{rank}.safetensors")
        save(folder / f"optim_{rank}.pt", {"m": np.full(4, copies[rank], np.float32), "lr": 0.5})
        (folder / f"cfg_{rank}.json").write_text('{"a": 1}')
    layouts = {rank: {"file_path": f"weights_{rank}.safetensors", "serialization_format": {}} for rank in (0, 1)}
    cut, same = {"type": "Shard", "dim": 1}, {"type": "Replicate"}
    items = {
        "weights": {
            "nested_path_to_metadata": {'["a.w"]': described(cut, [5, 6])},
            "rank_to_layout_info": layouts,
        },
        "optim": {
            "nested_path_to_metadata": {'["m"]': described(same, [4])},
            "rank_to_layout_info": {0: None, 1: None},
        },
    }
    content = {"metadata": items, "world_size": 2, "version": version}
    (folder / "metadata.pkl").write_bytes(pickle.dumps(content, protocol=4))


def test_metadata_join_files_of_any_kind(tmp_path: Path) -> None:
    """The metadata say which part of a tensor a safetensors file has; JSON is an item, and all belong to one system."""
    write(tmp_path / "step_1")
    (version,) = list_versions(str(tmp_path)).versions
    assert (version.state, version.layout.system) == (State.COMPLETE, "torch-checkpointing")
    with open_checkpoint(version) as checkpoint:
        assert sorted(checkpoint.variable_names) == ["optim.m", "weights.a.w"]
        np.testing.assert_array_equal(checkpoint.variable("weights.a.w"), WHOLE)
        items = {entry.name for shard in checkpoint.shards for entry in shard.items}
    assert items == {"cfg", "optim.lr"}
    assert not verify_version(version, level="deep").findings


def test_replicated_tensors_are_the_same(tmp_path: Path) -> None:
    """A tensor that the metadata call replicated, and that two ranks have differently, is an error."""
    write(tmp_path / "step_1", copies=(1.0, 2.0))
    (version,) = list_versions(str(tmp_path)).versions
    assert [f.code for f in verify_version(version).findings] == ["replicas-differ"]


def test_a_rank_without_its_file(tmp_path: Path) -> None:
    """A file that the metadata name and that is gone is said with its rank and its item."""
    write(tmp_path / "step_1")
    (tmp_path / "step_1/weights_1.safetensors").unlink()
    (version,) = list_versions(str(tmp_path), grace_seconds=0).versions
    assert version.state is State.INCOMPLETE
    assert "weights_1.safetensors is missing: rank 1 of 2 of weights" in version.absent


def test_other_metadata(tmp_path: Path) -> None:
    """Another version of the metadata is unsupported, damage is a typed error, and another program's is passed over."""
    write(tmp_path / "step_1", version="1.0")
    with pytest.raises(UnsupportedError, match="version"), open_checkpoint(f"{tmp_path}@1"):
        pass
    path = tmp_path / "step_1/metadata.pkl"
    whole = path.read_bytes()
    for size in range(0, len(whole) - 1, 11):
        path.write_bytes(whole[:size])
        assert len(list_versions(str(tmp_path)).versions) == 1
        with suppress(EdlCkptError), open_checkpoint(f"{tmp_path}@1"):
            pass
    path.write_bytes(pickle.dumps({"mine": 1}))
    with open_checkpoint(f"{tmp_path}@1") as checkpoint:
        assert checkpoint.version.layout.system == "safetensors"


def test_damaged_metadata_alone(tmp_path: Path) -> None:
    """A step that has nothing but damaged metadata is incomplete, and the location is listed."""
    write(tmp_path / "step_1")
    for path in (tmp_path / "step_1").iterdir():
        if path.name != "metadata.pkl":
            path.unlink()
    path = tmp_path / "step_1/metadata.pkl"
    path.write_bytes(path.read_bytes()[:-20])
    (version,) = list_versions(str(tmp_path), grace_seconds=0).versions
    assert version.state is State.INCOMPLETE
    assert any("metadata.pkl: the pickle ends early" in words for words in version.lacks)
