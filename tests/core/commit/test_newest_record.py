"""The file `checkpoint` at the root of a location that gets bundles of TensorFlow from us."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from checkpoints import at
from dtype_matrix import TENSORFLOW, Judge
from edl_ckpt.core import Changes, convert_version, execute_copy, list_versions, plan_copy
from edl_ckpt.core.sources.bundle.state_file import parse_state
from foreign import SYSTEMS
from reporters import Recorder
from system_runs import settled, tree


def bundle_run(place: Path, numbers: tuple[int, ...] = (10, 20, 30)) -> Path:
    """Make bundles with these numbers, side by side."""
    place.mkdir(exist_ok=True)
    for number in numbers:
        for path in (SYSTEMS / "bundle/deeprec").iterdir():
            shutil.copy(path, place / path.name.replace("-100", f"-{number}"))
    return settled(place)


def record(location: Path) -> tuple[str, tuple[str, ...]]:
    """Return the newest path and all paths in the file of a location."""
    state = parse_state((location / "checkpoint").read_bytes())
    return state.newest, state.every


def test_a_reshard_and_an_edit_name_the_newest(tmp_path: Path) -> None:
    """Whatever goes to another location is found by TensorFlow there: the highest number is the newest."""
    run = bundle_run(tmp_path / "run")
    convert_version(f"{run}@20", 2, output=tmp_path / "out")
    assert record(tmp_path / "out") == ("model.ckpt-20/model.ckpt-20", ("model.ckpt-20/model.ckpt-20",))
    convert_version(f"{run}@30", 1, output=tmp_path / "out")
    convert_version(
        f"{run}@10", output=tmp_path / "out", changes=Changes(cast=(("*", "float16"),)), reporter=Recorder()
    )
    paths = tuple(f"model.ckpt-{number}/model.ckpt-{number}" for number in (10, 20, 30))
    assert record(tmp_path / "out") == (paths[-1], paths)
    assert at(tmp_path / "out").version == 30
    convert_version(f"{tmp_path}/out@30", 3)
    assert record(tmp_path / "out") == (paths[-1], paths)


def test_a_copy_names_what_its_source_names(tmp_path: Path) -> None:
    """A copy of bundles side by side has a record: of the source's newest, or of the highest number."""
    run = bundle_run(tmp_path / "run")
    execute_copy(plan_copy(list_versions(run).versions, tmp_path / "plain"))
    paths = tuple(f"model.ckpt-{number}" for number in (10, 20, 30))
    assert record(tmp_path / "plain") == (paths[-1], paths)
    (run / "checkpoint").write_text('model_checkpoint_path: "model.ckpt-10"\n')
    os.utime(run / "checkpoint", (0, 0))
    execute_copy(plan_copy(list_versions(run).versions, tmp_path / "led"))
    assert record(tmp_path / "led") == (paths[0], (*paths[1:], paths[0]))
    assert at(tmp_path / "led").version == at(run).version == 10
    before = tree(tmp_path / "led")
    execute_copy(plan_copy(list_versions(run).versions, tmp_path / "led"))
    assert tree(tmp_path / "led") == before


def _own_file(location: Path) -> None:
    (location / "checkpoint").write_text('model_checkpoint_path: "model.ckpt-10"\n')


def _unsealed(location: Path) -> None:
    bundle_run(location, (7,))


@pytest.mark.parametrize("there", [_own_file, _unsealed])
def test_what_a_job_has_there_is_left_alone(tmp_path: Path, there: Callable[[Path], None]) -> None:
    """A file `checkpoint` of a job is never touched, and none is written beside versions that a job has saved."""
    run, out = bundle_run(tmp_path / "run"), tmp_path / "out"
    out.mkdir()
    there(out)
    before = (out / "checkpoint").read_bytes() if (out / "checkpoint").exists() else None
    convert_version(f"{run}@30", 1, output=out)
    execute_copy(plan_copy([at(run, 10)], out))
    assert ((out / "checkpoint").read_bytes() if (out / "checkpoint").exists() else None) == before


def test_a_record_that_cannot_be_written_is_a_warning(tmp_path: Path) -> None:
    """The version is in place; a directory of that name, and a SavedModel, get no record."""
    run, reporter = bundle_run(tmp_path / "run"), Recorder()
    (tmp_path / "out/checkpoint").mkdir(parents=True)
    convert_version(f"{run}@30", 1, output=tmp_path / "out", reporter=reporter)
    assert [one for one in reporter.warnings if "latest_checkpoint" in one]
    assert at(tmp_path / "out", 30).state.value == "complete"
    convert_version(SYSTEMS / "bundle/saved_model/1", output=tmp_path / "models", number=1, reporter=Recorder())
    assert not (tmp_path / "models/checkpoint").exists()


@pytest.mark.frameworks
def test_tensorflow_finds_what_latest_is(tmp_path: Path) -> None:
    """`tf.train.latest_checkpoint` and `@latest` agree of what a reshard and a copy write."""
    with closing(Judge(TENSORFLOW, "tensorflow_dtypes.py")) as judge:
        check_latest(judge, tmp_path)


def check_latest(judge: Judge, tmp_path: Path) -> None:
    """Compare what TensorFlow finds and reads with what we do."""
    run = bundle_run(tmp_path / "run")
    for number in (10, 30):
        convert_version(f"{run}@{number}", 2, output=tmp_path / "out")
    execute_copy(plan_copy(list_versions(run).versions, tmp_path / "copy"))
    for place, prefix in (("out", "model.ckpt-30/model.ckpt-30"), ("copy", "model.ckpt-30")):
        found = judge.ask("latest", str(tmp_path / place))
        assert found == f"{tmp_path}/{place}/{prefix}"
        assert found.startswith(at(tmp_path / place).path)
        assert judge.tensors("read", found) == judge.tensors("read", str(run / "model.ckpt-30"))
