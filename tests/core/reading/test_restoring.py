"""A restore by any number of servers: what ElasticDL restores, from the shards that can have it, in bounded memory."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import edl_ckpt.core.reading.gather as gather_module
from builders import models, table_shard, write_checkpoint, write_unchecked
from checkpoints import at, drop_seal, only, save_mixed, save_small, save_varied, stored_rows
from edl_ckpt.core import (
    CheckpointSaver,
    CorruptError,
    EdlCkptError,
    IncompleteError,
    LockedError,
    NotFoundError,
    Part,
    Progress,
    RefusedError,
    Table,
    UsageError,
    open_checkpoint,
    resolve,
    restore,
    save_checkpoint,
)
from edl_ckpt.core.base.numbers import varint
from edl_ckpt.core.sources.elasticdl.wire import head
from edl_ckpt.core.storage.local import LocalReader
from edl_ckpt.core.storage.location import Location
from elasticdl_restore import Parameters, restore_params
from golden_cases import ALL, LEGACY, section_of
from oracle import Model, add_part, combined, expected_model, variable_owner, without_slots
from places import GOLDEN
from reporters import Recorder
from s3_fixtures import Bucket

COUNTS = range(1, 10)


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[LocalReader]:
    """Return the files that are opened from now on."""
    files: list[LocalReader] = []
    real = LocalReader.__init__

    def counted(reader: LocalReader, path: str) -> None:
        real(reader, path)
        files.append(reader)

    monkeypatch.setattr(LocalReader, "__init__", counted)
    return files


def shard_numbers(files: list[LocalReader]) -> list[int]:
    """Return the ps_ids of shards that were opened, in order."""
    names = [Path(file.path).name.split("-") for file in files]
    return sorted(int(name[1]) if len(name) > 1 else 0 for name in names)


def assert_same(part: Part, parameters: Parameters) -> None:
    """A part has what ElasticDL's restore has: every variable and row, bit for bit, each id once."""
    assert part.version == parameters.version
    assert {n: (v.dtype, v.shape, v.tobytes()) for n, v in part.variables.items()} == {
        n: (v.dtype, v.shape, v.tobytes()) for n, v in parameters.dense.items()
    }
    assert part.tables.keys() == parameters.tables.keys()
    for name, (ids, vectors) in part.tables.items():
        rows = {int(i): row.tobytes() for i, row in zip(ids, vectors, strict=True)}
        assert len(rows) == len(ids)
        assert rows == {int(i): row.tobytes() for i, row in parameters.tables[name].items()}


@pytest.mark.parametrize("old", COUNTS)
def test_any_layout_to_any(tmp_path: Path, old: int, opened: list[LocalReader]) -> None:
    """For M shards and N servers each server has what ElasticDL gives it, from the shards that can have it alone.

    Shard i can, if i and the server's number agree modulo gcd(M, N). No other file is opened.
    """
    directory = save_varied(tmp_path, old)
    for new in COUNTS:
        step = math.gcd(old, new)
        for ps_id in range(new):
            opened.clear()
            part = restore(f"{tmp_path}@7", ps_id, new)
            assert shard_numbers(opened) == [i for i in range(old) if i % step == ps_id % step]
            if (old + new + ps_id) % 3 == 0:  # the judge takes long
                assert_same(part, restore_params(directory, ps_id, new))


def test_union_of_parts_is_the_whole(tmp_path: Path) -> None:
    """The parts of all servers have every row once, in the order of shards and rows."""
    save_varied(tmp_path, 6)
    with open_checkpoint(f"{tmp_path}@7") as checkpoint:
        whole = {name: stored_rows(checkpoint.table(name)) for name in checkpoint.table_names}
        names = checkpoint.variable_names
    for new in (1, 4, 9):
        progress = Progress()
        parts = [restore(f"{tmp_path}@7", ps_id, new, reporter=progress) for ps_id in range(new)]
        assert 0 < progress.done_bytes == progress.total_bytes
        assert sorted(name for part in parts for name in part.variables) == names
        for name, (ids, vectors) in whole.items():
            for ps_id, part in enumerate(parts):
                mine = ids % new == ps_id
                assert np.array_equal(part.tables[name].ids, ids[mine])
                assert np.array_equal(part.tables[name].vectors, vectors[mine])


