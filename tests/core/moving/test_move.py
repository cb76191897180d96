"""How values move: in few writes, read once, to the same places whatever the pieces; a plan does not grow with rows."""

from __future__ import annotations

import hashlib
import os
import pickle
import shutil
import threading
import tracemalloc
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from builders import write_checkpoint
from checkpoints import only, save_mixed
from edl_ckpt.core import Location, execute_reshard, open_checkpoint, prepare_reshard, reshard_version, verify_version
from edl_ckpt.core.base.errors import CorruptError, EdlCkptError, LockedError
from edl_ckpt.core.base.job import Job
from edl_ckpt.core.base.parallel import RESULT_BYTES
from edl_ckpt.core.catalog.target import Target
from edl_ckpt.core.converting.changes import Outgoing, OutTable
from edl_ckpt.core.kernel import routing
from edl_ckpt.core.model.dtypes import DTYPES
from edl_ckpt.core.model.tables import Extent, IdRun, ShardIndex, TableEntry, TableInfo
from edl_ckpt.core.model.versions import ShardFile, State, Version
from edl_ckpt.core.moving import move
from edl_ckpt.core.moving import survey as planning
from edl_ckpt.core.moving import version_input as versions
from edl_ckpt.core.moving.goal import ShardRules
from edl_ckpt.core.moving.input import PieceCounts, SparsePairs, SurveyedTable
from edl_ckpt.core.moving.move import Turns
from edl_ckpt.core.moving.run import Move
from edl_ckpt.core.moving.settings import ReshardSettings
from edl_ckpt.core.moving.version_input import VersionInput
from edl_ckpt.core.operations.reshard.execute import Survey, plan_reshard
from edl_ckpt.core.reading.blocks import IdBlock, IdPiece, read_piece
from edl_ckpt.core.reading.pieces import IdsAt
from edl_ckpt.core.reading.reader import Checkpoint
from edl_ckpt.core.sources.elasticdl import shard_layout
from edl_ckpt.core.sources.elasticdl.names import ELASTICDL
from edl_ckpt.core.storage import open_store
from edl_ckpt.core.storage.files import PreallocatedFile
from edl_ckpt.core.storage.local import LocalReader
from oracle import Model, Table


def shards_of(location: Path) -> dict[str, str]:
    """Return the digests of the shards below a location."""
    found = sorted(location.glob("version*/*"))
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in found}


def many_tables(count: int, rows: int) -> Model:
    """Return a model of small tables of several widths and dtypes, some of them empty."""
    random = np.random.default_rng(count)
    tables = {}
    for number in range(count):
        dim, dtype = [(1, "float32"), (4, "float64"), (16, "float32"), (3, "int8")][number % 4]
        ids = random.integers(0, 1 << 40, rows if number % 7 else 0).tolist()
        rows_of = {i: (9 * random.standard_normal(dim)).astype(dtype).tobytes() for i in ids}
        tables[f"table_{number:03}"] = Table(dim, "uniform", dtype, rows_of)
    return Model(7, {"w": ("float32", (3,), bytes(12))}, tables)


@pytest.mark.parametrize("to_ps", [1, 3, 8])
def test_the_same_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, either_kernel: str, to_ps: int) -> None:
    """Tables move together or piece by piece, with one worker or five, in any sizes: the shards are the same bytes."""
    write_checkpoint(tmp_path / "a", many_tables(20, 30), 4)
    source = only(tmp_path / "a")
    result = reshard_version(source, to_ps, output=str(tmp_path / "b"))
    expected = shards_of(tmp_path / "b")
    check = verify_version(only(tmp_path / "b"), level="deep")
    assert (check.findings, check.fingerprint) == ((), result.fingerprint)
    for small, piece, gather, workers, least in (
        (1 << 20, 64, 200, 5, 1 << 20),
        (0, 1 << 20, 1 << 20, 1, 1 << 20),
        (0, 1 << 20, 1 << 20, 2, 0),
        (0, 16, 100, 5, 1 << 20),
        (0, 200, 100, 5, 0),
        (900, 7, 50, 3, 10),
    ):
        monkeypatch.setattr(move, "DIRECT_BYTES", least)
        monkeypatch.setattr(move, "CALL_BYTES", least)
        monkeypatch.setattr(versions, "SMALL_TABLE_BYTES", small)
        monkeypatch.setattr(planning, "LEAST_STRETCH_BYTES", 50)
        monkeypatch.setattr(planning, "MAX_STRETCHES", 11)
        plan, _ = prepare_reshard(source, to_ps, output=str(tmp_path / "c"))
        assert (len(plan.survey.small) > 3) is (small > 0)
        settings = ReshardSettings(workers, piece, 64, 1 << 20, gather)
        assert execute_reshard(plan, settings).fingerprint == result.fingerprint
        assert shards_of(tmp_path / "c") == expected
        shutil.rmtree(tmp_path / "c")


