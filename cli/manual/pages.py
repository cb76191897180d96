"""All pages of the manual: of the program, its groups and commands, and its topics."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from edl_ckpt.cli.catalogue import COMMANDS, GROUPS, SECTIONS, command_at, function_of
from edl_ckpt.cli.manual.page import PROGRAM, Block, ManualPage, Row, command_page
from edl_ckpt.cli.manual.topics import TOPICS

Parser = Callable[[str], Any]
"""Returns the program as its parser sees it, with the command of this name."""
_SUMMARY: Final = "Look at, check, change and prune the checkpoints of ElasticDL's parameter servers."
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
    topics = tuple(Row(f"help {name}", about.summary) for name, about in TOPICS.items())
    options = (
        Row("-h, --help", "Show this help, or that of a command."),
        Row("-V, --version", "Print the version."),
    )
    codes = "0 done, 3 findings, 4 incomplete, 5 corrupt, 10 not found, 16 refused: `edl-ckpt help exit-codes`."
    rest = (
        Block("Topics", rows=topics),
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
    return TOPICS[name] if name in TOPICS else overview(name)


def every(parser: Parser) -> Iterator[ManualPage]:
    """Yield all pages: the program's, each command's and each group's in the order of the help, and the topics."""
    yield root()
    for names in SECTIONS.values():
        for name in names:
            if name in GROUPS:
                yield group(name)
            yield from (_command(command, parser) for command in COMMANDS if command.partition(" ")[0] == name)
    yield from TOPICS.values()


def _command(name: str, parser: Parser) -> ManualPage:
    """Return the page of a command, such as `list` or `tag add`."""
    command = command_at(parser(name.partition(" ")[0]), name)
    context = command.make_context(f"{PROGRAM} {name}", [], resilient_parsing=True)
    return command_page(name, command, context, function_of(name))


def _summary(name: str) -> str:
    """Return the first line of the help of a command or a group."""
    return GROUPS[name][0] if name in GROUPS else (function_of(name).__doc__ or "").strip().partition("\n")[0]
