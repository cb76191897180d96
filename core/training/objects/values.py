"""Values in a version and values of a program: their shapes and dtypes, and writing the first into the second."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from edl_ckpt.core import Checkpoint, Table
from edl_ckpt.core.adapters.nest import array_of, flatten, unflatten
from edl_ckpt.core.adapters.tensorflow import iterator_state, restore_iterator, to_tensor
from edl_ckpt.core.base.arrays import as_array, dtype_name, is_of, torch_tensor
from edl_ckpt.core.base.libraries import library
from edl_ckpt.core.reading.aliases import ALIASES, Path, parse_aliases, parse_name, path_name
from edl_ckpt.core.training.objects.graph import SavedPaths
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


class SavedValues:
    """The values in an open version by their paths."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.checkpoint = checkpoint
        aliases: Mapping[Path, Path] = {}
        dense = set(checkpoint.variable_names)
        if ALIASES in dense:
            dense.remove(ALIASES)
            aliases = parse_aliases(checkpoint.variable(ALIASES), checkpoint.version.ref)
        self._dense = _by_path(dense)
        self._tables = _by_path(checkpoint.table_names)
        self.names = SavedPaths(frozenset(self._dense) | frozenset(self._tables), aliases)
        self.shapes = {path: self._shape(path) for path in self.names.paths}

    def _shape(self, path: Path) -> Shape:
        if path in self._dense:
            _, entry = self.checkpoint.find_variable(self._dense[path])
            return Shape(entry.shape, entry.dtype.name)
        table = self.checkpoint.table(self._tables[path])
        return Shape((table.dim,), table.dtype, is_table=True)

    def read_into(self, path: Path, child: Child) -> Any:
        """Read a value into the object of a program, or in its place; return the object that has the value now.

        Shapes and dtypes are equal, and `why_fixed` has no objection. Large arrays are read right into their memory.
        """
        if is_stateful(child.value):
            leaf = torch_tensor if is_of(child.value, "torch") else np.asarray
            state = unflatten(self.checkpoint, f"{path_name(path)}/", leaf)
            if is_iterator(child.value):
                restore_iterator(child.value, state)
            else:
                child.value.load_state_dict(state)
            return child.value
        if is_table(child.value):
            table = self._read_table(path, child.value)
            if isinstance(child.value, EmbeddingTable):
                return child.value.assign(table)
            return put_in_place(child, table)
        memory = writable_memory(child.value)
        if memory is not None:
            shard, entry = self.checkpoint.find_variable(self._dense[path])
            self.checkpoint.reader(shard, entry.values).read_into(
                entry.values.start, memory.reshape(-1).view(np.uint8).data
            )
            return child.value
        return write_array(child, self.checkpoint.variable(self._dense[path], bits=True), path_name(path))

    def _read_table(self, path: Path, like: Any) -> Table:
        """Read a whole table; bfloat16, which numpy lacks, in the form that the program has it in."""
        view = self.checkpoint.table(self._tables[path])
        ids, vectors = view.to_numpy()
        if view.dtype == "bfloat16":
            bits = (vectors.view(np.uint32) >> 16).astype(np.uint16)
            vectors = bits.view(as_array(like.vectors, path_name(path)).dtype)
        return Table(ids, vectors, view.initializer or "uniform")


def _by_path(names: Iterable[str]) -> dict[Path, str]:
    """Return names by what they are read as: of several, the one that we would write, else the first."""
    ours_last = sorted(sorted(names, reverse=True), key=lambda name: path_name(parse_name(name)) == name)
    return {parse_name(name): name for name in ours_last}


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
