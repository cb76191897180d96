"""What a shard has besides values and ids: the same by the kernel, by numpy, and by the layout of one shard."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import NAMES
from edl_ckpt.core.model.dtypes import DTYPES
from edl_ckpt.core.model.tables import TableInfo
from edl_ckpt.core.sources.elasticdl.literals import Literals
from edl_ckpt.core.sources.elasticdl.shard_layout import CountedTable, PlacedVariable, VersionLayout, lay_out_shards
from examples import examples

COUNTS = st.lists(st.sampled_from([0, 0, 1, 2, 127, 128, 16_384, 2**31, 2**34]), min_size=3, max_size=3)
TABLES = st.lists(
    st.tuples(NAMES, st.sampled_from([0, 1, 2, 15, 127, 128, 300, 2**20]), st.sampled_from([*DTYPES, None]), COUNTS),
    max_size=5,
    unique_by=lambda table: table[0],
)


def layouts_of(tables: list[tuple[str, int, str | None, list[int]]]) -> VersionLayout:
    """Return the layouts of three shards with two variables and some tables."""
    variables = [PlacedVariable(name, DTYPES["float32"], (2, 3), 24) for name in ("a", "w")]
    counted = [
        CountedTable(
            TableInfo(name, dim, "uniform"),
            DTYPES[dtype] if dtype else None,
            np.array(rows, np.int64),
            np.array(rows, np.int64) * 3,
        )
        for name, dim, dtype, rows in tables
    ]
    return lay_out_shards(7, variables, counted, 3)


@examples(25)
@given(TABLES)
def test_literals(either_kernel: str, tables: list[tuple[str, int, str | None, list[int]]]) -> None:
    """They are the bytes that the layout of the shard has between values and ids."""
    layouts = layouts_of(tables)
    for ps_id in range(len(layouts)):
        literals = layouts.literals(ps_id)
        between = [*layouts.front(ps_id), *layouts.heads(ps_id, layouts.names)]
        assert [(at, bytes(data)) for at, data in literals] == between
        assert literals.size_bytes == sum(len(data) for _, data in between)
        for at, data in between:
            found = np.zeros(len(data), np.uint8)
            literals.fill(at, found)
            assert found.tobytes() == data


def test_heads_have_their_place(either_kernel: str) -> None:
    """A head that would leave the buffer is refused, at both ends of it, and in each shard."""
    layouts = layouts_of([("t", 4, "float32", [2, 0, 3])])
    heads = [[head for _, head in layouts.heads(ps_id, ["t"])] for ps_id in range(3)]
    heads[1].append(b"")  # it has no rows, so nothing stands before its ids
    sizes = np.array([[len(head) for head in both] for both in heads]).T
    good = np.cumsum(sizes.T.reshape(-1)).reshape(3, 2).T
    out = np.zeros(int(good[-1, -1]), np.uint8)
    layouts.put_heads(slice(0, 1), good[:1], good[1:], out)
    assert out.tobytes() == b"".join(head for both in heads for head in both)
    for shard in range(3):
        for low, high in ((-1, 0), (0, 1), (2**62, 0), (0, -(2**62))):
            values_at, ids_at = good[:1].copy(), good[1:].copy()
            values_at[0, shard] = sizes[0, shard] - 1 if low == -1 else values_at[0, shard] + low
            ids_at[0, shard] = len(out) + 1 if high == 1 else ids_at[0, shard] + high
            if sizes[1, shard] or high == 0:
                with pytest.raises(ValueError, match="no room in shard"):
                    layouts.put_heads(slice(0, 1), values_at, ids_at, out)


@examples(25)
@given(st.binary(min_size=40, max_size=40), st.lists(st.integers(0, 40), unique=True, max_size=8), st.data())
def test_differing(file: bytes, edges: list[int], draw: st.DataObject) -> None:
    """Bytes of a file are compared where literals lie, and only there; the first wrong one is named."""
    places = sorted(edges[: len(edges) // 2 * 2])
    between = [(at, file[at:end]) for at, end in zip(places[::2], places[1::2], strict=True)]
    starts, ends = np.array(places, np.int64).reshape(-1, 2).T
    literals = Literals(starts, ends, np.frombuffer(b"".join(data for _, data in between), np.uint8))
    start, end = sorted(draw.draw(st.tuples(st.integers(0, 40), st.integers(0, 40))))
    inside = [at for at in range(start, end) if any(first <= at < first + len(data) for first, data in between)]
    part = np.frombuffer(file, np.uint8)[start:end].copy()
    assert literals.differing(start, part) == (len(inside), -1)
    wrong = draw.draw(st.lists(st.integers(start, end - 1), max_size=3)) if start < end else []
    for at in wrong:
        part[at - start] ^= 1
    flipped = [at for at in inside if part[at - start] != file[at]]
    assert literals.differing(start, part) == (len(inside), min(flipped, default=-1))
