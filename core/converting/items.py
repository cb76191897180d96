"""The counts of items in a result, the same for each verb: proved, carried as bytes, and left out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from edl_ckpt.core.reading.reader import Checkpoint

if TYPE_CHECKING:  # a copy changes nothing, and does without the modules that do
    from edl_ckpt.core.converting.changes import Outgoing


@dataclass(frozen=True, slots=True)
class ItemCounts:
    """How many tables, variables and other items of a source are in what was written, and how many are not."""

    proved: int = 0
    """Tables and variables that were read back, and have the values that they were meant to have."""
    carried: int = 0
    """Texts, values of Python and the like, whose bytes went along as they are."""
    left_out: int = 0
    """Those of which nothing was written; `left_out` of the result names them."""


NO_ITEMS: Final = ItemCounts()


def items_of(checkpoint: Checkpoint) -> ItemCounts:
    """Return the counts of a version all of which was written and read back."""
    tensors = len(checkpoint.variable_names) + len(checkpoint.table_names)
    return ItemCounts(tensors, len(checkpoint.item_names))


def items_out(out: Outgoing, *, is_written: bool) -> ItemCounts:
    """Return the counts of what goes out; a dry run writes none, and says what it would leave out."""
    carried = sum(variable.is_item for variable in out.variables)
    written = {table.name for table in out.tables} | {variable.name for variable in out.variables}
    gone = sum(one.name not in written for one in out.left_out)  # of a table, only some rows may be left out
    if not is_written:
        return ItemCounts(left_out=gone)
    return ItemCounts(len(out.tables) + len(out.variables) - carried, carried, gone)
