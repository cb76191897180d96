"""Steps with several indexes (`model/`, `optimizer/`, `dense_ema/`) are resharded, edited and exported."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import torch_items
from edl_ckpt.core import Changes, convert_version, export_version, fingerprint_checkpoint, open_checkpoint
from edl_ckpt.core.base.errors import UsageError
from edl_ckpt.core.catalog.listing import list_versions
from reporters import Recorder

OVER, USER = "model.over.weight", "model.ebc.embedding_bags.user.weight"
MOMENT, SLOT = f"state.{OVER}.exp_avg", f"state.{USER}.user.momentum1"
EMA = f"dense_ema.{OVER}"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A step of two ranks with three indexes, and a file of the job."""
    rng = np.random.default_rng(0)
    saved = {"model": {OVER: (3, 4), USER: (10, 4)}, "optimizer": {MOMENT: (3, 4), SLOT: (10, 4)}}
    for folder, shapes in {**saved, "dense_ema": {OVER: (3, 4)}}.items():
        parts = []
        for name, shape in shapes.items():
            cuts = [[5], []] if shape[0] == 10 else [[], []]
            parts += torch_items.boxes(name, rng.standard_normal(shape, np.float32), cuts, 2)
        torch_items.write_step(tmp_path / "run/step_7" / folder, parts)
    (tmp_path / "run/step_7/plan").write_text("the job's own")
    return tmp_path / "run"


def names(ref: str) -> tuple[list[str], list[str]]:
    with open_checkpoint(ref) as opened:
        return opened.variable_names, opened.table_names


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_a_reshard_writes_each_index(run: Path, tmp_path: Path, ranks: int) -> None:
    """Each index is in its directory again, with the tensors that it had; values and names are what they were."""
    with open_checkpoint(f"{run}@7") as opened:
        before = fingerprint_checkpoint(opened).text
    result = convert_version(f"{run}@7", ranks, output=str(tmp_path / "out"), reporter=Recorder())
    assert (result.fingerprint, result.to_ps) == (before, ranks)
    step = tmp_path / "out/step_7"
    assert {path.parent.name for path in step.rglob(".metadata")} == {"model", "optimizer", "dense_ema"}
    assert (step / "plan").read_text() == "the job's own"
    assert names(f"{tmp_path}/out@7") == ([EMA, OVER, MOMENT], [USER, SLOT])
    convert_version(f"{run}@7", ranks, reporter=Recorder())
    (version,) = list_versions(run).versions
    assert (version.fingerprint, version.ps_num) == (before, ranks)


def test_an_edit_and_an_export(run: Path, tmp_path: Path) -> None:
    """Tensors are dropped and renamed where they are; an index without tensors is not written."""
    changes = Changes(drop=("state.*",), rename=((OVER, "model.top.weight"),))
    convert_version(f"{run}@7", output=str(tmp_path / "out"), changes=changes, reporter=Recorder())
    assert names(f"{tmp_path}/out@7") == ([EMA, "model.top.weight"], [USER])
    assert not list((tmp_path / "out/step_7/optimizer").glob("*"))
    export_version(f"{run}@7", str(tmp_path / "exported"), format_name="dcp", ranks=3, reporter=Recorder())
    assert names(str(tmp_path / "exported")) == ([EMA, OVER, MOMENT], [USER, SLOT])


def test_one_index_that_is_left_has_any_name(run: Path, tmp_path: Path) -> None:
    """Where only the average of a model stays, it may have the model's own name."""
    changes = Changes(drop=("state.*", "model.*"), rename=((EMA, OVER),))
    convert_version(f"{run}@7", output=str(tmp_path / "out"), changes=changes, reporter=Recorder())
    assert names(f"{tmp_path}/out@7") == ([OVER], [])


def test_a_name_that_no_index_shows_is_refused(run: Path, tmp_path: Path) -> None:
    """Beside others, a name of the average begins with its directory; nothing is written, and the way is said."""
    with pytest.raises(UsageError, match=r"begin with 'dense_ema\.'") as raised:
        convert_version(f"{run}@7", output=str(tmp_path / "out"), changes=Changes(rename=((EMA, "ema.weight"),)))
    assert f"--rename '{EMA}=dense_ema.ema.weight'" in (raised.value.hint or "")
    assert not (tmp_path / "out/step_7").exists()
