"""The values in an open version by their paths, and reading them into the objects of a program."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from edl_ckpt.core import Checkpoint, Table
from edl_ckpt.core.adapters.nest import unflatten
from edl_ckpt.core.adapters.tensorflow import restore_iterator
from edl_ckpt.core.base.arrays import as_array, is_of, torch_tensor
from edl_ckpt.core.reading.aliases import ALIASES, Path, parse_aliases, parse_name, path_name
from edl_ckpt.core.training.objects.matching import SavedPaths
from edl_ckpt.core.training.objects.program_values import Shape, put_in_place, writable_memory, write_array
from edl_ckpt.core.training.objects.tracking import (
    Child,
    EmbeddingTable,
    is_iterator,
    is_stateful,
    is_table,
)


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
