"""The completion scripts, as they are installed and as `edl-ckpt completion SHELL` prints them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

_FOLDER: Final = Path(__file__).parents[2] / "completions"
"""Next to `cli` in a checkout and where it is installed."""
SCRIPTS: Final[Mapping[str, Path]] = {
    shell: _FOLDER / name
    for shell, name in (("bash", "edl-ckpt.bash"), ("zsh", "_edl-ckpt"), ("fish", "edl-ckpt.fish"))
}
PLACES: Final[Mapping[str, str]] = {
    "bash": "~/.local/share/bash-completion/completions/edl-ckpt",
    "zsh": "_edl-ckpt in a directory of $fpath, such as ~/.zfunc",
    "fish": "~/.config/fish/completions/edl-ckpt.fish",
}
