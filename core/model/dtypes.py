"""Element types: our names for them, and the numbers that formats have for them."""

from __future__ import annotations

from dataclasses import dataclass

from edl_ckpt.core.base.errors import UnsupportedError


@dataclass(frozen=True, slots=True)
class DType:
    """An element type: our name (numpy's where numpy has it), its size, its number in tensorflow.DataType."""

    name: str
    itemsize: int
    tf_enum: int


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


def dtype_named(name: str, dtype: str, *, path: str | None = None) -> DType:
    """Return our dtype with numpy's name for it; UnsupportedError for one that no checkpoint can contain.

    >>> dtype_named("w", "complex64")
    Traceback (most recent call last):
    edl_ckpt.core.base.errors.UnsupportedError: 'w': a checkpoint cannot contain complex64
    """
    if dtype not in DTYPES:
        raise UnsupportedError(f"{name!r}: a checkpoint cannot contain {dtype}", path=path)
    return DTYPES[dtype]
