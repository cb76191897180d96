"""Experiments: the locations right below a directory as trials, compared by one metric."""

from __future__ import annotations

import math
import os
from pathlib import Path

import pytest

from checkpoints import at, numbers, save_small
from determined_storage import ONE, TWO, put
from edl_ckpt.core import Guards, list_experiment, plan_prune, set_metrics, set_modes, trial_locations
from edl_ckpt.core import determined as determined_policy
from edl_ckpt.core.base.errors import NotFoundError, UsageError
from s3_fixtures import Bucket

LOSSES = {
    "trial-2": {1: None, 2: None, 3: 0.6, 4: 0.5, 5: 0.4},
    "trial-10": {6: None, 7: 0.2, 8: 0.3, 9: None, 10: None},
}
"""The checkpoints of the two trials in Determined's reference, with their validation metrics."""
TABLE: tuple[tuple[int, int, int, set[int]], ...] = (
    (0, 0, 0, set()),
    (2, 0, 0, {8, 7}),
    (5, 0, 0, {8, 7, 5, 4, 3}),
    (0, 1, 0, {7, 5}),
    (0, 3, 0, {8, 7, 5, 4, 3}),
    (0, 0, 1, {10, 5}),
    (0, 0, 3, {10, 9, 8, 5, 4, 3}),
    (2, 1, 0, {8, 7, 5}),
    (2, 0, 1, {10, 8, 7, 5}),
    (0, 1, 1, {10, 7, 5}),
    (2, 1, 1, {10, 8, 7, 5}),
)
"""Its table of (save_experiment_best, save_trial_best, save_trial_latest, the checkpoints that are saved)."""


@pytest.fixture
def experiment(tmp_path: Path) -> Path:
    """Return the experiment of the reference, beside it what is no trial."""
    place = tmp_path / "experiment"
    for trial, losses in LOSSES.items():
        save_small(place / trial, *losses, sealed=False)
        for version, loss in losses.items():
            if loss is not None:
                set_metrics(at(place / trial, version), {"loss": loss})
    (place / "logs").mkdir()
    (place / "logs/out.txt").touch()
    (place / "README").touch()
    (place / ".hidden").mkdir()
    return place


def test_ranking(experiment: Path) -> None:
    """Trials are ranked by their best complete version; others come after them, by name, with numbers as numbers."""
    save_small(experiment / "trial-1", 1)
    save_small(experiment / "trial-20", 1)
    found = list_experiment(experiment)
    assert [t.name for t in found.trials] == ["trial-10", "trial-2", "trial-1", "trial-20"]
    assert (found.metric, found.mode) == ("loss", "min")
    assert [t.best and t.best.version for t in found.trials] == [7, 5, None, None]
    assert [t.latest and t.latest.version for t in found.trials] == [10, 5, 1, 1]
    assert found.best is not None
    assert found.best.ref == f"{experiment}/trial-10@7"
    assert list_experiment(experiment, metric="loss", mode="max").trials[0].name == "trial-2"


def test_metric(experiment: Path) -> None:
    """With several metrics one must be named; its mode comes from the trials, which must agree, or is given."""
    set_metrics(at(experiment / "trial-2", 1), {"f1": 0.5})
    unclear = list_experiment(experiment)
    assert (unclear.metric, unclear.best, [t.name for t in unclear.trials]) == (None, None, ["trial-2", "trial-10"])
    with pytest.raises(UsageError, match="is higher or lower better"):
        list_experiment(experiment, metric="f1")
    set_modes(experiment / "trial-2", {"f1": "max"})
    assert list_experiment(experiment, metric="f1").trials[0].name == "trial-2"
    set_modes(experiment / "trial-10", {"f1": "min"})
    with pytest.raises(UsageError, match="the locations disagree on the mode of 'f1'"):
        list_experiment(experiment, metric="f1")
    assert list_experiment(experiment, metric="f1", mode="max").mode == "max"
    with pytest.raises(NotFoundError, match="no trial has a value of 'auc'"):
        list_experiment(experiment, metric="auc")


def test_nan_is_never_best(experiment: Path) -> None:
    """A trial whose only value is NaN has no best version."""
    save_small(experiment / "nan", 1)
    set_metrics(at(experiment / "nan", 1), {"loss": math.nan})
    assert [(t.name, t.best is None) for t in list_experiment(experiment).trials][-1] == ("nan", True)


def test_directory_itself(experiment: Path) -> None:
    """The directory of the experiment is a trial if it has versions; one with a UUID is a version or a trial."""
    put(experiment, ONE, 70)
    save_small(experiment / TWO, 3)
    assert [t.name for t in list_experiment(experiment).trials] == ["trial-10", "trial-2", TWO, "."]
    assert [Path(place.url).name for place in trial_locations(experiment)][:2] == [TWO, "experiment"]


def test_unreadable(experiment: Path) -> None:
    """A trial that cannot be looked at is named, and the others are ranked; there is none in a directory without."""
    (experiment / "lost").symlink_to("nowhere")
    found = list_experiment(experiment)
    assert [(t.name, t.fault is not None) for t in found.trials] == [
        ("trial-10", False), ("trial-2", False), ("lost", True),
    ]  # fmt: skip
    assert found.unread
    assert len(trial_locations(experiment)) == 3
    with pytest.raises(NotFoundError, match="no trial here"):
        trial_locations(experiment / "logs")
    with pytest.raises(NotFoundError):
        list_experiment(experiment / "absent")
    assert list_experiment(experiment / ".hidden").trials == ()


@pytest.mark.parametrize(("experiment_best", "trial_best", "trial_latest", "saved"), TABLE)
def test_garbage_collection(
    experiment: Path, experiment_best: int, trial_best: int, trial_latest: int, saved: set[int]
) -> None:
    """At the end of an experiment, the policy saves over all its trials what Determined's own table says."""
    policy = determined_policy(
        "loss", experiment_best=experiment_best, trial_best=trial_best, trial_latest=trial_latest
    )
    everything = Guards(everything=True, grace_seconds=0)
    plan = plan_prune(trial_locations(experiment), policy, guards=everything)
    assert {e.version for e in plan.entries if e.action.value == "keep"} == saved
    guarded = plan_prune(trial_locations(experiment), policy)
    assert {e.version for e in guarded.entries if e.action.value == "keep"} == saved | {5, 10}


def test_s3(experiment: Path, s3: Bucket) -> None:
    """On S3, the trials are the prefixes right below; finding them is one request, and the experiment's own listing."""
    for name in LOSSES:
        s3.upload(experiment / name, f"run/{name}")
    s3.put("run/logs/out.txt", b"x")
    s3.proxy.reset()
    found = list_experiment(s3.url)
    assert [(t.name, t.best and t.best.version) for t in found.trials] == [("trial-10", 7), ("trial-2", 5)]
    assert s3.proxy.count("list") <= 2 + 3
    assert numbers(found.trials[0].location.url) == [6, 7, 8, 9, 10]
    with pytest.raises(NotFoundError):
        list_experiment(f"s3://{s3.name}/absent")


def test_hostile_names(experiment: Path) -> None:
    """A trial may have any name that a directory can have."""
    for name in ("new\nline", "\x1b[31mred", "9" * 200, "a@b"):
        save_small(experiment / name, 1, sealed=False)
    os.mkdir(os.path.join(os.fsencode(experiment), b"\xff\xfe"))
    assert len(list_experiment(experiment).trials) == 6
