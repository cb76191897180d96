"""Checkpoints of torch_checkpointing written anew: other tensors, names, dtypes and ranks, and all else as it was.

The library itself as the judge, in five minutes:
EDL_CKPT_TEST_TORCH_PYTHON=PYTHON pytest -n 0 -m frameworks THIS_FILE
"""

from __future__ import annotations

import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edl_ckpt.core import convert_version, export_version, open_checkpoint, save_checkpoint, verify_version
from edl_ckpt.core.base.errors import UnsupportedError
from edl_ckpt.core.converting.changes import Changes
from edl_ckpt.core.proof.fingerprint import of_tables
from foreign import SYSTEMS, run_judge
from torch_files import save

JUDGE, PYTHON = "torch_checkpointing_states.py", "EDL_CKPT_TEST_TORCH_PYTHON"
WHOLE = np.arange(7 * 4, dtype=np.float32).reshape(7, 4)
STEP = "step_5"


def described(shape: tuple[int, ...], ranks: int, placement: dict[str, Any]) -> list[dict[str, Any]]:
    """Return what metadata say of a tensor on all ranks."""
    mesh = {"device_type": "cpu", "mesh_shape": (ranks,), "mesh_data": tuple(range(ranks)), "mesh_dim_names": ("dp",)}
    data = {
        "global_shape": [*shape],
        "dtype": "torch.float32",
        "stride": [4, 1][: len(shape)],
        "mesh_spec": mesh,
        "placements": [placement],
    }
    sharding = {"type": "DTensorShardingMetadata", "data": data}
    return [{"sharding_metadata": sharding, "ranks": tuple(range(ranks))}]


def saved(folder: Path, ranks: int = 2) -> str:
    """Write a step of so many ranks whose plain tensors are parts only by the metadata."""
    cut = -(-7 // ranks)
    for rank in range(ranks):
        rows = WHOLE[rank * cut : (rank + 1) * cut]
        model = {"w": rows, "bias": np.ones(2, np.float32), "note": "kept"}
        save(folder / STEP / f"model_{rank}.pt", model)
        save(folder / STEP / f"optim_{rank}.pt", {"state": {0: {"exp_avg": rows}}, "groups": [{"lr": 0.5}]})
        save(folder / STEP / f"step_{rank}.pt", 1000)
    rows_cut = {"type": "Shard", "dim": 0}
    everywhere = dict.fromkeys(range(ranks))
    paths = {
        "model": {
            '["w"]': described((7, 4), ranks, rows_cut),
            '["bias"]': described((2,), ranks, {"type": "Replicate"}),
        },
        "optim": {'["state",0,"exp_avg"]': described((7, 4), ranks, rows_cut)},
    }
    items = {
        item: {"nested_path_to_metadata": found, "rank_to_layout_info": everywhere} for item, found in paths.items()
    }
    metadata = {"metadata": items, "world_size": ranks, "version": "2.0"}
    (folder / STEP / "metadata.pkl").write_bytes(pickle.dumps(metadata, protocol=2))
    return f"{folder}@5"


def fingerprint(ref: str, *, is_real: bool = False) -> str:
    """The fingerprint of a version in which nothing is wrong; of values too where torch has written them."""
    result = verify_version(ref, level="deep")
    assert result.own_errors == []
    whole = result.fingerprint or ""
    return whole if is_real else of_tables(whole)  # torch_files.py spells numbers otherwise


def real(folder: Path) -> str:
    """Copy a step that torch_checkpointing saved, of DTensors on two ranks."""
    folder.mkdir()
    shutil.copytree(SYSTEMS / "torch" / "checkpointing2" / STEP, folder / STEP)
    return f"{folder}@5"


@pytest.mark.parametrize("source", [saved, real])
@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
def test_other_ranks(ranks: int, source: Callable[[Path], str], tmp_path: Path) -> None:
    """Tensors cut by rows go to other ranks and back, and values that are no tensors go along."""
    ref = source(tmp_path / "runs")
    wanted = fingerprint(ref, is_real=source is real)
    convert_version(ref, ranks, output=str(tmp_path / "new"))
    names = {path.name for path in (tmp_path / "new" / STEP).iterdir()}
    assert names == {"metadata.pkl", *(f"{item}_{n}.pt" for item in ("model", "optim", "step") for n in range(ranks))}
    assert fingerprint(f"{tmp_path / 'new'}@5", is_real=source is real) == wanted
    stored = pickle.loads((tmp_path / "new" / STEP / "metadata.pkl").read_bytes())
    (entry,) = stored["metadata"]["optim"]["nested_path_to_metadata"]['["state",0,"exp_avg"]']
    assert entry["ranks"] == entry["sharding_metadata"]["data"]["mesh_spec"]["mesh_data"] == tuple(range(ranks))
    assert stored["world_size"] == len(stored["metadata"]["model"]["rank_to_layout_info"]) == ranks
    convert_version(f"{tmp_path / 'new'}@5", 2, output=str(tmp_path / "again"))
    assert fingerprint(f"{tmp_path / 'again'}@5", is_real=source is real) == wanted


def test_an_edit_in_place(tmp_path: Path) -> None:
    """Tensors are dropped, renamed and cast in the files and in the metadata, and values are dropped."""
    source = saved(tmp_path / "runs")
    changes = Changes(
        rename=(("model.w", "model.emb"),), drop=("model.bias", "model.note"), cast=(("optim.*", "float16"),)
    )
    convert_version(source, changes=changes)
    with open_checkpoint(source) as checkpoint:
        assert sorted(checkpoint.variable_names) == ["model.emb", "optim.state.0.exp_avg"]
        assert sorted(checkpoint.item_names) == ["optim.groups.0.lr", "step"]
        np.testing.assert_array_equal(checkpoint["model.emb"], WHOLE)
        np.testing.assert_array_equal(checkpoint["optim.state.0.exp_avg"], WHOLE.astype(np.float16))
    stored = pickle.loads((tmp_path / "runs" / STEP / "metadata.pkl").read_bytes())["metadata"]
    assert [*stored["model"]["nested_path_to_metadata"]] == ['["emb"]']
    (entry,) = stored["optim"]["nested_path_to_metadata"]['["state",0,"exp_avg"]']
    assert entry["sharding_metadata"]["data"]["dtype"] == "torch.float16"


def test_without_metadata(tmp_path: Path) -> None:
    """DTensors say themselves how they are cut."""
    source = real(tmp_path / "runs")
    (tmp_path / "runs" / STEP / "metadata.pkl").unlink()
    wanted = fingerprint(source)
    convert_version(source, 3, output=str(tmp_path / "new"))
    assert not (tmp_path / "new" / STEP / "metadata.pkl").exists()
    assert fingerprint(f"{tmp_path / 'new'}@5") == wanted


def exported(folder: Path) -> str:
    """Export tensors of which one rank has one alone."""
    source = save_checkpoint(
        str(folder / "source"), 5, 2, variables={"model.a": np.ones(8), "model.b": np.ones(())}, tables={}
    )
    export_version(source.ref, str(folder / STEP), format_name="torch-checkpointing")
    shutil.rmtree(folder / "source")
    return f"{folder}@5"


def with_json(folder: Path) -> str:
    """Add an item in another kind of file."""
    ref = saved(folder)
    for rank in range(2):
        (folder / STEP / f"cfg_{rank}.json").write_text(json.dumps({"a": 1}))
    return ref


def with_seeds(folder: Path) -> str:
    """Add a tensor that differs from rank to rank."""
    ref = saved(folder)
    for rank in range(2):
        save(folder / STEP / f"rng_{rank}.pt", {"seed": np.array([rank])})
    return ref


def with_layouts(folder: Path) -> str:
    """Give the files of an item names of their own."""
    ref, path = saved(folder), folder / STEP / "metadata.pkl"
    stored = pickle.loads(path.read_bytes())
    stored["metadata"]["model"]["rank_to_layout_info"] = {n: {"file_path": f"m{n}.pt"} for n in range(2)}
    path.write_bytes(pickle.dumps(stored, protocol=2))
    for rank in range(2):
        (folder / STEP / f"model_{rank}.pt").rename(folder / STEP / f"m{rank}.pt")
    return ref


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (exported, r"'model\.b' differs from rank to rank"),
        (with_json, r"'cfg_0\.json' is no file of torch\.save"),
        (with_seeds, r"'rng\.seed\.rank_0' differs from rank to rank"),
        (with_layouts, r"files of 'model' have names of their own"),
    ],
)
def test_what_has_no_rule(source: Callable[[Path], str], words: str, tmp_path: Path) -> None:
    """What other ranks would have is not guessed, and items in other files are refused by name; nothing is written."""
    with pytest.raises(UnsupportedError, match=words):
        convert_version(source(tmp_path / "runs"), 3, output=str(tmp_path / "no"))
    assert not list((tmp_path / "no").glob("step_*"))


