"""Parameters of the engine as options: its errors quote parameters, and people typed options."""

from __future__ import annotations

import re
from collections.abc import Container
from typing import Final

_NAMED_OTHERWISE: Final = {
    "executor": "--cluster",
    "max_shard_bytes": "--max-shard-size",
    "names": "--map",
    "tables": "--table",
    "variables": "--variable",
}
"""The options whose names are not those of their parameters."""


def in_options(message: str, flags: Container[str]) -> str:
    """Return a message of the engine with the options of a command in place of the parameters that it quotes.

    >>> in_options("`max_shard_bytes` is for safetensors, not for `npz`", {"--max-shard-size", "--limit"})
    '--max-shard-size is for safetensors, not for `npz`'
    """

    def option(found: re.Match[str]) -> str:
        parameter = found[1]
        flag = _NAMED_OTHERWISE.get(parameter, f"--{parameter.replace('_', '-')}")
        return flag if flag in flags else found[0]

    return re.sub(r"`([a-z_]+)`", option, message)
