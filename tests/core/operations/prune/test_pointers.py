"""What a job would start from stays: versions that files and links of other systems name."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from edl_ckpt.core import plan_prune
from edl_ckpt.core.base.errors import RefusedError
from edl_ckpt.core.operations.prune.guards import Guards
from edl_ckpt.core.operations.prune.plan import PrunePlan
from edl_ckpt.core.operations.prune.retention import Latest, Policy
from stranger_files import NOW, age, steps_at
from system_runs import SYSTEMS, bundle_run

ONE = Policy((Latest(1),))


def kept(plan: PrunePlan) -> dict[int, tuple[str, ...]]:
    """Return the reasons of the versions that stay."""
    return {entry.version: entry.reasons for entry in plan.entries if entry not in plan.deletions}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Return a location with three steps of torch."""
    return steps_at(tmp_path / "run", (10, 20, 30))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("latest", "step_10"),
        ("latest", "step_10\n"),
        ("latest_checkpointed_iteration.txt", "10"),
        ("latest_checkpointed_iteration.txt", "10\n"),
        ("trainer_state.json", '{"best_model_checkpoint": "/home/me/out/step_10"}'),
    ],
)
def test_files_name_a_version(run: Path, name: str, text: str) -> None:
    """DeepSpeed's, Megatron-LM's and a Trainer's files keep the version that they name."""
    (run / name).write_text(text)
    age(run)
    plan = plan_prune([run], ONE, now=NOW)
    assert kept(plan) == {10: (f"named by {name}",), 30: ("newest complete version", "latest 1 of 1")}
    lifted = plan_prune([run], ONE, guards=Guards(ignore_pointers=True), now=NOW)
    assert [entry.version for entry in lifted.deletions] == [10, 20]
    assert lifted.warnings == (f"{run}/{name} names step_10, and will lead nowhere",)


@pytest.mark.parametrize("name", ["latest", "best", "last.ckpt"])
@pytest.mark.parametrize("target", ["step_10", "step_10/.metadata", "../run/step_10"])
def test_links_name_a_version(run: Path, name: str, target: str) -> None:
    """A link in a location that leads to a version, or into it, keeps it."""
    (run / name).symlink_to(target)
    age(run)
    assert kept(plan_prune([run], ONE, now=NOW))[10] == (f"named by {name}",)


def test_the_best_model_of_the_newest_trainer(tmp_path: Path) -> None:
    """The newest version with the state of a Trainer says which one is the best."""
    run = tmp_path / "run"
    for number, best in ((100, 100), (200, 100), (300, 200), (400, 200)):
        step = run / f"checkpoint-{number}"
        shutil.copytree(SYSTEMS / "safetensors/checkpoint-100", step)
        (step / "trainer_state.json").write_text(json.dumps({"best_model_checkpoint": f"out/checkpoint-{best}"}))
    age(run)
    plan = plan_prune([run], ONE, now=NOW)
    assert kept(plan)[200] == ("named by checkpoint-400/trainer_state.json",)
    assert [entry.version for entry in plan.deletions] == [100, 300]


def test_the_bundle_that_checkpoint_names(tmp_path: Path) -> None:
    """The bundle from which tf.train would restore stays, although another one has a higher number."""
    run = bundle_run(tmp_path / "run")
    prefix = next(run.glob("*-20.index")).name.removesuffix(".index")
    (run / "checkpoint").write_text(f'model_checkpoint_path: "{prefix}"\nall_model_checkpoint_paths: "{prefix}"\n')
    plan = plan_prune([run], ONE, now=NOW)
    assert "named by checkpoint" in kept(plan)[20]
    assert [entry.version for entry in plan.deletions] == [10]


def test_a_pointer_that_cannot_be_read_keeps_all(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that may name any version keeps all of them while it cannot be read."""
    (run / "latest").mkdir()
    (run / "latest").rmdir()
    (run / "latest").write_text("step_10")
    age(run)

    def fail(*_: object) -> bytes:
        raise RefusedError("no")

    monkeypatch.setattr("edl_ckpt.core.catalog.pointers.read_small", fail)
    plan = plan_prune([run], ONE, now=NOW)
    assert plan.deletions == ()
    assert kept(plan)[10] == ("latest cannot be read now, and may name it: no",)


def test_a_named_version_and_its_pointer(run: Path) -> None:
    """`--delete` of a version that a file names is refused, and the hint has the flag."""
    (run / "latest").write_text("step_10")
    age(run)
    with pytest.raises(RefusedError, match="named by latest") as refused:
        plan_prune([run], Policy(), guards=Guards(delete=(10,)), now=NOW)
    assert refused.value.hint == "it was not deleted; to delete it all the same, add: --ignore-pointers"


def test_what_names_nothing(run: Path) -> None:
    """Files that are damaged, or name what is not there, keep nothing; a prune does not stop at them."""
    (run / "latest").write_bytes(b"\xff\xfe nothing")
    (run / "latest_checkpointed_iteration.txt").write_text("release")
    (run / "checkpoint").write_bytes(b"\x00" * 100)
    (run / "trainer_state.json").write_text("[" * 5000)
    (run / "dangling").symlink_to("nowhere")
    (run / "loop").symlink_to("loop")
    age(run)
    assert [entry.version for entry in plan_prune([run], ONE, now=NOW).deletions] == [10, 20]


def test_other_systems_neither_go_nor_count(run: Path, tmp_path: Path) -> None:
    """Exported models and versions of another system next to a job's are not the job's: rules do not see them."""
    shutil.copytree(SYSTEMS / "safetensors/checkpoint-100", run / "step_29")
    for name in ("1", "2021"):
        shutil.copytree(run / "step_10", run / name)
    age(run)
    plan = plan_prune([run], ONE, now=NOW)
    assert [entry.version for entry in plan.deletions] == [10, 20]
    reasons = kept(plan)
    assert reasons[30] == ("newest complete version", "latest 1 of 1")
    assert reasons[29] == ("of safetensors, and rules look at the versions of dcp here (--system safetensors)",)
    assert reasons[1] == ("its name is only a number: deleted only when named (--delete 1)",)
    named = plan_prune([run], Policy(), guards=Guards(delete=(1, 29)), now=NOW)
    assert [entry.version for entry in named.deletions] == [1, 29]
