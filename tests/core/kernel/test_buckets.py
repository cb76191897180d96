"""Ids in buckets: numpy is the reference, the compiled kernel gives the same, and a repeated id is always found."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import EDGE_IDS
from edl_ckpt.core.kernel import buckets, bulk
from edl_ckpt.core.kernel.buckets import Buckets

ID_LISTS = st.lists(st.one_of(st.sampled_from(EDGE_IDS), st.integers(-(2**63), 2**63 - 1)), max_size=150)


def are_unique(parts: list[bulk.I64], at_once: int) -> bool:
    """Put parts of ids into buckets, turn by turn, and look at all of them."""
    return Buckets(sum(map(len, parts)), at_once).have_all_once([partial(np.asarray, ids) for ids in parts])


@given(ID_LISTS, ID_LISTS, st.integers(60, 400))
def test_a_repeat_is_found(either_kernel: str, first: list[int], second: list[int], at_once: int) -> None:
    """Ids are unique where no number is there twice, whichever part and turn it is in."""
    parts = [np.array(ids, np.int64) for ids in (first, second)]
    assert are_unique(parts, at_once) is (len({*first, *second}) == len(first) + len(second))


@pytest.mark.parametrize("least", [100, 1 << 14])
@pytest.mark.parametrize("at_once", [1 << 20, 9000])
def test_many(either_kernel: str, least: int, at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """So are a hundred thousand ids of several kinds, and one more that repeats any of them is found."""
    monkeypatch.setattr(buckets, "BUCKET_IDS", least)
    random = np.random.default_rng(5)
    for low, high, step in ((0, 1 << 40, 1), (-(1 << 62), 1 << 62, 1), (0, 1 << 20, 1 << 40), (-(1 << 40), 0, 8)):
        ids = random.permutation(np.unique(random.integers(low, high, 100_000) * step))
        parts = np.array_split(ids, 7)
        assert are_unique(parts, at_once)
        assert not are_unique([*parts, ids[-9:-8]], at_once)


def test_crowded(either_kernel: str) -> None:
    """Where one id fills a bucket, they are not unique, and nothing is written beyond it."""
    assert not are_unique([np.full(100_000, 5)], 1 << 20)
    assert not are_unique([np.arange(50_000), np.full(50_000, 7)], 1 << 20)


@pytest.mark.parametrize("rows", [1 << 31, 1 << 36])
def test_very_many(either_kernel: str, rows: int) -> None:
    """For billions of ids the buckets are larger, and no more than can be numbered."""
    found = Buckets(rows, 1 << 14)
    for first in found.turns()[::9999]:
        found.clear()
        assert found.put(np.arange(1000), first)
        assert all(map(found.are_unique, found.batches()))


def test_the_same_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel puts every id where numpy puts it."""
    if bulk.kernel is None:
        pytest.skip("the compiled kernel was not built here: no C compiler at installation")
    ids = np.random.default_rng(3).integers(-(2**63), 2**63 - 1, 100_000)
    compiled, plain = Buckets(len(ids), 30_000), Buckets(len(ids), 30_000)
    for first in compiled.turns():
        compiled.clear()
        assert compiled.put(ids[:70_000], first)
        assert compiled.put(ids[70_000:], first)
        with monkeypatch.context() as patch:
            patch.setattr(bulk, "kernel", None)
            plain.clear()
            assert plain.put(ids[:70_000], first)
            assert plain.put(ids[70_000:], first)
        assert np.array_equal(compiled._filled, plain._filled)
        for some, others, count in zip(compiled._words, plain._words, plain._filled, strict=True):
            assert np.array_equal(some[:count], others[:count])


def test_by_several_threads(either_kernel: str) -> None:
    """No id is lost where several threads put ids into the same buckets."""
    ids = np.random.default_rng(4).permutation(np.arange(400_000) * 7_919_000_001)
    found = Buckets(len(ids), 1 << 20)
    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(lambda part: found.put(part, 0), np.array_split(ids, 100)))
    assert int(found._filled.sum()) == len(ids)
    assert all(map(found.are_unique, found.batches()))


def test_the_kernel_refuses_misfits() -> None:
    """It writes nothing outside of what it is given, whatever numbers it is given."""
    if bulk.kernel is None:
        pytest.skip("the compiled kernel was not built here: no C compiler at installation")
    ids, words, filled = np.arange(99), np.zeros((4, 10), np.uint64), np.zeros(4, np.int64)
    for bits, first, own in ((0, 0, filled), (17, 0, filled), (2, -1, filled), (2, 0, filled[:0]), (2, 0, filled[:3])):
        with pytest.raises(ValueError, match="put_ids"):
            bulk.kernel.put_ids(ids, bits, first, words, own)
    assert not words.any()
    assert not filled.any()
    for count in (-1, 11):
        with pytest.raises(ValueError, match=f"unique_words: bucket 3 has {count} words, there is room for 10"):
            bulk.kernel.unique_words(words, np.array([0, 0, 0, count]))
    for count in (-1, 11, 2**63 - 1):
        assert not bulk.kernel.put_ids(ids, 2, 0, words, np.array([0, 0, 0, count]))
    assert not words.any()