@pytest.mark.parametrize("large", [False, True])
def test_misplaced_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, large: bool) -> None:
    """Rows in the wrong shard of the source come into the right one, also where tables move together."""
    model = many_tables(9, 40)
    path = write_checkpoint(tmp_path / "a", model, 3)
    names = sorted(path.iterdir())
    for one, other in ((0, 1), (1, 2)):
        first, second = names[one].read_bytes(), names[other].read_bytes()
        names[one].write_bytes(second)
        names[other].write_bytes(first)
    if large:
        monkeypatch.setattr(versions, "SMALL_TABLE_BYTES", -1)
    result = reshard_version(only(tmp_path / "a"), 5, output=str(tmp_path / "b"))
    check = verify_version(only(tmp_path / "b"), level="deep")
    assert (check.findings, check.fingerprint) == ((), result.fingerprint)


def test_few_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small tables take one write a target together, and values are read once: ids twice, heads once more."""
    write_checkpoint(tmp_path / "a", many_tables(60, 25), 4)
    writes: list[int] = []
    real = PreallocatedFile.write

    def write(self: PreallocatedFile, offset: int, data: memoryview | bytes) -> None:
        writes.extend([len(data)] * ("variables-" in self.path))
        real(self, offset, data)

    monkeypatch.setattr(PreallocatedFile, "write", write)
    source = only(tmp_path / "a")
    plan, settings = prepare_reshard(source, 8, output=str(tmp_path / "b"))
    before = plan.survey.bytes_read
    result = execute_reshard(plan, settings)
    # Each target: its beginning, and all tables; besides, the variable.
    assert len(writes) == 2 * 8 + 2 - 1
    assert sum(writes) == result.size_bytes == result.bytes_written
    with open_checkpoint(source) as checkpoint:
        opening = checkpoint.bytes_read
    assert result.bytes_read - before - opening <= source.size_bytes


@pytest.mark.parametrize("dim", [0, 1])
def test_tables_of_ids_are_put_together_in_bounded_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dim: int
) -> None:
    """What is put together is as large as a worker gathers, ids and heads counted, or one table."""
    rows = {2**40 + i: bytes(dim) for i in range(200)}
    model = Model(7, {}, {f"t{k:02}": Table(dim, "zeros", "int8", rows if k % 2 else {}) for k in range(40)})
    write_checkpoint(tmp_path / "a", model, 2)
    gathered: list[int] = []
    real = shard_layout.write_groups

    def write_groups(files: Any, data: Any, sizes: Any, at: Any) -> None:
        gathered.append(len(data))
        real(files, data, sizes, at)

    monkeypatch.setattr(move, "write_groups", write_groups)
    plan, _ = prepare_reshard(only(tmp_path / "a"), 3, output=str(tmp_path / "b"))
    execute_reshard(plan, ReshardSettings(2, 1 << 12, 1 << 12, 1 << 20, 4 << 10))
    assert len(gathered) > 4
    assert max(gathered) <= 4 << 10
    assert verify_version(only(tmp_path / "b"), level="deep").ok


def test_large_tables_are_written_in_stretches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A large table takes a write of ids and one of values for each target and piece, and a value is read once."""
    monkeypatch.setattr(versions, "SMALL_TABLE_BYTES", -1)
    ids = range(4000)
    model = Model(7, {}, {"t": Table(16, "uniform", "float32", {i: i.to_bytes(4, "little") * 16 for i in ids})})
    write_checkpoint(tmp_path / "a", model, 2)
    writes: list[int] = []
    values: list[int] = []
    real_write, real_read = PreallocatedFile.write, LocalReader.read_into

    def write(self: PreallocatedFile, offset: int, data: memoryview | bytes) -> None:
        writes.extend([len(data)] * ("variables-" in self.path))
        real_write(self, offset, data)

    def read_into(self: LocalReader, offset: int, buffer: memoryview) -> None:
        if str(tmp_path / "a") in self.path:
            values.append(len(buffer) if len(buffer) > 10_000 else 0)
        real_read(self, offset, buffer)

    monkeypatch.setattr(PreallocatedFile, "write", write)
    monkeypatch.setattr(LocalReader, "read_into", read_into)
    plan, settings = prepare_reshard(only(tmp_path / "a"), 3, output=str(tmp_path / "b"))
    values.clear()
    execute_reshard(plan, settings)
    assert sum(values) == 4000 * 64
    # Each target: its beginning, what stands before the values and the ids; then ids and values from two shards.
    assert len(writes) == 3 * 3 + 2 * 2 * 3


