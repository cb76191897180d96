from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edl_ckpt.core import open_checkpoint, reshard_version, save_checkpoint
from edl_ckpt.core.base.errors import CorruptError, IncompleteError, NotFoundError, UnsupportedError, UsageError
from edl_ckpt.core.catalog.listing import list_versions, parse_ref, resolve
from edl_ckpt.core.model.versions import Version
from edl_ckpt.core.operations.lookup.nearest import find_nearest
from edl_ckpt.core.operations.lookup.rows import first_rows, ids_of, look_up, open_table, sample_rows
from edl_ckpt.core.operations.lookup.slices import slice_variable
from edl_ckpt.core.operations.save import Table
from edl_ckpt.core.reading.sampling import hash_ids
from edl_ckpt.core.sources.elasticdl import placement
from edl_ckpt.core.storage.local import LocalStore
from edl_ckpt.proto import model_v4_pb2
from places import GOLDEN

CASES = [*(f"current/ps{n}" for n in (1, 2, 3, 4)), "legacy/v1", "legacy/v2", "legacy/v3", "legacy/v4a"]


def newest(place: Path) -> Version:
    """Return the last version of a location."""
    return list_versions(str(place)).versions[-1]


@pytest.fixture
def large(tmp_path: Path) -> Version:
    """Return a version of 4 shards with one table of 40,000 rows of 16 float32, and two variables."""
    random = np.random.default_rng(3)
    ids = random.permutation(40_000).astype(np.int64)
    vectors = np.repeat(ids[:, None], 16, axis=1).astype(np.float32)
    variables: dict[str, Any] = {"a": np.arange(6, dtype=np.float64).reshape(2, 3), "b": np.zeros(50_000, np.float32)}
    return save_checkpoint(str(tmp_path), 1, 4, variables=variables, tables={"t": Table(ids, vectors)})


@pytest.mark.parametrize("case", CASES)
def test_every_row_of_golden(case: str, expected: Any) -> None:
    """Every id that ElasticDL saved is found with its vector, negative ones too, in every generation; no other is."""
    version = newest(GOLDEN / case)
    with open_checkpoint(version) as checkpoint:
        tables = {name: list(checkpoint.table(name)) for name in checkpoint.table_names}
    for name, batches in tables.items():
        ids = np.concatenate([b.ids for b in batches]) if batches else np.empty(0, np.int64)
        vectors = np.concatenate([b.vectors for b in batches]) if batches else np.empty((0, 0), np.float32)
        found = look_up(version, name, [*ids.tolist(), 777_777_777])
        assert found.ids.tolist() == ids.tolist()
        assert found.vectors.tobytes() == vectors.tobytes()
        assert found.missing == (777_777_777,)
        assert found.duplicates == ()


def test_variables_of_golden(expected: Any) -> None:
    """Every dense variable is what expected.json says."""
    version = newest(GOLDEN / "current/ps3")
    for name, held in expected["current"]["dense"].items():
        values, dtype = slice_variable(version, name)
        assert (dtype.name, list(values.shape)) == (held["dtype"], held["shape"])
        assert values.tobytes() == base64.b64decode(held["base64"])
    with pytest.raises(NotFoundError):
        slice_variable(version, "none")


