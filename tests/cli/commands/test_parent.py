"""A parent of runs is a parent in every verb: the error names what is below, and nothing changes."""

from __future__ import annotations

from pathlib import Path

import pytest

from checkpoints import save_small
from program import edl, inside

VERBS = [
    "list jobs",
    "inspect jobs",
    "get jobs --table t --id 3",
    "head jobs --table t",
    "sample jobs --table t",
    "ids jobs --table t",
    "diff jobs jobs",
    "diff jobs/a@1 jobs",
    "du jobs",
    "report jobs --json",
    "verify jobs",
    "verify jobs --all",
    "verify jobs --newest",
    "verify jobs --seal",
    "reshard jobs --ps 2 --output out",
    "copy jobs out",
    "copy jobs out --all",
    "export jobs out.npz",
    "prune jobs --keep 1",
    "prune jobs --keep 1 --yes",
    "prune jobs --incomplete --yes",
    "prune jobs --delete 1 --yes",
    "prune jobs/a jobs --keep 1 --yes",
    "prune jobs/a jobs --delete 1 --yes",
    "undo jobs",
    "policy show jobs",
    "policy set jobs --keep 1",
    "metrics show jobs",
    "metadata show jobs",
    "tag list jobs",
    "repair jobs --from jobs",
    "recover jobs",
]
"""Those that write need a version that is named in words; they refuse any other reference before they look."""


@pytest.fixture
def jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a directory with two runs of two versions, in the current directory."""
    for name in ("a", "b"):
        (tmp_path / "jobs" / name).mkdir(parents=True)
        save_small(tmp_path / "jobs" / name, 1, 2)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "jobs"


@pytest.mark.parametrize("words", VERBS)
def test_a_parent_of_runs_is_an_error_that_names_them(jobs: Path, words: str) -> None:
    """Each verb ends with 10 and says where the versions are; all files stay as they are."""
    before = sorted(jobs.rglob("*"))
    done = edl(*words.split(), cwd=jobs.parent)
    assert done.returncode == 10, done.stderr
    assert "versions are below: jobs/a, jobs/b" in done.stderr + done.stdout
    assert sorted(jobs.rglob("*")) == before


def test_wait_says_what_is_below_and_waits(jobs: Path) -> None:
    """A run may have others below it, and no version yet: it may still come."""
    done = edl("wait", "jobs", "--timeout", "0", cwd=jobs.parent)
    assert done.returncode == 3
    assert "versions are below: jobs/a, jobs/b" in done.stderr


@pytest.mark.parametrize("words", ["prune jobs --keep 1 --yes", "verify jobs --all", "metrics show jobs", "du jobs"])
def test_a_location_without_versions_and_none_below_is_no_parent(jobs: Path, words: str) -> None:
    """A job that has saved nothing yet is no error of these verbs."""
    empty = jobs.parent / "empty"
    empty.mkdir()
    (empty / "log.txt").write_text("begun")
    done = edl(*words.replace("jobs", "empty").split(), cwd=jobs.parent)
    assert done.returncode == 0, done.stderr


def test_a_policy_of_a_parent_is_shown(jobs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What is stored is shown wherever it is stored, although the location has lost its versions."""
    inside(capsys, "policy", "set", jobs / "a", "--keep", "1")
    for number in (1, 2):
        (jobs / "a" / f"version-{number}").rename(jobs / "b" / f"version-{number + 6}")
    assert inside(capsys, "policy", "show", jobs / "a", "--json")["policy"]
