"""An open checkpoint is a mapping of its variables; its tables give rows in batches, whole, or by ids."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from builders import write_checkpoint
from checkpoints import save_mixed
from edl_ckpt.core import Checkpoint, EdlCkptError, Table, open_checkpoint, save_checkpoint
from edl_ckpt.core.base.arrays import BFLOAT16
from edl_ckpt.core.base.errors import NotFoundError, UnsupportedError, UsageError
from edl_ckpt.core.base.words import extra_hint
from edl_ckpt.proto import model_v4_pb2
from frameworks import need
from golden_cases import shard_files
from oracle import Model
from oracle import Table as OracleTable
from s3_fixtures import Bucket

IDS = np.array([-7, 3, 10, 11, 2**62, -(2**63)])
VECTORS = np.arange(18, dtype=np.float32).reshape(6, 3)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Iterator[Checkpoint]:
    """Version 7 on three servers: variables w and b, tables wide, narrow and none."""
    save_mixed(tmp_path)
    with open_checkpoint(f"{tmp_path}@7") as checkpoint:
        yield checkpoint


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Checkpoint]:
    """Version 1 on four servers, with the table t of IDS and VECTORS, and half of the same rows in bfloat16."""
    half = (VECTORS.view("<u4") >> 16).astype("<u2").view(BFLOAT16)
    tables = {"t": Table(IDS, VECTORS, "zeros"), "half": Table(IDS, half)}
    save_checkpoint(tmp_path / "small", 1, 4, variables={"half": half}, tables=tables)
    with open_checkpoint(tmp_path / "small") as checkpoint:
        yield checkpoint


def test_a_mapping_of_variables(checkpoint: Checkpoint) -> None:
    """`len`, `in`, iteration, `[]` and `get` are those of a mapping of names to arrays, without its tables."""
    assert len(checkpoint) == 2
    assert list(checkpoint) == ["b", "w"]
    assert ("w" in checkpoint, "wide" in checkpoint) == (True, False)
    assert checkpoint["w"].shape == (700, 33)
    assert {name: values.dtype.name for name, values in checkpoint.items()} == {"b": "int8", "w": "float64"}
    assert checkpoint.get("x") is None
    assert list(checkpoint.tables) == ["narrow", "none", "wide"]
    assert checkpoint == checkpoint  # noqa: PLR0124 - a mapping's `==` would compare arrays
    assert len({checkpoint}) == 1


def test_asking_reads_no_value(checkpoint: Checkpoint) -> None:
    """Names, counts, dims, dtypes and reprs come from headers."""
    before = checkpoint.bytes_read
    assert ("w" in checkpoint, len(checkpoint), len(checkpoint.tables["narrow"])) == (True, 2, 30_000)
    view = checkpoint.table("wide")
    assert (view.name, view.rows, view.dim, view.dtype, view.initializer) == ("wide", 200, 1500, "float64", "uniform")
    assert repr(view) == "<TableView wide: 200 rows of 1500 float64, uniform>"
    assert repr(checkpoint).endswith("7: 3 shards, 2 variables, 3 tables, 2.8 MiB, v4>")
    assert checkpoint.bytes_read == before


@pytest.mark.parametrize("ask", [lambda c: c["x"], lambda c: c.table("x"), lambda c: c.table("wide").to_numpy([1])])
def test_what_is_missing(checkpoint: Checkpoint, ask: Callable[[Checkpoint], object]) -> None:
    """An unknown variable, table or id is an error of ours, and the KeyError of a mapping."""
    with pytest.raises(NotFoundError) as caught:
        ask(checkpoint)
    assert isinstance(caught.value, KeyError)
    assert str(caught.value).startswith(checkpoint.version.ref)


def test_missing_ids_are_counted(small: Checkpoint) -> None:
    """The error for ids without a row says how many they are, and names the first."""
    with pytest.raises(NotFoundError, match=r"no row for 9 ids: 0, 1, 2, 4, 5 and 4 more\n"):
        small.table("t").to_numpy([3, *range(10)])


def test_a_whole_table(checkpoint: Checkpoint) -> None:
    """`to_numpy()` has all rows, those of the batches, in ascending order of ids; one without rows has its dim."""
    for name, view in checkpoint.tables.items():
        batches = list(checkpoint.table(name, batch_rows=77))
        rows = view.to_numpy()
        ids = np.concatenate([b.ids for b in batches] or [rows.ids])
        order = np.argsort(ids, kind="stable")
        assert rows.vectors.shape == (view.rows, view.dim)
        assert np.array_equal(rows.ids, ids[order])
        assert np.array_equal(rows.vectors, np.concatenate([b.vectors for b in batches] or [rows.vectors])[order])
        assert max((len(b.ids) for b in batches), default=0) <= 77
    assert checkpoint.table("none").to_numpy().vectors.dtype == np.float32


@pytest.mark.parametrize("ps_num", range(1, 13))
@pytest.mark.parametrize("stored", ["ascending", "shuffled"])
def test_rows_are_those_of_an_embedding(tmp_path: Path, ps_num: int, stored: str) -> None:
    """With any number of servers, row i of `vectors` and of `to_matrix()` is that of id i; batches are as stored."""
    vectors = np.arange(120, dtype=np.float32).reshape(40, 3)
    ids = np.arange(40) if stored == "ascending" else np.random.default_rng(ps_num).permutation(40)
    save_checkpoint(tmp_path, 1, ps_num, variables={}, tables={"t": Table(ids, vectors[ids])})
    with open_checkpoint(tmp_path) as checkpoint:
        view = checkpoint.table("t")
        assert np.array_equal(view.to_numpy().ids, np.arange(40))
        assert np.array_equal(view.to_numpy().vectors, vectors)
        assert np.array_equal(view.to_matrix(), vectors)
        assert np.array_equal(next(iter(view)).ids, ids[ids % ps_num == 0])


def test_large_rows_are_read_into_their_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A table of many pieces, in 32,000 rows that are sorted by the kernel, equals what was saved."""
    monkeypatch.setattr("edl_ckpt.core.reading.table.PIECE_BYTES", 4096)
    ids = np.random.default_rng(1).permutation(100_000)[:32_000]
    vectors = np.stack([ids, -ids], axis=1).astype(np.float64)
    save_checkpoint(tmp_path, 1, 5, variables={}, tables={"t": Table(ids, vectors)})
    with open_checkpoint(tmp_path) as checkpoint:
        rows = checkpoint.table("t").to_numpy()
        matrix = checkpoint.table("t").to_matrix(100_000, fill=0.5)
    assert np.array_equal(rows.ids, np.sort(ids))
    assert np.array_equal(rows.vectors[:, 0], rows.ids)
    assert np.array_equal(rows.vectors[:, 1], -rows.ids)
    expected = np.full((100_000, 2), 0.5)
    expected[ids] = vectors
    assert np.array_equal(matrix, expected)


