"""What loaders of whole files would refuse is said before they do.

With the loaders themselves:
EDL_CKPT_TEST_TORCH_PYTHON=PYTHON pytest -n 0 -m frameworks tests/core/operations/verify/test_file_loaders.py
where PYTHON has torch and transformers.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edl_ckpt.core import verify_version
from edl_ckpt.core.base.errors import UnsupportedError, UsageError
from edl_ckpt.core.operations.verify.loaders import loader_named
from foreign import run_judge
from program import edl

LONG_AGO = 1_000_000_000


def save(path: Path, value: Any, protocol: int = 2) -> str:
    """Write a zip as torch.save does, without tensors."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps(value, protocol))
        archive.writestr("archive/version", "3\n")
    os.utime(path, (LONG_AGO, LONG_AGO))
    return str(path)


def faults(ref: str, loader: str, ranks: int | None = None) -> list[tuple[str, str]]:
    """The files that a loader would not load, and whether that is an error."""
    result = verify_version(ref, loader=(loader, ranks))
    assert result.loader is not None
    assert result.loader.tables == ()
    return [(f.subject, f.severity) for f in result.findings if f.code == "loader-fails"]


def test_weights_only(tmp_path: Path) -> None:
    """A class of another module is named with its file; what torch allows is not; a newer protocol is refused."""
    good = save(tmp_path / "good.pt", {"epoch": 3, "names": OrderedDict(a={1}), "c": 1j, "big": 2**70})
    assert faults(good, "torch:weights-only") == []
    bad = save(tmp_path / "bad.pt", {"args": argparse.Namespace(lr=1), "epoch": 3})
    (finding,) = [
        f for f in verify_version(bad, loader=("torch:weights-only", None)).findings if f.code == "loader-fails"
    ]
    assert "argparse.Namespace" in finding.message
    assert (finding.severity, finding.subject) == ("error", "bad.pt")
    newer = save(tmp_path / "newer.pt", {"epoch": 3}, 4)
    assert faults(newer, "torch:weights-only") == [("newer.pt", "error")]
    assert edl("verify", good, "--loader", "torch:weights-only").stdout.count("every file would load") == 1
    assert edl("verify", bad, "--loader", "torch:weights-only").returncode == 3


def test_torch_checkpointing(tmp_path: Path) -> None:
    """Without metadata no other number of ranks loads; each rank needs its own file of each item."""
    for rank in range(2):
        save(tmp_path / "run" / "100" / f"model_{rank}.pt", {"a": rank})
        save(tmp_path / "run" / "100" / f"step_{rank}.pt", 5)
    ref = str(tmp_path / "run" / "100")
    assert faults(ref, "torch-checkpointing") == []
    assert faults(ref, "torch-checkpointing", 2) == []
    assert faults(ref, "torch-checkpointing", 1) == [("metadata.pkl", "error")]
    more = faults(ref, "torch-checkpointing", 4)
    assert sorted(more) == [("metadata.pkl", "error"), ("model_2.pt", "error"), ("step_2.pt", "error")]
    with pytest.raises(UnsupportedError, match="reads torch-checkpointing"):
        faults(save(tmp_path / "one.pt", 1), "torch-checkpointing")


def tensors(path: Path, metadata: dict[str, str] | None = None, tag: str = "F32") -> None:
    """Write a safetensors file with one tensor."""
    data = np.arange(3, dtype=np.float32).tobytes()
    document: dict[str, Any] = {"w": {"dtype": tag, "shape": [3 if tag == "F32" else 16], "data_offsets": [0, 12]}}
    document |= {"__metadata__": metadata} if metadata else {}
    text = json.dumps(document).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def test_transformers(tmp_path: Path) -> None:
    """A directory needs a config and weights under the names that transformers looks for, in its order."""
    steps = {name: tmp_path / "run" / f"checkpoint-{n}" for n, name in enumerate(("good", "names", "set", "dtype"), 1)}
    for folder in steps.values():
        folder.mkdir(parents=True)
        (folder / "config.json").write_text("{}")
    tensors(steps["good"] / "model.safetensors", {"format": "pt"})
    tensors(steps["names"] / "weights.safetensors", {"made": "by"})
    tensors(steps["set"] / "model-00001-of-00001.safetensors")
    index = {"weight_map": {"w": "model-00001-of-00001.safetensors", "v": "model-00001-of-00001.safetensors"}}
    (steps["set"] / "model.safetensors.index.json").write_text(json.dumps(index))
    tensors(steps["dtype"] / "model.safetensors", {"made": "by"}, "F6_E2M3")
    for path in tmp_path.rglob("*"):
        os.utime(path, (LONG_AGO, LONG_AGO))
    assert faults(str(steps["good"]), "transformers") == []
    assert faults(str(steps["names"]), "transformers") == [("model.safetensors", "error")]
    assert faults(str(steps["set"]), "transformers") == [("model.safetensors.index.json", "error")]
    found = faults(str(steps["dtype"]), "transformers")
    assert sorted(found) == [("model.safetensors", "error"), ("model.safetensors", "warning")]
    (steps["good"] / "config.json").unlink()
    assert faults(str(steps["good"]), "transformers") == [("config.json", "error")]


def test_names() -> None:
    """The names of these loaders are known, and an unknown one gets all names."""
    assert loader_named("torch:weights-only", None) == ("torch:weights-only", None)
    with pytest.raises(UsageError, match="transformers"):
        loader_named("transformer", None)


@pytest.mark.frameworks
def test_as_the_loaders_do(tmp_path: Path) -> None:
    """Of nearly a hundred files and directories exactly those are called good that torch and transformers load."""
    run_judge("EDL_CKPT_TEST_TORCH_PYTHON", "loads.py", str(tmp_path))
    loads = json.loads((tmp_path / "loads.json").read_text())
    assert len(loads) > 90
    for path in tmp_path.rglob("*"):
        os.utime(path, (LONG_AGO, LONG_AGO))
    for name, is_loaded in loads.items():
        loader = "transformers" if name.startswith("transformers/") else "torch:weights-only"
        result = verify_version(str(tmp_path / name), level="quick", loader=(loader, None))
        found = [f.message for f in result.findings if (f.code, f.severity) == ("loader-fails", "error")]
        assert (not found) == is_loaded, f"{name}: {found}"
