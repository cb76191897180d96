"""Element types: our names for them, and the numbers that formats have for them."""

from __future__ import annotations

from typing import Final, NamedTuple

from edl_ckpt.core.base.errors import UnsupportedError

VALUE_KINDS: Final = frozenset({"value", "string", "resource", "variant"})
"""The kinds of items that are no tensors of numbers. All other kinds are dtypes, whose elements are not whole bytes."""


class DType(NamedTuple):
    """An element type: our name (numpy's where numpy has it), its size, its number in tensorflow.DataType, 0 for none.

    An item is no array of elements: texts, a value of Python, a tensor whose elements are not whole bytes. Its bytes
    are as its system stores them, whatever its shape is.
    """

    name: str
    itemsize: int
    tf_enum: int
    is_item: bool = False

    @property
    def is_value(self) -> bool:
        """Say whether it is of items that are no tensors of numbers: texts, a value of Python, a handle."""
        return self.is_item and self.name in VALUE_KINDS

    @property
    def is_ours(self) -> bool:
        """Say whether tables may have it, and ElasticDL's shards contain it."""
        return self.name in DTYPES and not self.is_item


_DTYPES = (
    DType("float32", 4, 1),
    DType("float64", 8, 2),
    DType("int32", 4, 3),
    DType("uint8", 1, 4),
    DType("int16", 2, 5),
    DType("int8", 1, 6),
    DType("int64", 8, 9),
    DType("bool", 1, 10),
    DType("bfloat16", 2, 14),
    DType("uint16", 2, 17),
    DType("float16", 2, 19),
    DType("uint32", 4, 22),
    DType("uint64", 8, 23),
)
DTYPES = {dtype.name: dtype for dtype in _DTYPES}
TF_DTYPES = {dtype.tf_enum: dtype for dtype in _DTYPES}
_OTHERS = (
    DType("complex32", 4, 0),
    DType("complex64", 8, 8),
    DType("complex128", 16, 18),
    DType("float8_e5m2", 1, 24),
    DType("float8_e4m3fn", 1, 25),
    DType("float8_e4m3fnuz", 1, 26),
    DType("float8_e4m3b11fnuz", 1, 27),
    DType("float8_e5m2fnuz", 1, 28),
    DType("float8_e8m0fnu", 1, 0),
    DType("float4_e2m1fn_x2", 1, 0),
)
TENSOR_DTYPES = DTYPES | {dtype.name: dtype for dtype in _OTHERS}
"""With those that only variables have, as bytes: nothing computes with them. The last has two elements in a byte."""


def item_type(kind: str) -> DType:
    """Return the type of an item, such as 'value' or 'string': its bytes are as its system stores them."""
    return DType(kind, 1, 0, is_item=True)


def dtype_named(name: str, dtype: str, *, path: str | None = None) -> DType:
    """Return our dtype with numpy's name for it; UnsupportedError for one that no checkpoint can contain.

    >>> dtype_named("w", "complex64")
    Traceback (most recent call last):
    edl_ckpt.core.base.errors.UnsupportedError: a checkpoint of ElasticDL cannot hold 'w' (complex64)
    """
    if dtype not in DTYPES:
        raise UnsupportedError(f"a checkpoint of ElasticDL cannot hold {name!r} ({dtype})", path=path)
    return DTYPES[dtype]
