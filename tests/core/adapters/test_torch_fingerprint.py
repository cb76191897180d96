"""The fingerprint of a job's state is that of the checkpoint which it saves, name by name, on every rank.

All 200 random states on 1 to 8 ranks of gloo, in 15 minutes:
EDL_CKPT_TEST_TORCH_PYTHON=PYTHON pytest -n 0 -m "frameworks and slow" tests/core/adapters/test_torch_fingerprint.py
where PYTHON has torch and what edl-ckpt needs; without the variable it is the Python of the tests.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from pathlib import Path

import pytest

from edl_ckpt.core import open_checkpoint
from edl_ckpt.core.proof.digests import digests_document, read_digests
from edl_ckpt.core.proof.values import fingerprint_checkpoint
from foreign import run_judge

pytestmark = pytest.mark.frameworks
_PYTHON = "EDL_CKPT_TEST_TORCH_PYTHON"


def run_job(monkeypatch: pytest.MonkeyPatch, out: Path, ranks: int, models: int, seed: int) -> None:
    """Save random states in a job, and compare what it said of each with what is read."""
    if _PYTHON not in os.environ and importlib.util.find_spec("torch"):
        monkeypatch.setenv(_PYTHON, sys.executable)
    run_judge(_PYTHON, "torch_fingerprints.py", str(out), str(ranks), str(models), str(seed))
    for number in range(models):
        said = json.loads((out / f"{number}.json").read_text())
        assert len(said) == ranks
        with open_checkpoint(str(out / str(number))) as checkpoint:
            found = digests_document(fingerprint_checkpoint(checkpoint))
        for document, unequal in said:
            assert unequal == []
            assert document == found, f"model {number} of {ranks} ranks"


@pytest.mark.parametrize("ranks", [1, 4])
def test_random_states(ranks: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On one rank and on four, in any placement; and what is no state of the whole job is an error on every rank."""
    run_job(monkeypatch, tmp_path, ranks, 8, 100 * ranks)
    everywhere = json.loads((tmp_path / "faults.json").read_text())
    assert len(everywhere) == ranks
    for said in everywhere:
        assert said["replicas"] == (["own"] if ranks > 1 else [])
        assert said["partial"].startswith("UnsupportedError: rank 0: 'w'" if ranks > 1 else "UnsupportedError: 'w'")
        assert said["sparse"].startswith(f"UnsupportedError: rank {ranks - 1}: 'w'" if ranks > 1 else "Unsupp")
        if ranks > 1:
            assert said["shapes"] == "MismatchError: 'w': rank 1 has [3] of float32 and a lower rank [2] of float32"
            assert said["a part"] == "UsageError: 'w': its 1 boxes overlap, or leave a gap"
        else:
            assert said["shapes"] == []
    files = [read_digests(str(tmp_path / f"replicas.{rank}.json")) for rank in range(ranks)]
    assert len({file.fingerprint for file in files}) == 1
    assert set(files[0].variables) == {"same", "own", "half"}


@pytest.mark.slow
@pytest.mark.parametrize("ranks", range(1, 9))
def test_all_random_states(ranks: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """200 states, on one rank to eight."""
    run_job(monkeypatch, tmp_path, ranks, 25, 1000 * ranks)
