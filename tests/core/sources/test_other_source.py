"""A source of another package: its files are listed, read and turned into ElasticDL's shards, and may be missing."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from edl_ckpt.core import (
    CorruptError,
    diff_versions,
    list_versions,
    look_up,
    open_checkpoint,
    reshard_version,
    save_checkpoint,
    slice_table,
    verify_and_seal,
    verify_version,
)
from edl_ckpt.core.model.layouts import Placement
from edl_ckpt.core.sources import registry

SOURCE = '''
"""Raw arrays after a head of JSON: `step_N/rankRofW.raw` has the vectors, `rankRofW.ids` the ids of the same rank."""
import json
from dataclasses import replace
from edl_ckpt.core.model.dtypes import DTYPES
from edl_ckpt.core.model.tables import (
    Box, DenseEntry, Encoding, Extent, GatheredRows, IdRun, ShardIndex, TableEntry, TableInfo
)
from edl_ckpt.core.model.layouts import Layout, ShardName, VersionName
from edl_ckpt.core.model.versions import ShardFile, State, Version

systems = ("raw",)
STEPS = Layout("raw", "steps", "step_", ".raw", "rank{}of{}")

def looks_into(directory): return directory.startswith("step_")
def version_named(name): return None
def shard_named(name): return None
def version_names(number): return [STEPS.version_dir(number)]

def claims(listing, read_small):
    for entry in listing.inside.get("", ()):
        if entry.name.startswith("step_"):
            shards = []
            files = {file.name: file for file in listing.inside[entry.relative]}
            for file in files.values():
                stem, _, kind = file.name.partition(".")
                rank, _, count = stem.removeprefix("rank").partition("of")
                if kind == "raw":
                    pair = [ShardFile(int(rank), int(count), f.path, f.size_bytes, f.modified)
                            for f in (files[stem + ".ids"], file)]
                    shards.append(replace(pair[1], others=(pair[0],)))
            shards.sort(key=lambda shard: shard.ps_id)
            state = State.COMPLETE if len(shards) == shards[0].ps_num else State.INCOMPLETE
            number = int(entry.name.removeprefix("step_"))
            yield Version(listing.location, number, entry.path, STEPS, state, shards[0].ps_num, tuple(shards))

def index(version, readers, *, workers=1, on_fault=None):
    return [_index(version, file, readers[file.path]) for file in version.shards]

def _index(version, file, reader):
    size = int.from_bytes(reader.read(0, 8), "little")
    at, tables, infos, gathered = 8 + size, [], [], []
    for table, (rows, slots, halves, encoding, ids_at, order_at) in json.loads(reader.read(8, size)).items():
        coding = Encoding(encoding)
        ids = IdRun(ids_at, ids_at + rows * coding.itemsize, coding, first=file.ps_id * 100, file=1)
        width = 16 // halves
        values = Extent(at, at + 16 * slots)
        if order_at is not None or halves > 1:
            order = None if order_at is None else IdRun(order_at, order_at + 4 * rows, Encoding.INT32, first=1, file=1)
            starts = range(at, at + 16 * slots, width * slots)
            boxes = (Box(Extent(start, start + width * slots), width, slots, column=k * width)
                     for k, start in enumerate(starts))
            gathered.append(GatheredRows(rows, 16, tuple(boxes), order))
            values = Extent(0, 16 * rows, file=1 + len(gathered))
        tables.append(TableEntry(table, DTYPES["float32"], 4, rows, values, (ids,) if rows else (), at))
        infos.append(TableInfo(table, 4, "uniform"))
        at += 16 * slots
    size = reader.size_bytes - at
    bias = DenseEntry(f"bias{file.ps_id}", DTYPES["float32"], (size // 4,), Extent(at, at + size), at)
    ends = DenseEntry(f"ends{file.ps_id}", DTYPES["int32"], (3,), Extent(0, 12, file=1), at)
    return ShardIndex(file, version.version, "", tuple(infos), (bias, ends), tuple(tables), gathered=tuple(gathered))

def check(version, shards): return []
def blocking(version, shards): return []
'''
Truth = dict[str, dict[int, npt.NDArray[np.float32]]]
IDS = {"<i8": np.int64, "<u8": np.uint64, "<i4": np.int32}
RNG = np.random.default_rng(0)


def write(folder: Path, ranks: int = 3, twice: int | None = None) -> Truth:
    """Write a version of some ranks, `twice` as an id of each rank, and return the vectors of each table by id."""
    truth: Truth = {}
    (folder / "step_40").mkdir(parents=True)
    for rank in range(ranks):
        head: dict[str, tuple[int, int, int, str, int, int | None]] = {}
        body, others = b"", np.arange(3, dtype=np.int32).tobytes()
        kinds = [(f"t{coding}", coding, 1, False) for coding in (*IDS, "rows")]
        for name, coding, halves, remapped in [*kinds, ("halved", "rows", 2, False), ("mapped", "<i8", 2, True)]:
            rows = 20 + rank
            slots = rows + 5 if remapped else rows
            vectors = RNG.standard_normal((slots, 4), np.float32)
            ids, ids_at, order_at = np.arange(rank * 100, rank * 100 + rows), len(others), None
            if coding in IDS:
                ids[0] = ids[0] if twice is None else twice
                ids = RNG.permutation(ids)
                others += ids.astype(IDS[coding]).tobytes()
            body += b"".join(half.tobytes() for half in np.split(vectors, halves, axis=1))
            if remapped:
                order, order_at = RNG.permutation(slots)[:rows], len(others)
                others += (order + 1).astype(np.int32).tobytes()
                vectors = vectors[order]
            head[name] = (rows, slots, halves, coding, ids_at, order_at)
            truth.setdefault(name, {}).update(zip(ids.tolist(), vectors, strict=True))
        text, bias = json.dumps(head).encode(), np.full(7, rank, np.float32).tobytes()
        (folder / f"step_40/rank{rank}of{ranks}.raw").write_bytes(len(text).to_bytes(8, "little") + text + body + bias)
        (folder / f"step_40/rank{rank}of{ranks}.ids").write_bytes(others)
    return truth


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A package with the source is installed, and registered under the entry points."""
    packages = tmp_path / "packages"
    (packages / "raw_source-1.dist-info").mkdir(parents=True)
    (packages / "raw_source.py").write_text(SOURCE)
    (packages / "raw_source-1.dist-info/METADATA").write_text("Metadata-Version: 2.1\nName: raw_source\nVersion: 1\n")
    (packages / "raw_source-1.dist-info/entry_points.txt").write_text(f"[{registry.GROUP}]\nraw = raw_source\n")
    monkeypatch.syspath_prepend(str(packages))
    registry.others.cache_clear()
    yield
    registry.others.cache_clear()


