"""Checkpoints to be measured on, made quickly: random values, unique random ids, placed by their modulo."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from measure import elsewhere

from edl_ckpt.core import list_versions, save_checkpoint, set_metrics
from edl_ckpt.core.kernel import bulk
from edl_ckpt.core.model.dtypes import DTYPES
from edl_ckpt.core.model.seals import Chunk
from edl_ckpt.core.model.tables import TableInfo
from edl_ckpt.core.operations.save import Table
from edl_ckpt.core.sources.elasticdl.names import ELASTICDL
from edl_ckpt.core.sources.elasticdl.placement import variable_owner
from edl_ckpt.core.sources.elasticdl.shard_layout import CountedTable, PlacedVariable, VersionLayout, lay_out_shards
from edl_ckpt.core.state.seal import read_seal, seal_bytes
from edl_ckpt.core.storage import Location, open_store
from edl_ckpt.core.storage.files import PreallocatedFile

F32 = DTYPES["float32"]


@dataclass(frozen=True)
class Shape:
    """A checkpoint to be made: tables of (rows, dim), bits of its random ids, dense variables of so many values."""

    ps_num: int
    tables: tuple[tuple[int, int], ...]
    id_bits: int
    variables: int = 0
    variable_values: int = 16_384


def make(location: Path, shape: Shape) -> Path:
    """Write a checkpoint in a process of its own, and return its location."""
    elsewhere(write, location, shape)
    return location


def size_of(location: Path) -> int:
    """Return the bytes of all shards of a location."""
    return sum(path.stat().st_size for path in location.rglob("variables-*"))


def write(location: Path, shape: Shape) -> None:
    """Write a checkpoint of a shape."""
    directory = location / ELASTICDL.version_dir(1)
    directory.mkdir(parents=True)
    random = np.random.default_rng(5)
    infos = [TableInfo(f"table_{t:02}", dim, "uniform") for t, (_, dim) in enumerate(shape.tables)]
    names = [f"dense_{v}/kernel:0" for v in range(shape.variables)]
    owners = [variable_owner(name, shape.ps_num) for name in names]
    values = shape.variable_values
    for ps_id in range(shape.ps_num):
        ids = [_ids(random, rows // shape.ps_num, shape, ps_id) for rows, _ in shape.tables]
        parts = [
            CountedTable(info, F32, np.array([drawn[1]]), np.array([len(drawn[0])]))
            for info, drawn in zip(infos, ids, strict=True)
        ]
        mine = [
            PlacedVariable(name, F32, (values,), 4 * values)
            for name, owner in zip(names, owners, strict=True)
            if owner == ps_id
        ]
        layout = VersionLayout(1, [mine], parts)
        path = directory / ELASTICDL.shard_file(ps_id, shape.ps_num)
        file = PreallocatedFile(str(path), int(layout.size_bytes[0]))
        for offset, data in layout.literals(0):
            file.write(offset, data)
        for info, (varints, rows) in zip(infos, ids, strict=True):
            file.write(int(layout.ids_at(info.name)[0]), varints.data)
            _fill(file, int(layout.values_at(info.name)[0]), rows * info.dim, random)
        for dense in mine:
            _fill(file, layout.dense_at(dense.name)[1], values, random)
        file.close()


def _ids(random: np.random.Generator, rows: int, shape: Shape, ps_id: int) -> tuple[bulk.U8, int]:
    """Return the varints of about `rows` unique ids of one shard, and how many they are."""
    drawn = np.unique(random.integers(0, 2**shape.id_bits // shape.ps_num, rows))
    random.shuffle(drawn)
    return bulk.encode_varints(drawn * shape.ps_num + ps_id), len(drawn)


def _fill(file: PreallocatedFile, offset: int, count: int, random: np.random.Generator) -> None:
    while count:
        values = random.standard_normal(min(count, 1 << 22), np.float32)
        file.write(offset, values.data.cast("B"))
        offset, count = offset + values.nbytes, count - len(values)


def write_holes(location: Path, rows: int) -> None:
    """Write a version of one shard with so many rows of dim 16, all of them holes of the file."""
    directory = location / ELASTICDL.version_dir(1)
    directory.mkdir(parents=True)
    table = CountedTable(TableInfo("t", 16, "zeros"), F32, np.array([rows]), np.array([rows]))
    layout = lay_out_shards(1, [], [table], 1)
    with (directory / ELASTICDL.shard_file(0, 1)).open("wb") as file:
        for offset, data in layout.literals(0):
            file.seek(offset)
            file.write(data)
        file.truncate(int(layout.size_bytes[0]))


def write_versions(location: Path, count: int, seal_size: int) -> None:
    """Write many small versions of 8 shards with metrics and seals, each seal padded to about so many bytes.

    A seal of a large version is as long. What only lists, opens or deletes versions does not compare its checksums.
    """
    for number in range(1, count + 1):
        tables = {"t": Table(np.arange(32), np.full((32, 2), number, np.float32))}
        save_checkpoint(location, number, 8, variables={"w": np.arange(4.0)}, tables=tables, layout="elasticdl")
    store = open_store(Location(str(location)))
    for version in list_versions(location).versions:
        set_metrics(version, {"auc": version.version / count, "loss": 1 / version.version})
        seal = read_seal(store, version.version)
        assert seal is not None
        shards = []
        for shard in seal.shards:
            many = min(shard.size_bytes - 1, seal_size // 8 // 84)
            chunks = [Chunk("table", "t", at, at, at + 1, "0" * 32) for at in range(many)]
            chunks.append(Chunk("table", "t", many, many, shard.size_bytes, "0" * 32))
            shards.append(dataclasses.replace(shard, chunks=tuple(chunks)))
        place = location / ".edl-ckpt-0" / "meta-0" / f"{version.version}.seal.json"
        place.write_bytes(seal_bytes(dataclasses.replace(seal, shards=tuple(shards))))
