"""The words that mean yes and no, for a flag and for the variable of the environment that sets it."""

from __future__ import annotations

import os
from typing import Final

TRUTHS: Final = dict.fromkeys(["1", "true", "t", "yes", "y", "on"], True) | dict.fromkeys(
    ["0", "false", "f", "no", "n", "off", ""], False
)


def is_set(variable: str) -> bool:
    """Say whether a variable of the environment sets a flag."""
    return TRUTHS.get(os.environ.get(variable, "").strip().lower(), False)
