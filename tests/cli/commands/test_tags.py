"""A tag names one version, whichever command puts it there."""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path

import pytest

from edl_ckpt.core import add_tag, execute_copy, execute_reshard, plan_copy, prepare_reshard, undo
from edl_ckpt.core.base.errors import UsageError
from edl_ckpt.core.catalog.listing import list_versions, resolve
from edl_ckpt.core.model.versions import CheckpointRef, Version
from edl_ckpt.core.storage import Location
from places import GOLDEN
from program import document, edl
from reporters import Recorder


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Return a copy of the golden location with the versions 9, 20 and 100, the last one incomplete."""
    shutil.copytree(GOLDEN / "multi", tmp_path / "run")
    return tmp_path / "run"


def at(location: Path, version: int | str) -> Version:
    """Return the version that a reference names."""
    return resolve(CheckpointRef(Location(str(location)), version))


def test_move(run: Path) -> None:
    """A tag that is given to another version moves there, and the command says from where."""
    assert document("tag", "add", f"{run}@9", "prod")["moved_from"] == []
    done = edl("tag", "add", f"{run}@20", "prod")
    assert (done.returncode, done.stdout) == (0, "prod  20\n")
    assert done.stderr == "the tag prod moved from version 9 to version 20\n"
    moved = document("tag", "add", f"{run}@100", "prod", "--move", "--force")
    assert (moved["moved_from"], moved["tags"]) == ([20], [{"tag": "prod", "versions": [100]}])
    assert document("inspect", f"{run}@prod", code=4)["version"] == 100
    again = document("tag", "add", f"{run}@100", "prod", "--force")
    assert (again["moved_from"], again["tags"]) == ([], [{"tag": "prod", "versions": [100]}])


def test_also(run: Path) -> None:
    """With --also both versions keep the tag; the hint of the error that follows makes the tag work again."""
    document("tag", "add", f"{run}@9", "prod")
    both = document("tag", "add", f"{run}@20", "prod", "--also")
    assert (both["moved_from"], both["tags"]) == ([], [{"tag": "prod", "versions": [9, 20]}])
    done = edl("inspect", f"{run}@prod")
    assert done.returncode == 2
    hint = shlex.split(done.stderr.splitlines()[-1].rpartition("edl-ckpt ")[2])
    assert edl(*hint).returncode == 0
    assert document("inspect", f"{run}@prod")["version"] == 20


def test_number_that_is_there_twice(run: Path) -> None:
    """A tag of a number belongs to one of two directories that have the number, and can be moved."""
    add_tag(at(run, 9), "prod")
    shutil.copytree(run / "version-9", run / "version_9")
    with pytest.raises(UsageError, match="version 9 exists twice"):
        at(run, 9)
    assert at(run, "prod").name == "version-9"
    assert at(run, "version_9").tags == ()
    assert add_tag(at(run, 20), "prod") == (9,)
    assert at(run, "prod").version == 20


@pytest.mark.parametrize("how", ["copy", "reshard"])
def test_copies(run: Path, tmp_path: Path, how: str) -> None:
    """A tag that moved at the source moves at the target of the next copy, with a warning."""
    report = Recorder()

    def bring(number: int) -> None:
        if how == "copy":
            execute_copy(plan_copy([at(run, number)], str(tmp_path / "out")), reporter=report)
        else:
            plan, settings = prepare_reshard(at(run, number), 3, output=str(tmp_path / "out"))
            execute_reshard(plan, settings, reporter=report)

    add_tag(at(run, 9), "prod")
    add_tag(at(run, 9), "shared")
    bring(9)
    add_tag(at(run, 20), "prod")
    add_tag(at(run, 20), "shared", also=True)
    assert report.warnings == []
    bring(20)
    assert at(tmp_path / "out", "prod").version == 20
    assert [v.tags for v in list_versions(str(tmp_path / "out")).versions] == [("shared",), ("prod", "shared")]
    assert report.warnings == [f"{tmp_path / 'out'}: the tag 'prod' moves from version 9 to 20"]


def test_undo(run: Path) -> None:
    """`undo` restores tags as they were, and warns of one that another version got meanwhile."""
    add_tag(at(run, 9), "prod")
    document("prune", run, "--keep", "1", "--drop-tag", "prod", "--trash")
    add_tag(at(run, 100), "prod", force=True)
    report = Recorder()
    undo(str(run), reporter=report)
    (warning,) = report.warnings
    assert warning.startswith(f"{run}: versions 9 and 100 have the tag 'prod', so @prod names none of them")
    assert warning.endswith(f"edl-ckpt tag add {run}@9 prod")
