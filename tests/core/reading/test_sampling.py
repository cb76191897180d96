"""Samples by a seed: the same rows of two versions, and bounded places of one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl_ckpt.core import open_checkpoint, save_checkpoint
from edl_ckpt.core.operations.save import Table
from edl_ckpt.core.reading.element_samples import sample_values, sample_variable, stretches
from edl_ckpt.core.reading.sampling import hash_ids, sample_table


def save(location: Path, version: int, ps_num: int, ids: np.ndarray, values: np.ndarray) -> str:
    """Save a version of one table, whose rows have the given values, and of a variable."""
    rows = np.repeat(values[:, None], 4, axis=1).astype(np.float32)
    save_checkpoint(
        str(location),
        version,
        ps_num,
        variables={"w": np.arange(90_000, dtype=np.float64)},
        tables={"t": Table(ids, rows)},
    )
    return f"{location}@{version}"


def test_splitmix() -> None:
    """The hash of 0 at steps 0 to 2 is what the reference implementation of splitmix64 prints for the seed 0."""
    reference = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    assert [int(hash_ids(np.zeros(1, np.int64), step)[0]) for step in range(3)] == reference


@pytest.mark.parametrize("ps_num", (1, 3))
def test_rows_of_the_least_hashes(tmp_path: Path, ps_num: int) -> None:
    """A sample has the rows whose ids have the least hashes, with their values; all of them where they are few."""
    ids = np.random.default_rng(0).permutation(5000) - 1000
    ref = save(tmp_path / "run", 1, ps_num, ids, ids * 2)
    with open_checkpoint(ref) as checkpoint:
        some = sample_table(checkpoint, "t", 300, seed=7, id_bytes=1 << 20)
        every = sample_table(checkpoint, "t", 9999, seed=7, id_bytes=1 << 20)
    assert some is not None
    assert every is not None
    np.testing.assert_array_equal(some.ids, np.sort(ids[np.argsort(hash_ids(ids, 7))[:300]]))
    np.testing.assert_array_equal(some.vectors[:, 0], some.ids * 2)
    np.testing.assert_array_equal(every.ids, np.sort(ids))


def test_what_two_samples_have_in_common(tmp_path: Path) -> None:
    """Within the reach of both samples, an id of one alone is absent from the other version, whatever their shards."""
    ids = np.arange(20_000)
    kept = ids[ids % 5 > 0]
    refs = save(tmp_path / "a", 1, 4, ids, ids), save(tmp_path / "b", 2, 6, kept, kept)
    samples = []
    for ref, id_bytes in zip(refs, (20_000, 24_000), strict=True):  # less than all ids: some shards are not looked at
        with open_checkpoint(ref) as checkpoint:
            samples.append(sample_table(checkpoint, "t", 400, seed=0, id_bytes=id_bytes))
    one, two = samples
    assert one is not None
    assert two is not None
    assert (one.looked < one.ps_num, two.looked < two.ps_num) == (True, True)
    first, second = set(one.ids[one.within(two)].tolist()), set(two.ids[two.within(one)].tolist())
    assert len(first) > 50
    assert second <= first
    assert first - second == {i for i in first if i % 5 == 0}


def test_ids_beyond_the_bound(tmp_path: Path) -> None:
    """Where the ids of one shard are more than may be read, there is no sample, and no id is read."""
    ref = save(tmp_path / "run", 1, 2, np.arange(4000), np.zeros(4000))
    with open_checkpoint(ref) as checkpoint:
        before = checkpoint.bytes_read
        assert sample_table(checkpoint, "t", 10, seed=0, id_bytes=100) is None
        assert checkpoint.bytes_read == before


def test_wide_rows(tmp_path: Path) -> None:
    """Of rows that are megabytes wide there are few in a sample, and one at least."""
    rows = np.zeros((9, 100_000), np.float32)
    save_checkpoint(str(tmp_path / "run"), 1, 2, variables={}, tables={"t": Table(np.arange(9), rows)})
    with open_checkpoint(f"{tmp_path}/run@1") as checkpoint:
        for most_bytes, number in ((1 << 20, 2), (1000, 1)):
            sample = sample_table(checkpoint, "t", 500, seed=0, id_bytes=1 << 20, most_bytes=most_bytes)
            assert sample is not None
            assert len(sample.ids) == number
        assert sum(map(len, sample_values(checkpoint, "t", 1000, seed=0))) == 1


@given(st.integers(0, 10**6), st.integers(1, 10**5), st.integers(0, 99))
def test_places(total: int, most: int, seed: int) -> None:
    """Places are ascending, apart from each other and within the whole; all of it where it is small; never more."""
    found = stretches(total, most, seed=seed, name="w")
    assert sum(map(len, found)) <= max(most, 0)
    assert sum(map(len, found)) == total or total > most
    assert sum(map(len, found)) >= min(total, most) // 2
    ends = [0, *(edge for places in found for edge in (places.start, places.stop)), total]
    assert ends == sorted(ends)
    assert found == stretches(total, most, seed=seed, name="w")


def test_elements(tmp_path: Path) -> None:
    """Elements of a variable and vectors of a table come from all over it, and another seed takes others."""
    ref = save(tmp_path / "run", 1, 2, np.arange(9000), np.arange(9000))
    with open_checkpoint(ref) as checkpoint:
        taken = [np.concatenate(list(sample_variable(checkpoint, "w", 8000, seed=seed))) for seed in (0, 0, 1)]
        rows = np.concatenate(list(sample_values(checkpoint, "t", 8000, seed=0)))
        everything = np.concatenate(list(sample_values(checkpoint, "t", 1 << 20, seed=0)))
    np.testing.assert_array_equal(taken[0], taken[1])
    assert taken[0].tolist() != taken[2].tolist()
    assert len(taken[0]) in range(900, 1001)
    assert max(np.diff(np.sort(taken[0]))) < 90_000 / 7
    assert len(rows) in range(450, 501)
    assert {*rows[:, 0].tolist()} <= {*range(9000)}
    np.testing.assert_array_equal(np.sort(everything[:, 0]), np.arange(9000))
