"""What a format is given: tensors, in order, each read once as a stream of bytes; and what it must do with them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from edl_ckpt.core.format.model import DType


@dataclass(frozen=True, slots=True)
class Tensor:
    """An array to be written: its bytes, C order, little-endian, come from `chunks`, which may be called once."""

    name: str
    dtype: DType
    shape: tuple[int, ...]
    chunks: Callable[[], Iterator[npt.NDArray[np.uint8]]]

    @property
    def size_bytes(self) -> int:
        """Return the bytes of all elements."""
        return math.prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class TableRows:
    """A table for a format of rows: batches of (int64 [n] ids ascending, [n, dim] vectors)."""

    name: str
    rows: int
    dim: int
    batches: Callable[[], Iterator[tuple[npt.NDArray[np.int64], npt.NDArray[np.generic]]]]


@dataclass(frozen=True, slots=True)
class TableNote:
    """What an importer must know of a table: which tensors it is, and what initializes ids yet unseen."""

    ids: str
    vectors: str
    initializer: str
    dim: int
    dtype: str
    """'' for a table without rows."""


@dataclass(frozen=True, slots=True)
class ExportContent:
    """All that is exported; `metadata` are texts about the whole."""

    tensors: Sequence[Tensor]
    tables: Sequence[TableRows]
    notes: Mapping[str, TableNote] = field(default_factory=dict)
    metadata: Mapping[str, str] = field(default_factory=dict)


class ExportFormat(Protocol):
    """A way to write content below a path that nobody sees yet; its errors are those of storage."""

    name: str
    is_directory: bool
    """True when the output is a directory."""

    def write(self, content: ExportContent, path: str) -> None:
        """Write everything to a new file or into a new, empty directory at `path`."""
        ...