@pytest.mark.parametrize("source", [exported, with_seeds, with_layouts])
def test_as_many_ranks(source: Callable[[Path], str], tmp_path: Path) -> None:
    """As many ranks keep what each of them has, and the names of files."""
    ref = source(tmp_path / "runs")
    convert_version(ref, output=str(tmp_path / "new"))
    assert fingerprint(f"{tmp_path / 'new'}@5") == fingerprint(ref)
    names = [{path.name for path in (tmp_path / run / STEP).iterdir()} for run in ("runs", "new")]
    assert names[0] == names[1]


@pytest.mark.frameworks
@pytest.mark.parametrize("metadata", [True, False], ids=["metadata", "plain"])
@pytest.mark.parametrize(("before", "after"), [(2, 3), (3, 1), (1, 8), (8, 2)])
def test_the_library_loads_other_ranks(before: int, after: int, metadata: bool, tmp_path: Path) -> None:
    """torch_checkpointing saves, edl-ckpt writes anew for other ranks, and as many ranks load it, all values equal."""
    more = () if metadata else ("plain",)
    (tmp_path / "runs").mkdir()
    run_judge(PYTHON, JUDGE, "save", str(tmp_path / "runs" / STEP), str(before), *more)
    convert_version(f"{tmp_path / 'runs'}@5", after, output=str(tmp_path / "new"))
    run_judge(PYTHON, JUDGE, "load", str(tmp_path / "new" / STEP), str(after), *more)
    if metadata and after > 1:  # fewer ranks find the files of items without a resharder, too
        run_judge(PYTHON, JUDGE, "load", str(tmp_path / "new" / STEP), str(min(after - 1, 2)), "other")


def test_files_of_others(tmp_path: Path) -> None:
    """Files of somebody else are no items, although a number ends their names: they tear nothing, and go along."""
    source = real(tmp_path / "runs")
    for name in ("notes_1.txt", "__9_1.distcp", "optim.rank_1.world_size_2"):
        (tmp_path / "runs" / STEP / name).write_text("kept")
    wanted = fingerprint(source)
    convert_version(source, 3, output=str(tmp_path / "new"))
    assert fingerprint(f"{tmp_path / 'new'}@5") == wanted
    assert (tmp_path / "new" / STEP / "notes_1.txt").read_text() == "kept"
