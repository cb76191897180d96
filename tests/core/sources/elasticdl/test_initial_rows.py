"""Rows of ids that were never trained: Keras's distributions, and the same row for an id wherever it is asked for."""

from __future__ import annotations

import math
from collections.abc import Callable
from statistics import NormalDist

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import IDS
from edl_ckpt.core import Table, UnsupportedError, UsageError, initial_rows, open_checkpoint, restore, save_checkpoint
from edl_ckpt.core.base.errors import NameNotFoundError
from edl_ckpt.core.model.dtypes import DTYPES
from edl_ckpt.core.model.tables import TableInfo
from edl_ckpt.core.sources.elasticdl.checks import KERAS_INITIALIZERS
from edl_ckpt.core.sources.elasticdl.initial_rows import _log

DIM = 16
NORMAL = NormalDist()
WITHIN_TWO = NORMAL.cdf(2) - NORMAL.cdf(-2)
TRUNCATED_STDDEV = 0.87962566103423978  # scipy.stats.truncnorm.std(a=-2, b=2), as Keras has it


def uniform(limit: float) -> Callable[[float], float]:
    """Return the distribution function of the uniform distribution on [-limit, limit)."""
    return lambda x: min(max((x + limit) / (2 * limit), 0.0), 1.0)


def normal(stddev: float) -> Callable[[float], float]:
    """Return the distribution function of a normal distribution."""
    return lambda x: NORMAL.cdf(x / stddev)


def truncated(stddev: float) -> Callable[[float], float]:
    """Return the distribution function of a normal distribution without what lies beyond two standard deviations."""
    return lambda x: min(max((NORMAL.cdf(x / stddev) - NORMAL.cdf(-2)) / WITHIN_TWO, 0.0), 1.0)


DISTRIBUTIONS = {
    "uniform": uniform(0.05),
    "RandomUniformV2": uniform(0.05),
    "normal": normal(0.05),
    "random_normal": normal(0.05),
    "truncated_normal": truncated(0.05),
    "TruncatedNormal": truncated(0.05),
    "glorot_uniform": uniform(math.sqrt(3 / DIM)),  # sqrt(6 / (fan_in + fan_out)), both of which are dim
    "GlorotNormal": truncated(math.sqrt(1 / DIM) / TRUNCATED_STDDEV),
    "he_uniform": uniform(math.sqrt(6 / DIM)),
    "he_normalV2": truncated(math.sqrt(2 / DIM) / TRUNCATED_STDDEV),
    "lecun_uniform": uniform(math.sqrt(3 / DIM)),
    "lecun_normal": truncated(math.sqrt(1 / DIM) / TRUNCATED_STDDEV),
    "VarianceScaling": truncated(math.sqrt(1 / DIM) / TRUNCATED_STDDEV),
}
"""By the defaults and the formulas of `tensorflow/python/ops/init_ops_v2.py`, for a vector of DIM elements."""


def distance(values: npt.NDArray[np.generic], cdf: Callable[[float], float]) -> float:
    """Return the largest distance of the distribution of values from a distribution function, in its own deviations.

    That is the statistic of Kolmogorov and Smirnov times the root of their number: above 1.95 once in a thousand times.
    """
    ordered = np.sort(values.reshape(-1).astype(float))
    expected = np.array([cdf(x) for x in ordered])
    steps = np.arange(len(ordered) + 1) / len(ordered)
    return float(max((steps[1:] - expected).max(), (expected - steps[:-1]).max()) * math.sqrt(len(ordered)))


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_distributions_are_those_of_keras(name: str) -> None:
    """Elements have the distribution that Keras's initializer of that name has, over ids, columns and seeds."""
    rows = initial_rows(TableInfo("user", DIM, name), range(1500))
    assert rows.dtype == np.float32
    assert distance(rows, DISTRIBUTIONS[name]) < 1.95
    assert distance(rows[:, 3], DISTRIBUTIONS[name]) < 1.95
    assert distance(initial_rows(TableInfo("user", DIM, name), np.arange(100) * 2**40, seed=5), DISTRIBUTIONS[name]) < 2


def test_elements_are_independent() -> None:
    """Neighbours do not resemble each other: ids, columns, tables, seeds."""
    rows = initial_rows(TableInfo("user", DIM, "normal"), range(4000)).astype(float) / 0.05
    others = (
        rows[1:] * rows[:-1],
        rows[:, 1:] * rows[:, :-1],
        rows * initial_rows(TableInfo("user2", DIM, "normal"), range(4000)).astype(float) / 0.05,
        rows * initial_rows(TableInfo("user", DIM, "normal"), range(4000), seed=1).astype(float) / 0.05,
    )
    for products in others:
        assert abs(products.mean()) * math.sqrt(products.size) < 4


@given(ids=st.lists(IDS, min_size=1, max_size=40), seed=st.integers(-5, 2**70), data=st.data())
def test_a_row_depends_on_seed_table_and_id(ids: list[int], seed: int, data: st.DataObject) -> None:
    """Whatever the order and the number of ids that are asked for at a time, an id has the same row, bit for bit."""
    name = data.draw(st.sampled_from(["uniform", "normal", "truncated_normal", "he_normal"]))
    info = TableInfo("user", data.draw(st.integers(1, 20)), name)
    rows = initial_rows(info, ids, seed=seed)
    order = data.draw(st.permutations(range(len(ids))))
    cut = data.draw(st.integers(0, len(ids)))
    mixed = [ids[k] for k in order]
    again = np.concatenate([initial_rows(info, mixed[:cut], seed=seed), initial_rows(info, mixed[cut:], seed=seed)])
    assert np.array_equal(again, rows[list(order)])


