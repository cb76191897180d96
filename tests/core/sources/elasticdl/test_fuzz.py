"""A million mutated shards, and what a few have taught: only our errors come out, in bounded time and memory."""

from __future__ import annotations

import multiprocessing
import time
import tracemalloc
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import mutants
from builders import message, shard_bytes, table_shard
from edl_ckpt.core import open_checkpoint, verify_version
from edl_ckpt.core.base.errors import CorruptError
from edl_ckpt.core.base.numbers import varint
from edl_ckpt.core.base.parallel import default_workers
from edl_ckpt.core.operations.diff import diff_versions
from edl_ckpt.core.operations.lookup.nearest import find_nearest
from edl_ckpt.core.operations.lookup.rows import look_up
from edl_ckpt.core.operations.reshard.execute import prepare_reshard
from edl_ckpt.core.operations.statistics import tensor_stats
from edl_ckpt.proto import tensor_pb2
from mutants import (
    PEAK_BYTES,
    VERSION,
    Tally,
    corpus,
    index_alone,
    limit_memory,
    mutant,
    place,
    traced,
    try_mutants,
    try_shards,
    use,
)
from oracle import Model, Table
from places import DATA

CRASHERS = sorted((DATA / "fuzz").glob("*.ckpt"))
_AT_ONCE = 400
_MORE_BYTES = 256 << 20
"""Of address space for a process that tries mutants, beyond what it has when it begins."""


@pytest.mark.parametrize(
    ("count", "trace_every"),
    [
        pytest.param(120, 4, id="sample"),
        pytest.param(400, 4, id="more", marks=pytest.mark.slow),
        pytest.param(1_000_000, 9, id="million", marks=pytest.mark.hours),
    ],
)
def test_mutants(tmp_path: Path, count: int, trace_every: int) -> None:
    """No mutant raises anything but our errors, takes a second, or memory by what it claims; verify raises nothing.

    What verify finds no error in is read whole; what cannot be read has an error. More than a few are tried by several
    processes, each with a bound on its memory; that of one call in `trace_every` is measured.
    """
    began, tally = time.perf_counter(), Tally()
    attempt = partial(try_mutants, directory=str(tmp_path), trace_every=trace_every * _AT_ONCE)
    some = [range(first, min(first + _AT_ONCE, count)) for first in range(0, count, _AT_ONCE)]
    with ExitStack() as stack:
        done: Iterable[Tally] = map(attempt, some)
        if len(some) > 4:
            context = multiprocessing.get_context("spawn")
            pool = ProcessPoolExecutor(default_workers(), context, limit_memory, (_MORE_BYTES,))
            done = stack.enter_context(pool).map(attempt, some)
        for each in done:
            tally.add(each)
    print(f"{tally}; {count / (time.perf_counter() - began):.0f} mutants a second")
    assert tally.faults[:20] == []
    assert tally.mutants == count
    assert tally.most_read[0] < 50


def test_mutants_are_worth_it() -> None:
    """A number is one mutant for ever; what they are made of is sound and of every generation; many are not refused."""
    tally, told = Tally(), set()
    for data in corpus():
        told |= {shard.generation for shard in index_alone(data, tally)}
    assert tally.refused == 0
    assert told >= {"v0", "v1", "v2", "v3", "v4"}
    assert [mutant(n) for n in range(50)] == [mutant(n) for n in range(50)]
    for number in range(400):
        index_alone(mutant(number), tally)
    assert 80 < tally.refused < 350


@pytest.mark.parametrize("path", CRASHERS, ids=lambda path: path.stem)
def test_crashers(tmp_path: Path, path: Path) -> None:
    """What was once more than our errors, or without end, no longer is."""
    tally = Tally()
    with traced():
        try_shards([path.read_bytes()], tmp_path, tally)
    assert tally.faults == []


