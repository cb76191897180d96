"""`edl-ckpt completion`: the script by which a shell completes the words of edl-ckpt."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final

from edl_ckpt.cli.manual.marks import declared
from edl_ckpt.cli.options.common import argument
from edl_ckpt.cli.terminal.output import Output
from edl_ckpt.core.base.errors import UsageError
from edl_ckpt.core.base.words import meant

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


@declared("completion bash", "completion fish --verbose")
def completion_command(
    out: Output,
    shell: Annotated[str, argument("bash|zsh|fish", "The shell: bash, zsh or fish.")],
) -> None:
    """Print the completion script for your shell.

    A comment in the script says where to put it. It completes commands, options and values, and the versions, tags,
    metrics, tables and variables of the location. The wheel installs it below share/ too.
    """
    if shell not in SCRIPTS:
        raise UsageError(f"no completion for {shell!r}; expected {', '.join(SCRIPTS)}", hint=meant(shell, SCRIPTS))
    script = SCRIPTS[shell].read_text(encoding="utf-8")
    document = {"schema": "edl-ckpt/completion/1", "shell": shell, "place": PLACES[shell], "script": script}
    if out.json:
        out.print_json(document)
        return
    out.write(script)
    out.detail(f"put it into {PLACES[shell]}")
