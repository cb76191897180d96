"""Seals: recorded checksums of a version's bytes, and the differences that they find."""

from __future__ import annotations

import json
import os
import re
import shutil
from array import array
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash

import elasticdl_rules
from checkpoints import only
from edl_ckpt.core import (
    execute_copy,
    open_checkpoint,
    parse_ref,
    plan_copy,
    reshard_version,
    resolve,
    save_checkpoint,
    verify_version,
)
from edl_ckpt.core.base.errors import CorruptError, LockedError, UnavailableError
from edl_ckpt.core.model.dtypes import DTYPES
from edl_ckpt.core.model.seals import Chunk, PackedChunks, Seal, SealedShard, now_text
from edl_ckpt.core.model.tables import TableInfo
from edl_ckpt.core.model.versions import ShardFile
from edl_ckpt.core.operations.copy import carry
from edl_ckpt.core.operations.copy import execute as copying
from edl_ckpt.core.operations.save import Table
from edl_ckpt.core.operations.verify.check import seal_version
from edl_ckpt.core.proof import sealing as module
from edl_ckpt.core.proof import sealing as summing
from edl_ckpt.core.sources.elasticdl.indexing import PlannedReader, planned_shards
from edl_ckpt.core.sources.elasticdl.shard_layout import CountedTable, PlacedVariable, lay_out_shards
from edl_ckpt.core.state.paths import seal_file
from edl_ckpt.core.state.seal import parse_seal, read_seal, seal_bytes
from edl_ckpt.core.storage import open_store
from edl_ckpt.core.storage.interface import SMALL_BYTES
from edl_ckpt.core.storage.local import LocalReader
from places import GOLDEN
from program import document, edl


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A sealed version of three shards, with chunks so small that tables have several."""
    random = np.random.default_rng(1)
    ids = np.unique(random.integers(0, 2**40, 2000))
    save_checkpoint(
        str(tmp_path / "run"),
        7,
        3,
        variables={f"w{i}": random.standard_normal((i, 7)) for i in range(20)},
        tables={
            "users": Table(ids, random.standard_normal((len(ids), 8)).astype(np.float32)),
            "empty": Table(np.zeros(0, np.int64), np.zeros((0, 4), np.float32)),
            "items": Table(np.arange(500), random.standard_normal((500, 3)).astype(np.float16).astype(np.float32)),
        },
    )
    return tmp_path / "run"


@pytest.mark.parametrize("flips", [80, pytest.param(1000, marks=pytest.mark.slow)])
def test_flipped_bits(run: Path, monkeypatch: pytest.MonkeyPatch, flips: int) -> None:
    """Every single flipped bit in a sealed version is found by a deep verify, in the shard and the thing it lies in."""
    monkeypatch.setattr(module, "CHUNK_BYTES", 1 << 10)
    version = only(run)
    text = verify_version(version, level="deep", use_seal=False).fingerprint
    assert text is not None
    seal_version(version, text)
    version = only(run)
    places = {}
    with open_checkpoint(version) as checkpoint:
        for shard in checkpoint.shards:
            fields = module.cut(shard, checkpoint.reader(shard))
            places[shard.file.ps_id] = [(c.start, c.end, c.name) for c in fields]
            exact = {v.name: v.values for v in shard.variables} | {t.name: t.values for t in shard.tables}
            for start, end, name in places[shard.file.ps_id]:
                assert all(
                    name == n for n, values in exact.items() if values.size_bytes and start <= values.start < end
                )
    random = np.random.default_rng(0)
    sizes = np.array([s.size_bytes for s in version.shards])
    for flip in random.choice(int(sizes.sum()) * 8, flips, replace=False).tolist():
        byte, bit = divmod(flip, 8)
        number = int(np.searchsorted(np.cumsum(sizes), byte, "right"))
        offset = byte - int(sizes[:number].sum())
        path = Path(version.shards[number].path)
        with path.open("r+b") as file:
            file.seek(offset)
            byte_before = file.read(1)[0]
            file.seek(offset)
            file.write(bytes([byte_before ^ 1 << bit]))
        found = verify_version(only(run), level="deep", workers=1)
        with path.open("r+b") as file:
            file.seek(offset)
            file.write(bytes([byte_before]))
        (wrong,) = (f for f in found.findings if f.code == "checksum-mismatch")
        start, end, name = next(p for p in places[number] if p[0] <= offset < p[1])
        assert (wrong.shard, wrong.path, wrong.subject, wrong.offset) == (number, str(path), name, start)
        assert end - start <= 1 << 10
    assert verify_version(version, level="deep").findings == ()


def test_round_trip(run: Path) -> None:
    """A seal written and read is the same; its chunks cover every shard from the first byte to the last."""
    seal = read_seal(open_store(str(run)), 7)
    assert seal is not None
    assert parse_seal(seal_bytes(seal)) == seal
    assert seal.sizes == {os.path.basename(s.path): s.size_bytes for s in only(run).shards}
    names = {c.name for s in seal.shards for c in s.chunks if c.kind == "table"}
    assert names == {"users", "items", "empty"}


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d.pop("shards"),
        lambda d: d.update(schema="edl-ckpt/seal/1"),
        lambda d: d.update(schema=["edl-ckpt/seal/2"]),
        lambda d: d.update(fingerprint=d["fingerprint"][:-1] + "x"),
        lambda d: d.update(sealed="2020-01-01T00:00:00+00:00"),
        lambda d: d.update(origin="0" * 32),
        lambda d: d.update(history=[]),
        lambda d: d.update(version=7.0),
        lambda d: d.update(version=d.pop("version")),
        lambda d: d.update(shards=d["shards"][::-1]),
        lambda d: d.pop("digest"),
        lambda d: d.update(checksum="crc32"),
        lambda d: d["shards"][0].update(size_bytes=1),
        lambda d: d["shards"][0]["chunks"].pop(),
        lambda d: d["shards"][0]["chunks"][0].pop(),
        lambda d: d["shards"][0]["chunks"].append(["", "", 10, 5, ""]),
        lambda d: d.update(shards=[3]),
        lambda d: d.update(version=None),
    ],
)
def test_damaged_seal(run: Path, change: Any) -> None:
    """A damaged seal is reported by list and verify; only `force` replaces it, which is recorded."""
    path = run / seal_file(7)
    seal = json.loads(path.read_bytes())
    change(seal)
    path.write_text(json.dumps(seal))
    assert only(run).seal_fault.startswith("damaged")
    assert not only(run).fingerprint
    found = verify_version(only(run), level="deep")
    assert [f.code for f in found.findings] == ["checksum-mismatch"]
    with pytest.raises(CorruptError):
        read_seal(open_store(str(run)), 7)
    for output in (None, str(run) + "2"):
        with pytest.raises(CorruptError, match="damaged seal"):
            reshard_version(only(run), 2, output=output)
    done = reshard_version(only(run), 2, output=str(run) + "2", force=True)
    assert str(done.forced).startswith("damaged seal")
    made = read_seal(open_store(str(run) + "2"), 7)
    assert made is not None
    assert [(o.command, o.why) for o in made.history] == [("reshard", done.forced)]


def test_other_files_under_the_number(run: Path, tmp_path: Path) -> None:
    """A seal that does not match the files is a finding at every level, until the version is sealed again."""
    shutil.copytree(run, tmp_path / "copy")
    reshard_version(only(tmp_path / "copy"), 2)
    shutil.rmtree(run / "version_7")
    shutil.copytree(tmp_path / "copy/version_7", run / "version_7")
    for level in ("quick", "default", "deep"):
        assert {f.code for f in verify_version(only(run), level=level).findings} == {"checksum-mismatch"}
    done = edl("list", run)
    assert "does not match its seal: variables-0-of-2.chkpt" in done.stderr
    assert edl("verify", run, "--seal").returncode == 3
    assert edl("verify", run, "--seal", "--force").returncode == 0
    assert document("verify", run, "--deep")["findings"] == []


def test_sealing(tmp_path: Path) -> None:
    """A complete version of a job is sealed on request, odd values or not; verify says whether it compared."""
    shutil.copytree(GOLDEN / "multi", tmp_path / "run")
    before = elasticdl_rules.answer(tmp_path / "run")
    shown = edl("verify", tmp_path / "run@20", "--deep").stdout
    assert "not sealed: there is no recorded checksum to compare with (use --seal)" in shown
    assert "compared" not in shown
    sealed = document("verify", tmp_path / "run@20", "--seal")
    assert sealed["sealed"] is True
    assert "Checked every value against the seal" in edl("verify", tmp_path / "run@20", "--deep").stdout
    listed = document("list", tmp_path / "run")["locations"][0]["versions"]
    assert [(v["sealed"], v["fingerprint"]) for v in listed] == [
        (False, None),
        (True, sealed["fingerprint"]),
        (False, None),
    ]
    assert "sealed" in edl("list", tmp_path / "run").stdout
    done = edl("verify", tmp_path / "run@100", "--seal")
    assert (done.returncode, "not sealed" in done.stderr) == (3, True)
    assert elasticdl_rules.answer(tmp_path / "run") == before
    shutil.copytree(GOLDEN / "current/ps2", tmp_path / "odd")  # NaN and infinities: findings, and sealed as they are
    assert edl("verify", tmp_path / "odd", "--seal").returncode == 3
    assert document("list", tmp_path / "odd")["locations"][0]["versions"][0]["sealed"] is True


def test_what_we_write_is_sealed(run: Path, tmp_path: Path) -> None:
    """Reshard, in place or not, import and export as a checkpoint leave sealed versions; prune takes seals along."""
    text = only(run).fingerprint
    assert text.startswith("edl1:")
    reshard_version(only(run), 4)
    assert only(run).fingerprint == text
    arrays = tmp_path / "m.safetensors"
    assert edl("export", run, arrays).returncode == 0
    assert edl("import", arrays, f"{tmp_path}/in@3", "--ps", "2").returncode == 0
    assert only(tmp_path / "in").fingerprint == text
    assert edl("export", run, tmp_path / "one", "--format", "checkpoint").returncode == 0
    assert only(tmp_path / "one").fingerprint == text
    assert edl("prune", run, "--delete", "7", "--even-newest", "--yes").returncode == 0
    assert not (run / ".edl-ckpt-0").exists()


def test_changed_while_it_is_sealed(run: Path) -> None:
    """A version that changes between its verification and its sealing is error 11, and keeps its old seal."""
    version = only(run)
    before = (run / seal_file(7)).read_bytes()
    os.utime(version.shards[1].path, (1, 1))
    with pytest.raises(LockedError):
        seal_version(version, version.fingerprint)
    assert (run / seal_file(7)).read_bytes() == before
    assert resolve(parse_ref(str(run))).fingerprint == version.fingerprint


@pytest.fixture
def large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A version that is as large beside its chunks as one of many terabytes: they are longer than what is read."""
    for each in (module, summing, carry, copying):
        monkeypatch.setattr(each, "CHUNK_BYTES", 1 << 10)
    monkeypatch.setattr(module, "MOST_CHUNKS", 24)
    random = np.random.default_rng(2)
    ids = random.permutation(4000)
    values = random.standard_normal((len(ids), 8)).astype(np.float32)
    variables = {"w": random.standard_normal((9000,))}
    tables = {name: Table(ids, values) for name in ("a", "b")}
    save_checkpoint(str(tmp_path / "large"), 7, 3, variables=variables, tables=tables)
    return tmp_path / "large"


