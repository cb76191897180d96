"""The panels of a command's help: which options choose, which say how something is done, written or printed.

An option has the same panel in every command that has it, unless the command is named. A test finds those without one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

CHOOSE: Final = "What it takes"
KEEP: Final = "What is kept"
DELETE: Final = "What is deleted"
WRITE: Final = "How it is written"
DO: Final = "How it is done"
WORK: Final = "How it works"
OUTPUT: Final = "Output"
STORAGE: Final = "Storage and configuration"
OTHER: Final = "Options"

ORDER: Final = (CHOOSE, KEEP, DELETE, WRITE, DO, WORK, OTHER, OUTPUT, STORAGE)
"""The panels from top to bottom."""

_PANELS: Final[Mapping[str, str]] = {
    CHOOSE: "all system since shard table variable slice id ids-file everywhere nearest sort best tag mode metric "
    "experiment recursive partial seed last headers no-values format from version-ge complete on after id-column "
    "vector-column key",
    KEEP: "keep keep-best keep-experiment-best keep-every keep-within keep-tag max-size policy save-experiment-best "
    "save-trial-best save-trial-latest",
    DELETE: "incomplete delete even-newest allow-empty-rule drop-tag max-delete strip-after purge older-than "
    "drop-copies drop drop-companions drop-rows",
    WRITE: "ps output if-needed layout keep-old dry-run force mix ignore-seal yes trash plan-out apply map also move "
    "seal order cast rename resize max-shard-size ranks quantize map-template",
    WORK: "no-write loader world-size quick deep sample strict stats tolerance top grace workers max-memory lock-wait "
    "timeout stall-after interval exec shell cluster",
    OUTPUT: "json csv jsonl null list origin rows npy raw junit ids summary prometheus quiet verbose no-color progress "
    "no-mouse help",
    STORAGE: "storage-option config",
}
_OF_COMMAND: Final[Mapping[str, Mapping[str, str]]] = {
    "list": {"format": OUTPUT},
    "diff": {"map": CHOOSE},
    "config show": {"all": OUTPUT},
    "prune": {
        **dict.fromkeys(("mode", "metric"), KEEP),
        **dict.fromkeys(("dry-run", "yes", "trash", "plan-out", "apply"), DO),
    },
    "report": dict.fromkeys(("mode", "metric"), KEEP),
    "policy set": {"mode": KEEP, "metric": KEEP},
    "export": dict.fromkeys(
        ("order", "format", "dtype", "dense-rows", "fill", "seed", "limit", "max-shard-size"), WRITE
    ),
    "metrics set": {"mode": WRITE},
    "verify": {"seed": WORK},
}
_BY_OPTION: Final = {option: panel for panel, options in _PANELS.items() for option in options.split()}


def panel_of(command: str, flag: str) -> str:
    """Return the panel of an option, by its long flag; `OTHER` for one that has none."""
    option = flag.lstrip("-")
    return _OF_COMMAND.get(command, {}).get(option) or _BY_OPTION.get(option, OTHER)
