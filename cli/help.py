"""How help looks: commands in sections, each with its whole first line; common options apart; examples at the end.

Nothing is ever cut with "...": a line that does not fit is wrapped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Final, TypeVar

from typer.core import TyperCommand, TyperGroup

COMMON_OPTIONS: Final = "Common options"
_PROGRAM: Final = "edl-ckpt"

Command = TypeVar("Command", bound=Callable[..., None])


def examples(*lines: str) -> Callable[[Command], Command]:
    """Give a command the examples that end its help, each written without the program's name."""

    def mark(function: Command) -> Command:
        function.examples = lines  # type: ignore[attr-defined]
        return function

    return mark


def example_lines(function: Callable[..., None]) -> tuple[str, ...]:
    """Return the examples of a command as command lines."""
    return tuple(f"{_PROGRAM} {line}" for line in getattr(function, "examples", ()))


def first_line(function: Callable[..., None]) -> str:
    """Return the first line of a command's help."""
    return (function.__doc__ or "").strip().partition("\n")[0]


class HelpCommand(TyperCommand):
    """A command whose help ends with examples: its epilog is one command line per line.

    Typer 0.28 brings its own copy of click, so the types of context and formatter have no public name.
    """

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write arguments, the command's own options, and the options that every command has."""
        _write_parameters(self, ctx, formatter)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002 - the signature is typer's
        """Write the examples as they are; a command line that is wrapped cannot be copied."""
        _write_examples(self.epilog, formatter)


class HelpGroup(TyperGroup):
    """A group whose help lists its commands in sections; its epilog is text, a blank line, and one example per line."""

    sections: ClassVar[Mapping[str, Sequence[str]]] = {}
    """Commands by heading, in the order of the help; a group without sections has one."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of the commands in the order of the sections; typer would put groups last."""
        names = super().list_commands(ctx)
        order = [name for section in self.sections.values() for name in section]
        return sorted(names, key=order.index) if order else names

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the commands, then the options."""
        self.format_commands(ctx, formatter)
        _write_parameters(self, ctx, formatter)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the commands under their headings, aligned across all of them."""
        names = self.list_commands(ctx)
        width = max(map(len, names), default=0)
        commands = {name: self.get_command(ctx, name) for name in names}
        for heading, section in (self.sections or {"Commands": names}).items():
            rows = [(n.ljust(width), c.get_short_help_str()) for n in section if (c := commands.get(n))]
            if rows:
                with formatter.section(heading):
                    formatter.write_dl(rows)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002 - the signature is typer's
        """Write the text, then the examples."""
        text, _, lines = (self.epilog or "").rpartition("\n\n")
        if text:
            formatter.write_paragraph()
            formatter.write_text(text)
        _write_examples(lines, formatter)


def _write_parameters(command: TyperCommand | TyperGroup, ctx: Any, formatter: Any) -> None:
    sections: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": [], COMMON_OPTIONS: []}
    for parameter in command.get_params(ctx):
        record = parameter.get_help_record(ctx)
        if record is None:
            continue
        heading = getattr(parameter, "rich_help_panel", None)
        if parameter.param_type_name == "argument":
            heading = "Arguments"
        elif parameter.name == "help" and isinstance(command, TyperCommand):
            heading = COMMON_OPTIONS
        sections[heading or "Options"].append(record)
    for heading, rows in sections.items():
        if rows:
            with formatter.section(heading):
                formatter.write_dl(rows)


def _write_examples(lines: str | None, formatter: Any) -> None:
    if lines:
        with formatter.section("Examples"):
            for line in lines.splitlines():
                formatter.write(f"{'':>{formatter.current_indent}}{line}\n")