def check_sums(location: Path) -> list[int]:
    """Compare the sum of each chunk of a seal with that of the bytes in the file; return the lengths of chunks."""
    version = only(location)
    seal = read_seal(open_store(version.location), version.version)
    assert seal is not None
    for shard, file in zip(seal.shards, version.shards, strict=True):
        data = Path(file.path).read_bytes()
        assert [c.sum for c in shard.chunks] == [xxhash.xxh3_128_hexdigest(data[c.start : c.end]) for c in shard.chunks]
    return [chunk.end - chunk.start for shard in seal.shards for chunk in shard.chunks]


def test_chunks_of_a_large_version(large: Path, tmp_path: Path) -> None:
    """The chunks of a large version are long and few, whoever makes its seal, and all find a flipped bit."""
    reshard_version(only(large), 4, output=str(tmp_path / "resharded"))
    execute_copy(plan_copy([only(large)], str(tmp_path / "copied")))
    remade = only(tmp_path / "resharded")
    os.unlink(tmp_path / "resharded" / seal_file(remade.version))
    seal_version(remade, verify_version(remade, level="deep").fingerprint or "")
    for name in ("large", "resharded", "copied"):
        lengths = check_sums(tmp_path / name)
        assert max(lengths) > 16 << 10
        assert len(lengths) < 60
        path = Path(only(tmp_path / name).shards[1].path)
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 4
        path.write_bytes(data)
        found = verify_version(only(tmp_path / name), level="deep").findings
        assert "checksum-mismatch" in {finding.code for finding in found}


