"""Files of torch.save in a catalogue: every spelling, what goes along, and verbs that change a location of them."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from edl_ckpt.core import (
    Latest,
    Policy,
    add_tag,
    execute_copy,
    execute_prune,
    list_versions,
    open_checkpoint,
    plan_copy,
    plan_prune,
    resolve,
    undo,
    verify_version,
    verify_versions,
)
from edl_ckpt.core.base.errors import CorruptError, UnsupportedError
from edl_ckpt.core.model.versions import State
from foreign import SYSTEMS
from s3_fixtures import Bucket
from torch_files import save

WEIGHTS = {"w": np.arange(4, dtype=np.float32)}


def listed(location: Path) -> dict[str, tuple[int | str, State, str]]:
    """Return key, state and system of each version, by its name."""
    versions = list_versions(str(location), grace_seconds=0).versions
    return {v.name: (v.key, v.state, v.layout.system) for v in versions}


def test_spellings(tmp_path: Path) -> None:
    """Directories and single files of all spellings are versions; what only goes along is none by itself."""
    for name in ("checkpoint-500/pytorch_model.bin", "step_1000.pt", "epoch=3-step=40.ckpt", "last.ckpt"):
        save(tmp_path / name, WEIGHTS)
    for name in ("training_args.bin", "checkpoint-500/optimizer.pt", "checkpoint-500/rng_state.pth"):
        save(tmp_path / name, {"other": 1})
    for n in (1, 2):
        save(tmp_path / f"checkpoint-600/pytorch_model-0000{n}-of-00002.bin", {f"w{n}": WEIGHTS["w"]})
    found = listed(tmp_path)
    assert found == {
        "last.ckpt": ("last.ckpt", State.COMPLETE, "torch"),
        "epoch=3-step=40.ckpt": (40, State.COMPLETE, "torch"),
        "checkpoint-500": (500, State.COMPLETE, "torch"),
        "checkpoint-600": (600, State.COMPLETE, "torch"),
        "step_1000.pt": (1000, State.COMPLETE, "torch"),
    }
    with open_checkpoint(f"{tmp_path}@500") as checkpoint:
        assert checkpoint.variable_names == ["w"]
    (tmp_path / "checkpoint-600/pytorch_model-00002-of-00002.bin").unlink()
    assert listed(tmp_path)["checkpoint-600"][1] is State.INCOMPLETE
    with open_checkpoint(str(tmp_path / "checkpoint-500/optimizer.pt")) as checkpoint:
        assert [item.name for shard in checkpoint.shards for item in shard.items] == ["other"]


def test_what_a_job_calls_the_last_one(tmp_path: Path) -> None:
    """Files of jobs name the newest version, and what they save next to a model may be deleted with it."""
    for step in (10, 20, 30):
        save(tmp_path / f"global_step_{step}/actor/model_world_size_1_rank_0.pt", WEIGHTS)
        save(tmp_path / f"global_step_{step}/actor/extra_state_world_size_1_rank_0.pt", {"lr": 1})
        save(tmp_path / f"global_step_{step}/data.pt", {"seen": step})
        (tmp_path / f"global_step_{step}/actor/fsdp_config.json").write_text("{}")
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("20")
    for path in tmp_path.rglob("*"):
        os.utime(path, (1e9, 1e9))
    assert resolve(str(tmp_path)).version == 20
    execute_prune(plan_prune([str(tmp_path)], Policy((Latest(1),))))
    assert listed(tmp_path).keys() == {"global_step_20", "global_step_30"}


def test_an_index_names_what_is_missing(tmp_path: Path) -> None:
    """A set is what its index lists; a file that the index names and that is gone makes it incomplete."""
    folder = tmp_path / "checkpoint-1"
    save(folder / "pytorch_model-00001-of-00002.bin", WEIGHTS)
    (folder / "pytorch_model.bin.index.json").write_text(
        '{"weight_map": {"w": "pytorch_model-00001-of-00002.bin", "v": "pytorch_model-00002-of-00002.bin"}}'
    )
    (version,) = list_versions(str(tmp_path), grace_seconds=0).versions
    assert version.state is State.INCOMPLETE
    assert "pytorch_model-00002-of-00002.bin" in version.absent
    save(folder / "pytorch_model-00002-of-00002.bin", {"v": WEIGHTS["w"]})
    with open_checkpoint(f"{tmp_path}@1") as checkpoint:
        assert sorted(checkpoint.variable_names) == ["v", "w"]


def test_what_goes_along_is_verified(tmp_path: Path) -> None:
    """A zip next to a model has checksums too: a flipped bit in an optimizer is found without a seal."""
    save(tmp_path / "checkpoint-5/pytorch_model.bin", WEIGHTS)
    save(tmp_path / "checkpoint-5/optimizer.pt", {"m": np.full(50, 1.5, np.float32)})
    assert not verify_version(f"{tmp_path}@5", level="deep").findings
    path = tmp_path / "checkpoint-5/optimizer.pt"
    data = bytearray(path.read_bytes())
    data[data.index(np.full(3, 1.5, np.float32).tobytes())] ^= 1
    path.write_bytes(data)
    (finding,) = verify_version(f"{tmp_path}@5", level="deep").findings
    assert (finding.code, finding.subject) == ("checksum-mismatch", "optimizer.pt")


def is_step(path: Path) -> bool:
    """Say whether a directory has an index of torch or files of tensors right in it."""
    return path.is_dir() and any(one.name == ".metadata" or one.suffix == ".safetensors" for one in path.iterdir())


def test_next_to_another_system_they_go_along(tmp_path: Path) -> None:
    """A step of DCP or safetensors with files of torch.save has the content that it had without them."""
    for system, first in (("dcp", "dcp/dtensor"), ("safetensors", "safetensors/checkpoint-100")):
        source = next(path for path in (SYSTEMS / first, *(SYSTEMS / first).iterdir()) if is_step(path))
        plain, other = tmp_path / system / "a/step_1", tmp_path / system / "b/step_1"
        shutil.copytree(source, plain)
        shutil.copytree(source, other)
        save(other / "pytorch_model.bin", WEIGHTS)
        save(other / "common.pt", {"iteration": 3})
        reports = [verify_version(f"{place.parent}@1", level="deep") for place in (plain, other)]
        assert reports[0].fingerprint == reports[1].fingerprint
        assert listed(other.parent)["step_1"][2] == system


def test_many_files_are_a_data_set(tmp_path: Path) -> None:
    """Numbers alone, and very many files, are samples and no versions; so is what lies next to a model."""
    for n in range(300):
        (tmp_path / f"{n:04}.pt").write_bytes(b"x")
        (tmp_path / f"sample{n}x.pt").write_bytes(b"x")
    assert listed(tmp_path) == {}


def test_single_files_are_copied_deleted_and_restored(tmp_path: Path) -> None:
    """A version that is one file is copied, also without a number; a prune moves it away, and undo brings it back."""
    save(tmp_path / "a/step_7.pt", WEIGHTS)
    save(tmp_path / "a/best.pt", WEIGHTS)
    target = str(tmp_path / "b")
    execute_copy(plan_copy(list_versions(str(tmp_path / "a")).versions, target))
    assert listed(tmp_path / "b").keys() == {"step_7.pt", "best.pt"}
    assert (tmp_path / "b/step_7.pt").read_bytes() == (tmp_path / "a/step_7.pt").read_bytes()
    assert resolve(f"{target}@7").fingerprint
    save(tmp_path / "b/step_9.pt", WEIGHTS)
    add_tag(f"{target}@9", "new")
    execute_prune(plan_prune([target], Policy((Latest(1),))), trash=True)
    assert listed(tmp_path / "b").keys() == {"step_9.pt", "best.pt"}
    assert undo(target) == ("step_7.pt",)
    assert resolve(f"{target}@7").fingerprint


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"model.gguf": b"GGUF\3"}, "GGUF"),
        ({"100/_CHECKPOINT_METADATA": b"{}", "100/manifest.ocdbt": b""}, "Orbax"),
        ({"model.weights.h5": b"\x89HDF\r\n\x1a\n"}, "HDF5"),
        ({"model.ckpt-7": b"x", "model.ckpt-7.meta": b"x"}, "V1"),
        ({"global_step5/zero_pp_rank_0_mp_rank_00_optim_states.pt": b"x"}, "DeepSpeed"),
    ],
)
def test_what_is_not_read_says_what_it_is(tmp_path: Path, files: dict[str, bytes], words: str) -> None:
    """A directory of a system that is not read ends with 15 and its name, never as damage or as nothing."""
    for name, data in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(data)
    place = tmp_path / "global_step5" if "DeepSpeed" in words else tmp_path
    if "DeepSpeed" in words:
        save(place / "zero_pp_rank_0_mp_rank_00_model_states.pt", WEIGHTS)
    with pytest.raises(UnsupportedError, match=words), open_checkpoint(str(place)):
        pass


def test_words_of_a_file_that_is_none(tmp_path: Path) -> None:
    """A file of chance bytes is none of any system; a table of TensorFlow's V1 is recognised by its end."""
    (tmp_path / "x.pt").write_bytes(b"\xff" * 1000)
    with pytest.raises(CorruptError, match="begins as no file of any system"):
        resolve(str(tmp_path / "x.pt"))
    (tmp_path / "model.ckpt-7").write_bytes(b"\xff" * 1000 + b"\x57\xfb\x80\x8b\x24\x75\x47\xdb")
    with pytest.raises(UnsupportedError, match="V1"):
        resolve(str(tmp_path / "model.ckpt-7"))


