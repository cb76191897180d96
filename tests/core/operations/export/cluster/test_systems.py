"""An export of a system's files on a cluster: every byte is the one that one machine writes."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from checkpoints import at, only, save_large, save_mixed
from cluster_tasks import renewed
from edl_ckpt.core import Table, UnsupportedError, save_checkpoint, verify_version
from edl_ckpt.core.base.choices import FormatName
from edl_ckpt.core.catalog.files import alone_at
from edl_ckpt.core.commit.writers import Writers
from edl_ckpt.core.model.versions import Version
from edl_ckpt.core.operations.export import Selection, export_version, plan_export
from edl_ckpt.core.operations.export.cluster.shared_files import SharedFiles
from foreign import SYSTEMS as DATA

SYSTEMS: list[FormatName] = ["dcp", "tfra", "dynamicemb", "torch-checkpointing"]


def bytes_in(place: Path) -> dict[str, bytes]:
    """Return all files of a directory."""
    return {str(path.relative_to(place)): path.read_bytes() for path in place.rglob("*") if path.is_file()}


def same_files(version: Version, client: Any, tmp: Path, name: FormatName, **options: Any) -> None:
    """Export a version here and on a cluster; compare all bytes and the results, and verify what was written."""
    results = []
    for where, executor in (("here", None), ("there", client)):
        (tmp / where).mkdir()
        goal = tmp / where / "out"
        results.append(export_version(version, goal, format_name=name, executor=executor, **options))
    here, there = results
    assert bytes_in(tmp / "here/out") == bytes_in(tmp / "there/out")
    assert [path.name for path in (tmp / "there").iterdir()] == ["out"]
    for each in ("fingerprint", "variables", "tables", "rows", "proved", "overflowed", "items", "left_out"):
        assert getattr(there, each) == getattr(here, each)
    assert verify_version(alone_at(tmp / "there/out"), level="deep").ok


def save_matrix(place: Path) -> None:
    """Save a table of the ids 0 to n - 1 and two variables on three servers."""
    random = np.random.default_rng(7)
    table = Table(random.permutation(50_000), random.random((50_000, 8), np.float32))
    variables: dict[str, Any] = {"w": random.random((300, 1000)), "bias": np.zeros(3, np.float32)}
    save_checkpoint(place, 5, 3, variables=variables, tables={"users": table}, layout="elasticdl")


@pytest.mark.parametrize("name", SYSTEMS)
def test_same_bytes(tmp_path: Path, client: Any, name: FormatName) -> None:
    """The files of each system are the same, whoever writes them, and nothing is left next to them."""
    save_matrix(tmp_path / "run")
    tables = Selection(tables=("users",)) if name in {"tfra", "dynamicemb"} else None
    same_files(only(tmp_path / "run"), client, tmp_path, name, ranks=3, selection=tables)


def test_a_bundle(tmp_path: Path, client: Any) -> None:
    """A bundle for so many parts, with the names that its source has."""
    same_files(at(DATA / "bundle/deeprec", 100), client, tmp_path, "tensorflow", ranks=2)


def test_rows_with_numbers(tmp_path: Path, client: Any) -> None:
    """A matrix of a system goes out by the numbers of its rows, from several tasks."""
    same_files(at(DATA / "dcp/torchrec", 2), client, tmp_path, "dcp", ranks=3)


def test_files_that_a_late_task_may_have_open(tmp_path: Path, client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nobody knows which files late tasks have open, all of them become new ones with the same bytes."""
    save_large(tmp_path / "run")
    real, fenced = Writers.end, list[bool]()

    def end(writers: Writers) -> None:
        fenced.append(real(writers) == set())

    monkeypatch.setattr(Writers, "end", end)
    same_files(only(tmp_path / "run"), client, tmp_path, "tfra", ranks=2, selection=Selection(tables=("users",)))
    assert fenced == [True]


def test_a_killed_worker(tmp_path: Path, processes: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that is killed when the first task is done changes nothing of the result, and nothing is left."""
    save_large(tmp_path / "run")
    monkeypatch.setattr("edl_ckpt.core.cluster.executor.LEAST_TASK_BYTES", 1 << 18)
    monkeypatch.setattr("edl_ckpt.core.cluster.executor.TASKS_A_THREAD", 64)
    pid = min(processes.run(os.getpid).values())
    real, killed = SharedFiles.take, list[int]()

    def take(*arguments: Any) -> None:
        if not killed:
            killed.append(pid)
            os.kill(pid, signal.SIGKILL)
        real(*arguments)

    monkeypatch.setattr(SharedFiles, "take", take)
    try:
        chosen = Selection(tables=("users",))
        same_files(only(tmp_path / "run"), processes, tmp_path, "dynamicemb", ranks=3, selection=chosen)
    finally:
        renewed(processes, pid)
    assert killed


@pytest.mark.parametrize("goal", ["s3://bucket/out", "out"])
def test_refused(tmp_path: Path, client: Any, goal: str) -> None:
    """What a cluster cannot write is refused before anything is read, with the way that is left."""
    save_mixed(tmp_path / "run")
    place, chosen = goal if ":" in goal else tmp_path / goal, Selection(remap=True)
    for function in (export_version, plan_export):
        with pytest.raises(UnsupportedError, match="does not number the rows") as caught:
            function(only(tmp_path / "run"), place, format_name="dcp", executor=client, selection=chosen)
        assert "without --cluster" in str(caught.value.hint)
    assert not (tmp_path / "out").exists()
