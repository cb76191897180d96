"""Variables that are matrices of rows, or neither variables nor matrices: how the proof of a move sums them."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Meaning:
    """What the proof takes variables for, where the files of a system say more of them than that they are tensors."""

    row_bytes: Mapping[str, int] = field(default_factory=dict)
    """The bytes of a row of those that are matrices: they are summed as rows."""
    plain: Container[str] = ()
    """Those that are neither variables nor matrices: they are summed by themselves."""
