"""A page of the manual as data: a command, a group of commands, the program or a topic, made from what the parser has.

`terminal` draws it, and the tool that writes the documents: the help, the man pages and the reference say the same.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from edl_ckpt.cli.manual import marks, panels

PROGRAM: Final = "edl-ckpt"
_KINDS: Final[Mapping[str, str]] = {
    "SIZE": "bytes, or a number with a unit: `512MiB`, `10GB`, `1.5k`. KiB is 1024 bytes, kB is 1000.",
    "DURATION": "a number with a unit: `90s`, `90m`, `36h`, `7d` or `2w`.",
    "GLOB": "a name, or a pattern with `*`, `?` and `[...]`, in quotes.",
    "REF": "`LOCATION@VERSION`; `edl-ckpt help refs` has all ways to write one.",
}
"""What the words in capitals stand for, where a command has them."""


@dataclass(frozen=True, slots=True)
class Row:
    """A line of a list: a term, what it is, and notes on it such as its default."""

    term: str
    text: str
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Block:
    """A heading with paragraphs, rows and lines that are shown as they are, in this order; each may be absent."""

    heading: str
    paragraphs: tuple[str, ...] = ()
    rows: tuple[Row, ...] = ()
    lines: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ManualPage:
    """A page: `name` is `prune`, `tag add`, '' for the program, or that of a topic; text has `code` in backticks."""

    name: str
    summary: str
    usage: str
    description: tuple[str, ...]
    blocks: tuple[Block, ...]
    is_topic: bool = False


def command_page(name: str, command: Any, context: Any, function: Callable[..., None]) -> ManualPage:
    """Return the page of a command: `command` is the parser of `name`, `function` what it runs."""
    summary, _, rest = (function.__doc__ or "").strip().partition("\n")
    description = tuple(" ".join(part.split()) for part in rest.split("\n\n") if part.strip())
    parameters = [p for p in command.get_params(context) if not getattr(p, "hidden", False)]
    arguments = [p for p in parameters if p.param_type_name == "argument"]
    options = [p for p in parameters if p.param_type_name == "option"]
    lines = tuple(f"{PROGRAM} {line}" for line in getattr(function, "examples", ()))
    words = {word for p in parameters for word in re.findall(r"[A-Z]+", str(p.metavar))}
    blocks = (
        Block("Arguments", rows=tuple(Row(str(p.metavar), _text(p)) for p in arguments)),
        *_option_blocks(name, options),
        Block("Values", rows=tuple(Row(word, text) for word, text in _KINDS.items() if word in words)),
        Block("Exit codes", rows=tuple(_exit_rows(marks.exits_of(function)))),
        Block("Examples", lines=lines),
    )
    filled = tuple(block for block in blocks if block.rows or block.lines)
    return ManualPage(name, summary, usage_line(name, parameters), description, filled)


def usage_line(name: str, parameters: Iterable[Any]) -> str:
    """Return how a command is called: its arguments, the options that it needs, and that it takes others."""
    every = list(parameters)
    arguments = [str(p.metavar) for p in every if p.param_type_name == "argument"]
    needed = [_flags(p) for p in every if p.param_type_name == "option" and p.required]
    return " ".join([PROGRAM, *name.split(), *arguments, *needed, "[OPTIONS]"])


def _option_blocks(name: str, options: Iterable[Any]) -> Iterator[Block]:
    """Yield a block for each panel that has an option, in the order of the panels."""
    rows: dict[str, list[Row]] = {panel: [] for panel in panels.ORDER}
    for option in options:
        long = next((flag for flag in option.opts if flag.startswith("--")), option.opts[0])
        rows[panels.panel_of(name, long)].append(Row(_flags(option), _text(option), tuple(_notes(option))))
    yield from (Block(panel, rows=tuple(found)) for panel, found in rows.items())


def _flags(option: Any) -> str:
    """Return the flags of an option, the short one first, and what it takes."""
    flags = ", ".join(sorted(option.opts, key=len))
    return flags if option.is_flag else f"{flags} {option.metavar}"


def _text(parameter: Any) -> str:
    return "Show this help." if parameter.name == "help" else str(parameter.help or "")


def _notes(option: Any) -> Iterator[str]:
    """Yield the default of an option, unless its text says it, and the variable that sets it."""
    if option.required:
        yield "required"
    default = option.default
    if not (option.is_flag or default in {None, "", ...} or callable(default) or "Default:" in _text(option)):
        yield f"default: {default}"
    if isinstance(option.envvar, str):
        yield f"env: {option.envvar}"


def _exit_rows(found: Mapping[int, str]) -> Iterator[Row]:
    """Yield the codes with a meaning of their own here, one by one, and all others in one row."""
    own = {0: found.get(0) or "done", **{code: text for code, text in found.items() if code and text}}
    yield from (Row(str(code), text) for code, text in own.items())
    others = ", ".join(str(code) for code in found if code not in own)
    yield Row("others", f"{others}: see `edl-ckpt help exit-codes`")