def test_a_file_that_cannot_be_moved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the kernel itself cannot write or read a file, the error names it, and nothing is published."""
    if not routing.can_move_file_rows():
        pytest.skip("the compiled kernel was not built here: no C compiler at installation")
    monkeypatch.setattr(versions, "SMALL_TABLE_BYTES", -1)
    monkeypatch.setattr(move, "DIRECT_BYTES", 0)
    model = Model(7, {}, {"t": Table(2, "zeros", "float32", {i: bytes(8) for i in range(300)})})
    write_checkpoint(tmp_path / "a", model, 2)
    seen: list[str] = []

    def descriptor(self: PreallocatedFile | LocalReader) -> int:
        seen.append(self.path)
        return -1

    for kind in (PreallocatedFile, LocalReader):
        with monkeypatch.context() as patch:
            patch.setattr(kind, "descriptor", property(descriptor))
            with pytest.raises(EdlCkptError, match="Bad file descriptor") as raised:
                reshard_version(only(tmp_path / "a"), 3, output=str(tmp_path / "b"))
        assert raised.value.path in seen
        assert not (tmp_path / "b").exists()
    assert verify_version(only(tmp_path / "a"), level="deep").findings == ()


def test_a_source_that_becomes_shorter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, either_kernel: str) -> None:
    """However many bytes are read at a time, the error names the file and the first byte that is missing."""
    monkeypatch.setattr(versions, "SMALL_TABLE_BYTES", -1)
    monkeypatch.setattr(move, "DIRECT_BYTES", 0)
    model = Model(7, {}, {"t": Table(2, "zeros", "float32", {i: bytes(8) for i in range(300)})})
    write_checkpoint(tmp_path / "a", model, 2)
    source = only(tmp_path / "a")
    path = source.shards[1].path
    with open_checkpoint(source) as checkpoint:
        end = checkpoint.shards[1].tables[0].values.start + 1001

    def cut(checkpoint: Checkpoint, piece: IdPiece) -> IdBlock:
        block = read_piece(checkpoint, piece)
        if piece.shard.file.path == path:
            os.truncate(path, end)
        return block

    plan, settings = prepare_reshard(source, 3, output=str(tmp_path / "b"))
    monkeypatch.setattr(versions, "read_piece", cut)
    with pytest.raises(LockedError, match="became shorter") as raised:
        execute_reshard(plan, settings)
    assert (raised.value.path, raised.value.offset) == (path, end)
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize("present", [0, 40_000, 1 << 40])
def test_a_version_beyond_the_page_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, present: int) -> None:
    """Where source and target exceed the memory, each row of the source leaves the page cache once; else none does."""
    if not routing.can_move_file_rows():
        pytest.skip("the compiled kernel was not built here: no C compiler at installation")
    monkeypatch.setattr(versions, "SMALL_TABLE_BYTES", -1)
    monkeypatch.setattr(move, "DIRECT_BYTES", 0)
    monkeypatch.setattr(move, "page_cache_bytes", lambda: present)
    model = Model(7, {}, {"t": Table(16, "zeros", "float32", {i: bytes(64) for i in range(300)})})
    write_checkpoint(tmp_path / "a", model, 2)
    left: list[tuple[str, int, int]] = []
    monkeypatch.setattr(LocalReader, "will_not_need", lambda self, at, size: left.append((self.path, at, size)))
    assert reshard_version(only(tmp_path / "a"), 3, output=str(tmp_path / "b")).rows == 300
    if present == 40_000:
        assert sum(size for _, _, size in left) == 300 * 64
        assert {path for path, _, _ in left} == {shard.path for shard in only(tmp_path / "a").shards}
    else:
        assert left == []
    assert verify_version(only(tmp_path / "b"), level="deep").ok


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize("workers", [1, 4])
def test_ids_that_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, large: bool, workers: int) -> None:
    """Ids that are others than the survey counted end the reshard with an error, and nobody waits for ever."""
    if large:
        monkeypatch.setattr(versions, "SMALL_TABLE_BYTES", -1)
    model = Model(7, {}, {f"t{k}": Table(2, "zeros", "float32", {i: bytes(8) for i in range(300)}) for k in range(3)})
    write_checkpoint(tmp_path / "a", model, 2)
    plan, _ = prepare_reshard(only(tmp_path / "a"), 4, output=str(tmp_path / "b"), workers=workers)
    real = LocalReader.read_into

    def read_into(self: LocalReader, offset: int, buffer: memoryview) -> None:
        real(self, offset, buffer)
        data = np.frombuffer(buffer, np.uint8)
        data[data == 100] = 101

    with monkeypatch.context() as patch:
        patch.setattr(LocalReader, "read_into", read_into)
        small = ReshardSettings(workers, 16, 64, 1 << 20, 64)
        with pytest.raises(LockedError, match=r"table 't\d': its ids"):
            execute_reshard(plan, small)
    assert not (tmp_path / "b").exists()
    assert verify_version(only(tmp_path / "a"), level="deep").findings == ()


def test_one_failure_stops_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A piece that cannot be read lets no piece behind it wait, and its own error is the one that is raised."""
    monkeypatch.setattr(versions, "SMALL_TABLE_BYTES", -1)
    plan, _ = prepare_reshard(save_mixed(tmp_path / "a"), 4, output=str(tmp_path / "b"))
    first: list[Any] = []
    has_failed = threading.Event()
    real = Turns.fail

    def read(checkpoint: Checkpoint, piece: Any, sums: Any = None) -> Any:
        first.append(piece)
        if piece is first[0]:  # those before the one that fails take their turns after it failed
            has_failed.wait(60)
        elif piece.entry is first[0].entry:
            raise CorruptError("the later one", path="x")
        return read_piece(checkpoint, piece, sums)

    def fail(turns: Any, number: int) -> None:
        real(turns, number)
        has_failed.set()

    monkeypatch.setattr(versions, "read_piece", read)
    monkeypatch.setattr(Turns, "fail", fail)
    with pytest.raises(CorruptError, match="the later one"):
        execute_reshard(plan, ReshardSettings(8, 64, 1 << 12, 1 << 20, 1 << 12))
    assert has_failed.is_set()
    assert not (tmp_path / "b").exists()


