"""Where a restore puts values: into arrays of the caller, and into memory of the size of the part."""

from __future__ import annotations

import os
import tracemalloc
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from checkpoints import save_varied
from edl_ckpt.core import Part, Rows, UsageError, restore
from edl_ckpt.core.kernel import bulk
from edl_ckpt.core.model.dtypes import DTYPES
from edl_ckpt.core.model.tables import TableInfo
from edl_ckpt.core.sources.elasticdl.shard_layout import CountedTable, lay_out_shards


def test_fills_arrays_that_are_there(tmp_path: Path) -> None:
    """Arrays of the caller are filled in place, of every shape and dtype; what is not given is allocated."""
    save_varied(tmp_path, 3)
    for ps_id, new in ((1, 3), (1, 2)):
        ref = f"{tmp_path}@7"
        expected = restore(ref, ps_id, new)
        out = Part(
            0,
            {name: np.full_like(value, 99) for name, value in expected.variables.items()},
            {n: Rows(np.zeros_like(rows.ids), np.full_like(rows.vectors, 99)) for n, rows in expected.tables.items()},
            {},
        )
        part = restore(ref, ps_id, new, out=out)
        for name, value in expected.variables.items():
            assert np.array_equal(out.variables[name], value)
            assert np.shares_memory(part.variables[name], out.variables[name]) or not value.size
        for name, rows in expected.tables.items():
            assert np.array_equal(out.tables[name].ids, rows.ids)
            assert np.array_equal(out.tables[name].vectors, rows.vectors)
        vectors = np.zeros_like(expected.tables["user"].vectors)
        part = restore(ref, ps_id, new, out=Arrays({}, {"user": vectors}))
        assert np.array_equal(vectors, expected.tables["user"].vectors)
        assert np.shares_memory(part.tables["user"].vectors, vectors)
        assert part.variables.keys() == expected.variables.keys()


@dataclass
class Arrays:
    """Arrays to restore into, as a program may have them."""

    variables: dict[str, Any]
    tables: dict[str, Any]


class _Copied:
    """An array of a library whose memory numpy cannot share."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return self.array.copy()


def test_arrays_that_do_not_fit(tmp_path: Path) -> None:
    """One error has every mismatch, and nothing is filled when there is one."""
    save_varied(tmp_path, 2)
    expected = restore(f"{tmp_path}@7", 0, 2)
    names = [name for name, value in expected.variables.items() if value.size]
    fresh = {name: np.full_like(value, 99) for name, value in expected.variables.items()}
    rows = len(expected.tables["user"].ids)
    frozen = np.zeros_like(expected.variables[names[3]])
    frozen.flags.writeable = False
    out = Arrays(
        {
            **fresh,
            names[0]: fresh[names[0]].astype(np.float32),
            names[1]: _Copied(fresh[names[1]]),
            names[2]: np.asfortranarray(np.zeros((*expected.variables[names[2]].shape[:-1], 6)))[..., ::2],
            names[3]: frozen,
            "other:0": np.zeros(3),
        },
        {
            "user": Rows(np.zeros(rows + 1, np.int64), np.zeros((rows, 5), np.float32)),
            "small": expected.tables["small"].vectors * 0,
        },
    )
    with pytest.raises(UsageError) as caught:
        restore(f"{tmp_path}@7", 0, 2, out=out)
    message = caught.value.message
    shape = list(expected.variables[names[0]].shape)
    for fault in (
        f"variable {names[0]!r} is float32 {shape}, expected float64 {shape}",
        f"variable {names[1]!r} has memory that numpy can only copy",
        f"variable {names[2]!r} is read-only, or not in C order",
        f"variable {names[3]!r} is read-only, or not in C order",
        "variable 'other:0' is not in the part",
        f"table 'user' is float32 [{rows}, 5], expected float32 [{rows}, 4]",
        f"ids of table 'user' is int64 [{rows + 1}], expected int64 [{rows}]",
    ):
        assert fault in message
    assert message.count(";") == 6
    with pytest.raises(UsageError, match="out is dict, expected an object with mappings"):
        restore(f"{tmp_path}@7", 0, 2, out=fresh)  # type: ignore[arg-type]
    assert all((value == 99).all() for value in fresh.values())
    assert not out.tables["small"].any()


def save_holes(location: Path, rows: int, dim: int, dtype: str, ps_num: int) -> None:
    """Write shards with ids, and values that are holes of the file system: much to read, and quickly made."""
    directory = location / "version-1"
    directory.mkdir(parents=True)
    info = TableInfo("t", dim, "zeros", dtype=DTYPES[dtype].tf_enum)
    for ps_id in range(ps_num):
        ids = np.arange(ps_id, rows * ps_num, ps_num)
        packed = bulk.encode_varints(ids)
        table = CountedTable(info, DTYPES[dtype], np.array([rows]), np.array([len(packed)]))
        layout = lay_out_shards(1, [], [table], 1)
        with (directory / f"variables-{ps_id}-of-{ps_num}.ckpt").open("wb") as file:
            file.truncate(int(layout.size_bytes[0]))
            for offset, data in [*layout.literals(0), (int(layout.ids_at("t")[0]), packed.tobytes())]:
                os.pwrite(file.fileno(), data, offset)


@pytest.mark.parametrize(
    ("rows", "dim", "dtype"),
    [(900_000, 16, "float32"), (3_000_000, 1, "int8"), (12, 3_000_000, "float32")],
    ids=["usual", "narrow", "wide"],
)
def test_memory(tmp_path: Path, rows: int, dim: int, dtype: str) -> None:
    """Memory is the part and a few batches, for rows of every width, whether or not all of a shard is wanted."""
    save_holes(tmp_path, rows, dim, dtype, 2)
    for new in (2, 3):
        tracemalloc.start()
        try:
            part = restore(f"{tmp_path}@1", 1, new, workers=2)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        size = part.tables["t"].ids.nbytes + part.tables["t"].vectors.nbytes
        assert size > 15 << 20
        assert peak < size + (24 << 20), f"{(peak - size) >> 20} MiB for {new} servers"
