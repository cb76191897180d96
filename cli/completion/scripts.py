"""The completion scripts, as they are installed and as `edl-ckpt completion SHELL` prints them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

SCRIPTS: Final[Mapping[str, Path]] = {
    shell: Path(__file__).with_name(name)
    for shell, name in (("bash", "edl-ckpt.bash"), ("zsh", "_edl-ckpt"), ("fish", "edl-ckpt.fish"))
}
PLACES: Final[Mapping[str, str]] = {
    "bash": "~/.local/share/bash-completion/completions/edl-ckpt",
    "zsh": "_edl-ckpt in a directory of $fpath, such as ~/.zfunc",
    "fish": "~/.config/fish/completions/edl-ckpt.fish",
}
