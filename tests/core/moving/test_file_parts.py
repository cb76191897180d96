"""The parts of files of any system: each byte has one sender, and each value is counted once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from checkpoints import at
from edl_ckpt.core import Changes, Table, open_checkpoint, save_checkpoint
from edl_ckpt.core.base.errors import UnsupportedError
from edl_ckpt.core.base.job import Job
from edl_ckpt.core.base.progress import SILENT
from edl_ckpt.core.moving.conversion import Conversion, plan_conversion
from edl_ckpt.core.moving.file_parts import FileParts
from edl_ckpt.core.moving.parts import MoveTask
from foreign import SYSTEMS

CASES = [
    ("dcp/torchrec", 2, "dcp"),
    ("dcp/torchrec", 2, "torch-checkpointing"),
    ("safetensors", 200, "safetensors"),
    ("dcp/everything", 3, "dcp"),
    ("bundle/deeprec", 100, "tensorflow"),
    ("bundle/partitioned", 30, "dcp"),
    ("tfra", 3, "tfra"),
    ("dynamicemb", 3, "dynamicemb"),
]


@contextmanager
def planned(place: Path, number: int, system: str, **how: Any) -> Iterator[Conversion]:
    """Yield a plan of a version for three ranks."""
    with open_checkpoint(at(place, number)) as source:
        yield plan_conversion(source, system, 3, Changes(**how), Job.here(1, reporter=SILENT), number=number)


def workers(task_bytes: int, *, room: bool = True) -> Any:
    """Return an executor of so many bytes a task, whose workers have room on their disks or not."""

    def check(*_: object) -> None:
        if not room:
            raise UnsupportedError("no room")

    return SimpleNamespace(threads=2, task_bytes=lambda _: task_bytes, check_temporary=check)


def check_parts(plan: Conversion, executor: Any, least_bytes: int) -> list[MoveTask[int]]:
    """Check that each byte is sent by one process, and each value counted once; return the tasks of others."""
    parts = FileParts(plan, executor, least_bytes)
    tasks, own = list(parts.tasks()), list(parts.own_tasks())
    sent = {number: [tuple(span) for span in spans] for number, spans in parts.own_spans().items()}
    for task in tasks:
        for target, edges, first in task.extents:
            assert edges[0] == first * least_bytes
            assert all(edge % least_bytes == 0 for edge in edges[:-1])
            sent[target].append((edges[0], edges[-1]))
    for number, size_bytes in enumerate(plan.sizes):
        spans = sorted(sent[number])
        assert [low for low, _ in spans] == [0, *(high for _, high in spans[:-1])][: len(spans)]
        assert (spans[-1][1] if spans else 0) == size_bytes
    counted = Counter(read.rows for task in [*tasks, *own] for read in task.reads if read.counts)
    assert counted == Counter(plan.order)
    dense = sorted((d.name, d.start, d.start + d.size) for task in [*tasks, *own] for d in task.dense)
    for variable in plan.survey.variables:
        spans = [(start, end) for name, start, end in dense if name == variable.name]
        assert [low for low, _ in spans] == [0, *(high for _, high in spans[:-1])]
        assert spans[-1][1] == variable.size_bytes
    return tasks


@pytest.mark.parametrize(("folder", "number", "system"), CASES, ids=[f"{case[0]}-{case[2]}" for case in CASES])
def test_each_byte_has_one_sender(folder: str, number: int, system: str) -> None:
    """Whatever the sizes of parts and of tasks: of variables, matrices, rows, framing and files that go along."""
    with planned(SYSTEMS / folder, number, system) as plan:
        for least_bytes in (100, 1000, 5 << 20):
            for task_bytes in (1, 4000, 1 << 30):
                check_parts(plan, workers(task_bytes), least_bytes)


def test_rows_are_read_again_only_at_the_ends_of_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A block ends where few parts are incomplete, and only those of the stretches before it are read again."""
    monkeypatch.setattr("edl_ckpt.core.moving.version_input.PIECE_BYTES", 1 << 10)
    monkeypatch.setattr("edl_ckpt.core.moving.survey.PIECE_BYTES", 2 << 10)
    monkeypatch.setattr("edl_ckpt.core.moving.survey.LEAST_STRETCH_BYTES", 2 << 10)
    random = np.random.default_rng(5)
    table = Table(random.choice(1 << 40, 40_000, replace=False), random.random((40_000, 16), np.float32))
    save_checkpoint(tmp_path, 5, 2, variables={}, tables={"users": table}, layout="elasticdl")
    with planned(tmp_path, 5, "tfra") as plan:
        tasks = check_parts(plan, workers(100_000), 10_000)
        assert len(tasks) > 10
        reads = sum(read.values for task in tasks for read in task.reads)
        assert len(plan.order) < reads < 2 * len(plan.order)


def test_a_table_in_groups_of_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each part has rows of all stretches: they are counted once, and read for as many parts as there is room for."""
    monkeypatch.setattr("edl_ckpt.core.moving.file_parts.MOST_BYTES", 200_000)
    monkeypatch.setattr("edl_ckpt.core.moving.file_parts.WORKER_PART_BYTES", 100_000)
    random = np.random.default_rng(5)
    table = Table(np.arange(10_000), random.random((10_000, 16), np.float32))
    save_checkpoint(tmp_path, 5, 2, variables={}, tables={"users": table}, layout="elasticdl")
    with planned(tmp_path, 5, "tensorflow") as plan:
        with_disks = [task for task in check_parts(plan, workers(10_000), 1000) if task.reads]
        without = [task for task in check_parts(plan, workers(10_000, room=False), 1000) if task.reads]
    assert (len(with_disks), len(without)) == (4, 15)
    assert all(len(task.reads) == len(plan.order) for task in with_disks)


def test_checksums_of_tensors_are_filled_in_by_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A task that begins inside a tensor reads all of it for the checksum behind it; only longer ones are left."""
    with planned(SYSTEMS / "dcp/everything", 3, "dcp") as plan:
        monkeypatch.setattr("edl_ckpt.core.moving.file_parts.EXACT_BYTES", 8000)
        tasks = check_parts(plan, workers(1), 1000)
        assert any(task.sealed for task in tasks)
        sent = sum(extent.edges[-1] - extent.edges[0] for task in tasks for extent in task.extents)
        monkeypatch.setattr("edl_ckpt.core.moving.file_parts.EXACT_BYTES", 1)
        fewer = check_parts(plan, workers(1), 1000)
        assert not any(task.sealed for task in fewer)
        assert sent > sum(extent.edges[-1] - extent.edges[0] for task in fewer for extent in task.extents)


def test_parts_of_many_small_variables_are_not_sent_by_workers(tmp_path: Path) -> None:
    """Their sums would be larger than they are themselves."""
    variables: dict[str, Any] = {f"v{number}": np.ones(1100, np.float32) for number in range(900)}
    save_checkpoint(tmp_path, 5, 2, variables={**variables, "w": np.ones((1200, 1000), np.float32)}, tables={})
    with planned(tmp_path, 5, "tensorflow") as plan:
        tasks = check_parts(plan, workers(1 << 20), 1 << 20)
    assert {dense.name for task in tasks for dense in task.dense} == {"w"}
