"""What is expected at the cursor: the words before it, against the table of commands in `table.json`.

`python tests/docs/manual.py --update` makes the table: the parser itself takes longer to build than a shell may wait.
"""

from __future__ import annotations

import json
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

_FILE: Final = Path(__file__).with_name("table.json")


def load() -> dict[str, Any]:
    """Return the table that was made."""
    table: dict[str, Any] = json.loads(_FILE.read_bytes())
    return table


@dataclass(frozen=True, slots=True)
class Expected:
    """What the word at the cursor can be."""

    typed: str
    """The value as far as it is typed: the word, or what stands behind `--table=`."""
    words: tuple[tuple[str, str], ...] = ()
    """Words of the program itself, each with its help."""
    kinds: tuple[str, ...] = ()
    """Kinds of names that a place has, `path` for example, or words behind '='."""
    arguments: tuple[str, ...] = ()
    """The arguments before the word at the cursor."""
    options: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The options before it, with their values."""
    command: str = ""


def expected(words: Sequence[str], table: Mapping[str, Any]) -> Expected:
    """Return what the last word can be; the program's own name is not among the words."""
    *before, typed = words
    if not before:
        options = (("--help", "Show this help"), ("--version", "Print the version"))
        return Expected(typed, words=options if typed.startswith("-") else tuple(commands(table)))
    group = table["groups"].get(before[0])
    if group is None:
        command, before = before[0], before[1:]
    elif len(before) == 1:
        names = [(name, table["commands"][f"{before[0]} {name}"]["help"]) for name in group["members"]]
        return Expected(typed, words=tuple(names))
    else:
        command, before = " ".join(before[:2]), before[2:]
    known = table["commands"].get(command)
    return Expected(typed) if known is None else _in_command(command, known, before, typed)


def commands(table: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield all commands and groups in the order of the help, each with its help."""
    for name in dict.fromkeys(command.partition(" ")[0] for command in table["commands"]):
        yield name, table["groups"].get(name, table["commands"].get(name))["help"]


def _in_command(command: str, known: Mapping[str, Any], before: Sequence[str], typed: str) -> Expected:
    """Return what a word behind the name of a command can be."""
    takes = _values_of_flags(known["options"])
    longs = {option["short"]: long for long, option in known["options"].items() if "short" in option}
    arguments: list[str] = []
    options: dict[str, tuple[str, ...]] = {}
    wants_value = ""
    only_arguments = False
    for word in before:
        flag, equals, value = word.partition("=")
        if wants_value:
            options[wants_value] = (*options.get(wants_value, ()), word)
            wants_value = ""
        elif only_arguments or not word.startswith("-") or word == "-":
            arguments.append(word)
        elif word == "--":
            only_arguments = True
        else:
            flag = longs.get(flag, flag)
            options.setdefault(flag, ())
            if equals:
                options[flag] += (value,)
            elif flag in takes:
                wants_value = flag
    found = Expected(typed, arguments=tuple(arguments), options=options, command=command)
    if wants_value:
        return replace(found, kinds=(takes[wants_value],))
    if not typed.startswith("-") or only_arguments:
        return replace(found, kinds=_argument(known["arguments"], len(arguments)))
    flag, equals, value = typed.partition("=")
    if equals:
        return replace(found, typed=value, kinds=(takes.get(flag, ""),))
    return replace(found, words=tuple(_further_options(known["options"], options)))


def _further_options(known: Mapping[str, Any], typed: Container[str]) -> Iterator[tuple[str, str]]:
    """Yield the options that may follow those that were typed, each with its help."""
    for long, option in known.items():
        if long not in typed or "again" in option:
            yield long, option["help"]


def _values_of_flags(options: Mapping[str, Any]) -> dict[str, str]:
    """Return the kind of value that each flag takes, the short ones too; flags without a value are left out."""
    takes: dict[str, str] = {}
    for long, option in options.items():
        if "takes" in option:
            takes[long] = option["takes"]
            takes[option.get("short", long)] = option["takes"]
    return takes


def _argument(kinds: Sequence[str], index: int) -> tuple[str, ...]:
    """Return what an argument can be, by its place; where the first may be left out, the next may stand there.

    >>> _argument(["ref?", "tag"], 0), _argument(["ref?", "tag"], 1), _argument(["location*"], 5), _argument(["ref"], 1)
    (('ref', 'tag'), ('tag',), ('location',), ())
    """
    if index < len(kinds):
        at = index
    elif kinds and kinds[-1].endswith("*"):
        at = len(kinds) - 1
    else:
        return ()
    may_be_next = kinds[0].endswith("?") and at + 1 < len(kinds)
    return tuple(kind.rstrip("?*") for kind in kinds[at : at + 2 if may_be_next else at + 1])
