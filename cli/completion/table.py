"""The commands with their options and arguments, and what each takes, as the file `table.json`.

`python tests/docs/manual.py --update` makes it: the parser itself takes longer to build than a shell may wait.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

_FILE: Final = Path(__file__).with_name("table.json")


def load() -> dict[str, Any]:
    """Return the table that was made."""
    table: dict[str, Any] = json.loads(_FILE.read_bytes())
    return table