@given(model=models(), old=st.integers(1, 6), new=st.integers(1, 6), data=st.data())
def test_is_elasticdls(
    tmp_path_factory: pytest.TempPathFactory, either_kernel: str, model: Model, old: int, new: int, data: st.DataObject
) -> None:
    """Any model, whichever saver wrote it, is restored as ElasticDL does, opened whole or not."""
    saver = data.draw(st.sampled_from(["go", "python"]))
    ps_id = data.draw(st.integers(0, new - 1))
    location = tmp_path_factory.mktemp("run")
    directory = write_checkpoint(location, model, old, saver=saver)
    expected = restore_params(directory, ps_id, new)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gather_module, "ID_BYTES", data.draw(st.sampled_from([1, 5, 11, 64, 1 << 18])))
        part = restore(f"{location}@latest", ps_id, new, workers=data.draw(st.integers(1, 3)))
    assert_same(part, expected)
    with open_checkpoint(f"{location}@latest") as checkpoint:
        assert_same(checkpoint.restore(ps_id, new), expected)
        assert_same(checkpoint.restore(ps_id, new, all_shards=True), expected)


@pytest.mark.parametrize("case", ALL)
def test_golden(case: str, expected: Any, either_kernel: str, opened: list[LocalReader]) -> None:
    """What ElasticDL saved in any generation is restored whole; of generations v0 to v2 every shard is read.

    Of the others those are read that can have anything for the server.
    """
    section, reporter = section_of(expected, case), Recorder()
    shards = len(only(GOLDEN / case).shards)
    for new in (1, 2, 3, 4):
        model = Model(section["version"])
        for ps_id in range(new):
            opened.clear()
            part = restore(str(GOLDEN / case), ps_id, new, reporter=reporter)
            old = LEGACY.get(case.split("/")[1], "v4") in {"v0", "v1", "v2"}
            step = 1 if old else math.gcd(shards, new)
            own = {i for i in range(shards) if i % step == ps_id % step}
            read = {int(Path(file.path).name.split("-")[1]) if shards > 1 else 0 for file in opened if file.bytes_read}
            assert own <= {*shard_numbers(opened)}
            # Python's servers do not say the dtype of a table without rows: then headers of other shards do.
            assert read == own or any(not len(table.ids) for table in part.tables.values())
            add_part(model, part, ps_id, new)
        assert combined(without_slots(model)) == section["combined"] == combined(expected_model(section))
    assert reporter.warnings == []


@pytest.mark.parametrize("case", sorted(p.name for p in (GOLDEN / "bad").iterdir()))
def test_damaged(case: str) -> None:
    """Of a damaged version a server gets what a reader of all shards gets, or an error; never a bug's traceback.

    Only damage in a shard that is not read goes unnoticed, and what is read is right even then.
    """
    location = str(GOLDEN / "bad" / case)
    try:
        ps_num = only(location).ps_num or 2
        whole: list[Part | None] = [restore(location, ps_id, ps_num, all_shards=True) for ps_id in range(ps_num)]
    except EdlCkptError:
        whole = [None] * 4
    for ps_id, expected in enumerate(whole):
        try:
            part = restore(location, ps_id, len(whole))
        except EdlCkptError:
            assert expected is None
            continue
        if expected is not None:
            assert part.version == expected.version
            assert part.variables.keys() == expected.variables.keys()
            for name, (ids, vectors) in expected.tables.items():
                assert np.array_equal(ids, part.tables[name].ids)
                assert vectors.tobytes() == part.tables[name].vectors.tobytes()


