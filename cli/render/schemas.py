"""JSON Schemas of all documents that commands print: `edl-ckpt schema`, `docs/schemas/`.

`python tests/docs/manual.py --update` makes them, in `schemas.json`. A schema allows keys that it does not name, for
documents gain keys; the tests refuse them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

from edl_ckpt.cli.catalogue import GROUPS

_FILE: Final = Path(__file__).with_name("schemas.json")
OF_COMMANDS: Final[Mapping[str, tuple[str, ...]]] = {
    "verify": ("verify", "verify-all", "verify-failed"),
    **{f"{group} {name}": ("tags" if group == "tag" else group,) for group in GROUPS for name in GROUPS[group][1]},
    "metrics import": ("metrics-import",),
}
"""The documents of each command that prints others than one of its own name."""


@cache
def all_schemas() -> dict[str, dict[str, Any]]:
    """Return the JSON Schema of every document, by its name such as 'verify-all'."""
    schemas: dict[str, dict[str, Any]] = json.loads(_FILE.read_bytes())
    return schemas


def schema_for(command: str | None = None) -> dict[str, Any]:
    """Return the JSON Schema of all that a command prints, or of all documents; KeyError when it prints none.

    The name of a document does as well, and `error` is what any command prints when it fails.
    """
    every = all_schemas()
    schemas = [every[name] for name in (every if command is None else OF_COMMANDS.get(command, (command,)))]
    return schemas[0] if len(schemas) == 1 else {"$schema": schemas[0]["$schema"], "oneOf": schemas}