@pytest.mark.usefixtures("installed")
def test_versions_of_another_source(tmp_path: Path) -> None:
    """Listing, tables, single rows and a reshard to ElasticDL's shards give what was written, for each encoding."""
    truth = write(tmp_path / "run")
    (version,) = list_versions(str(tmp_path / "run")).versions
    assert (version.version, version.state.value, version.ps_num) == (40, "complete", 3)
    with open_checkpoint(version) as checkpoint:
        assert checkpoint.table_names == sorted(truth)
        for name, rows in truth.items():
            table = checkpoint.table(name).to_numpy()
            assert table.ids.tolist() == sorted(rows)
            assert all(
                (vector == rows[id_]).all() for id_, vector in zip(table.ids.tolist(), table.vectors, strict=True)
            )
        assert (checkpoint["ends2"] == [0, 1, 2]).all()
        assert (checkpoint["bias1"] == 1).all()
    found = look_up(version, "t<i8", [221, 3])
    assert (found.vectors == [truth["t<i8"][221], truth["t<i8"][3]]).all()
    assert look_up(version, "trows", [99]).missing == (99,)
    some = sorted(truth["mapped"])[::7]
    assert (look_up(version, "mapped", some).vectors == [truth["mapped"][id_] for id_ in some]).all()
    assert (
        slice_table(version, "mapped", "1:30:3, 1:3").vectors == np.array(list(truth["mapped"].values()))[1:30:3, 1:3]
    ).all()
    checked = verify_version(version, level="deep")
    assert checked.ok
    assert checked.fingerprint
    reshard_version(version, 2, output=str(tmp_path / "shards"))
    resharded = verify_version(f"{tmp_path}/shards@40", level="deep")
    assert resharded.ok
    assert resharded.fingerprint == checked.fingerprint
    assert diff_versions(version, f"{tmp_path}/shards@40").equal
    with open_checkpoint(f"{tmp_path}/shards@40") as checkpoint:
        for name, rows in truth.items():
            assert {i: tuple(v) for i, v in zip(*checkpoint.table(name).to_numpy(), strict=True)} == {
                i: tuple(v) for i, v in rows.items()
            }