def test_only_what_is_needed_is_read(large: Version, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the shard `id % ps_num` is opened, and of it headers, ids and a page around the row are read."""
    opened: list[str] = []
    real = LocalStore.open

    def counted(store: LocalStore, path: str, **_: int) -> Any:
        opened.append(path)
        return real(store, path)

    with open_checkpoint(large) as checkpoint:
        headers = checkpoint.bytes_read
        entry = checkpoint.entries("t")[3][1]
        ids = sum(run.end - run.start for run in entry.ids)
    monkeypatch.setattr(LocalStore, "open", counted)
    found = look_up(large, "t", [7])
    assert opened == [large.shards[3].path]
    assert found.vectors.tolist() == [[7.0] * 16]
    assert ids + 64 <= found.bytes_read <= headers + ids + 64
    opened.clear()
    look_up(large, "t", [3, 7, 11, 8])
    assert opened == [large.shards[0].path, large.shards[3].path]
    opened.clear()
    slice_variable(large, "a")
    assert opened == [large.shards[placement.variable_owner("a", 4)].path]


def test_many_rows(large: Version) -> None:
    """Thousands of ids, repeated and in any order, are answered once each, in the order of their first mention."""
    random = np.random.default_rng(5)
    asked = random.integers(-10, 50_000, 20_000)
    found = look_up(large, "t", asked)
    first = list(dict.fromkeys(asked.tolist()))
    assert found.ids.tolist() == [i for i in first if 0 <= i < 40_000]
    assert list(found.missing) == [i for i in first if not 0 <= i < 40_000]
    assert np.array_equal(found.vectors[:, 0], found.ids)
    assert np.array_equal(found.vectors[:, 15], found.ids)


def test_misplaced_rows() -> None:
    """A row in the wrong shard is found everywhere, and only then."""
    version = resolve(parse_ref(f"{GOLDEN}/bad/swapped-shards@7"))
    assert look_up(version, "e", [0, 1]).missing == (0, 1)
    assert look_up(version, "e", [0, 1], everywhere=True).missing == ()


def test_incomplete() -> None:
    """A row whose shard is there is answered, one whose shard is missing is an error that says so."""
    version = resolve(parse_ref(f"{GOLDEN}/bad/missing-shard@7"))
    assert look_up(version, "e", [1]).missing == ()
    with pytest.raises(IncompleteError, match="shard 0 of 2"):
        look_up(version, "e", [0])


def test_wrong_questions(large: Version) -> None:
    """An unknown table is not found; ids beyond 64 bits are a mistake."""
    with pytest.raises(NotFoundError):
        look_up(large, "none", [1])
    with pytest.raises(UsageError):
        look_up(large, "t", [2**63])


def test_nearest(tmp_path: Path) -> None:
    """The most similar rows by cosine over all shards: never the row itself, no zeros, no NaN."""
    random = np.random.default_rng(1)
    vectors = random.standard_normal((50_000, 8)).astype(np.float32)
    vectors[10] = vectors[20] * 3
    vectors[30] = vectors[20] / 2
    vectors[40], vectors[50, 0] = 0, np.nan
    ids = np.arange(50_000, dtype=np.int64) - 25_000
    version = save_checkpoint(str(tmp_path), 1, 3, variables={}, tables={"t": Table(ids, vectors)})
    asked = [20 - 25_000, 40 - 25_000, 50 - 25_000, 777 - 25_000]
    near = find_nearest(version, look_up(version, "t", asked), 4)
    assert [n.id for n in near] == asked
    assert {i for i, _ in near[0].nearest[:2]} == {10 - 25_000, 30 - 25_000}
    assert near[1].nearest == near[2].nearest == ()
    with np.errstate(all="ignore"):
        unit = vectors / np.linalg.norm(vectors.astype(np.float64), axis=1, keepdims=True)
    cosine = np.nan_to_num(unit @ unit[777], nan=-9)
    cosine[777] = -9
    best = np.argsort(-cosine)[:4]
    assert [i for i, _ in near[3].nearest] == ids[best].tolist()
    assert np.allclose([c for _, c in near[3].nearest], cosine[best])
    with pytest.raises(UnsupportedError):
        find_nearest(version, look_up(version, "t", ids[:300]), 4)
    with pytest.raises(UsageError):
        find_nearest(version, look_up(version, "t", ids[:3]), 0)


def test_contradictions(tmp_path: Path) -> None:
    """Rows that are not as wide as their table says, or not as many as their ids, are an error and no answer."""
    for dim in (1, 4):
        model = model_v4_pb2.Model(version=1)
        model.embedding_table_infos.add(name="t", dim=8, initializer="zeros", dtype=1)
        held = model.embedding_tables["t"]
        held.ids.append(5)
        held.concat_tensors.dtype = 1
        for size in (1, dim):
            held.concat_tensors.tensor_shape.dim.add(size=size)
        held.concat_tensors.tensor_content = np.ones(dim, np.float32).tobytes()
        directory = tmp_path / str(dim) / "version-1"
        directory.mkdir(parents=True)
        (directory / "variables-0-of-1.ckpt").write_bytes(model.SerializeToString())
        with pytest.raises(CorruptError):
            look_up(newest(tmp_path / str(dim)), "t", [5])
    with pytest.raises(CorruptError):
        look_up(newest(GOLDEN / "bad/more-ids-than-rows"), "e", [0, 1])


@pytest.mark.parametrize("scale", [1e-200, 1e-30, 1e200])
def test_nearest_of_very_large_and_small_rows(tmp_path: Path, scale: float) -> None:
    """How long a row is does not change what it is similar to."""
    vectors = np.array([[1.0, 2.0], [2.0, 4.1], [-1.0, 0.5]]) * scale
    table = Table(np.arange(3, dtype=np.int64), vectors)
    version = save_checkpoint(str(tmp_path), 1, 2, variables={}, tables={"t": table})
    near = find_nearest(version, look_up(version, "t", [0]), 2)[0].nearest
    assert [i for i, _ in near] == [1, 2]
    assert near[0][1] > 0.999


def test_head_and_ids(large: Version) -> None:
    """The ids are those of the table's batches, in their order, and the first rows are the first of them."""
    with open_checkpoint(large) as checkpoint:
        batches = list(checkpoint.table("t"))
    ids, vectors = (np.concatenate(parts) for parts in zip(*batches, strict=True))
    with open_table(large, None) as (checkpoint, name, _):
        assert name == "t"
        np.testing.assert_array_equal(np.concatenate(list(ids_of(checkpoint, name))), ids)
        read = checkpoint.bytes_read
    assert read < vectors.nbytes / 4
    for count in (1, 10_007, 50_000):
        found = first_rows(large, count=count)
        np.testing.assert_array_equal(found.ids, ids[:count])
        np.testing.assert_array_equal(found.vectors, vectors[:count])
    assert first_rows(large, count=5).bytes_read < 1 << 20


def test_sample(large: Version) -> None:
    """A sample is that of the least hashes, whatever the shards; another seed has another, a larger contains it."""
    found = sample_rows(large, "t", 500, seed=7)
    everything = np.arange(40_000)
    least = np.sort(everything[np.argsort(hash_ids(everything, 7))[:500]])
    np.testing.assert_array_equal(found.ids, least)
    np.testing.assert_array_equal(found.vectors, np.repeat(least[:, None], 16, axis=1).astype(np.float32))
    assert {*sample_rows(large, "t", 20, seed=7).ids.tolist()} <= {*least.tolist()}
    assert {*sample_rows(large, "t", 500, seed=8).ids.tolist()} != {*least.tolist()}
    assert len(sample_rows(large, "t", 50_000).ids) == 40_000
    reshard_version(large, 3)
    np.testing.assert_array_equal(sample_rows(newest(Path(large.location.url)), "t", 500, seed=7).ids, least)
    places = np.searchsorted(np.linspace(0, 40_000, 11), least) - 1
    assert np.bincount(places, minlength=10).min() > 25  # 50 of each tenth are expected


def test_which_table(tmp_path: Path) -> None:
    """Without a name, the only table is meant; of several, the error names them; a table without rows has no row."""
    rows = {
        "a": Table(np.arange(3), np.ones((3, 2), np.float32)),
        "b": Table(np.arange(0), np.ones((0, 2), np.float32)),
    }
    version = save_checkpoint(str(tmp_path), 1, 2, variables={}, tables=rows)
    with pytest.raises(UsageError, match="which table") as error:
        first_rows(version)
    assert "a, b" in str(error.value.hint)
    with pytest.raises(NotFoundError):
        sample_rows(version, "c")
    for found in (first_rows(version, "b"), sample_rows(version, "b")):
        assert found.vectors.shape == (0, 2)
