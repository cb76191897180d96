"""A made-up checkpoint system: tables alone, a file of ids and a file of rows for each rank.

`test_toy_system.py` adds it to a copy of the package, as somebody adds a system: this folder, and a line in each of
three registries.
"""

from __future__ import annotations

from typing import Final

from edl_ckpt.core.model.systems import System

ABOUT: Final = System("toy", "Toy", "toy rank", writes=True, known_by_names=True)
MARKS: Final = (".toy-",)
ALONE: Final = False
