"""One way writes a planned version, whoever planned it: the results of a reshard and of an import say the same."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

from checkpoints import only, save_varied
from edl_ckpt.core import export_version, import_arrays, reshard_version, verify_version
from edl_ckpt.core.moving.input import PieceCounts, SparsePairs
from edl_ckpt.core.moving.result import WriteResult

MEASURED = {"ref", "output", "source", "from_ps", "bytes_read", "checksums", "seconds", "peak_memory_bytes"}


def save(tmp_path: Path) -> Path:
    """Save a version of three shards, and export it; return the file."""
    save_varied(tmp_path / "run", 3)
    export_version(only(tmp_path / "run"), tmp_path / "m.npz")
    return tmp_path / "m.npz"


@pytest.mark.parametrize("to_ps", [1, 2, 5])
def test_a_reshard_and_an_import_say_the_same(tmp_path: Path, to_ps: int) -> None:
    """The same values, written for as many servers, have the same shards, counts and fingerprint in both results."""
    arrays = save(tmp_path)
    source = only(tmp_path / "run")
    resharded = reshard_version(source, to_ps, output=tmp_path / "resharded")
    imported = import_arrays(arrays, tmp_path / "imported", source.version, to_ps)
    for name in {field.name for field in fields(WriteResult)} - MEASURED - {"shards", "untouched"}:
        assert getattr(resharded, name) == getattr(imported, name), name
    sizes = [[(s.ps_id, s.size_bytes, s.rows) for s in result.shards] for result in (resharded, imported)]
    assert sizes[0] == sizes[1]
    assert resharded.bytes_written == resharded.size_bytes == sum(size for _, size, _ in sizes[0])
    assert (resharded.from_ps, imported.from_ps) == (3, None)
    assert (len(resharded.untouched), imported.untouched) == (resharded.items.proved, {})
    for place in ("resharded", "imported"):
        assert verify_version(only(tmp_path / place), level="deep").ok


def test_numbers_of_some_targets() -> None:
    """What is kept of a few targets comes back in full, by number and by slice."""
    pairs = SparsePairs(4, PieceCounts)
    pairs.append(np.array([0, 5, 0, 7]), np.array([0, 6, 0, 8]), np.array([1, 3]), "user")
    pairs.append(np.array([1, 0, 2, 0]), np.array([3, 0, 4, 0]), np.array([0, 2]), "item")
    assert [(p.table, p.rows.tolist(), p.id_bytes.tolist()) for p in pairs[0:2]] == [
        ("user", [0, 5, 0, 7], [0, 6, 0, 8]),
        ("item", [1, 0, 2, 0], [3, 0, 4, 0]),
    ]


COMMON = (
    "source",
    "output",
    "rows",
    "size_bytes",
    "bytes_read",
    "bytes_written",
    "seconds",
    "peak_memory_bytes",
    "fingerprint",
    "forced",
    "checksums",
    "items",
    "left_out",
    "dropped",
    "overflowed",
    "content",
)


def test_an_export_and_a_reshard_name_the_same_alike(tmp_path: Path) -> None:
    """What both results say has one name, and of the same version the same value where nothing was written anew."""
    save_varied(tmp_path / "run", 2)
    version = only(tmp_path / "run")
    exported = export_version(version, tmp_path / "m.ckpt")
    written = reshard_version(version, 1, output=tmp_path / "there")
    assert [(name, type(getattr(exported, name))) for name in COMMON] == [
        (name, type(getattr(written, name))) for name in COMMON
    ]
    for name in ("source", "rows", "size_bytes", "bytes_written", "fingerprint", "items", "left_out", "content"):
        assert getattr(exported, name) == getattr(written, name)
