"""Save, restore, reshard, verify and export with the installed edl-ckpt, next to whatever else is installed.

`.ci/next-to` runs it in environments with TensorFlow and torch of several years: it needs neither, and no test library.
If one of them is installed, it saves a checkpoint of its own too, and reads back what edl-ckpt writes for it.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

import google.protobuf
import numpy as np

import edl_ckpt
from edl_ckpt.core import partition


def engine(folder: Path) -> None:
    """Save with two servers, restore with one, reshard to three, verify and export."""
    ids, random = np.arange(500) * 7, np.random.default_rng(1)
    vectors = random.standard_normal((500, 8)).astype(np.float32)
    variables = {"w": random.standard_normal((5, 3)).astype(np.float32), "step": np.array(10)}
    run = folder / "run"
    parts = partition(variables, {"user": edl_ckpt.Table(ids, vectors)}, 2)
    for ps_id, own in enumerate(parts):
        saver = edl_ckpt.CheckpointSaver(run, ps_id=ps_id, ps_num=2, run="job", layout="elasticdl")
        saver.save(10, own.dense, own.tables)
    part = edl_ckpt.restore(f"{run}@10", 0, 1)
    order = np.argsort(part.tables["user"].ids)
    assert part.tables["user"].vectors[order].tobytes() == vectors.tobytes()
    edl_ckpt.reshard_version(f"{run}@10", 3)
    assert edl_ckpt.verify_version(f"{run}@10", level="deep").ok
    for name in ("all.safetensors", "all.npz"):
        edl_ckpt.export_version(f"{run}@10", folder / name)
    with np.load(folder / "all.npz") as arrays:
        assert any(arrays[name].tobytes() == vectors.tobytes() for name in arrays)


def with_torch(folder: Path) -> None:
    """Verify and export a step that torch saved, and let torch load what edl-ckpt wrote for it."""
    import torch
    import torch.distributed.checkpoint as dcp

    kernel = torch.arange(24, dtype=torch.float32).reshape(6, 4)
    dcp.save({"model": {"kernel": kernel}}, checkpoint_id=folder / "steps" / "step_5", no_dist=True)
    torch.save({"model": {"kernel": kernel}}, folder / "model.pt")
    for number, source in enumerate((f"{folder}/steps@5", f"{folder}/model.pt")):
        assert edl_ckpt.verify_version(source, level="deep").ok
        edl_ckpt.export_version(source, folder / f"torch-{number}", format_name="dcp")
        state = {"model.kernel": torch.zeros(6, 4)}
        dcp.load(state, checkpoint_id=folder / f"torch-{number}", no_dist=True)
        assert torch.equal(state["model.kernel"], kernel)
    edl_ckpt.export_version(f"{folder}/steps@5", folder / "exported.pt")
    (loaded,) = torch.load(folder / "exported.pt", weights_only=True).values()
    assert torch.equal(loaded, kernel)


def with_tensorflow(folder: Path) -> None:
    """Verify and export a checkpoint that TensorFlow saved, and let TensorFlow read what edl-ckpt wrote for it."""
    import tensorflow as tf

    kernel = np.arange(24, dtype=np.float32).reshape(6, 4)
    tf.train.Checkpoint(kernel=tf.Variable(kernel)).save(f"{folder}/run/ckpt")
    assert edl_ckpt.verify_version(f"{folder}/run@1", level="deep").ok
    edl_ckpt.export_version(f"{folder}/run@1", folder / "written", format_name="tensorflow", ranks=1)
    prefix = next((folder / "written").rglob("*.index")).with_suffix("")
    reader = tf.train.load_checkpoint(str(prefix))
    (name,) = (name for name in reader.get_variable_to_shape_map() if name.startswith("kernel"))
    assert reader.get_tensor(name).tobytes() == kernel.tobytes()


def main() -> None:
    """Do the work of a job and of its engineer in temporary directories; print the versions that did it."""
    here = [f"Python {sys.version.split()[0]}", f"protobuf {google.protobuf.__version__}", f"numpy {np.__version__}"]
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    for name, work in (("", engine), ("torch", with_torch), ("tensorflow", with_tensorflow)):
        if not name or find_spec(name):
            with tempfile.TemporaryDirectory() as folder:
                work(Path(folder))
    for distribution in ("torch", "tensorflow", "tensorflow-cpu"):
        with contextlib.suppress(PackageNotFoundError):
            here.append(f"{distribution} {version(distribution)}")
    print("edl-ckpt", version("edl-ckpt"), "works with", ", ".join(here))


if __name__ == "__main__":
    main()
