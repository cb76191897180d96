"""Checkpoints that the engine saves for tests, and short ways to look at those that are there."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from edl_ckpt.core import list_versions, parse_ref, resolve, save_checkpoint
from edl_ckpt.core.model.versions import Version
from edl_ckpt.core.operations.save import Table
from edl_ckpt.core.reading.table import Rows, TableView
from edl_ckpt.core.state.paths import is_verdicts, seal_file
from edl_ckpt.core.storage import open_store
from edl_ckpt.core.storage.local import LocalReader


def at(location: str | Path, word: int | str = "latest") -> Version:
    """Return the version that a number, a tag or another word names."""
    return resolve(parse_ref(f"{location}@{word}"))


def only(location: str | Path) -> Version:
    """Return the one version of a location, complete or not."""
    (version,) = list_versions(str(location), grace_seconds=0).versions
    return version


def numbers(location: str | Path) -> list[int]:
    """Return the numbers of the versions in a location."""
    return [v.version for v in list_versions(str(location)).versions]


def files_of(location: Path) -> dict[str, bytes]:
    """Return the content of every file of a location by its path."""
    return {str(p.relative_to(location)): p.read_bytes() for p in sorted(location.rglob("*")) if p.is_file()}


def files_but_verdicts(location: Path) -> dict[str, bytes]:
    """Return the content of every file but what verify remembers in the location: it is of no command's result."""
    return {name: data for name, data in files_of(location).items() if not is_verdicts(name.rpartition("/")[2])}


def files_but_seals(location: Path) -> dict[str, bytes]:
    """Return the content of every file but the seals, which contain the time they were made."""
    return {name: data for name, data in files_of(location).items() if not name.endswith(".seal.json")}


def shards_of(location: Path) -> dict[str, bytes]:
    """Return the content of every shard of a location by its path."""
    return {name: data for name, data in files_of(location).items() if "/variables-" in name}


def drop_seal(location: str | Path, version: int) -> None:
    """Remove the seal of a version, as if a job had saved it."""
    open_store(str(location)).remove(seal_file(version))


def save_small(location: str | Path, *versions: int, ps_num: int = 2, sealed: bool = True) -> None:
    """Save versions of one table of 60 rows whose values are the version's number."""
    ids = np.arange(60)
    for version in versions:
        rows = np.full((60, 2), version, np.float32)
        save_checkpoint(
            str(location), version, ps_num, variables={}, tables={"t": Table(ids, rows)}, layout="elasticdl"
        )
        if not sealed:
            drop_seal(location, version)


def stored_rows(view: TableView) -> Rows:
    """Return all rows of a table in the order in which its shards have them."""
    batches = list(view) or [view.to_numpy()]
    return Rows(np.concatenate([batch.ids for batch in batches]), np.concatenate([batch.vectors for batch in batches]))


def save_mixed(location: Path) -> Version:
    """Save version 7 on three servers: two variables, and tables of wide rows, of many narrow rows, and of none."""
    random = np.random.default_rng(3)
    ids = np.unique(random.integers(-(2**63), 2**63 - 1, 30_000))
    return save_checkpoint(
        str(location),
        7,
        3,
        variables={"w": random.standard_normal((700, 33)), "b": np.zeros(3, np.int8)},
        tables={
            "wide": Table(ids[:200], random.standard_normal((200, 1500))),
            "narrow": Table(ids, random.integers(0, 9, (len(ids), 3)).astype(np.int8)),
            "none": Table(ids[:0], np.zeros((0, 4), np.float32)),
        },
        layout="elasticdl",
    )


def save_varied(location: Path, ps_num: int) -> Path:
    """Save version 7 of a model: variables, tables of several dtypes and one without rows. Return its directory."""
    random = np.random.default_rng(ps_num)
    ids = np.unique(random.integers(-(2**62), 2**62, 400))
    random.shuffle(ids)
    save_checkpoint(
        location,
        7,
        ps_num,
        variables={f"layer_{k}/kernel:0": random.standard_normal((k, 3)) for k in range(12)},
        tables={
            "user": Table(ids, random.standard_normal((len(ids), 4), np.float32)),
            "small": Table(ids[:30], random.integers(0, 99, (30, 3)).astype(np.int8)),
            "none": Table(ids[:0], np.zeros((0, 2), np.float32)),
        },
        layout="elasticdl",
    )
    return location / "version-7"


def save_large(location: Path) -> None:
    """Save version 7 on two servers, each shard as large as several parts of an upload, without a seal."""
    random = np.random.default_rng(3)
    ids = np.unique(random.integers(0, 2**40, 220_000))
    save_checkpoint(
        str(location),
        7,
        2,
        variables={"kernel:0": random.standard_normal((300, 200), np.float32), "step:0": np.array(7, np.int64)},
        tables={"users": Table(ids, random.standard_normal((len(ids), 16), np.float32))},
    )
    drop_seal(location, 7)


def noted_reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that gets the size of each read of a local shard from now on, in bytes."""
    sizes: list[int] = []
    read_into = LocalReader.read_into

    def noted(self: LocalReader, offset: int, buffer: memoryview) -> None:
        sizes.append(len(buffer))
        read_into(self, offset, buffer)

    monkeypatch.setattr(LocalReader, "read_into", noted)
    return sizes
