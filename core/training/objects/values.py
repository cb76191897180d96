"""Values in a version and values of a program: their shapes and dtypes, and writing the first into the second."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from edl_ckpt.core.arrays import as_array, dtype_name
from edl_ckpt.core.checkpoint.reader import Checkpoint
from edl_ckpt.core.errors import UsageError
from edl_ckpt.core.operations.save import Table
from edl_ckpt.core.training.objects.graph import ALIASES, Names, parse_aliases
from edl_ckpt.core.training.objects.paths import Path, parse_name, path_name
from edl_ckpt.core.training.objects.tracking import Child, is_table
from edl_ckpt.core.training.objects.variables import EmbeddingTable


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


def shape_of(value: Any, name: str) -> Shape:
    """Return the shape of a value of a program; UsageError for one that is no array after all."""
    if is_table(value):
        vectors = as_array(value.vectors, f"the vectors of {name}")
        return Shape(vectors.shape[1:] or (0,), dtype_name(vectors), is_table=True)
    array = as_array(value, name)
    return Shape(array.shape, dtype_name(array))


class Values:
    """The values in an open version by their paths."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.checkpoint = checkpoint
        self._dense: dict[Path, str] = {}
        self._tables: dict[Path, str] = {}
        aliases: Mapping[Path, Path] = {}
        dense = set(checkpoint.variable_names)
        if ALIASES in dense:
            dense.remove(ALIASES)
            aliases = parse_aliases(checkpoint.variable(ALIASES), checkpoint.version.ref)
        # Names that we would write come first: in those of others, two names may be read as one path.
        for name in sorted(sorted(dense), key=_is_foreign):
            self._dense.setdefault(parse_name(name), name)
        for name in sorted(checkpoint.table_names, key=_is_foreign):
            self._tables.setdefault(parse_name(name), name)
        self.names = Names.of(frozenset(self._dense) | frozenset(self._tables), aliases)
        self.shapes = {path: self._shape(path) for path in self.names.paths}

    def _shape(self, path: Path) -> Shape:
        if path in self._dense:
            _, entry = self.checkpoint.find_variable(self._dense[path])
            return Shape(entry.shape, entry.dtype.name)
        table = self.checkpoint.table(self._tables[path])
        return Shape((table.dim,), table.dtype, is_table=True)

    def read_into(self, path: Path, child: Child) -> Any:
        """Read a value into the object of a program, or in its place; return the object that has the value now.

        Shapes and dtypes are equal. Raises UsageError for an object that can be neither changed nor replaced.
        """
        if is_table(child.value):
            return _put_table(child, self._read_table(path, child.value), path_name(path))
        array = as_array(child.value, path_name(path))
        data = self.checkpoint.variable(self._dense[path], bits=True)
        return _put_array(child, array, data.view(array.dtype.newbyteorder("<")), path_name(path))

    def _read_table(self, path: Path, like: Any) -> Table:
        """Read a whole table; bfloat16, which numpy lacks, in the form that the program has it in."""
        view = self.checkpoint.table(self._tables[path])
        ids, vectors = view.to_numpy()
        if view.dtype == "bfloat16":
            bits = (vectors.view(np.uint32) >> 16).astype(np.uint16)
            vectors = bits.view(as_array(like.vectors, path_name(path)).dtype)
        return Table(ids, vectors, view.initializer or "uniform")


def _is_foreign(name: str) -> bool:
    return path_name(parse_name(name)) != name


def _put_table(child: Child, table: Table, name: str) -> Any:
    if isinstance(child.value, EmbeddingTable):
        return child.value.assign(table)
    return _replaced(child, table, name)


def _put_array(child: Child, array: npt.NDArray[Any], data: npt.NDArray[Any], name: str) -> Any:
    """Write a value into an object: by its `assign`, into its memory, or into its place."""
    value = child.value
    if callable(getattr(value, "assign", None)):
        value.assign(data)
    elif isinstance(value, np.ndarray) and value.flags.writeable:
        value[...] = data
    elif _is_of(value, "torch"):
        torch = sys.modules["torch"]
        with torch.no_grad():
            if array.dtype.names:  # bfloat16, as bits
                bits = torch.from_numpy(data.view("<i2").reshape(array.shape))
                value.copy_(bits.view(torch.bfloat16))
            else:
                value.copy_(torch.from_numpy(data))
    elif isinstance(value, np.generic | np.ndarray):
        return _replaced(child, data[()] if isinstance(value, np.generic) else data, name)
    elif _is_of(value, "jax", "jaxlib"):
        return _replaced(child, sys.modules["jax"].numpy.asarray(data), name)
    else:
        raise UsageError(f"{name}: {type(value).__name__} cannot be restored in place", hint="it needs assign(value)")
    return value


def _is_of(value: object, *libraries: str) -> bool:
    return any(kind.__module__.partition(".")[0] in libraries for kind in type(value).__mro__)


def _replaced(child: Child, value: Any, name: str) -> Any:
    if child.put is None:
        raise UsageError(f"{name}: {type(child.value).__name__} in a tuple can be neither changed nor replaced")
    child.put(value)
    return value