def test_misplaced(tmp_path: Path, opened: list[LocalReader]) -> None:
    """A row or a variable in a wrong shard that is read: all shards are read, with a warning that names it."""
    directory = save_varied(tmp_path, 4)
    drop_seal(tmp_path, 7)
    names = [directory / f"variables-{i}-of-4.ckpt" for i in (1, 2)]
    one, two = (name.read_bytes() for name in names)
    names[0].write_bytes(two)
    names[1].write_bytes(one)
    for ps_id in range(4):
        reporter = Recorder()
        opened.clear()
        part = restore(f"{tmp_path}@7", ps_id, 4, reporter=reporter)
        assert_same(part, restore_params(directory, ps_id, 4))
        if ps_id in {1, 2}:
            (warning,) = reporter.warnings
            assert warning.startswith(str(names[ps_id - 1]))
            assert warning.endswith("all shards are read")
            assert set(shard_numbers(opened)) == {0, 1, 2, 3}
        else:
            assert (reporter.warnings, shard_numbers(opened)) == ([], [ps_id])
    reporter = Recorder()
    assert_same(restore(f"{tmp_path}@7", 1, 4, all_shards=True, reporter=reporter), restore_params(directory, 1, 4))
    assert reporter.warnings == []


def test_misplaced_row_alone(tmp_path: Path) -> None:
    """A misplaced row in a shard that is not read is missed, as the documentation says; `all_shards` finds it."""
    rows = np.arange(8, dtype=np.float32)[:, None]
    write_unchecked(tmp_path, 3, 2, {"t": Table(np.arange(8), rows, "zeros")})
    directory = tmp_path / "version-3"
    zero = (directory / "variables-0-of-2.ckpt").read_bytes()
    (directory / "variables-0-of-2.ckpt").write_bytes(zero.replace(b"\x00\x02\x04\x06", b"\x00\x02\x04\x07"))
    ref, reporter = f"{tmp_path}@3", Recorder()
    assert restore(ref, 1, 2, reporter=reporter).tables["t"].ids.tolist() == [1, 3, 5, 7]
    assert reporter.warnings == []
    part = restore(ref, 1, 2, all_shards=True, reporter=reporter)  # 7 is there twice: the last one read counts
    assert dict(zip(part.tables["t"].ids.tolist(), part.tables["t"].vectors[:, 0], strict=True)) == {
        1: 1, 3: 3, 5: 5, 7: 7,
    }  # fmt: skip
    (warning,) = reporter.warnings
    assert "1 row with an id that occurs again" in warning
    part = restore(ref, 0, 2)
    assert part.tables["t"].ids.tolist() == [0, 2, 4]


def test_misplaced_variable_alone(tmp_path: Path) -> None:
    """A variable in a wrong shard makes a server read all shards, also where no table shows it."""
    names = [f"layer_{k}/kernel:0" for k in range(12)]
    save_checkpoint(tmp_path, 7, 2, variables={name: np.ones(3) for name in names}, tables={}, layout="elasticdl")
    drop_seal(tmp_path, 7)
    one, two = sorted((tmp_path / "version-7").iterdir())
    data = one.read_bytes()
    one.write_bytes(two.read_bytes())
    two.write_bytes(data)
    reporter = Recorder()
    part = restore(f"{tmp_path}@7", 0, 2, reporter=reporter)
    assert sorted(part.variables) == sorted(name for name in names if variable_owner(name, 2) == 0)
    assert f"{one} has variable 'layer_" in reporter.warnings[0]


