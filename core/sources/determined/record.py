"""Determined's record of a checkpoint: its directory is named by a UUID, and a file in it has the number."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

RECORD: Final = "metadata.json"
"""In a directory named by a UUID: what Determined records with a checkpoint."""
STEPS: Final = "steps_completed"
"""The key of the number in it."""
_MAX_NUMBER: Final = 10**18
_UUID: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", re.ASCII)


def is_uuid(name: str) -> bool:
    """Say whether a name is a UUID as Determined names its checkpoints: in lower case, with four hyphens.

    >>> is_uuid("4f8a0d1e-07b5-4bd5-8f1c-6f3c2a9be001"), is_uuid("4f8a0d1e"), is_uuid("version-30")
    (True, False, False)
    """
    return len(name) == 36 and _UUID.fullmatch(name) is not None


def recorded_number(record: Mapping[str, Any]) -> int | None:
    """Return the number that a record has; None without one that can be a version's.

    >>> recorded_number({"steps_completed": 20}), recorded_number({"steps_completed": True})
    (20, None)
    """
    steps = record.get(STEPS)
    is_number = isinstance(steps, int) and not isinstance(steps, bool) and 0 <= steps < _MAX_NUMBER
    return steps if is_number else None