def test_a_matrix(tmp_path: Path) -> None:
    """`to_matrix` fills rows without an id, keeps the dtype, refuses ids outside with three of them, and bad values."""
    tables = {
        "t": Table(np.array([5, 2]), VECTORS[:2]),
        "whole": Table(np.array([1]), np.array([[7, 8]], np.int8)),
        "outside": Table(np.array([-1, 9, 3, 10, 2**63 - 1]), VECTORS[:5]),
        "none": Table(np.empty(0, np.int64), VECTORS[:0]),
    }
    save_checkpoint(tmp_path, 1, 3, variables={}, tables=tables)
    with open_checkpoint(tmp_path) as checkpoint:
        matrix = checkpoint.table("t").to_matrix(8, fill=np.nan)
        assert np.flatnonzero(np.isnan(matrix).any(axis=1)).tolist() == [0, 1, 3, 4, 6, 7]
        assert matrix[[5, 2]].tolist() == VECTORS[:2].tolist()
        assert checkpoint.table("t").to_matrix().shape == (6, 3)
        whole = checkpoint.table("whole").to_matrix(fill=-3)
        assert (whole.dtype.name, whole.tolist()) == ("int8", [[-3, -3], [7, 8]])
        assert checkpoint.table("none").to_matrix().shape == (0, 3)
        assert checkpoint.table("none").to_matrix(2, fill=1).tolist() == [[1] * 3] * 2
        with pytest.raises(UsageError, match="4 ids outside of 0 to 8: -1, 9, 10"):
            checkpoint.table("outside").to_matrix(9)
        with pytest.raises(UsageError, match=f"1 id outside of 0 to {2**63 - 1}: -1") as caught:
            checkpoint.table("outside").to_matrix()
        assert "`to_numpy` has only the ids that there are" in str(caught.value.hint)
        for table, fill in (
            ("whole", 0.5),
            ("whole", 128),
            ("whole", np.nan),
            ("t", "a"),
            ("t", None),
            ("t", 1e99),
            ("t", 2**2000),
        ):
            with pytest.raises(UsageError, match="fill must be a number"):
                checkpoint.table(table).to_matrix(8, fill=fill)  # type: ignore[arg-type]
        for rows in (-1, 1.5, True):
            with pytest.raises(UsageError, match="rows must be"):
                checkpoint.table("t").to_matrix(rows)  # type: ignore[arg-type]


