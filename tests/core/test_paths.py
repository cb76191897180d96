"""Every public function that takes a location, a file or a version takes a path of any kind, and a reference."""

from __future__ import annotations

import inspect
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import edl_ckpt.core as edl
from checkpoints import save_small
from edl_ckpt.core.base.errors import UsageError
from edl_ckpt.core.operations.prune.plan_file import read_plan, write_plan
from edl_ckpt.core.storage.location import as_url


class Fs:
    """A path of another library: all it has is `__fspath__`."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __fspath__(self) -> str:
        """Return it as a text."""
        return self._path


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the location `run` of two versions, and files that functions read."""
    place = tmp_path_factory.mktemp("made")
    save_small(place / "run", 1, 2)
    edl.set_metrics(f"{place}/run@1", {"auc": 0.5})
    edl.add_tag(f"{place}/run@1", "first")
    np.savez(place / "arrays.npz", w=np.zeros(3))
    (place / "map.toml").write_text('[rename]\nw = "v"\n')
    (place / "pairs.toml").write_text('[variables]\nw = "v"\n')
    (place / "metrics.csv").write_text("step,auc\n1,0.5\n")
    return place


@pytest.fixture
def here(made: Path, tmp_path: Path) -> Path:
    """A copy of that directory, for one test to change."""
    shutil.copytree(made, tmp_path / "here")
    return tmp_path / "here"


def hold(location: Any) -> None:
    """Take the lock of a location, and give it back."""
    with edl.location_lock(location, "test"):
        pass


def write_page(goal: Any) -> None:
    """Write a page to a file."""
    with edl.report_file(goal) as write:
        write("<!doctype html>")


KEEP = edl.Policy((edl.Latest(1),))

Call = Callable[[Callable[[str], Any]], object]
CALLS: dict[str, Call | tuple[Call, ...]] = {
    "add_tag": lambda p: edl.add_tag(p("run@1"), "second"),
    "checkpoints_iterator": lambda p: next(edl.checkpoints_iterator(p("run"))),
    "CheckpointSaver": lambda p: edl.CheckpointSaver(p("new")).close(),
    "convert_version": lambda p: edl.convert_version(p("run@1"), 3, output=p("new")),
    "diff_versions": lambda p: edl.diff_versions(p("run@1"), p("run@2")),
    "export_version": lambda p: edl.export_version(p("run@1"), p("out.npz")),
    "free_target": lambda p: edl.free_target(p("run"), 3),
    "import_arrays": lambda p: edl.import_arrays(p("arrays.npz"), p("new"), 1, 2),
    "find_resharded": lambda p: edl.find_resharded(p("run@1"), 2, output=p("new")),
    "first_rows": lambda p: edl.first_rows(p("run@1"), "t"),
    "import_checkpoint": lambda p: edl.import_checkpoint(p("run@1"), p("new"), 1, 2),
    "import_metrics": lambda p: edl.import_metrics(edl.read_series(p("metrics.csv")), p("run")),
    "latest": lambda p: edl.latest(p("run")),
    "list_experiment": lambda p: edl.list_experiment(p(".")),
    "list_variables": lambda p: edl.list_variables(p("run@1")),
    "list_versions": lambda p: edl.list_versions(p("run")),
    "load_variable": lambda p: (
        edl.save_checkpoint(p("new"), 1, 1, variables={"w": np.zeros(1)}, tables={}),
        edl.load_variable(p("new@1"), "w"),
    ),
    "location_lock": lambda p: hold(p("run")),
    "look_up": lambda p: edl.look_up(p("run@1"), "t", [1]),
    "repair_version": lambda p: edl.repair_version(p("run@1"), p("run@2"), mix=True),
    "report_file": lambda p: write_page(p("page.html")),
    "report_location": lambda p: edl.report_location(p("run")),
    "examine_storage": lambda p: edl.examine_storage(p("run")).facts[0],
    "measure_usage": lambda p: edl.measure_usage(p("run")),
    "open_checkpoint": lambda p: edl.open_checkpoint(p("run@1")).close(),
    "parse_ref": lambda p: edl.parse_ref(p("run@1"), default_location=p("run")),
    "plan_copy": lambda p: edl.plan_copy([p("run@1")], p("copy")),
    "plan_prune": lambda p: edl.plan_prune([p("run")], KEEP),
    "prepare_reshard": lambda p: edl.prepare_reshard(p("run@1"), 3, output=p("new")),
    "prune": lambda p: edl.prune([p("run")], KEEP),
    "read_map": lambda p: edl.read_map(p("map.toml")),
    "read_pairs": lambda p: edl.read_pairs(p("pairs.toml")),
    "read_policy": (lambda p: edl.store_policy(p("run"), KEEP), lambda p: edl.read_policy(p("run"))),
    "read_series": lambda p: edl.read_series(p("metrics.csv")),
    "recover": lambda p: edl.recover(p("run")),
    "remove_metadata": (
        lambda p: edl.set_metadata(p("run@1"), {"a": 1}),
        lambda p: edl.remove_metadata(p("run@1"), ["a"]),
    ),
    "remove_metrics": lambda p: edl.remove_metrics(p("run@1"), ["auc"]),
    "remove_own_shard": lambda p: edl.remove_own_shard(p("run"), 0, 2, 2),
    "remove_tag": lambda p: edl.remove_tag(p("run@1"), "first"),
    "reshard_version": lambda p: edl.reshard_version(p("run@1"), 3, output=p("new")),
    "resolve": lambda p: edl.resolve(p("run@1")),
    "restore": lambda p: edl.restore(p("run@1"), 0, 2),
    "sample_rows": lambda p: edl.sample_rows(p("run@1"), "t"),
    "strip_versions": lambda p: edl.strip_versions([p("run")], 1),
    "slice_table": lambda p: edl.slice_table(p("run@1"), "t", "0:2"),
    "slice_variable": lambda p: (
        edl.save_checkpoint(p("new"), 1, 1, variables={"w": np.zeros(5)}, tables={}),
        edl.slice_variable(p("new@1"), "w", np.s_[0:2]),
    ),
    "save_checkpoint": lambda p: edl.save_checkpoint(p("new"), 1, 1, variables={"w": np.zeros(1)}, tables={}),
    "seal_version": lambda p: edl.seal_version(p("run@1"), edl.resolve(p("run@1")).fingerprint, force=True),
    "set_metadata": lambda p: edl.set_metadata(p("run@1"), {"a": 1}),
    "set_metrics": lambda p: edl.set_metrics(p("run@1"), {"loss": 1.0}),
    "set_modes": lambda p: edl.set_modes(p("run"), {"auc": "max"}),
    "set_note": lambda p: edl.set_note(p("run@1"), "a note"),
    "store_policy": lambda p: edl.store_policy(p("run"), KEEP),
    "trial_locations": lambda p: edl.trial_locations(p(".")),
    "undo": (
        lambda p: edl.remove_tag(p("run@1"), "first"),
        lambda p: edl.prune([p("run")], KEEP, trash=True),
        lambda p: edl.undo(p("run")),
    ),
    "unlock": lambda p: edl.unlock(p("run"), confirm=lambda _: True),
    "verify_and_seal": lambda p: edl.verify_and_seal(p("run@1")),
    "verify_version": lambda p: edl.verify_version(p("run@1")),
    "verify_versions": lambda p: edl.verify_versions([p("run@1")]),
    "wait_for_version": lambda p: edl.wait_for_version(p("run"), timeout_seconds=60),
    "watch_location": lambda p: list(edl.watch_location(p("run"), timeout_seconds=0)),
    "write_plan": (
        lambda p: write_plan(p("plan.json"), edl.plan_prune([p("run")], KEEP)),
        lambda p: read_plan(p("plan.json")),
    ),
}
PATH_WORDS = ("LocationLike", "VersionLike", "PathLike", "'Version'", "'Location'", "CheckpointRef")


