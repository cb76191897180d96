"""Save, restore, reshard, verify and export with the installed edl-ckpt, next to whatever else is installed.

`.ci/beside` runs it in environments with TensorFlow and torch of several years: it needs neither, and no test library.
"""

from __future__ import annotations

import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

import google.protobuf
import numpy as np

import edl_ckpt
from edl_ckpt.core import partition


def main() -> None:
    """Do the work of a job and of its engineer in a temporary directory; print the versions that did it."""
    ids, random = np.arange(500) * 7, np.random.default_rng(1)
    vectors = random.standard_normal((500, 8)).astype(np.float32)
    variables = {"w": random.standard_normal((5, 3)).astype(np.float32), "step": np.array(10)}
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
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
            edl_ckpt.export_version(f"{run}@10", Path(folder) / name)
        with np.load(Path(folder) / "all.npz") as arrays:
            assert any(arrays[name].tobytes() == vectors.tobytes() for name in arrays)
    here = (f"Python {sys.version.split()[0]}", f"protobuf {google.protobuf.__version__}", f"numpy {np.__version__}")
    print("edl-ckpt", version("edl-ckpt"), "works with", ", ".join(here))


if __name__ == "__main__":
    main()