def test_a_matrix_of_absurd_size(tmp_path: Path) -> None:
    """A matrix for one id of 2^43 would take 96 TiB: an error that says so, before anything is allocated."""
    save_checkpoint(tmp_path, 1, 2, variables={}, tables={"t": Table(np.array([2**43]), VECTORS[:1])})
    with open_checkpoint(tmp_path) as checkpoint:
        with pytest.raises(EdlCkptError, match="TiB of memory") as caught:
            checkpoint.table("t").to_matrix()
        assert "`to_numpy` has only the ids that there are" in str(caught.value.hint)
        assert checkpoint.table("t").to_numpy().ids.tolist() == [2**43]


def test_ids_that_occur_twice(tmp_path: Path) -> None:
    """Of an id with several rows, all rows come, the last one last; in a matrix the last one counts."""
    model = Model(1, tables={"t": OracleTable(2, "zeros", "", dict.fromkeys(range(3), bytes(8)))})
    target = write_checkpoint(tmp_path, model, 1)
    (path,) = shard_files(target)
    shard = model_v4_pb2.Model.FromString(path.read_bytes())
    slices = shard.embedding_tables["t"]
    del slices.ids[:]
    slices.ids.extend([4, 1, 4])
    slices.concat_tensors.tensor_content = VECTORS.reshape(-1)[:6].tobytes()
    path.write_bytes(shard.SerializeToString())
    with open_checkpoint(tmp_path) as checkpoint:
        view = checkpoint.table("t")
        assert view.to_numpy().ids.tolist() == [1, 4, 4]
        assert view.to_numpy().vectors.tolist() == [[2, 3], [0, 1], [4, 5]]
        assert view.to_matrix()[4].tolist() == view.to_numpy([4]).vectors[0].tolist() == [4, 5]


def test_rows_of_ids(small: Checkpoint) -> None:
    """`ids=` gives rows in the order of the ids, repeated ones again, from any library's arrays or a list."""
    asked = [10, -7, 10, -(2**63)]
    for ids in (asked, np.array(asked), tuple(asked)):
        rows = small.table("t").to_numpy(ids)
        assert rows.ids.tolist() == asked
        assert rows.vectors.tolist() == VECTORS[[2, 0, 2, 5]].tolist()
    none = small.table("t").to_numpy([])
    assert (none.ids.shape, none.vectors.shape, none.vectors.dtype.name) == ((0,), (0, 3), "float32")
    assert (3 in small.table("t"), 4 in small.table("t"), "3" in small.table("t")) == (True, False, False)


