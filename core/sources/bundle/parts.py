"""Variables of a bundle that only describe how its tables are cut into parts: other systems have no place for them.

DeepRec writes where the groups of keys of a part begin, and the columns of a part without elements where it has none.
They are content of the bundle, as all that its index names, and are made anew for other parts. Keys that wait for their
admission go by parts, too. Source: DeepRec's `tensorflow/core/framework/embedding/embedding_var_ckpt_data.cc`.
"""

from __future__ import annotations

import re
from collections.abc import Container, Mapping
from typing import Final

OFFSETS: Final = "-partition_offset"
"""What the name of the offsets of groups ends with."""
RECORD: Final = "partition record"
"""The kind of such a variable."""
OF_SYSTEM: Final = "tensorflow"
_OF_PARTS: Final = re.compile(r"(.*)-(?:partition_(?:filter_)?offset|(?:keys|freqs|versions)_filtered)", re.DOTALL)
_COLUMNS: Final = re.compile(r"(.*)-(?:keys|freqs|versions)", re.DOTALL)

_PLAIN: Final = ("-keys", "-freqs", "-versions")


def part_records(shapes: Mapping[str, tuple[int, ...]], tables: Container[str]) -> dict[str, str]:
    """Return the table of each variable that describes one of its parts; `shapes` are those of all variables, by name.

    >>> part_records({"t/part_0-partition_offset": (1001,), "t/part_0-freqs": (0,), "w-freqs": (0,)}, {"t"})
    {'t/part_0-partition_offset': 't', 't/part_0-freqs': 't'}
    """
    from edl_ckpt.core.sources.bundle.tables import part_of  # 4 ms of every start; only a bundle has such variables

    grouped = {part_of(name.removesuffix(OFFSETS))[0] for name in shapes if name.endswith(OFFSETS)}
    found: dict[str, str] = {}
    for name, shape in shapes.items():
        match = _OF_PARTS.fullmatch(name) or (_COLUMNS.fullmatch(name) if shape == (0,) else None)
        table = part_of(match[1])[0] if match else ""
        if table in tables and (table in grouped or not name.endswith(_PLAIN)):
            found[name] = table
    return found


def is_waiting(name: str) -> bool:
    """Say whether such a variable has keys, or what is counted of keys, that were not admitted yet."""
    return name.endswith("_filtered")