def test_without_the_package(tmp_path: Path) -> None:
    """Without the package its files are foreign entries; a version that was listed before cannot be opened."""
    write(tmp_path / "run")
    registry.others.cache_clear()
    listing = list_versions(str(tmp_path / "run"))
    assert not listing.versions
    assert [entry.name for entry in listing.foreign] == ["step_40"]


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("kind", ["raw", "ids"])
def test_a_seal_covers_all_files(tmp_path: Path, kind: str) -> None:
    """A seal has the checksums of every file of a shard, and names what a changed byte belongs to."""
    write(tmp_path / "run")
    ref = f"{tmp_path}/run@40"
    assert verify_and_seal(list_versions(str(tmp_path / "run")).versions[0]).sealed
    assert verify_version(ref, level="deep").ok
    file = tmp_path / f"run/step_40/rank1of3.{kind}"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    found = [f for f in verify_version(ref, level="deep").findings if f.code == "checksum-mismatch"]
    assert [(f.path, f.subject) for f in found] == [(str(file), "bias1" if kind == "raw" else "mapped")]


@pytest.mark.usefixtures("installed")
def test_rows_in_the_wrong_shard_by_another_rule(tmp_path: Path) -> None:
    """A table may have a rule of its own: `verify` names the shard by it, and a search needs no other shard."""
    write(tmp_path / "run")
    (version,) = list_versions(str(tmp_path / "run")).versions
    by_mask = replace(version, layout=replace(version.layout, placement=Placement.MASK31_MOD))
    wrong = [f for f in verify_version(by_mask).findings if f.code == "misplaced-row" and f.subject == "t<i8"]
    named = {int(id_): int(to) for f in wrong for id_, to in re.findall(r"id (\d+) to shard (\d+)", f.message)}
    assert named
    assert all(to == (id_ & 0x7FFFFFFF) % 3 for id_, to in named.items())


@pytest.mark.usefixtures("installed")
def test_an_id_in_several_shards(tmp_path: Path) -> None:
    """Where rows may be in any shard, an id that two of them have is seen, by a check and before a reshard."""
    write(tmp_path / "run", twice=77)
    (version,) = list_versions(str(tmp_path / "run")).versions
    duplicates = [finding for finding in verify_version(version).findings if finding.code == "duplicate-id"]
    assert {finding.subject for finding in duplicates} == {"mapped", *(f"t{coding}" for coding in IDS)}
    assert all("1 id is in several shards: 77" in finding.message for finding in duplicates)
    with pytest.raises(CorruptError, match="id 77 occurs"):
        reshard_version(version, 2, output=str(tmp_path / "shards"))
    assert not (tmp_path / "shards").exists()


def test_others_are_not_searched_for_what_is_built_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The distributions that are installed are searched only where no built-in source fits: that takes 50 ms."""
    monkeypatch.setattr(registry, "others", lambda: pytest.fail("they were searched"))
    save_checkpoint(tmp_path, 1, 2, variables={"w": np.ones(2)}, tables={})
    assert verify_version(f"{tmp_path}@1").ok
