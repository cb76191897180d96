"""Rows of ids that were never trained: what a table's initializer gives, the same for every number of servers.

ElasticDL draws such a row when its id is first asked for, by the Keras initializer that the table's info names, for a
vector of `dim` elements. So the same job gets other rows after each restart. Here every element is a hash of (seed,
table, id, column), so a row depends on nothing else: neither on the server, nor on the order or the number of ids.
Distributions are Keras's, with its defaults. Only operations that IEEE 754 rounds alike everywhere make them.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from edl_ckpt.core.base.arrays import Ids, as_ids
from edl_ckpt.core.base.errors import UnsupportedError, UsageError
from edl_ckpt.core.base.names import name_bytes
from edl_ckpt.core.model.dtypes import TF_DTYPES
from edl_ckpt.core.sources.elasticdl.checks import KERAS_INITIALIZERS, function_name

_U64 = npt.NDArray[np.uint64]
_F64 = npt.NDArray[np.float64]
_Draw = Callable[[_U64], _F64]
"""Makes the values of elements, float64 [n], from their hashes."""

_ELEMENTS_AT_ONCE: Final = 1 << 16
"""Elements made at a time, so that the arrays in between stay in the cache."""
_STEP: Final = np.uint64(0x9E3779B97F4A7C15)
_SPREAD: Final = 0.05
"""Keras's `minval`, `maxval` and `stddev` of uniform and normal, without their sign."""
_CONSTANTS: Final = {"zero": 0.0, "zeros": 0.0, "one": 1.0, "ones": 1.0, "constant": 0.0}
_SYNONYMS: Final = {
    "uniform": "random_uniform",
    "normal": "random_normal",
    "truncated_normal": "random_truncated",
    "variance_scaling": "lecun_normal",
}
"""The latter by the defaults of VarianceScaling: scale 1, fan_in, truncated_normal."""
_TRUNCATED_STDDEV: Final = 0.87962566103423978
"""The standard deviation of a normal distribution cut at 2 sigma, by which Keras's variance scaling divides."""
_SCALES: Final = {"glorot": 1.0, "lecun": 1.0, "he": 2.0}
"""Variance scaling over a vector of `dim` elements, where fan_in, fan_out and their mean are all `dim`."""


class Described(Protocol):
    """What describes a table: its info, or the table of an open checkpoint."""

    @property
    def name(self) -> str:
        """Return the table's name."""

    @property
    def dim(self) -> int:
        """Return the elements of a row."""

    @property
    def initializer(self) -> str:
        """Return the name of its initializer, or a constant."""

    @property
    def dtype(self) -> int | str:
        """Return the dtype of its rows: its number in tensorflow.DataType, or its name."""


