"""Values of a program: shapes and dtypes, states of objects, and new values written into them or in their place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from edl_ckpt.core import Table
from edl_ckpt.core.adapters.nest import array_of, flatten
from edl_ckpt.core.adapters.tensorflow import iterator_state, to_tensor
from edl_ckpt.core.base.arrays import as_array, dtype_name, is_of, torch_tensor
from edl_ckpt.core.base.libraries import library
from edl_ckpt.core.training.objects.tracking import (
    Child,
    EmbeddingTable,
    is_iterator,
    is_stateful,
    is_table,
)
from edl_ckpt.core.training.objects.variable import Variable


@dataclass(frozen=True, slots=True)
class Shape:
    """The shape and dtype of a value; of a table only the dim counts, because a restore brings its rows."""

    dims: tuple[int, ...]
    dtype: str
    is_table: bool = False

    def __str__(self) -> str:
        if self.is_table:
            return f"table of dim {self.dims[-1]}, {self.dtype}"
        return f"{self.dtype} {list(self.dims)}"


def shape_of(value: Any, name: str) -> Shape | None:
    """Return the shape of a value of a program, None for the state of an object; UsageError for any other value."""
    if is_stateful(value):
        return None
    if is_table(value):
        vectors = as_array(value.vectors, f"the vectors of {name}")
        return Shape(vectors.shape[1:] or (0,), dtype_name(vectors), is_table=True)
    if is_of(value, "torch", "tensorflow", "keras"):  # they say it without a copy
        return Shape(tuple(value.shape), str(getattr(value.dtype, "name", value.dtype)).removeprefix("torch."))
    array = as_array(value, name)
    return Shape(array.shape, dtype_name(array))


def state_of(value: Any, name: str) -> dict[str, npt.NDArray[Any]]:
    """Return the state of an object as variables below a name."""
    state = iterator_state(value, name) if is_iterator(value) else value.state_dict()
    return flatten(state, f"{name}/", array_of)


def writable_memory(value: object) -> npt.NDArray[Any] | None:
    """Return the memory of an array if bytes of a checkpoint can be read right into it."""
    if type(value) not in {np.ndarray, np.memmap, Variable}:
        return None
    array = np.asarray(value)
    is_little_endian = array.dtype == array.dtype.newbyteorder("<")
    is_plain = array.flags.writeable and array.flags.c_contiguous and is_little_endian
    return array if is_plain and array.size else None


def why_fixed(child: Child) -> str:
    """Return why the value of an edge can be neither changed nor replaced, '' when it can."""
    value = child.value
    if is_stateful(value) or isinstance(value, EmbeddingTable) or callable(getattr(value, "assign", None)):
        return ""
    if is_of(value, "torch") or (isinstance(value, np.ndarray) and value.flags.writeable):
        return ""
    if isinstance(value, Table | np.generic | np.ndarray) or is_of(value, "jax", "jaxlib"):
        return "in a tuple it can be neither changed nor replaced" if child.put is None else ""
    return "it cannot be changed in place: it has no assign(value)"


def write_array(child: Child, data: npt.NDArray[Any], name: str) -> Any:
    """Write a value into an object: by its `assign`, into its memory, or into its place."""
    value = child.value
    if is_of(value, "torch"):
        with library("torch", "torch").no_grad():
            value.copy_(torch_tensor(data))
        return value
    if is_of(value, "tensorflow", "keras"):
        value.assign(to_tensor(data))
        return value
    if is_of(value, "jax", "jaxlib"):
        return put_in_place(child, library("jax", "jax").numpy.asarray(data))
    data = data.view(as_array(value, name).dtype.newbyteorder("<"))  # bfloat16 has two forms
    if callable(getattr(value, "assign", None)):
        value.assign(data)
    elif isinstance(value, np.ndarray) and value.flags.writeable:
        value[...] = data
    else:
        return put_in_place(child, data[()] if isinstance(value, np.generic) else data)
    return value


def put_in_place(child: Child, value: Any) -> Any:
    """Put a value in the place of the old one, where the object that has it allows that; return the value."""
    if child.put is not None:
        child.put(value)
    return value