def test_on_object_storage(tmp_path: Path, s3: Bucket) -> None:
    """In a bucket the same versions are there; a version of one file is read, sealed, copied home and deleted."""
    save(tmp_path / "run/step_7.pt", WEIGHTS)
    save(tmp_path / "run/step_9.pt", WEIGHTS)
    save(tmp_path / "run/checkpoint-5/pytorch_model.bin", WEIGHTS)
    s3.upload(tmp_path / "run")
    place = f"{s3.url}/run" if not s3.url.endswith("/run") else s3.url
    assert {version.name for version in list_versions(place)} == {"step_7.pt", "step_9.pt", "checkpoint-5"}
    with open_checkpoint(f"{place}/step_7.pt") as checkpoint:
        np.testing.assert_array_equal(checkpoint.variable("w"), WEIGHTS["w"])
    verify_versions([resolve(f"{place}@7")], level="deep", seal=True)
    assert resolve(f"{place}@7").fingerprint
    home = str(tmp_path / "home")
    execute_copy(plan_copy(list_versions(place).versions, home))
    assert listed(tmp_path / "home").keys() == {"step_7.pt", "step_9.pt", "checkpoint-5"}
    execute_prune(plan_prune([place], Policy((Latest(1),))))
    fresh = {"checkpoint-5", "step_9.pt"}  # a job may still write the directory
    assert {version.name for version in list_versions(place)} == fresh
    execute_copy(plan_copy([f"{home}@7"], place))
    assert {version.name for version in list_versions(place)} == {"step_7.pt", *fresh}
