"""Files of ranks joined: which part each rank has, what is missing, and copies that differ."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edl_ckpt.core import diff_versions, list_versions, open_checkpoint, verify_version
from edl_ckpt.core.model.versions import State
from edl_ckpt.core.sources.torch.sharding import Placement, share_of
from torch_files import REPLICATE, Call, dtensor, save, shard

WHOLE = np.arange(7 * 4, dtype=np.float32).reshape(7, 4)


def write(folder: Path, *, ranks: int = 2, copies: tuple[float, ...] = (1.5, 1.5), without: int = -1) -> None:
    """Write the files of ranks: a tensor cut by rows, a copied one, plain values, and one that differs by rank."""
    cut = -(-7 // ranks)
    for rank in range(ranks):
        if rank == without:
            continue
        value: dict[str, Any] = {
            "w": dtensor(WHOLE[rank * cut : (rank + 1) * cut], (7, 4), (ranks,), (rank,), [shard(0)]),
            "copy": dtensor(np.full(3, copies[rank % 2], np.float32), (3,), (ranks,), (rank,), [REPLICATE]),
            "plain": np.ones(2, np.float32),
            "seed": np.array([rank, 5], np.int64),
            "lr": 0.5,
            "rank": rank,
        }
        save(folder / f"model_world_size_{ranks}_rank_{rank}.pt", value)


@pytest.mark.parametrize("ranks", [1, 2, 3, 5, 8])
def test_ranks_are_joined(tmp_path: Path, ranks: int) -> None:
    """Whatever the number of ranks, also more than rows, the whole tensor is there once, and what differs for each."""
    write(tmp_path / "global_step_200/actor", ranks=ranks)
    (version,) = list_versions(str(tmp_path)).versions
    assert (version.version, version.state, len(version.shards)) == (200, State.COMPLETE, ranks)
    with open_checkpoint(version) as checkpoint:
        np.testing.assert_array_equal(checkpoint.variable("w"), WHOLE)
        np.testing.assert_array_equal(checkpoint.variable("copy"), np.full(3, 1.5, np.float32))
        seeds = [name for name in checkpoint.variable_names if name.startswith("seed")]
        assert len(seeds) == ranks
        assert "plain" in checkpoint.variable_names
    assert not verify_version(version, level="deep").findings


def test_a_missing_rank_is_named(tmp_path: Path) -> None:
    """A rank without a file makes the version incomplete, with its number."""
    write(tmp_path / "step_1", ranks=4, without=2)
    (version,) = list_versions(str(tmp_path), grace_seconds=0).versions
    assert version.state is State.INCOMPLETE
    assert "rank 2 of 4 of model" in version.absent


def test_copies_must_be_the_same(tmp_path: Path) -> None:
    """Two ranks whose copies of one tensor differ are an error that names them; all other tensors are read."""
    write(tmp_path / "step_1", copies=(1.5, 2.5))
    (version,) = list_versions(str(tmp_path)).versions
    findings = verify_version(version, level="deep").findings
    assert [(f.code, f.subject) for f in findings] == [("replicas-differ", "copy")]
    assert "ranks 0, 1" in findings[0].message


def test_placements_that_cannot_be(tmp_path: Path) -> None:
    """Partial sums are not read, and a part of another size than its placement is damage."""
    partial = Call("torch.distributed.tensor.placement_types.Partial", (), {"reduce_op": "sum"}, is_object=True)
    save(
        tmp_path / "step_1/model_world_size_1_rank_0.pt",
        {
            "sum": dtensor(np.ones(3, np.float32), (3,), (1,), (0,), [partial]),
            "short": dtensor(np.ones(2, np.float32), (3,), (1,), (0,), [shard(0)]),
            "good": dtensor(np.ones(3, np.float32), (3,), (1,), (0,), [shard(0)]),
        },
    )
    (version,) = list_versions(str(tmp_path)).versions
    found = {f.subject: f.message for f in verify_version(version).findings}
    assert found.keys() == {"sum", "short"}
    assert "still to be summed" in found["sum"]
    assert "its placement says [3]" in found["short"]


def write_items(folder: Path, ranks: int) -> None:
    """Write a checkpoint as torch_checkpointing does, without metadata."""
    cut = -(-7 // ranks)
    for rank in range(ranks):
        part = dtensor(WHOLE[rank * cut : (rank + 1) * cut], (7, 4), (ranks,), (rank,), [shard(0)])
        save(folder / f"model_{rank}.pt", {"w": part})
        save(folder / f"step_{rank}.pt", 1000)


def test_items_of_ranks(tmp_path: Path) -> None:
    """torch_checkpointing's files are one version, with one content for any number of ranks; `tmp_` is no whole one."""
    for ranks in (1, 2, 3):
        write_items(tmp_path / f"step_{ranks}", ranks)
    write_items(tmp_path / "tmp_step_9", 2)
    found = {version.name: version for version in list_versions(str(tmp_path), grace_seconds=0).versions}
    assert {name: version.state for name, version in found.items()} == {
        "step_1": State.COMPLETE,
        "step_2": State.COMPLETE,
        "step_3": State.COMPLETE,
        "tmp_step_9": State.INCOMPLETE,
    }
    assert {version.layout.system for version in found.values()} == {"torch-checkpointing"}
    assert diff_versions(found["step_1"], found["step_3"]).equal
    with open_checkpoint(found["step_3"]) as checkpoint:
        np.testing.assert_array_equal(checkpoint.variable("model.w"), WHOLE)


def test_strided_and_nested_parts() -> None:
    """Parts of nested placements tile the tensor: by brute force over all ranks of some meshes."""
    cases: list[tuple[tuple[int, ...], tuple[int, ...], list[Placement]]] = [
        ((9, 2), (2, 2), [Placement(0), Placement(0)]),
        ((6, 6), (2, 2), [Placement(0), Placement(1)]),
        ((16, 3), (2, 4), [Placement(0, 4), Placement(0)]),
        ((11, 3), (2, 3), [Placement(0, 3), Placement(0)]),
        ((5, 3), (2, 2), [Placement(None), Placement(0)]),
    ]
    for shape, mesh, placements in cases:
        counts = np.zeros(shape, int)
        for coordinate in np.ndindex(*mesh):
            local, pieces = share_of(shape, mesh, coordinate, placements)
            seen = np.zeros(local, int)
            for offsets, sizes, inner in pieces:
                counts[tuple(slice(o, o + s) for o, s in zip(offsets, sizes, strict=True))] += 1
                seen[tuple(slice(o, o + s) for o, s in zip(inner, sizes, strict=True))] += 1
            assert (seen == 1).all()
        copies = int(np.prod([m for m, placed in zip(mesh, placements, strict=True) if placed.dim is None]))
        assert (counts == copies).all()
