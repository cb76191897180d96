"""What one task of an export sends, and another one counts for the fingerprint: both must have had the same bytes.

Nothing that is sent to object storage is read back. So each of two tasks that read the same values weighs them: what is
sent adds a digest, and what is counted takes it away again. All of it together is nothing, unless a read was damaged.
The ids of a table are cut otherwise than its rows, so they are weighed one by one, each with its place.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import xxhash

from edl_ckpt.core.format import bulk

_MODULUS: Final = 1 << 128
_PLACE_BYTES: Final = 8


@dataclass(slots=True)
class Balance:
    """The difference of what was sent and what was counted; those of all tasks add up."""

    digests: int = 0
    """Of pieces of variables and rows, modulo 2**128."""
    ids: dict[str, bulk.U32] = field(default_factory=dict)
    """A sketch of the ids of each table, in which the row of an id is its place."""

    def add(self, other: Balance) -> None:
        """Add the difference that another task found."""
        self.digests = (self.digests + other.digests) % _MODULUS
        for table, sketch in other.ids.items():
            self._add(table, sketch)

    def weigh(self, digest: Any, *, sent: bool) -> None:
        """Add a digest of `weight_of`, or take it away where the bytes were counted."""
        value = digest.intdigest()
        self.digests = (self.digests + (value if sent else -value)) % _MODULUS

    def weigh_ids(self, table: str, ids: bulk.I64, first: int, *, sent: bool) -> None:
        """Add ids, int64 [n], of rows from `first` on, or take them away."""
        sketch = bulk.new_sketch(_PLACE_BYTES)
        places = np.arange(first, first + len(ids), dtype="<i8").view(np.uint8).reshape(len(ids), _PLACE_BYTES)
        bulk.sketch_rows(sketch, ids, places)
        self._add(table, sketch if sent else np.negative(sketch))

    def _add(self, table: str, sketch: bulk.U32) -> None:
        known = self.ids.get(table)
        self.ids[table] = sketch if known is None else known + sketch

    @property
    def is_even(self) -> bool:
        """Say whether exactly that was sent that was counted."""
        return not self.digests and not any(sketch.any() for sketch in self.ids.values())


def weight_of(name: str, start: int) -> Any:
    """Return a new digest for the bytes of a piece of a variable or of the rows of a table."""
    return xxhash.xxh3_128(f"{start} {name}".encode("utf-8", "surrogatepass"))