@pytest.mark.parametrize("at_once", [3, 1 << 20])
def test_repeated_ids(tmp_path: Path, either_kernel: str, at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of several rows with one id the last one counts, as in ElasticDL, wherever they lie; a warning tells of it."""
    monkeypatch.setattr(gather_module, "UNIQUE_AT_ONCE", at_once)
    monkeypatch.setattr(gather_module, "ID_BYTES", 2)
    ids = np.array([4, 0, 4, 12, 8, 4, 3, 0, 7, 11])
    vectors = np.arange(20, dtype=np.float32).reshape(10, 2)
    write_unchecked(tmp_path, 3, 4, {"t": Table(ids, vectors, "zeros")})
    for new in (1, 2, 3, 4, 8):
        for ps_id in range(new):
            reporter = Recorder()
            part = restore(f"{tmp_path}@3", ps_id, new, reporter=reporter)
            assert_same(part, restore_params(tmp_path / "version-3", ps_id, new))
            lost = sum(i % new == ps_id for i in (4, 4, 0))
            assert len(reporter.warnings) == bool(lost)
            assert not lost or f"{lost} row" in reporter.warnings[0]


def test_ids_in_every_form(tmp_path: Path, either_kernel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ids unpacked, and packed in several runs, are found whole at every cut between two tasks."""
    ids = [5, 300, -1, 2**40, 7, 8, 2**63 - 1, 128]
    packed = b"".join(varint(i) for i in ids[:3])
    field = head(2, len(packed)) + packed + b"".join(b"\x10" + varint(i) for i in ids[3:6])
    tail = b"".join(varint(i) for i in ids[6:])
    field += head(2, len(tail)) + tail
    directory = tmp_path / "version_33"
    directory.mkdir()
    (directory / "variables-0-of-1.chkpt").write_bytes(table_shard(field, len(ids)))
    for size in range(1, 24):
        monkeypatch.setattr(gather_module, "ID_BYTES", size)
        assert restore(f"{tmp_path}@33", 0, 1).tables["t"].ids.tolist() == ids
        assert restore(f"{tmp_path}@33", 1, 2).tables["t"].ids.tolist() == [5, -1, 7, 2**63 - 1]


@pytest.mark.parametrize(
    ("ids", "rows", "fault"),
    [
        (b"\x01\x02\x03", 4, "3 ids for 4 rows"),
        (b"\x01\x02\x03", 2, "3 or more ids for 2 rows"),
        (b"\x01\x02\x83", 3, "cut short"),
        (b"\x01" + b"\x80" * 14 + b"\x01", 2, "longer than 10 bytes"),
        (b"\x01" + b"\xff" * 9 + b"\x02", 2, "more than 64 bits"),
    ],
)
@pytest.mark.parametrize("size", [1, 4, 1 << 18])
def test_bad_ids(
    tmp_path: Path, either_kernel: str, ids: bytes, rows: int, fault: str, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ids that cannot be decoded, or that are not as many as the rows, are errors that name shard, table and place."""
    monkeypatch.setattr(gather_module, "ID_BYTES", size)
    directory = tmp_path / "version_33"
    directory.mkdir()
    path = directory / "variables-0-of-1.chkpt"
    path.write_bytes(table_shard(head(2, len(ids)) + ids, rows))
    with pytest.raises(CorruptError, match=fault) as caught:
        restore(f"{tmp_path}@33", 0, 1)
    assert caught.value.path == str(path)
    assert "'t'" in caught.value.message
    assert caught.value.offset


def test_reads_no_more_than_it_needs(tmp_path: Path, opened: list[LocalReader]) -> None:
    """With as many servers as shards, the bytes of its own shard are read once, and of no other one anything."""
    version = save_mixed(tmp_path)
    for ps_id in range(3):
        opened.clear()
        part = restore(version, ps_id, 3)
        (file,) = opened
        values = sum(v.nbytes for v in part.variables.values()) + sum(t.vectors.nbytes for t in part.tables.values())
        assert values < file.bytes_read < 1.01 * file.size_bytes + 40_000
    with open_checkpoint(version) as checkpoint:
        before = [checkpoint.reader(shard).bytes_read for shard in checkpoint.shards]
        checkpoint.restore(1, 3)
        after = [checkpoint.reader(shard).bytes_read for shard in checkpoint.shards]
    assert [b > a for a, b in zip(before, after, strict=True)] == [False, True, False]


def test_s3(s3: Bucket, tmp_path: Path) -> None:
    """On S3 only the objects of its own shards are asked for, and no byte of values twice."""
    directory = save_varied(tmp_path, 4)
    for path in directory.iterdir():
        s3.put(f"run/version-7/{path.name}", path.read_bytes())
    for ps_id, new, own in ((1, 4, {1}), (3, 6, {1, 3}), (0, 8, {0}), (5, 8, {1})):
        s3.proxy.requests.clear()
        part = restore(f"{s3.url}@7", ps_id, new)
        assert_same(part, restore_params(directory, ps_id, new))
        asked = [r for r in s3.proxy.requests if "variables-" in r.key]
        assert {int(r.key.split("variables-")[1].split("-")[0]) for r in asked} == own
        sizes = sum((directory / f"variables-{i}-of-4.ckpt").stat().st_size for i in own)
        assert sum(r.response_bytes for r in asked if r.operation == "get") < 1.2 * sizes + 4096 * len(own)


def noting(asked: list[int], real: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method of a reader that notes the offsets that it is asked for."""

    def noted(reader: LocalReader, offset: int, what: Any) -> Any:
        asked.append(offset)
        return real(reader, offset, what)

    return noted


@pytest.mark.parametrize(("rows", "reads"), [(40, 1), (9000, 2)])
def test_few_requests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: int, reads: int) -> None:
    """Of remote storage, variables that lie near each other are read with one request for some megabytes."""
    dense = {f"v{k}:0": np.full((rows, 16), k, [np.float32, np.int8][k % 2]) for k in range(12)} | {
        "none:0": np.ones(0)
    }
    version = save_checkpoint(tmp_path, 7, 1, variables=dense, tables={})
    monkeypatch.setattr(Location, "is_far", True)
    asked: list[int] = []
    with open_checkpoint(version) as checkpoint:
        for name in ("read", "read_into"):
            monkeypatch.setattr(LocalReader, name, noting(asked, getattr(LocalReader, name)))
        part = checkpoint.restore(0, 1)
    assert len(set(asked)) == reads
    assert part.variables.keys() == dense.keys()
    assert all(np.array_equal(part.variables[name], value) for name, value in dense.items())


def test_bfloat16(tmp_path: Path) -> None:
    """Numpy has no bfloat16: the part has the same values in float32, all rows of a shard wanted or some."""
    from edl_ckpt.core.base.arrays import BFLOAT16

    ids = np.arange(64)
    values = np.arange(64 * 3, dtype=np.float32).reshape(64, 3)
    bits = (values.view(np.uint32) >> 16).astype(np.uint16).view(BFLOAT16)
    save_checkpoint(tmp_path, 7, 2, variables={"v:0": bits[0]}, tables={"t": Table(ids, bits)})
    for new in (2, 3):
        for ps_id in range(new):
            part = restore(f"{tmp_path}@7", ps_id, new)
            found = part.tables["t"]
            assert found.vectors.dtype == np.float32
            assert np.array_equal(found.vectors, values[found.ids])
            assert all(np.array_equal(value, values[0]) for value in part.variables.values())


def test_faults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shard that is gone, short, or changed while it is read is an error of ours; only shards that are read count."""
    version = save_mixed(tmp_path)
    own = Path(version.shards[1].path)
    data = own.read_bytes()
    own.write_bytes(data[: len(data) // 2])
    with pytest.raises(CorruptError) as caught:
        restore(at(tmp_path, 7), 1, 3)
    assert caught.value.path == str(own)
    assert len(restore(at(tmp_path, 7), 0, 3).tables["narrow"].ids) > 1000
    own.write_bytes(data)
    version = at(tmp_path, 7)
    own.unlink()
    with pytest.raises(NotFoundError):
        restore(version, 1, 3)  # as it was listed
    with pytest.raises(IncompleteError):
        restore(at(tmp_path, 7), 0, 3)  # as it is now, though server 0 needs no other shard
    own.write_bytes(data)
    reporter = Recorder()
    monkeypatch.setattr(reporter, "advance", lambda _: os.utime(own, (1, 1)))
    with pytest.raises(LockedError):
        restore(at(tmp_path, 7), 1, 3, reporter=reporter)


def test_two_runs(tmp_path: Path) -> None:
    """A version of which a restarted job has replaced one shard is refused, with the servers of each run."""
    for run, servers in (("run-1", (0, 1)), ("run-2", (0,))):
        for ps_id in servers:
            with CheckpointSaver(tmp_path, ps_id=ps_id, ps_num=2, run=run) as saver:
                saver.save(5, {}, {"t": Table(np.arange(ps_id, 10, 2), np.ones((5, 2), np.float32))})
    with pytest.raises(RefusedError, match=r"@5: shard 0 of 2 has been replaced, and shard 1 of 2 may be of an"):
        restore(f"{tmp_path}@5", 1, 2)
    with pytest.raises(IncompleteError, match="every complete version has shards of two runs"):
        resolve(f"{tmp_path}@latest")
    save_small(tmp_path, 4)
    reporter = Recorder()
    assert resolve(f"{tmp_path}@latest", reporter=reporter).version == 4
    (warning,) = reporter.warnings
    assert warning.startswith(f"{tmp_path}@5 is passed over: shard 0 of 2 has been replaced")


def test_not_as_sealed(tmp_path: Path) -> None:
    """A version whose files another program has changed since it was sealed is restored with a warning."""
    save_small(tmp_path, 3)
    own = tmp_path / "version-3" / "variables-1-of-2.ckpt"
    own.write_bytes(own.read_bytes() + b"\xc2\x3e\x00")  # field 1000, which readers ignore
    reporter = Recorder()
    assert len(restore(f"{tmp_path}@3", 1, 2, reporter=reporter).tables["t"].ids) == 30
    (warning,) = reporter.warnings
    assert warning.startswith(f"{tmp_path}@3: it does not match its seal: ")


def test_one_shard_asks_for_the_others(tmp_path: Path, opened: list[LocalReader]) -> None:
    """A shard that lacks a table's info, or has another number than its directory, is not relied on alone."""
    directory = save_varied(tmp_path, 2)
    own = directory / "variables-1-of-2.ckpt"
    data = own.read_bytes()
    assert data[:2] == b"\x08\x07"
    own.write_bytes(b"\x08\x08" + data[2:])
    with pytest.raises(CorruptError, match="version"):
        restore(f"{tmp_path}@7", 1, 2)
    size = data[3]  # of the info of the first table
    assert b"none" in data[4 : 4 + size]
    own.write_bytes(data[:2] + data[4 + size :])
    opened.clear()
    part = restore(f"{tmp_path}@7", 1, 2)
    assert set(shard_numbers(opened)) == {0, 1}
    assert part.infos["none"].dim == 2


@pytest.mark.parametrize(("ps_id", "ps_num"), [(-1, 2), (2, 2), (0, 0), (0, 70_000)])
def test_numbers_that_no_server_has(tmp_path: Path, ps_id: int, ps_num: int) -> None:
    """A server's number is at least 0 and below their count, which a checkpoint can have; workers are at least one."""
    save_varied(tmp_path, 2)
    with pytest.raises(UsageError, match=f"ps_id {ps_id} of {ps_num}"):
        restore(f"{tmp_path}@7", ps_id, ps_num)
    with pytest.raises(UsageError, match="workers"):
        restore(f"{tmp_path}@7", 0, 1, workers=0)
    assert restore(f"{tmp_path}@7", np.int64(1), np.int32(2)).variables  # type: ignore[arg-type]
    for wrong in ("1", 1.0, None):
        with pytest.raises(UsageError, match="ps_id must be a whole number"):
            restore(f"{tmp_path}@7", wrong, 2)  # type: ignore[arg-type]


def test_part_of_a_checkpoint_that_lacks_shards(tmp_path: Path) -> None:
    """Of an incomplete version that was opened in spite of it, a server has its part if its shards are there."""
    directory = save_varied(tmp_path, 4)
    (directory / "variables-2-of-4.ckpt").unlink()
    with open_checkpoint(at(tmp_path, 7), partial=True) as checkpoint:
        assert len(checkpoint.restore(1, 4).tables["user"].ids)
        for ps_id, ps_num in ((2, 4), (0, 2), (0, 1), (6, 8)):
            with pytest.raises(IncompleteError, match="shard 2 of 4"):
                checkpoint.restore(ps_id, ps_num)
        with pytest.raises(IncompleteError, match="shard 2 of 4"):
            checkpoint.restore(1, 4, all_shards=True)
