"""The demo as JSON: the checkpoints that it made, and the commands that it ran."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any


def document(
    directory: str, ps_num: int, versions: Sequence[int], ran: Iterable[tuple[Sequence[str], int, Any]]
) -> dict[str, Any]:
    """Return `edl-ckpt/demo/1`; `ran` has the arguments, the exit code and the document of each command."""
    return {
        "schema": "edl-ckpt/demo/1",
        "location": directory,
        "ps_num": ps_num,
        "versions": list(versions),
        "commands": [
            {"arguments": list(arguments), "exit_code": code, "document": document} for arguments, code, document in ran
        ],
    }
