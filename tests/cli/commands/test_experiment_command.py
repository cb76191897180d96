"""`list --experiment` and `prune --experiment`: the trials in a directory, at the end of a search."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest

from checkpoints import at, numbers, save_small
from edl_ckpt.core import set_metrics
from program import document, edl


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Return an experiment of two trials of three versions."""
    for trial, values in {"a": (0.7, 0.9, 0.8), "b": (0.95, 0.6, 0.5)}.items():
        save_small(tmp_path / "runs" / trial, 1, 2, 3, sealed=False)
        for version, value in enumerate(values, start=1):
            set_metrics(at(tmp_path / "runs" / trial, version), {"auc": value})
    return tmp_path / "runs"


def test_document(runs: Path) -> None:
    """The document has all trials, the best first, with the metric, its better end, and their versions as in `list`."""
    result = document("list", "--experiment", runs)
    assert set(result) == {"schema", "locations", "experiment"}
    assert [place["location"] for place in result["locations"]] == [f"{runs}/b", f"{runs}/a"]
    found = result["experiment"]
    assert {k: v for k, v in found.items() if k != "trials"} == {
        "location": str(runs), "metric": "auc", "mode": "max", "best": f"{runs}/b@1",
    }  # fmt: skip
    assert found["trials"][1] == {
        "name": "a", "location": f"{runs}/a", "versions": 3, "complete": 3, "size_bytes": 1914,
        "latest": f"{runs}/a@3", "best": f"{runs}/a@2", "value": 0.9, "fault": None,
    }  # fmt: skip


def test_table_and_rows(runs: Path) -> None:
    """The table marks the best trial; the rows of --csv are the trials; the lowest is the best with --mode min."""
    shown = edl("list", "--experiment", runs).stdout
    assert f"{runs}  2 trials, 6 versions, 3.7 KiB, by auc (max)" in shown
    assert "0.95*" in shown
    assert edl("list", "--experiment", runs, "--metric", "auc", "--mode", "min").stdout.count("0.5*") == 1
    rows = list(csv.DictReader(io.StringIO(edl("list", "--experiment", runs, "--csv").stdout)))
    assert [(row["name"], row["value"], row["mode"]) for row in rows] == [("b", "0.95", "max"), ("a", "0.9", "max")]


def test_unreadable(runs: Path) -> None:
    """A trial that is there and cannot be read is named, and the command ends with 3; a prune deletes nothing then."""
    (runs / "c").symlink_to("nowhere")
    done = edl("list", "--experiment", runs)
    assert (done.returncode, done.stderr.count(f"{runs}/c")) == (3, 1)
    assert "cannot be read now" in done.stdout
    pruned = edl("prune", "--experiment", runs, "--keep", "1", "--yes")
    assert (pruned.returncode, numbers(runs / "a"), numbers(runs / "b")) == (10, [1, 2, 3], [1, 2, 3])


@pytest.mark.parametrize(
    "words",
    [
        ("list", "run", "--experiment", "."),
        ("list", "--experiment", ".", "--sort", "auc"),
        ("list", "--metric", "auc"),
        ("prune", "run", "--experiment", ".", "--keep", "1"),
    ],
)
def test_wrong_options(runs: Path, words: tuple[str, ...]) -> None:
    """An experiment stands in place of locations, and has its own order."""
    assert edl(*words, cwd=runs).returncode == 2


def test_garbage_collection(runs: Path) -> None:
    """`prune --policy determined` over an experiment keeps the best of each trial, and the newest."""
    plan = document("prune", "--experiment", runs, "--policy", "determined", "--metric", "auc", "--dry-run")
    kept = {e["ref"].rpartition("/")[2] for e in plan["plan"] if e["action"] == "keep"}
    assert kept == {"a@2", "a@3", "b@1", "b@3"}
    words = ("--experiment", runs, "--policy", "determined", "--metric", "auc", "--save-trial-best", "0")
    document("prune", *words, "--save-trial-latest", "0", "--save-experiment-best", "1")
    assert (numbers(runs / "a"), numbers(runs / "b")) == ([3], [1, 3])


def test_a_trial_with_its_own_numbers(runs: Path, tmp_path: Path) -> None:
    """A trial whose override has other numbers is pruned by these, and the others by those of the section."""
    (tmp_path / "my.toml").write_text(
        f'[checkpoint_storage]\ntype = "shared_fs"\nhost_path = "{runs}"\nsave_trial_latest = 1\n'
        f'[checkpoint_storage."{runs}/b"]\nsave_trial_best = 3\nsave_experiment_best = 0\n'
    )
    words = ("--experiment", runs, "--policy", "determined", "--metric", "auc", "--config", tmp_path / "my.toml")
    plan = document("prune", *words, "--dry-run")
    assert f"the best 3 by auc (max) at {runs}/b" in plan["policy"]
    document("prune", *words, "--yes")
    assert (numbers(runs / "a"), numbers(runs / "b")) == ([2, 3], [1, 2, 3])
    one = document("prune", *words, "--save-trial-best", "0", "--yes")
    assert one["policy"].count("the latest 1") == 1
    assert (numbers(runs / "a"), numbers(runs / "b")) == ([3], [3])
    assert edl("verify", runs / "b@3", "--deep").returncode == 0


def test_not_from_the_environment(runs: Path) -> None:
    """Neither the environment nor a file says which experiment a prune is about."""
    (runs / "night.toml").write_text('[prune]\nexperiment = "."\n')
    assert edl("prune", "--keep", "1", "--config", "night.toml", cwd=runs).returncode == 2
    done = edl("prune", runs / "a", "--keep", "1", "--dry-run", EDL_CKPT_EXPERIMENT=str(runs))
    assert (done.returncode, "b  " in done.stdout) == (0, False)
