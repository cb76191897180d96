"""The panels of a command's help: which options select, which shape the output, which steer the run.

An option has the same panel in every command that has it, unless the command is named. A test finds those without one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

SELECT: Final = "Select"
KEEP: Final = "Keep"
DELETE: Final = "Delete"
OUTPUT: Final = "Output"
EXECUTION: Final = "Execution"
ADVANCED: Final = "Advanced"
OTHER: Final = "Options"

ORDER: Final = (SELECT, KEEP, DELETE, OUTPUT, EXECUTION, OTHER, ADVANCED)
"""The panels from top to bottom."""

_PANELS: Final[Mapping[str, str]] = {
    SELECT: "all system since shard table variable slice id ids-file everywhere nearest sort best tag mode metric "
    "experiment recursive partial last headers no-values from version-ge complete on after id-column vector-column key",
    KEEP: "keep keep-best keep-experiment-best keep-every keep-within keep-tag max-size policy save-experiment-best "
    "save-trial-best save-trial-latest",
    DELETE: "incomplete delete even-newest allow-empty-rule drop-tag max-delete strip-after purge older-than "
    "drop-copies drop drop-companions drop-rows",
    OUTPUT: "ps ranks output layout order map cast rename resize max-shard-size quantize map-template format dtype "
    "dense-rows remap fill limit seed json csv jsonl null list origin rows npy raw junit ids summary prometheus",
    EXECUTION: "if-needed keep-old dry-run force mix ignore-seal yes trash plan-out apply also move seal no-write "
    "loader world-size quick deep sample strict stats tolerance top grace workers max-memory lock-wait timeout "
    "stall-after interval exec shell cluster",
    ADVANCED: "quiet verbose no-color progress no-mouse storage-option config help",
}
_OF_COMMAND: Final[Mapping[str, Mapping[str, str]]] = {
    "diff": {"map": SELECT},
    "import": {"format": SELECT},
    "metrics import": {"format": SELECT},
    "config show": {"all": OUTPUT},
    "prune": dict.fromkeys(("mode", "metric"), KEEP),
    "report": dict.fromkeys(("mode", "metric"), KEEP),
    "policy set": {"mode": KEEP, "metric": KEEP},
    "metrics set": {"mode": EXECUTION},
    "verify": {"seed": EXECUTION},
    "sample": {"seed": SELECT},
}
_BY_OPTION: Final = {option: panel for panel, options in _PANELS.items() for option in options.split()}


def panel_of(command: str, flag: str) -> str:
    """Return the panel of an option, by its long flag; `OTHER` for one that has none."""
    option = flag.lstrip("-")
    return _OF_COMMAND.get(command, {}).get(option) or _BY_OPTION.get(option, OTHER)