def test_faults_are_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error that is not ours, an endless loop and memory by a claimed length are each seen as a fault."""

    def raises(*_: object) -> None:
        raise KeyError("x")

    def loops(*_: object) -> None:
        while True:
            pass

    def claims(*_: object) -> None:
        bytearray(PEAK_BYTES + 1)

    seen = []
    for fault in (raises, loops, claims):
        monkeypatch.setattr(mutants, "SECONDS", 0.05 if fault is loops else 60.0)
        tally = Tally()
        monkeypatch.setattr(mutants, "index_alone", fault)
        with traced():
            try_shards([b""], None, tally)
        seen += [text.partition(" ")[0] for _, text in tally.faults]
    assert seen[:2] == ["KeyError", "TooSlowError"]
    assert int(seen[2]) >= PEAK_BYTES


@pytest.mark.parametrize("ids", [b"\x90\x00\x07", b"\x10\x06\x90\x00\x07\x10\x08", b"\x12\x01\x06\x90\x80\x00\x07"])
def test_tag_longer_than_needed(tmp_path: Path, ids: bytes) -> None:
    """An unpacked id whose tag takes more bytes than it needs is read as protobuf reads it, and reading ends."""
    expected = list(tensor_pb2.IndexedSlicesProto.FromString(ids).ids)
    with open_checkpoint(place(tmp_path, table_shard(ids, len(expected)))) as checkpoint:
        assert [i for rows in checkpoint.table("t") for i in rows.ids.tolist()] == expected


def test_ids_in_many_pieces(tmp_path: Path) -> None:
    """Ids packed and unpacked by turns are read once, not a block for each turn; without end they are refused."""
    turn = b"\x10\x05\x12\x01\x06"
    version = place(tmp_path, table_shard(turn * 1000 + b"\x10\x05" * 500_000, 502_000))
    with open_checkpoint(version) as checkpoint:
        assert checkpoint.bytes_read < 10 * version.size_bytes
        assert sum(len(rows.ids) for rows in checkpoint.table("t")) == 502_000
    with pytest.raises(CorruptError, match="the ids of a table are in more than 10000 pieces"):
        open_checkpoint(place(tmp_path, table_shard(turn * 6000, 12_000)))


def dense_shard(generation: str, shape: list[int], values: bytes = b"") -> bytes:
    """Return a shard with one dense variable "x" of float32, whatever its shape."""
    if generation == "v2":
        dims = message(2, *map(varint, shape))
        return b"\x08" + varint(VERSION) + message(2, message(1, b"x"), dims, message(3, values), b"\x28\x01")
    sizes = message(2, *(message(2, b"\x08" + varint(size)) for size in shape))
    tensor = message(2, b"\x08\x01", sizes, message(4, values))
    return b"\x08" + varint(VERSION) + message(3, message(1, b"x"), tensor)


@pytest.mark.parametrize("generation", ["v2", "v4"])
@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ([1] * 33, "a shape has 33 dimensions, the limit is 32 "),
        ([1] * 65, "a shape has 65 dimensions, the limit is 32 "),
        ([2**62] * 40_000, "a shape has (40000 dimensions, the limit is 32|360000 bytes, the limit is 320) "),
        ([0, 2**60], rf"no array can have the shape \[0, {2**60}\] "),
        ([2**40, 0, 2**40], rf"no array can have the shape \[{2**40}, 0, {2**40}\] "),
    ],
)
def test_shape_of_no_array(tmp_path: Path, generation: str, shape: list[int], message: str) -> None:
    """A shape that numpy has no array for is found where it stands, before anybody multiplies its sizes."""
    version = place(tmp_path, dense_shard(generation, shape, b"abcd" if 1 in shape else b""))
    (finding,) = (f for f in verify_version(version).findings if f.severity == "error")
    assert (finding.code, finding.shard) == ("malformed", 0)
    with pytest.raises(CorruptError, match=message):
        open_checkpoint(version)


@pytest.mark.parametrize("generation", ["v2", "v4"])
@pytest.mark.parametrize("shape", [[1] * 32, [0, 2**59], [2**30, 0, 2**29]])
def test_shape_of_some_array(tmp_path: Path, generation: str, shape: list[int]) -> None:
    """The largest shapes that are not refused are read: as arrays of 32 dimensions, and as empty ones."""
    with open_checkpoint(place(tmp_path, dense_shard(generation, shape, b"abcd" if 1 in shape else b""))) as checkpoint:
        assert checkpoint.variable("x").shape == tuple(shape)


def empty_table_shard(dim: int) -> bytes:
    """Return a v4 shard with one table "t" without rows, of which only its info tells a dim."""
    return b"\x08" + varint(VERSION) + message(2, message(1, b"t"), b"\x10" + varint(dim))


@pytest.mark.parametrize("dim", [-1, -(2**63), 2**31, 2**62])
def test_dim_of_no_row(tmp_path: Path, dim: int) -> None:
    """A table info with a dim that no row can have is found, whether there are rows or not."""
    version = place(tmp_path, empty_table_shard(dim))
    assert "malformed" in {f.code for f in verify_version(version).findings}
    with pytest.raises(CorruptError, match=f"a table info has dim {dim}, expected 0 to 2147483647"):
        open_checkpoint(version)


def test_claimed_dim_costs_nothing(tmp_path: Path) -> None:
    """The dim of a table without rows is given with its no vectors, and no memory is taken for what it claims."""
    dim = 2**31 - 1
    version = place(tmp_path, empty_table_shard(dim))
    tracemalloc.start()
    held = look_up(version, "t", list(range(1000)))
    with open_checkpoint(version) as checkpoint:
        part = checkpoint.restore(0, 1)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert held.vectors.shape == part.tables["t"].vectors.shape == (0, dim)
    assert held.missing == tuple(range(1000))
    assert peak < 4 << 20


def test_more_ids_than_rows_cost_nothing(tmp_path: Path) -> None:
    """Thousands of ids beside one long row are a mismatch, found before memory is taken for as many rows."""
    ids = message(2, bytes(60_000))
    with open_checkpoint(place(tmp_path, table_shard(ids, 1, dim=50_000))) as checkpoint:
        tracemalloc.start()
        with pytest.raises(CorruptError, match="60000 or more ids for 1 row"):
            next(iter(checkpoint.table("t")))
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 4 << 20


@pytest.mark.parametrize(("rows", "dim"), [(9, 1), (2**31 - 1, 0)])
def test_more_rows_than_bytes_of_ids(tmp_path: Path, rows: int, dim: int) -> None:
    """A small table whose rows are more than the bytes of its ids is a mismatch for all readers."""
    version = place(tmp_path, table_shard(message(2, b"\x01\x02"), rows, dim=dim))
    for read in (lambda: prepare_reshard(version, 2), lambda: diff_versions(version, version), lambda: use(version)):
        with pytest.raises(CorruptError, match=f"'t' has 2 ids for {rows} rows") as caught:
            read()
        assert caught.value.offset is not None
    assert "id-row-mismatch" in {f.code for f in verify_version(version, level="deep").findings}


def test_empty_table_without_info(tmp_path: Path) -> None:
    """A table without rows that no info tells of is an error as one with rows is, and nothing is made from it."""
    vectors = message(1, b"\x08\x01", message(2, message(2), message(2, b"\x08\x03")))
    data = b"\x08" + varint(VERSION) + message(4, message(1, b"t"), message(2, vectors))
    version = place(tmp_path / "a", data)
    assert [f.code for f in verify_version(version).findings] == ["missing-table-info"]
    with pytest.raises(
        CorruptError, match="'t': no shard has an info for the table: its initializer is lost"
    ) as caught:
        prepare_reshard(version, 3, output=str(tmp_path / "b"))
    assert caught.value.code == "missing-table-info"


SIGNALLING = b"\x01\x00\x80\x7f"
"""A NaN of float32 that sets the processor's flag when it is cast: numpy warns of it."""


