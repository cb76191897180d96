"""One tensor in a pickle of torch: its storage, its dtype, its shape, and where its elements are.

The arguments are those of `torch._utils._rebuild_tensor_v2`, and of its older and newer forms. They are the same in the
items of a distributed checkpoint and in the files of `torch.save`, so both come here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from edl_ckpt.core.base.errors import CorruptError, UnsupportedError
from edl_ckpt.core.model.dtypes import TENSOR_DTYPES

MOST_DIMS: Final = 64
"""As in torch."""
UNTYPED: Final = "untyped"
"""What stands for a storage of bytes: the arguments of its tensors name their dtype."""


@dataclass(frozen=True, slots=True)
class ItemValues:
    """The tensor of an item: `first` is where its first element lies in the file, strides are bytes.

    `crc` is that of the bytes [start, end), all that the storage of the tensor has.
    """

    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    first: int
    start: int
    end: int
    crc: int

    @property
    def is_plain(self) -> bool:
        """Return True where the elements follow each other in C order."""
        return in_c_order(self.shape, self.strides, TENSOR_DTYPES[self.dtype].itemsize)


def in_c_order(sizes: Sequence[int], strides: Sequence[int], itemsize: int) -> bool:
    """Say whether elements follow each other in C order, without gaps; strides are bytes."""
    for size, stride in zip(reversed(sizes), reversed(strides), strict=True):
        if size != 1 and stride != itemsize:
            return 0 in sizes
        itemsize *= size
    return True


class StoredTensor(NamedTuple):
    """A tensor in a storage: its key, the bytes that the storage must have, those that the tensor needs, its place."""

    key: str
    stored: int
    needed: int
    values: ItemValues
    """Counted from the begin of the storage."""


def whole_numbers(stored: Any) -> tuple[int, ...]:
    """Return a tuple of sizes or offsets from a pickle; CorruptError for anything else."""
    if type(stored) not in {tuple, list} or len(stored) > MOST_DIMS or any(type(n) is not int for n in stored):
        raise CorruptError("the pickle has something else instead of a shape")
    if any(not 0 <= number < 1 << 62 for number in stored):
        raise CorruptError("the pickle has a shape or an offset that is out of range")
    return tuple(stored)


def stored_tensor(storage: Any, args: Sequence[Any]) -> StoredTensor:
    """Return what the arguments of a tensor say: a storage as torch names it, an offset, a shape, strides, and more.

    `storage` is ('storage', dtype or UNTYPED, key, place, elements). Raises CorruptError for anything else, and
    UnsupportedError for values that only the load of torch would make.
    """
    if type(storage) is not tuple or len(storage) < 5 or len(args) < 3:
        raise CorruptError("its pickle is no tensor")
    dtype, key, length = storage[1], storage[2], storage[4]
    is_untyped = dtype == UNTYPED and len(args) > 5
    dtype = args[5] if is_untyped else dtype
    if any(args[6 if is_untyped else 5 :]):
        raise UnsupportedError("its values are conjugated or negated only when they are loaded")
    if type(dtype) is not str or type(key) is not str or dtype not in TENSOR_DTYPES:
        raise CorruptError("its pickle names no dtype of ours")
    itemsize = TENSOR_DTYPES[dtype].itemsize
    length, first = whole_numbers((length, args[0]))
    shape = whole_numbers(args[1])
    steps = whole_numbers(args[2])
    if len(shape) != len(steps):
        raise CorruptError("its pickle has strides for other dimensions than those of its shape")
    last = first + sum((size - 1) * step for size, step in zip(shape, steps, strict=True))
    needed = 0 if 0 in shape else (last + 1) * itemsize
    strides = tuple(step * itemsize for step in steps)
    stored = length * (1 if is_untyped else itemsize)
    return StoredTensor(key, stored, needed, ItemValues(dtype, shape, strides, first * itemsize, 0, 0, 0))


def logical_bytes(values: ItemValues) -> int:
    """Return the bytes of all elements, where each of them has its own."""
    return math.prod(values.shape) * TENSOR_DTYPES[values.dtype].itemsize
