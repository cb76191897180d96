"""How the files of a version of another system are laid out: every offset is known before a value is written.

A format that can be written says, from names, dtypes and shapes alone, which files there are, where in them the values
of each slab of each array go, and which bytes stand around them. Who writes puts the values there, and then the rest.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from edl_ckpt.core.model.dtypes import DType


@dataclass(frozen=True, slots=True)
class Slab:
    """A box of an array that one file has: its first element and its size in each dimension, in C order.

    `rank` is the process that would have written it; a format chooses the file by it.
    """

    rank: int
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Array:
    """An array to be written: its whole shape, and the slabs that tile it."""

    key: str
    """Its name as the format stores it."""
    dtype: DType
    shape: tuple[int, ...]
    slabs: tuple[Slab, ...]
    item_shape: tuple[int, ...] | None = None
    """The shape that an item says it has; its own one counts bytes. None for an array."""


class FileLayout(Protocol):
    """Where everything goes in the files of one version."""

    @property
    def files(self) -> Mapping[str, int]:
        """Return the bytes of each file by its path in the version, the file that completes the version last."""

    @property
    def checksum(self) -> str:
        """Return the checksum that the files have of each slab: 'crc32', 'crc32c', or '' for none."""

    def at(self, key: str, slab: int) -> tuple[str, int]:
        """Return the file of a slab of an array, by its number there, and the offset of its values."""

    def literals(self, sums: Mapping[tuple[str, int], int]) -> Iterator[tuple[str, int, bytes]]:
        """Yield (file, offset, bytes) of all that is no value, given the checksum of each slab by (key, number)."""