def test_statistics_of_any_values(tmp_path: Path) -> None:
    """Values at the edges of float64 and signalling NaNs have statistics and a histogram, without a warning."""
    large = np.array([1.7e308, -1.7e308, 1.7e308, 5e-324, 2.0**1023, 0.0])
    model = Model(VERSION, {f"x{k}": ("float64", (1,), value.tobytes()) for k, value in enumerate(large)})
    model.dense |= {"all": ("float64", (6,), large.tobytes()), "nan": ("float32", (2,), SIGNALLING + bytes(4))}
    with open_checkpoint(place(tmp_path, shard_bytes(model, 0, 1, "v4"))) as checkpoint:
        held = {s.name: s for s in tensor_stats(checkpoint)}
    assert [held[f"x{k}"].maximum for k in range(6)] == large.tolist()
    assert (held["all"].minimum, held["all"].maximum, held["all"].zeros) == (-1.7e308, 1.7e308, 1)
    assert sum(held["all"].histogram) == 6
    assert np.isfinite(held["all"].edges).all()
    assert (held["nan"].nan, held["nan"].elements, held["nan"].l2) == (1, 2, 0.0)


def test_signalling_nan_warns_nobody(tmp_path: Path) -> None:
    """Rows with a signalling NaN are compared and looked for as those with any NaN: numpy's warning is no news."""
    versions = []
    for name, last in (("a", bytes(4)), ("b", b"\x00\x00\x80\x3f")):
        model = Model(VERSION, tables={"t": Table(2, "", "float32", {1: SIGNALLING + last, 2: last + last})})
        versions.append(place(tmp_path / name, shard_bytes(model, 0, 1, "v4")))
    (table,) = diff_versions(*versions, rows=True).tables
    assert (table.changed, table.unchanged) == (2, 0)
    held = look_up(versions[1], "t", [1, 2])
    assert [n.nearest for n in find_nearest(versions[1], held, 1)] == [(), ()]


def test_shards_that_differ_in_size(tmp_path: Path) -> None:
    """Two shards with one variable and one table in two sizes are a finding at every level, also at that of values."""
    shards = []
    for ps_id, dim in enumerate((1, 3)):
        model = Model(VERSION, {"x": ("float32", (dim,), bytes(4 * dim))})
        model.tables = {"t": Table(dim, "", "float32", {ps_id: bytes(4 * dim)})}
        shards.append(shard_bytes(model, 0, 1, "v4"))
    version = place(tmp_path, *shards)
    for level in ("default", "deep"):
        result = verify_version(version, level=level)
        assert {"duplicate-variable", "info-mismatch"} <= {f.code for f in result.findings}
        assert result.fingerprint is None
    with pytest.raises(CorruptError):
        open_checkpoint(version)