def initial_rows(table: Described, ids: Ids, *, seed: int = 0, dtype: npt.DTypeLike | None = None) -> npt.NDArray[Any]:
    """Return the rows that a table's initializer gives to ids that were never trained: [n, dim] for int64 [n] ids.

    A row depends on (seed, table name, id) alone. `dtype` is that of the rows, the info's when None. Raises
    UnsupportedError for an initializer that gives no vector (unknown, or for matrices only) and for random integers.

    >>> from edl_ckpt.core.model.tables import TableInfo
    >>> info = TableInfo("user", 2, "uniform")
    >>> rows = initial_rows(info, [5, 9, 5])
    >>> rows.shape, bool((rows[0] == rows[2]).all()), bool((abs(rows) <= 0.05).all())
    ((3, 2), True, True)
    """
    if not hasattr(table, "initializer"):
        raise UsageError(f"initial_rows: table is {table!r:.80}; expected the info of a table, or an open table")
    kind = _row_dtype(table, dtype)
    wanted = np.ascontiguousarray(as_ids(ids))
    drawn = _constant_or_draw(table)
    if isinstance(drawn, float):
        return np.full((len(wanted), table.dim), drawn, kind)
    if kind.kind != "f":
        raise UnsupportedError(
            f"table {table.name!r}: initializer {table.initializer!r} draws floating-point numbers, the rows are {kind}"
        )
    rows = np.empty((len(wanted), table.dim), kind)
    key = _key(seed, table.name)
    columns = np.arange(table.dim, dtype=np.uint64) * _STEP
    step = max(_ELEMENTS_AT_ONCE // max(table.dim, 1), 1)
    for start in range(0, len(wanted), step):
        batch = slice(start, start + step)
        row_hashes = _mixed(wanted[batch].view(np.uint64) ^ key)
        hashes = _mixed(row_hashes[:, None] + columns)
        rows[batch] = drawn(hashes.reshape(-1)).reshape(hashes.shape)
    return rows


def _row_dtype(table: Described, dtype: npt.DTypeLike | None) -> np.dtype[Any]:
    """Return the dtype of rows: the one asked for, else the table's; float32 where numpy has none, or none is named."""
    if dtype is None:
        named = TF_DTYPES[table.dtype].name if table.dtype in TF_DTYPES else table.dtype
        dtype = named if isinstance(named, str) and named != "bfloat16" else "float32"
    try:
        return np.dtype(dtype)
    except TypeError as error:
        raise UsageError(f"initial_rows: dtype is {dtype!r:.80}: {error}") from None


def _key(seed: int, table: str) -> np.uint64:
    """Return the number that tells the rows of a seed and a table from those of others."""
    digest = hashlib.blake2b(name_bytes(f"{seed}\0{table}"), digest_size=8).digest()
    return np.uint64(int.from_bytes(digest, "little"))


def _constant_or_draw(table: Described) -> float | _Draw:
    """Return the value of all elements, or what draws the value of each from its hash."""
    name = table.initializer
    if name not in KERAS_INITIALIZERS:
        return _slot_constant(table)
    function = function_name(name)
    if function in _CONSTANTS:
        return _CONSTANTS[function]
    family, _, distribution = _SYNONYMS.get(function, function).partition("_")
    if family == "random":
        return lambda hashes: _DRAWS[distribution](hashes) * _SPREAD
    if family not in _SCALES:
        raise UnsupportedError(
            f"table {table.name!r}: initializer {name!r} makes no vectors, so ElasticDL cannot make a row with it"
        )
    variance = _SCALES[family] / max(table.dim, 1)
    if distribution == "uniform":
        return lambda hashes: _uniform(hashes) * math.sqrt(3 * variance)
    return lambda hashes: _normal(hashes, cut=2.0) * (math.sqrt(variance) / _TRUNCATED_STDDEV)


def _slot_constant(table: Described) -> float:
    """Return the number that is the initializer of an optimizer's slot table; UnsupportedError for another text."""
    with suppress(ValueError):
        constant = float(table.initializer)
        if math.isfinite(constant):
            return constant
    raise UnsupportedError(f"table {table.name!r}: Keras has no initializer {table.initializer!r}")


def _mixed(words: _U64) -> _U64:
    """Return a hash of each uint64: the output function of splitmix64 (Steele, Lea and Flood, 2014)."""
    mixed = words + _STEP
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


def _uniform(elements: _U64) -> _F64:
    """Return numbers in [-1, 1), of 24 bits, so that float32 rounds none up to 1."""
    return ((elements >> np.uint64(40)).astype(np.float64) - 2.0**23) * 2.0**-23


def _normal(elements: _U64, cut: float = math.inf) -> _F64:
    """Return numbers of the standard normal distribution; those beyond the cut are drawn again, as Keras does.

    Marsaglia's polar method: a point in a square is drawn until it is inside the circle.
    """
    result = np.empty(len(elements))
    waiting = np.arange(len(elements))
    while len(waiting):
        words = elements[waiting]
        x = (words >> np.uint64(32)).astype(np.float64) * 2.0**-31 - (1 - 2.0**-32)
        y = (words & np.uint64(0xFFFFFFFF)).astype(np.float64) * 2.0**-31 - (1 - 2.0**-32)
        square = x * x + y * y
        inside = np.minimum(square, 1 - 2.0**-53)
        value = x * np.sqrt(-2 * _log(inside) / inside)
        good = (square < 1) & (np.abs(value) <= cut)
        result[waiting[good]] = value[good]
        waiting = waiting[~good]
        elements[waiting] = _mixed(elements[waiting])
    return result


def _log(values: _F64) -> _F64:
    """Return natural logarithms, by a series: the last bit of `numpy.log` differs from processor to processor."""
    fraction, exponent = np.frexp(values)
    low = fraction < math.sqrt(0.5)
    fraction = np.where(low, 2 * fraction, fraction)
    exponent = exponent - low
    ratio = (fraction - 1) / (fraction + 1)
    square = ratio * ratio
    total = np.full_like(ratio, 1 / 21)
    for odd in range(19, 0, -2):
        total = total * square + 1 / odd
    logarithm: _F64 = 2 * ratio * total + exponent * math.log(2)
    return logarithm


_DRAWS: Final[Mapping[str, _Draw]] = {
    "uniform": _uniform,
    "normal": _normal,
    "truncated": partial(_normal, cut=2.0),
}
