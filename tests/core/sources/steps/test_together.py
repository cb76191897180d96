"""Steps whose files have several formats, as TorchEasyRec and TFRA save them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import torch_items
from bundle_files import write_bundle
from checkpoints import at
from edl_ckpt.core import export_version, open_checkpoint, verify_version
from edl_ckpt.core.model.versions import State
from foreign import SYSTEMS, assert_rows, copied, step, truth
from stranger_files import age


def test_tables_next_to_dense_files(tmp_path: Path) -> None:
    """A step has the tables of one format and the variables of another; rank R of both is one shard."""
    folder = copied("dynamicemb", 2, tmp_path)
    shutil.copytree(SYSTEMS / "safetensors/checkpoint-200", folder / "model")
    version = step(tmp_path, 2)
    assert (version.state, version.ps_num, len(version.shards)) == (State.COMPLETE, 3, 3)
    rows, values = truth("dynamicemb", 2), truth("safetensors", 200)
    with open_checkpoint(version) as checkpoint:
        assert_rows(checkpoint, "dynamicemb/model.ebc/user", rows["ids"], rows["vectors"])
        assert (checkpoint["model.embed.weight"] == values["model.embed.weight"]).all()
    assert verify_version(version, level="deep").ok


def test_what_either_lacks(tmp_path: Path) -> None:
    """A step lacks what any of its formats lacks."""
    folder = copied("dynamicemb", 2, tmp_path)
    shutil.copytree(SYSTEMS / "safetensors/checkpoint-200", folder / "model")
    (folder / "model/model-00002-of-00003.safetensors").unlink()
    (folder / "dynamicemb/model.ebc/user_emb_values.rank_0.world_size_3").unlink()
    lacks = step(tmp_path, 2).lacks
    assert {word for words in lacks for word in ("safetensors", "user_emb_keys.rank_0") if word in words} == {
        "safetensors",
        "user_emb_keys.rank_0",
    }


def _safetensors(folder: Path, rows: np.ndarray) -> None:
    arrays = {"user.ids": np.arange(10), "user.vectors": rows, "w": np.full(3, 1, np.float32)}
    header, data = {}, b""
    for name, array in arrays.items():
        tag = {"float32": "F32", "int64": "I64"}[array.dtype.name]
        offsets = [len(data), len(data) + array.nbytes]
        header[name] = {"dtype": tag, "shape": list(array.shape), "data_offsets": offsets}
        data += array.tobytes()
    text = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + data)


def _dynamicemb(folder: Path, rows: np.ndarray) -> None:
    np.arange(100, 110).tofile(folder / "user_emb_keys.rank_0.world_size_1")
    rows.tofile(folder / "user_emb_values.rank_0.world_size_1")
    np.arange(10).tofile(folder / "user_emb_scores.rank_0.world_size_1")


def _torch(folder: Path, rows: np.ndarray) -> None:
    arrays = {"user": rows, "w": np.full(3, 2, np.float32)}
    torch_items.write_step(folder, [part for n, a in arrays.items() for part in torch_items.boxes(n, a, [[]] * a.ndim)])


def _bundle(folder: Path, rows: np.ndarray) -> None:
    arrays = {"user-keys": np.arange(50, 60), "user-values": rows, "w": np.full(3, 3, np.float32)}
    write_bundle(folder / "model.ckpt-1", arrays)


WRITERS = {"dcp": _torch, "tensorflow": _bundle, "safetensors": _safetensors, "dynamicemb": _dynamicemb}
PAIRS = [(a, b) for n, a in enumerate(WRITERS) for b in list(WRITERS)[n + 1 :]]


@pytest.mark.parametrize("dims", [(4, 4), (4, 8)])
@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_two_systems_with_one_name(tmp_path: Path, first: str, second: str, dims: tuple[int, int]) -> None:
    """What two systems call alike stays apart, whatever its dims: the later one's is named by its system, and said."""
    folder = tmp_path / "run/step_1"
    values = {}
    for number, (system, dim) in enumerate(zip((first, second), dims, strict=True)):
        values[system] = np.full((10, dim), 7 + number, np.float32)
        (folder if system != "dcp" else folder.parent).mkdir(parents=True, exist_ok=True)
        WRITERS[system](folder, values[system])
    age(tmp_path / "run")
    version = at(tmp_path / "run", 1)
    with open_checkpoint(version) as checkpoint:
        for name, system in (("user", first), (f"{second}:user", second)):
            found = checkpoint.table(name).to_numpy().vectors if checkpoint.has_table(name) else checkpoint[name]
            assert np.array_equal(found, values[system])
        if "dynamicemb" not in (first, second):
            assert not np.array_equal(checkpoint["w"], checkpoint[f"{second}:w"])
        scores = [i.companion_of for i in checkpoint.infos.values() if i.slot == "scores"]
        assert scores == ([f"{second}:user"] if second == "dynamicemb" else [])
    result = verify_version(version, level="deep")
    assert result.ok
    assert {"two-systems"} == {f.code for f in result.findings if f.subject in {"user", "w"}}
    assert export_version(version, tmp_path / "out.npz").proved