def test_rows_of_ids_read_only_them(checkpoint: Checkpoint) -> None:
    """One row of a table costs the ids of its shard and a page or so, never the values of the table."""
    view = checkpoint.table("wide")
    wanted = view.to_numpy().ids[:1]
    before = checkpoint.bytes_read
    view.to_numpy(wanted)
    assert checkpoint.bytes_read - before < 200 * 10 + 1500 * 8 + 4096


def test_rows_in_the_wrong_shard_are_found(tmp_path: Path) -> None:
    """ElasticDL restores a row wherever it lies, so `ids=` finds it there too."""
    save_checkpoint(tmp_path, 1, 1, variables={}, tables={"t": Table(IDS, VECTORS)})
    shard = next(tmp_path.rglob("variables-0-of-1.chkpt"))
    shard.rename(shard.with_name("variables-1-of-2.chkpt"))
    save_checkpoint(tmp_path / "other", 1, 2, variables={}, tables={"t": Table(IDS[:0], VECTORS[:0])})
    next((tmp_path / "other").rglob("variables-0-of-2.chkpt")).rename(shard.with_name("variables-0-of-2.chkpt"))
    with open_checkpoint(tmp_path) as checkpoint:
        assert checkpoint.table("t").to_numpy(IDS).vectors.tolist() == VECTORS.tolist()


@pytest.mark.parametrize("ids", [[1.5], [[1]], ["a"], 3, [2**64], [True], np.array([2**63], np.uint64), None])
def test_ids_are_whole_numbers(small: Checkpoint, ids: Any) -> None:
    """Anything but whole numbers of 64 bits in one dimension is a UsageError, never another row; None is all."""
    if ids is None:
        assert len(small.table("t").to_numpy(ids).ids) == 6
        return
    with pytest.raises(UsageError):
        small.table("t").to_numpy(ids)


def test_bfloat16(small: Checkpoint) -> None:
    """Numpy gets the values in float32; with `bits` a variable has its own two bytes an element."""
    assert small.table("half").dtype == "bfloat16"
    assert small.table("half").to_numpy(IDS).vectors.tolist() == VECTORS.tolist()
    assert small["half"].dtype == np.float32
    assert small.variable("half", bits=True).dtype == BFLOAT16