def test_a_plan_does_not_grow_with_the_rows() -> None:
    """Ten thousand million rows take as many stretches as ten million, and a plan for 1,000 servers a few MiB."""
    stretches, peaks = [], []
    for rows in (10**7, 10**10):
        checkpoint: Any = wide_checkpoint(rows, 64)
        found = planning._Counting(opened_input(checkpoint), 1000, Job.here(1), 1 << 19, ShardRules(1000)).stretches()
        stretches.append(len(found))
        per_target = np.full(1000, rows // 1000 // len(found), np.int64)
        counts = tuple(PieceCounts("t", per_target.copy(), per_target * 6) for _ in found)
        surveyed = survey_of(checkpoint, 1000, counts, found)
        tracemalloc.start()
        plan = plan_reshard(surveyed, Target(open_store("out"), ELASTICDL, 7, "out/version-7"))
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert len(plan.routes) == len(found)
    assert max(stretches) <= planning.MAX_STRETCHES + 64
    assert max(peaks) < 12 << 20
    assert sum(per_target.nbytes * 2 for _ in found) < 8 << 20


def test_a_plan_for_a_cluster() -> None:
    """Ten thousand million rows in tasks of 256 MiB, 256 to 400: a stretch takes memory for its own targets alone."""
    checkpoint: Any = wide_checkpoint(10**10, 256)
    cluster: Any = SimpleNamespace(is_cluster=True, threads=1, task_bytes=lambda _: 256 << 20)
    found = planning._Counting(opened_input(checkpoint), 400, Job(cluster, 1), 1 << 19, ShardRules(400)).stretches()
    assert len(found) > 2_500
    tracemalloc.start()
    counts = SparsePairs(400, PieceCounts)
    for ids in found:
        rows = np.zeros(400, np.int64)
        rows[ids.shard % 16 :: 16] = 10_000
        counts.append(rows, rows * 6, np.flatnonzero(rows), "t")
    surveyed = survey_of(checkpoint, 400, counts, found)
    plan = plan_reshard(surveyed, Target(open_store("out"), ELASTICDL, 7, "out/version-7"))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert plan.rows == 25 * 10_000 * len(found)
    assert peak < 1800 * len(found)
    assert np.count_nonzero(plan.routes[-1].ids_at) == 25
    settings = ReshardSettings(workers=1, piece_bytes=1 << 19, batch_bytes=1 << 20, proof_batch_bytes=1 << 20)
    tasks = list(islice(Move(plan, settings, opened_input(checkpoint), Job(cluster, 1)).tasks(cluster), 100))
    assert tasks
    assert max(len(pickle.dumps(task)) for task in tasks) < RESULT_BYTES


def opened_input(checkpoint: Any) -> VersionInput:
    """Return a checkpoint of one table as an input: all of it goes out."""
    table = OutTable("t", TableInfo("t", 16, "uniform"), DTYPES["float32"], 1, by_number=False)
    return VersionInput(checkpoint, Outgoing((table,), ()))


def survey_of(checkpoint: Any, to_ps: int, counts: Sequence[PieceCounts], stretches: list[IdsAt]) -> Survey:
    """Return the survey of a table with these stretches."""
    return Survey(
        source=checkpoint.version,
        to_ps=to_ps,
        number=7,
        variables=(),
        tables=(SurveyedTable(TableInfo("t", 16, "uniform"), DTYPES["float32"]),),
        counts=counts,
        stretches=tuple(stretches),
    )


def wide_checkpoint(rows: int, ps_num: int) -> SimpleNamespace:
    """Return the index of a table of so many rows in `ps_num` shards, which are nowhere."""
    own, shards, entries = rows // ps_num, [], []
    files = [ShardFile(k, ps_num, f"run/version-7/{k}", own * 70, 0.0) for k in range(ps_num)]
    for file in files:
        values = Extent(100, 100 + own * 64)
        entry = TableEntry("t", DTYPES["float32"], 16, own, values, (IdRun(values.end, values.end + own * 6),), 50)
        shards.append(ShardIndex(file, 7, "v4", (), (), (entry,)))
        entries.append((shards[-1], entry))
    version = Version(Location("run"), 7, "run/version-7", ELASTICDL, State.COMPLETE, ps_num, tuple(files))
    near = SimpleNamespace(block_bytes=0, path="", size_bytes=0, generation="")
    return SimpleNamespace(
        version=version,
        shards=shards,
        table_names=["t"],
        is_far=False,
        table_dtype=lambda _name: DTYPES["float32"],
        entries=lambda _name: entries,
        reader=lambda *_: near,
        files={file.path: near for file in files},
    )