def test_a_large_chunk_with_a_damaged_read(large: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy of a long chunk ends when one read was damaged, and goes on when it is repeated; damage is refused."""
    read_into, damaged = LocalReader.read_into, [False]

    def flip_once(self: LocalReader, offset: int, buffer: memoryview) -> None:
        read_into(self, offset, buffer)
        if len(buffer) == 1 << 10 and not damaged[0]:
            damaged[0], buffer[5] = True, buffer[5] ^ 1

    monkeypatch.setattr(LocalReader, "read_into", flip_once)
    with pytest.raises(UnavailableError, match="damaged in one read"):
        execute_copy(plan_copy([only(large)], str(tmp_path / "copied")), workers=1)
    assert damaged == [True]
    execute_copy(plan_copy([only(large)], str(tmp_path / "copied")), workers=1)
    assert verify_version(only(tmp_path / "copied"), level="deep").findings == ()
    path = Path(only(large).shards[1].path)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)
    with pytest.raises(CorruptError, match="does not match its seal"):
        execute_copy(plan_copy([only(large)], str(tmp_path / "again")))


def test_infos_of_many_tables_are_one_chunk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where thousands of tables would make a seal too large to be read, the infos of a shard have one checksum."""
    monkeypatch.setattr(module, "MOST_CHUNKS", 64)
    tables = {f"t{k}": Table(np.arange(k), np.zeros((k, 2), np.float32)) for k in range(30)}
    save_checkpoint(str(tmp_path / "many"), 7, 3, variables={"w": np.ones(3)}, tables=tables)
    version = only(tmp_path / "many")
    seal = read_seal(open_store(version.location), 7)
    assert seal is not None
    kinds = [chunk.kind for chunk in seal.shards[0].chunks]
    assert kinds.count("info") == 0
    assert kinds[0] == ""
    assert kinds.count("table") == 30
    check_sums(tmp_path / "many")
    assert verify_version(version, level="deep").findings == ()


@pytest.mark.parametrize("there", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_small_tables_share_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, client: Any, there: bool) -> None:
    """Where a seal would be too large, small tables share chunks, whoever seals; a flipped bit names the first of them.

    A large table, and a variable beside it, keep chunks of their own.
    """
    monkeypatch.setattr(module, "MOST_BYTES", 6000)
    tables = {f"t{k:02}": Table(np.arange(9), np.full((9, 2), k, np.float32)) for k in range(40)}
    tables["large"] = Table(np.arange(900), np.ones((900, 4), np.float32))
    save_checkpoint(tmp_path / "saved", 7, 3, variables={"w": np.ones(999)}, tables=tables)
    executor = client if there else None
    reshard_version(only(tmp_path / "saved"), 4, output=tmp_path / "resharded", executor=executor)
    execute_copy(plan_copy([only(tmp_path / "resharded")], tmp_path / "copied"), executor=executor)
    again = only(tmp_path / "copied")
    os.unlink(tmp_path / "copied" / seal_file(again.version))
    seal_version(again, verify_version(again, level="deep").fingerprint or "", executor=executor)
    for name in ("saved", "resharded", "copied"):
        assert len((tmp_path / name / seal_file(7)).read_bytes()) < 6000 + 1000
        assert len(check_sums(tmp_path / name)) > 24
        version = only(tmp_path / name)
        assert verify_version(version, level="deep", executor=executor).findings == ()
        seal = read_seal(open_store(version.location), 7)
        assert seal is not None
        assert {("table", "large"), ("", "")} <= {chunk[:2] for shard in seal.shards for chunk in shard.chunks}
        path = Path(version.shards[1].path)
        data = bytearray(path.read_bytes())
        data[data.rindex(np.full(2, 39, np.float32).tobytes())] ^= 4
        path.write_bytes(data)
        (finding,) = (
            f for f in verify_version(only(tmp_path / name), level="deep", executor=executor).findings if f.shard == 1
        )
        assert re.search(r"chunk \d+ of table 't\d\d' and \d+ more, bytes", finding.message)


@pytest.mark.parametrize(
    ("tables", "ps_num", "name"),
    [
        (2000, 400, "embedding/{:05}"),
        (2000, 64, "embedding/{:05}"),
        (300, 1000, "é😀" * 99 + "{}"),
        (1, 40_000, "n" * 400),
    ],
)
def test_a_seal_can_be_read_again(tables: int, ps_num: int, name: str) -> None:
    """However many tables and shards there are, and whatever their names, a seal is smaller than what is read of it.

    Seals of up to 32 MiB have a chunk for each table.
    """
    float32 = DTYPES["float32"]
    rows = np.arange(ps_num) % 90
    counted = [CountedTable(TableInfo(name.format(k), 16, "uniform"), float32, rows, rows * 2) for k in range(tables)]
    layouts = lay_out_shards(1, [PlacedVariable(f"v{k}", float32, (9,), 36) for k in range(9)], counted, ps_num)
    file = ShardFile(63, ps_num, f"variables-63-of-{ps_num}.ckpt", int(layouts.size_bytes[63]), 0.0)
    literals = layouts.literals(63)
    (shard,) = planned_shards([file], [literals], 1)
    chunks = [chunk._replace(sum="0" * 32) for chunk in module.cut(shard, PlannedReader(file, literals))]
    one = SealedShard(file.path, file.size_bytes, PackedChunks(chunks))
    data = seal_bytes(Seal(1, "edl1:" + "0" * 64, (one,), now_text()))
    (read,) = parse_seal(data).shards
    assert [(*chunk[:2], *chunk[3:]) for chunk in read.chunks] == [(*chunk[:2], *chunk[3:]) for chunk in chunks]
    assert len(json.dumps(json.loads(data))) * ps_num < SMALL_BYTES
    assert len({chunk.name for chunk in chunks} - {""}) >= tables or (tables, ps_num) != (2000, 64)


def test_packed_chunks() -> None:
    """They are the same sequence of chunks as a tuple of them, in a fifth of its memory."""
    chunks = tuple(
        Chunk(("table", "info")[k % 2], ("t", "ü")[k % 3 % 2], k, k << 40, (k + 1) << 40, f"{k:032x}") for k in range(9)
    )
    packed = PackedChunks(iter(chunks))
    assert packed == chunks
    assert chunks == packed
    assert hash(packed) == hash(chunks)
    assert (packed[-1], packed[2:5], list(packed), len(packed)) == (chunks[-1], chunks[2:5], list(chunks), 9)
    assert packed != chunks[1:]
    with pytest.raises(IndexError):
        packed[9]


def test_chunks_of_columns() -> None:
    """Columns are the same chunks as objects; sums are given to all of them at once."""
    edges = array("q", [0, 3, 9]), array("q", [3, 9, 10])
    chunks = PackedChunks.of_columns(("info", "table", ""), ("t", "t", ""), *edges)
    plain = [Chunk("info", "t", 0, 0, 3), Chunk("table", "t", 0, 3, 9), Chunk("", "", 0, 9, 10)]
    assert list(chunks) == plain == list(PackedChunks(plain, ()))
    sums = [f"{k:032x}" for k in range(3)]
    assert list(chunks.with_sums(sums)) == [one._replace(sum=text) for one, text in zip(plain, sums, strict=True)]
    assert list(chunks) == plain


@pytest.mark.parametrize("name", ["plain", "a,b", 'a"b', "a\\b", "\x7f", "ü", "\ud800", "a, b", "\n"])
@pytest.mark.parametrize("packed", [True, False])
def test_seal_of_any_name(name: str, packed: bool) -> None:
    """The file of a seal is JSON with blanks and its own letters, whatever the names of its tables have in them."""
    chunks = [Chunk("table", name, 0, 0, 5, "0" * 32), Chunk("", "", 0, 5, 9, "1" * 32)]
    shards = (SealedShard("s", 9, PackedChunks(chunks) if packed else tuple(chunks)), SealedShard("empty", 0, ()))
    data = seal_bytes(Seal(1, "edl1:0", shards, now_text()))
    assert parse_seal(data).shards == shards
    text = data.decode("utf-8", "surrogatepass")
    assert json.dumps(json.loads(text), ensure_ascii=False) + "\n" == text
