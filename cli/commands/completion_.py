"""`edl-ckpt completion`: the script by which a shell completes the words of edl-ckpt."""

from __future__ import annotations

import os
from collections.abc import Mapping
from io import StringIO
from pathlib import Path
from typing import Annotated, Final

from edl_ckpt.cli.manual.marks import declared
from edl_ckpt.cli.options.common import argument, option
from edl_ckpt.cli.options.config import user_directory
from edl_ckpt.cli.render.verify import write_report
from edl_ckpt.cli.terminal.output import Output
from edl_ckpt.core.base.errors import RefusedError, UsageError
from edl_ckpt.core.base.words import escaped, meant
from edl_ckpt.core.storage.faults import storage_errors
from edl_ckpt.core.storage.user_files import open_input

_FOLDER: Final = Path(__file__).parents[2] / "completions"
"""Next to `cli` in a checkout and where it is installed."""
SCRIPTS: Final[Mapping[str, Path]] = {
    shell: _FOLDER / name
    for shell, name in (("bash", "edl-ckpt.bash"), ("zsh", "_edl-ckpt"), ("fish", "edl-ckpt.fish"))
}
PLACES: Final[Mapping[str, tuple[str, str, str, str]]] = {
    "bash": ("XDG_DATA_HOME", ".local/share", "bash-completion/completions/edl-ckpt", "it needs bash-completion"),
    "zsh": ("", "", ".zfunc/_edl-ckpt", "its ~/.zshrc needs the line fpath+=~/.zfunc; autoload -Uz compinit; compinit"),
    "fish": ("XDG_CONFIG_HOME", ".config", "fish/completions/edl-ckpt.fish", "no more is needed"),
}
"""Where shells look for a user's scripts: below a variable or another directory, at this name, and what that takes."""


@declared("completion bash", "completion install --shell fish", exits={10, 12, 16})
def completion_command(
    out: Output,
    action: Annotated[
        str, argument("bash|zsh|fish|install", "The shell whose script to print; or install, to write it for you.")
    ],
    shell: Annotated[
        str | None, option("bash|zsh|fish", "With install: for this shell. Default: that of $SHELL.")
    ] = None,
) -> None:
    """Print or install the completion script for your shell.

    A comment in the script says where to put it, and `install` puts it there. It completes commands, options and
    values, and the versions, tags, metrics, tables and variables of the location.
    """
    if shell and action != "install":
        raise UsageError("--shell can only be used with install")
    name = (shell or os.path.basename(os.environ.get("SHELL", ""))) if action == "install" else action
    if name not in SCRIPTS:
        hint = "name one: --shell bash" if action == "install" else meant(name, [*SCRIPTS, "install"])
        raise UsageError(f"no completion for {name!r}; expected {', '.join(SCRIPTS)} or install", hint=hint)
    script, (variable, otherwise, file, step) = SCRIPTS[name].read_text(encoding="utf-8"), PLACES[name]
    folder = user_directory(variable, otherwise)
    if not folder and action == "install":
        raise UsageError("no home directory is known", hint="set HOME, or print the script and put it in place")
    place = os.path.join(os.path.dirname(folder), file)
    document: dict[str, object] = {"schema": "edl-ckpt/completion/1", "shell": name, "place": place, "script": script}
    if action == "install":
        document |= {"changed": install(place, script), "next": f"open a new {name}; {step}"}
        done = "written" if document["changed"] else "is there already"
        out.show(lambda: document, [f"{escaped(place, 4096)}  {done}", str(document["next"])])
    elif out.json:
        out.print_json(document)
    else:
        out.write(script)
        out.detail(f"put it into {place}")


def install(place: str, script: str) -> bool:
    """Write a script; return False where it is there already. RefusedError where another file has its name."""
    with open_input(place, encoding="utf-8", errors="replace") if os.path.lexists(place) else StringIO() as file:
        present = file.read()
    if present and "ompletion of edl-ckpt in" not in present[:200]:
        raise RefusedError("exists, and is not a script of edl-ckpt", path=place)
    if present != script:
        with storage_errors(place):
            os.makedirs(os.path.dirname(place), exist_ok=True)
        write_report(place, script)
    return present != script