def test_every_function_is_here() -> None:
    """A public function whose signature names a location, a version or a path has a row in this table."""
    functions = {name: getattr(edl, name) for name in edl.__all__ if inspect.isfunction(getattr(edl, name))}
    take_paths = {
        name
        for name, function in functions.items()
        if any(
            word in repr(parameter.annotation)
            for parameter in inspect.signature(function).parameters.values()
            for word in PATH_WORDS
        )
    }
    # These look at what the caller has parsed, listed, or opened, already.
    values_only = {"summarize", "mixed_runs", "split_version_dir", "versions_at", "listed_again"}
    assert take_paths - values_only <= set(CALLS)


@pytest.mark.parametrize("name", CALLS)
def test_paths_of_any_kind(name: str, here: Path) -> None:
    """The function does with a path that has `__fspath__` alone what it does with a text."""
    calls = CALLS[name]
    for call in calls if isinstance(calls, tuple) else (calls,):
        call(lambda relative: Fs(os.path.join(here, relative)))


@pytest.mark.parametrize("place", [b"run", 3, None, Path("s3://bucket/run"), Fs("gs:/bucket/run")])
def test_what_is_no_path(place: Any) -> None:
    """Bytes, numbers, and a URL that pathlib has robbed of a slash are a UsageError that names them."""
    for call in (edl.list_versions, edl.open_checkpoint, edl.parse_ref, edl.Location, edl.read_map, as_url):
        with pytest.raises(UsageError):
            call(place)


def test_a_location_from_a_path(tmp_path: Path) -> None:
    """A location has the text of a path, so that two of them are equal however they were made."""
    assert edl.Location(tmp_path) == edl.Location(str(tmp_path))  # type: ignore[arg-type]
    assert edl.Location.of(Fs("run")).url == "run"