@pytest.mark.parametrize("memory", [0, 1 << 10])
def test_memory_is_checked_first(small: Checkpoint, memory: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A table that this machine has no memory for is an error before anything is allocated."""
    from edl_ckpt.core.base import memory as module

    monkeypatch.setattr(module, "physical_memory_bytes", lambda: memory and 64)
    if memory:
        with pytest.raises(EdlCkptError, match="of memory"):
            small.table("t").to_numpy()
    else:  # a machine that does not say how much it has
        assert len(small.table("t").to_numpy().ids) == 6


@pytest.mark.parametrize(
    "read",
    [
        lambda c: c["w"],
        lambda c: c.table("wide").to_numpy(),
        lambda c: c.table("wide").to_numpy([1]),
        lambda c: next(iter(c.table("wide"))),
        lambda c: c.restore(0, 2),
        lambda c: c.check_unchanged(),
        lambda c: c.__enter__(),
    ],
)
def test_a_closed_checkpoint_says_so(checkpoint: Checkpoint, read: Callable[[Checkpoint], object]) -> None:
    """Every read after `close` is an error of ours, and a ValueError as of files; what headers say stays."""
    checkpoint.close()
    checkpoint.close()
    with pytest.raises(EdlCkptError, match="the checkpoint is closed") as caught:
        read(checkpoint)
    assert isinstance(caught.value, ValueError)
    assert checkpoint.closed
    assert "closed" in repr(checkpoint)
    assert (len(checkpoint), checkpoint.table("wide").rows) == (2, 200)


def test_closed_between_batches(checkpoint: Checkpoint) -> None:
    """A loop over batches ends with that error when the checkpoint is closed under it."""
    batches = iter(checkpoint.table("narrow", batch_rows=1))
    next(batches)
    checkpoint.close()
    with pytest.raises(UsageError, match="closed"):
        list(batches)


@pytest.mark.parametrize(
    ("library", "method", "extra"),
    [("torch", "to_torch", "torch"), ("pyarrow", "to_arrow", "arrow"), ("pandas", "to_pandas", "pandas")],
)
def test_a_library_that_is_missing(
    small: Checkpoint, library: str, method: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names the library, and the command that installs its extra."""
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(UnsupportedError, match=f"{library} is not installed") as caught:
        getattr(small.table("t"), method)()
    assert caught.value.hint == extra_hint(extra)


@pytest.mark.frameworks
def test_to_torch(small: Checkpoint) -> None:
    """Tensors equal the rows, share numpy's memory where they can, and keep bfloat16."""
    torch = need("torch")
    rows = small.table("t").to_torch(torch.tensor([10, -7]))
    assert torch.equal(rows.ids, torch.tensor([10, -7]))
    assert torch.equal(rows.vectors, torch.from_numpy(VECTORS[[2, 0]]))
    half = small.table("half").to_torch(IDS)
    assert half.vectors.dtype == torch.bfloat16
    assert torch.equal(half.vectors.float(), torch.from_numpy(VECTORS))
    assert repr(half) == "<TensorRows 6 x 3 bfloat16>"


@pytest.mark.frameworks
def test_an_embedding_of_torch(tmp_path: Path) -> None:
    """`Embedding.from_pretrained` of the matrix, or of the vectors, looks up the saved row of each id."""
    torch = need("torch")
    vectors = np.arange(30, dtype=np.float32).reshape(10, 3)
    save_checkpoint(tmp_path, 1, 4, variables={}, tables={"t": Table(np.arange(10), vectors)})
    with open_checkpoint(tmp_path) as checkpoint:
        view = checkpoint.table("t")
        for weight in (view.to_torch().vectors, torch.from_numpy(view.to_matrix())):
            embedding = torch.nn.Embedding.from_pretrained(weight)
            assert torch.equal(embedding(torch.arange(10)), torch.from_numpy(vectors))


@pytest.mark.frameworks
def test_to_arrow_of_pyarrow(small: Checkpoint) -> None:
    """A pyarrow.Table that is valid, with the columns of a Parquet export: `id`, and `vector` of a fixed size."""
    arrow = need("pyarrow")
    table = small.table("t").to_arrow(arrow.array([10, -7]))
    table.validate(full=True)
    assert table.to_pydict() == {"id": [10, -7], "vector": VECTORS[[2, 0]].tolist()}
    assert str(table.schema.field("vector").type) == "fixed_size_list<item: float>[3]"
    assert small.table("t").to_arrow([]).num_rows == 0


@pytest.mark.frameworks
def test_to_pandas(small: Checkpoint) -> None:
    """A DataFrame whose index is the id, so that `frame.loc[id]` is a row."""
    pandas = need("pandas")
    frame = small.table("t").to_pandas(IDS)
    pandas.testing.assert_frame_equal(frame, pandas.DataFrame(VECTORS, index=pandas.Index(IDS, name="id")))
    assert frame.loc[10].tolist() == VECTORS[2].tolist()
    whole = small.table("t").to_pandas()
    assert whole.index.is_monotonic_increasing
    assert whole.loc[IDS].to_numpy().tolist() == VECTORS.tolist()


def test_a_whole_table_on_s3(s3: Bucket) -> None:
    """Rows equal those on a disk, in at most one request for the ids and one for the values of each shard."""
    ids = np.arange(20_000)
    vectors = np.repeat(ids, 8).reshape(-1, 8).astype(np.float32)
    save_checkpoint(s3.url, 1, 2, variables={}, tables={"t": Table(ids, vectors)})
    with open_checkpoint(f"{s3.url}@1") as checkpoint:
        before = s3.proxy.count("get")
        rows = checkpoint.table("t").to_numpy()
        assert s3.proxy.count("get") - before <= 4
        assert rows.vectors.tolist() == vectors[rows.ids].tolist()