def test_known_values() -> None:
    """The values never change: a job that is restarted with another release gets the same rows."""
    rows = [initial_rows(TableInfo("user", 2, name), [7], seed=3)[0] for name in ("uniform", "normal", "he_normal")]
    assert np.array(rows).view(np.uint32).tolist() == KNOWN


KNOWN = [[3174403542, 3169649648], [3168514203, 3179718970], [3206289564, 3216989309]]


def test_logarithm() -> None:
    """Logarithms are right to two bits of a float64, down to the least number that is drawn."""
    values = np.concatenate([np.random.default_rng(1).random(10_000), 2.0 ** -np.arange(1, 64), [1 - 2.0**-53]])
    assert np.allclose(_log(values), np.log(values), rtol=1e-15, atol=0)


@pytest.mark.parametrize("name", sorted(KERAS_INITIALIZERS))
def test_every_name(name: str) -> None:
    """Every name that Keras knows gives rows, except those that Keras makes no vectors with: an error names them."""
    info = TableInfo("user", 4, name)
    if name.lower().removesuffix("v2") in {"identity", "orthogonal", "initializer"}:
        with pytest.raises(UnsupportedError, match=rf"table 'user': initializer '{name}' makes no vectors"):
            initial_rows(info, [1])
    else:
        rows = initial_rows(info, [1, 2])
        assert rows.shape == (2, 4)
        assert np.isfinite(rows).all()


@pytest.mark.parametrize(
    ("initializer", "dtype", "value"),
    [
        ("zeros", "f4", 0),
        ("Ones", "i1", 1),
        ("constant", "f8", 0),
        ("0.0", "f4", 0),
        ("0.1", "f8", 0.1),
        ("one", "?", 1),
    ],
)
def test_constants(initializer: str, dtype: str, value: float) -> None:
    """A constant is in every element and of every dtype; a number is one too, as optimizers' slot tables have it."""
    rows = initial_rows(TableInfo("slot", 3, initializer), [1, 2, -5], dtype=dtype)
    assert rows.dtype == np.dtype(dtype)
    assert (rows == value).all()
    assert rows.shape == (3, 3)


@pytest.mark.parametrize("name", ["my_initializer", "", "Uniform", "nan", "inf"])
def test_unknown_names(name: str) -> None:
    """A name that Keras does not know is an error that names it, and no row of zeros."""
    with pytest.raises(UnsupportedError, match=f"table 'user': Keras has no initializer {name!r}"):
        initial_rows(TableInfo("user", 3, name), [1])


def test_dtypes_and_ids() -> None:
    """Rows have the info's dtype, or the given one; random whole numbers, and ids that are none, are errors."""
    info = TableInfo("user", 3, "uniform", dtype=DTYPES["float64"].tf_enum)
    assert initial_rows(info, [1]).dtype == np.float64
    assert initial_rows(info, [], dtype="float16").shape == (0, 3)
    assert initial_rows(TableInfo("wide", 0, "uniform"), [1, 2]).shape == (2, 0)
    with pytest.raises(UnsupportedError, match="'uniform' draws floating-point numbers, the rows are int32"):
        initial_rows(info, [1], dtype="int32")
    for wrong in ([1.5], [[1]], "ab"):
        with pytest.raises(UsageError):
            initial_rows(info, wrong)  # type: ignore[arg-type]


def test_rows_of_a_part(tmp_path: object) -> None:
    """Trained ids have their rows, all others initial ones: the same from each server of any number of servers."""
    location, ids = str(tmp_path), np.array([40, 3, -8, 12, 5])
    vectors = np.arange(10, dtype=np.float32).reshape(5, 2)
    save_checkpoint(
        location,
        1,
        2,
        variables={},
        tables={"user": Table(ids, vectors, "normal"), "new": Table(ids[:0], np.zeros((0, 3)))},
    )
    wanted = np.array([3, 99, 40, 3, -8, -7, 2**62, 12, 5])
    whole = restore(f"{location}@1", 0, 1).rows_for("user", wanted, seed=4)
    trained = np.isin(wanted, ids)
    assert np.array_equal(whole[trained], vectors[[1, 0, 1, 2, 3, 4]])
    assert np.array_equal(whole[~trained], initial_rows(TableInfo("user", 2, "normal"), wanted[~trained], seed=4))
    for new in (2, 3, 7):
        for ps_id in range(new):
            part, mine = restore(f"{location}@1", ps_id, new), wanted % new == ps_id
            assert np.array_equal(part.rows_for("user", wanted[mine], seed=4), whole[mine])
            assert part.rows_for("user", wanted[mine], seed=4).shape == (mine.sum(), 2)
            assert part.rows_for("new", [1, 2]).shape == (2, 3)
    with pytest.raises(NameNotFoundError, match="no table 'other'"):
        part.rows_for("other", [1])
    with open_checkpoint(f"{location}@1") as checkpoint:
        table = checkpoint.table("user")
        assert np.array_equal(initial_rows(table, wanted[~trained], seed=4), whole[~trained])
