"""What every system of checkpoints must do, in a class that the tests of each system extend."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import pytest

from checkpoints import at
from edl_ckpt.core import (
    Latest,
    Policy,
    State,
    convert_version,
    execute_copy,
    export_version,
    list_versions,
    open_checkpoint,
    plan_copy,
    plan_prune,
    verify_version,
)
from edl_ckpt.core.base.errors import EdlCkptError, UnsupportedError, UsageError
from program import document
from reporters import Recorder
from system_runs import settled, tree

Contents = dict[str, npt.NDArray[np.generic]]
"""The values of a version by the names of variables; a table has its ids in order, and its rows in their order."""


def contents_of(ref: str) -> Contents:
    """Read everything of a version."""
    found: Contents = {}
    with open_checkpoint(ref) as checkpoint:
        for name in checkpoint.variable_names:
            found[name] = np.asarray(checkpoint.variable(name))
        for name in checkpoint.table_names:
            ids, rows = checkpoint.table(name).to_numpy()
            order = np.argsort(ids, kind="stable")
            found[f"{name} ids"], found[f"{name} rows"] = ids[order], rows[order]
    return found


def assert_same(one: Contents, other: Contents) -> None:
    """Assert that two versions have the same names and values."""
    assert one.keys() == other.keys()
    for name, values in one.items():
        np.testing.assert_array_equal(values, other[name], err_msg=name)


def largest_file(run: Path, number: int) -> Path:
    """Return the largest file of a version: a directory, or files whose names begin alike."""
    place = Path(at(run, number).path)
    files = place.rglob("*") if place.is_dir() else place.parent.glob(f"{place.name}*")
    return max((path for path in files if path.is_file()), key=lambda path: path.stat().st_size)


class SystemContract:
    """What every system must do with three versions of a job; subclasses say how the job writes them."""

    system: ClassVar[str]
    """Its name, as in `--system`."""
    loader: ClassVar[str] = ""
    """What `verify --loader` calls its loader, '' if there is none."""
    keeps_names: ClassVar[bool] = True
    """False if a copy has names of ours, as the names of the original are those of somebody's record."""
    is_ours_to_delete: ClassVar[bool] = True
    """False if somebody else has a record of the versions, so that a prune deletes none."""
    number: ClassVar[int] = 30
    """The newest of the versions, which are 10, 20 and 30."""

    def make(self, place: Path) -> None:
        """Write the versions into a directory that is not there yet."""
        raise NotImplementedError

    @pytest.fixture
    def run(self, tmp_path: Path) -> Path:
        """Return the location of the job, whose last save was long ago."""
        self.make(tmp_path / "run")
        return settled(tmp_path / "run")

    @pytest.fixture
    def ref(self, run: Path) -> str:
        """Return the reference of the newest version."""
        return f"{run}@{self.number}"

    def test_list(self, run: Path) -> None:
        """All versions are found by their numbers, whole, in order, and of this system."""
        versions = list_versions(run).versions
        assert [version.number for version in versions] == [10, 20, 30]
        assert {version.state for version in versions} == {State.COMPLETE}
        assert {version.layout.system for version in versions} == {self.system}
        assert at(run, "latest").number == self.number

    def test_inspect(self, ref: str) -> None:
        """The document names everything that can be read, with its shape."""
        told = document("inspect", ref)
        with open_checkpoint(ref) as checkpoint:
            assert {table["name"] for table in told["tables"]} == set(checkpoint.table_names)
            assert {variable["name"] for variable in told["variables"]} == set(checkpoint.variable_names)
        assert told["tables"] or told["variables"]

    def test_open(self, ref: str) -> None:
        """A row that is asked for by its id is the one that a whole read has."""
        whole = contents_of(ref)
        assert whole
        with open_checkpoint(ref) as checkpoint:
            for name in checkpoint.table_names:
                ids, rows = whole[f"{name} ids"], whole[f"{name} rows"]
                if len(ids):
                    np.testing.assert_array_equal(checkpoint.table(name).to_numpy(ids[-1:])[1], rows[-1:])

    def test_verify(self, ref: str) -> None:
        """A deep look at sound files has no finding, and changes nothing."""
        result = verify_version(ref, level="deep")
        assert (result.ok, result.findings) == (True, ())

    def test_verify_torn(self, run: Path, ref: str) -> None:
        """A version whose largest file lost its end is not whole, and no read of it ends well."""
        largest = largest_file(run, self.number)
        os.truncate(largest, largest.stat().st_size // 2)
        settled(run)
        try:
            is_found = not verify_version(ref, level="deep").ok
        except EdlCkptError:
            is_found = True
        assert is_found
        with pytest.raises(EdlCkptError):
            contents_of(ref)

    def test_copy(self, run: Path, tmp_path: Path) -> None:
        """A copy has the same files under the same names, is whole, and has the same values."""
        execute_copy(plan_copy(list_versions(run).versions, str(tmp_path / "copy")), reporter=Recorder())
        if self.keeps_names:
            made = {name: data for name, data in tree(tmp_path / "copy").items() if name != "checkpoint"}
            assert made == {name: data for name, data in tree(run).items() if name != "checkpoint"}
        assert_same(contents_of(f"{tmp_path}/copy@{self.number}"), contents_of(f"{run}@{self.number}"))

    def test_prune_plan(self, run: Path) -> None:
        """To keep the latest is to delete the others, and nothing of a plan is done before it is executed."""
        before = tree(run)
        plan = plan_prune([run], Policy((Latest(1),)))
        deleted = sorted(entry.version for entry in plan.deletions)
        assert deleted == ([10, 20] if self.is_ours_to_delete else [])
        assert tree(run) == before

    def test_reshard(self, ref: str, tmp_path: Path) -> None:
        """Another number of ranks has the same values, in the same system, and nothing is found in it."""
        before = tree(tmp_path / "run")
        convert_version(ref, 3, output=str(tmp_path / "new"), reporter=Recorder())
        (made,) = list_versions(tmp_path / "new", grace_seconds=0).versions
        assert (made.state, made.layout.system) == (State.COMPLETE, self.system)
        assert_same(contents_of(made.ref), contents_of(ref))
        assert verify_version(made, level="deep").ok
        assert tree(tmp_path / "run") == before

    def test_export(self, ref: str, tmp_path: Path) -> None:
        """Arrays have each variable and the rows of each table."""
        export_version(ref, str(tmp_path / "arrays.npz"), partial=True, reporter=Recorder())
        with np.load(tmp_path / "arrays.npz") as arrays, open_checkpoint(ref) as checkpoint:
            assert {*checkpoint.variable_names} <= {*arrays.files}
            assert {f"{name}.ids" for name in checkpoint.table_names} <= {*arrays.files}

    def test_loader(self, ref: str) -> None:
        """What the system's own loader gives two processes is every row, or it is said that no such loader is known."""
        if self.loader:
            assert verify_version(ref, loader=(self.loader, 2), reporter=Recorder()).ok
            return
        with pytest.raises((UnsupportedError, UsageError)):
            verify_version(ref, loader=("elasticdl:python", 2))

    def test_a_lost_file(self, run: Path) -> None:
        """A version that lost its largest file is not whole, and the others are."""
        largest = largest_file(run, self.number)
        shutil.move(largest, run.parent / "lost")
        settled(run)
        whole = [version.number for version in list_versions(run).versions if version.state is State.COMPLETE]
        assert whole == [10, 20]
