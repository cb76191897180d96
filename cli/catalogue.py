"""The names of all commands, in the order of the help, and the functions behind them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

SECTIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "Look": ("list", "inspect", "get", "head", "sample", "ids", "diff", "du", "report", "browse"),
    "Check": ("verify",),
    "Follow": ("wait", "watch"),
    "Change": ("reshard", "edit", "copy", "export", "import"),
    "Clean up": ("prune", "undo", "policy"),
    "Record": ("metrics", "tag", "note", "metadata"),
    "Repair": ("repair", "recover", "unlock"),
    "Learn": ("demo", "systems", "help", "version", "schema"),
    "Set up": ("doctor", "config", "completion"),
}
"""The commands by the headings of the help, in its order."""
GROUPS: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = {
    "policy": ("Store retention rules with a location.", ("show", "set", "clear")),
    "metrics": ("Record, import and show metrics of versions.", ("set", "show", "import", "remove", "mode")),
    "metadata": ("Record values of your own with versions.", ("set", "show", "remove")),
    "config": ("Show the settings in force.", ("show",)),
    "tag": ("Name versions, and protect them from pruning.", ("add", "remove", "list")),
}
"""The commands that are groups: the first line of their help, and their sub-commands."""


def _commands() -> Iterator[str]:
    for section in SECTIONS.values():
        for name in section:
            if name in GROUPS:
                _, members = GROUPS[name]
                yield from (f"{name} {member}" for member in members)
            else:
                yield name


COMMANDS: Final = tuple(_commands())
"""All commands.

`list` is `list_command` in `commands/list_.py`; `tag add` is `tag_add_command` in `commands/tag_.py`.
"""
OLD_FLAGS: Final = frozenset({"--ps", "--world-size"})
"""The old names of --ranks: they work, and no help, completion or usage shows them."""
_HOMES: Final[Mapping[str, str]] = {"head": "get", "sample": "get"}
"""Where the commands are that share a module with another one."""


def command_at(program: Any, name: str) -> Any:
    """Return a command such as `list` or `tag add` as the parser of the program has it."""
    for word in name.split():
        program = program.commands[word]
    return program


def function_of(command: str) -> Callable[..., None]:
    """Return the function behind a command such as `list` or `tag add`."""
    from importlib import import_module

    word = command.partition(" ")[0]
    module = import_module(f"edl_ckpt.cli.commands.{_HOMES.get(word, word)}_")
    function: Callable[..., None] = getattr(module, f"{command.replace(' ', '_')}_command")
    return function
