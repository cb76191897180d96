"""Steps whose files have several formats, as TorchEasyRec and TFRA save them."""

from __future__ import annotations

import shutil
from pathlib import Path

from edl_ckpt.core import open_checkpoint, verify_version
from edl_ckpt.core.model.versions import State
from foreign import SYSTEMS, assert_rows, copied, step, truth


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
