"""The manual as data: a page for the program, each group of commands, each command and each topic.

A page is made from what the parser has. `terminal` draws it, and the tool that writes the documents: the help, the man
pages and the reference say the same. The texts of topics are in `topics.toml`, and so are the words of other programs
for our commands. An option has the same panel in every command that has it, unless the command is named; a test finds
those without one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from edl_ckpt.cli.catalogue import COMMANDS, GROUPS, OLD_FLAGS, SECTIONS, command_at, function_of
from edl_ckpt.cli.manual.marks import exits_of

PROGRAM: Final = "edl-ckpt"
_KINDS: Final[Mapping[str, str]] = {
    "SIZE": "`512MiB`, `10GB` or `1.5k`.",
    "DURATION": "`90s`, `90m`, `36h`, `7d` or `2w`.",
    "GLOB": "a name, or a pattern with `*`, `?` and `[...]`.",
    "REF": "`LOCATION@VERSION`; see `edl-ckpt help refs`.",
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
        Block("Exit codes", rows=tuple(_exit_rows(exits_of(function)))),
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


def is_for_all(block: Block) -> bool:
    """Return True for the block of the options that every command has."""
    return block.heading == ADVANCED


def _option_blocks(name: str, options: Iterable[Any]) -> Iterator[Block]:
    """Yield a block for each panel that has an option, in the order of the panels."""
    rows: dict[str, list[Row]] = {panel: [] for panel in ORDER}
    for option in options:
        long = next((flag for flag in option.opts if flag.startswith("--")), option.opts[0])
        rows[panel_of(name, long)].append(Row(_flags(option), _text(option), tuple(_notes(option))))
    yield from (Block(panel, rows=tuple(found)) for panel, found in rows.items())


def _flags(option: Any) -> str:
    """Return the flags of an option, the short one first, and what it takes."""
    flags = ", ".join(sorted((flag for flag in option.opts if flag not in OLD_FLAGS), key=len))
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
    SELECT: "all since shard table variable slice id ids-file everywhere nearest sort best tag mode metric "
    "experiment recursive partial last headers no-values from version-ge complete on after id-column vector-column key",
    KEEP: "keep keep-best keep-experiment-best keep-every keep-within keep-tag max-size policy save-experiment-best "
    "save-trial-best save-trial-latest",
    DELETE: "incomplete delete with-foreign ignore-pointers even-newest allow-empty-rule drop-tag max-delete "
    "strip-after purge older-than drop-copies drop drop-companions drop-rows",
    OUTPUT: "ranks output layout order map cast rename resize max-shard-size quantize map-template format dtype "
    "dense-rows remap fill limit seed null list origin rows npy junit ids digests summary prometheus",
    EXECUTION: "if-needed keep-old dry-run force mix ignore-seal yes trash plan-out apply also move seal no-write "
    "loader like against newest quick deep sample strict stats tolerance top grace workers max-memory "
    "timeout stall-after interval exec shell cluster",
    ADVANCED: "json csv jsonl quiet verbose no-color progress no-mouse storage-option config system lock-wait help",
}
_OF_COMMAND: Final[Mapping[str, Mapping[str, str]]] = {
    "diff": {"map": SELECT},
    "import": {"format": SELECT},
    "metrics import": {"format": SELECT},
    "config show": {"all": OUTPUT},
    "prune": dict.fromkeys(("mode", "metric", "verified"), KEEP),
    "wait": {"verified": SELECT},
    "report": dict.fromkeys(("mode", "metric"), KEEP),
    "policy set": {"mode": KEEP, "metric": KEEP},
    "metrics set": {"mode": EXECUTION},
    "verify": {"seed": EXECUTION, "ranks": EXECUTION},
    "sample": {"seed": SELECT},
}
_BY_OPTION: Final = {option: panel for panel, options in _PANELS.items() for option in options.split()}


def panel_of(command: str, flag: str) -> str:
    """Return the panel of an option, by its long flag; `OTHER` for one that has none."""
    option = flag.lstrip("-")
    return _OF_COMMAND.get(command, {}).get(option) or _BY_OPTION.get(option, OTHER)


def _block_of(block: Mapping[str, Any]) -> Block:
    rows = tuple(Row(*row) for row in block.get("rows", ()))
    return Block(block["heading"], tuple(block.get("paragraphs", ())), rows, tuple(block.get("lines", ())))


def page_of_text(name: str, text: Mapping[str, Any], *, is_topic: bool = False) -> ManualPage:
    """Return the page that a file of texts has: `topics.toml`, or `front.json`."""
    blocks = tuple(map(_block_of, text["blocks"]))
    return ManualPage(
        name,
        text["summary"],
        text.get("usage", ""),
        tuple(text.get("description", ())),
        blocks,
        is_topic=is_topic,
    )


@cache
def _texts() -> Mapping[str, Any]:
    import tomllib

    return tomllib.loads(Path(__file__).with_name("topics.toml").read_text(encoding="utf-8"))


def synonyms() -> Mapping[str, str]:
    """Return our commands by the words of other programs, behind the group where there is one."""
    return {word: command for words, command in _texts()["words"].items() for word in words.split()}


def topics() -> Mapping[str, ManualPage]:
    """Return the pages of the topics of `edl-ckpt help TOPIC`."""
    return {name: page_of_text(name, text, is_topic=True) for name, text in _texts().items() if name != "words"}


Parser = Callable[[str], Any]
"""Returns the program as its parser sees it, with the command of this name."""
_SUMMARY: Final = "List, check, reshard, export and prune checkpoints of models with large embedding tables."
_DESCRIPTION: Final = (
    "`edl-ckpt COMMAND --help` shows the options of a command, with examples. The same is in the man pages, as in "
    "`man edl-ckpt-prune`."
)
_EXAMPLES: Final = ("demo", "list s3://models/run", "verify run@100 --deep", "prune run --keep 5 --dry-run")


def root() -> ManualPage:
    """Return the page of the program."""
    sections = [
        Block(heading, rows=tuple(Row(name, _summary(name)) for name in names)) for heading, names in SECTIONS.items()
    ]
    about = tuple(Row(f"help {name}", topic.summary) for name, topic in topics().items())
    options = (
        Row("-h, --help", "Show this help, or that of a command."),
        Row("-V, --version", "Print the version."),
    )
    codes = "0 done, 3 findings, 4 incomplete, 5 corrupt, 10 not found, 16 refused: `edl-ckpt help exit-codes`."
    rest = (
        Block("Topics", rows=about),
        Block("Options", rows=options),
        Block("Exit codes", (codes,)),
        Block("Examples", lines=tuple(f"{PROGRAM} {line}" for line in _EXAMPLES)),
    )
    return ManualPage("", _SUMMARY, f"{PROGRAM} COMMAND [ARGUMENTS] [OPTIONS]", (_DESCRIPTION,), (*sections, *rest))


def group(name: str) -> ManualPage:
    """Return the page of a group of commands, such as `tag`."""
    summary, members = GROUPS[name]
    commands = [f"{name} {member}" for member in members]
    rows = tuple(Row(member, _summary(command)) for member, command in zip(members, commands, strict=True))
    firsts = [getattr(function_of(command), "examples", ())[:1] for command in commands[:2]]
    lines = tuple(f"{PROGRAM} {line}" for lines in firsts for line in lines)
    blocks = (Block("Commands", rows=rows), Block("Examples", lines=lines))
    return ManualPage(name, summary, f"{PROGRAM} {name} COMMAND [OPTIONS]", (), blocks)


def overview(name: str) -> ManualPage:
    """Return the page of a group, that of the program for ''."""
    return group(name) if name else root()


def page(name: str, parser: Parser) -> ManualPage:
    """Return the page of a command, a topic or a group, that of the program for ''.

    `config` is both: its topic tells more, and names the group.
    """
    if name in COMMANDS:
        return _command(name, parser)
    return topics().get(name) or overview(name)


def every(parser: Parser) -> Iterator[ManualPage]:
    """Yield all pages: the program's, each command's and each group's in the order of the help, and the topics."""
    yield root()
    for names in SECTIONS.values():
        for name in names:
            if name in GROUPS:
                yield group(name)
            yield from (_command(command, parser) for command in COMMANDS if command.partition(" ")[0] == name)
    yield from topics().values()


def _command(name: str, parser: Parser) -> ManualPage:
    """Return the page of a command, such as `list` or `tag add`."""
    command = command_at(parser(name.partition(" ")[0]), name)
    context = command.make_context(f"{PROGRAM} {name}", [], resilient_parsing=True)
    return command_page(name, command, context, function_of(name))


def _summary(name: str) -> str:
    """Return the first line of the help of a command or a group."""
    return GROUPS[name][0] if name in GROUPS else (function_of(name).__doc__ or "").strip().partition("\n")[0]
