"""Random tables that dynamicemb's own functions write: each row is read as its loader reads it."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from edl_ckpt.core import open_checkpoint, verify_version
from foreign import assert_rows, run_judge, step

CHECKOUT = "EDL_CKPT_TEST_RECSYS_EXAMPLES"


@pytest.mark.frameworks
@pytest.mark.parametrize("count", [6, pytest.param(100, marks=pytest.mark.hours)])
def test_random_tables(tmp_path: Path, count: int) -> None:
    """Tables of one to four ranks, with one or two scores, with and without optimizer state, are read row by row."""
    if CHECKOUT not in os.environ:
        pytest.skip(f"{CHECKOUT} does not name a git directory of NVIDIA/recsys-examples")
    run_judge("EDL_CKPT_TEST_TORCH_PYTHON", "dynamicemb.py", os.environ[CHECKOUT], str(tmp_path), "0", str(count))
    for number in range(count):
        table, version = "dynamicemb/model.ebc/user", step(tmp_path, number)
        assert version.ps_num == number % 4 + 1
        with open_checkpoint(version) as checkpoint, np.load(tmp_path / f"{number}.npz") as truth:
            names = {"vectors": table, "scores": f"{table}_emb_scores", "opt_values": f"{table}_emb_opt_values"}
            expected = {name for kind, name in names.items() if kind in truth and truth[kind].size}
            assert set(checkpoint.table_names) - expected <= set(names.values())
            for kind, name in names.items():
                if name in expected:
                    assert_rows(checkpoint, name, truth["ids"], truth[kind])
        assert verify_version(version, level="deep").ok
