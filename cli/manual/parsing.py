"""The parser's commands: their help is a page of the manual, and their words become values by the annotations.

The parser would make values as well, but from typer 0.29 on it imports pydantic for that, which takes as long as a
command.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Iterator
from functools import partial
from typing import Any, Final, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup

from edl_ckpt.cli.catalogue import function_of
from edl_ckpt.cli.terminal.truths import TRUTHS

ARGUMENTS: Final = "edl_ckpt.arguments"
"""The words behind a command, in the `meta` of its context."""


class HelpCommand(TyperCommand):
    """A command whose help is its page.

    Typer 0.28 brings its own copy of click, so the type of a context has no public name.
    """

    def get_help(self, ctx: Any) -> str:
        """Return the help for the stream that it goes to."""
        # Most commands are not asked for their help.
        from edl_ckpt.cli.manual.pages import command_page
        from edl_ckpt.cli.manual.terminal import drawn

        name = command_of(ctx)
        return drawn(command_page(name, self, ctx, function_of(name)))

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the words behind the command, none of which is an option that another option would take as its value.

        The parser alone takes `--dry-run` of `prune --keep-tag --dry-run` for a tag, and the versions are deleted.
        """
        take_words(self, ctx)
        ctx.meta[ARGUMENTS] = tuple(args)
        options: list[Any] = [p for p in self.get_params(ctx) if p.param_type_name == "option"]
        flags = {flag: option for option in options for flag in option.opts}
        words = iter(args[: args.index("--")] if "--" in args else args)
        for word in words:
            option = flags.get(word)
            if option is None or option.is_flag:
                continue
            value = next(words, None)
            if value is None:
                raise typer.BadParameter("its value is missing", ctx=ctx, param=option)
            if value.partition("=")[0] in flags:
                fault = f"its value is missing, because {value} is an option"
                sure = f"write {max(option.opts, key=len)}={value} if it is the value"
                raise typer.BadParameter(f"{fault} ({sure})", ctx=ctx, param=option)
        return super().parse_args(ctx, args)


class HelpGroup(TyperGroup):
    """A group of commands, or the program itself, whose help is its page."""

    def get_help(self, ctx: Any) -> str:
        """Return the help for the stream that it goes to."""
        from edl_ckpt.cli.manual.pages import overview
        from edl_ckpt.cli.manual.terminal import drawn

        return drawn(overview(command_of(ctx)))

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the words before the command."""
        take_words(self, ctx)
        ctx.meta[ARGUMENTS] = tuple(args)
        return super().parse_args(ctx, args)


def command_of(context: Any) -> str:
    """Return the command of a context, such as `tag add`, '' for the program."""
    return str(context.command_path).partition(" ")[2]


class Taken(NamedTuple):
    """What a parameter takes: texts, numbers (`int`, `float`) or truths (`bool`), and the least and greatest number."""

    type: type
    least: int | None = None
    most: int | None = None

    @property
    def words(self) -> str:
        """Return what a value is called."""
        return {bool: "true or false", int: "a whole number"}.get(self.type, "a string")

    def value_of(self, word: Any) -> Any:
        """Return a word as a value; ValueError says what is wrong with it."""
        try:
            value = TRUTHS[str(word).strip().lower()] if self.type is bool else self.type(word)
        except (KeyError, ValueError):
            raise ValueError(f"{word!r} is not {self.words}{', 1 or 0' * (self.type is bool)}") from None
        if fault := self.fault(value):
            raise ValueError(fault)
        return value

    def fault(self, value: Any) -> str | None:
        """Return why a value of the type is out of range, None if it is not."""
        if self.least is not None and value < self.least:
            return f"must be at least {self.least}, got {value}"
        return f"must be at most {self.most}, got {value}" if self.most is not None and value > self.most else None


def kinds_of(command: Any) -> dict[str, Taken]:
    """Return what the parameters of a command of the parser take, by their names."""
    kinds: dict[str, Taken] = {}
    for parameter in inspect.signature(command.callback or kinds_of).parameters.values():
        types, marks = set(_types(parameter.annotation)), getattr(parameter.annotation, "__metadata__", ())
        kind = next((kind for kind in (bool, int, float) if kind in types), str)
        info = next((mark for mark in marks if hasattr(mark, "min")), None)
        kinds[parameter.name] = Taken(kind, getattr(info, "min", None), getattr(info, "max", None))
    return kinds


def _types(annotation: Any) -> Iterator[Any]:
    """Yield the types in an annotation, a union or a list."""
    inner = [part for part in typing.get_args(annotation) if isinstance(part, type) or typing.get_args(part)]
    yield from (kind for part in inner for kind in _types(part)) if inner else (annotation,)


def take_words(command: Any, context: Any) -> None:
    """Make the parser of a command turn words into values as this module does."""
    kinds = kinds_of(command)
    for parameter in command.get_params(context):
        if "process_value" not in vars(parameter):
            taken = kinds.get(parameter.name, Taken(bool))  # the parser's own is --help
            parameter.process_value = partial(_processed, taken, parameter, parameter.process_value)


def _processed(taken: Taken, parameter: Any, otherwise: Any, context: Any, value: Any) -> Any:
    """Return the value of a parameter; flags, what is missing and marks of the parser's own are left to the parser."""
    if value is None and not parameter.required:
        return () if parameter.multiple or parameter.nargs == -1 else None
    is_word = isinstance(value, str | int | list | tuple) and not isinstance(value, bool)
    if not is_word or (parameter.required and not value):
        return otherwise(context, value)
    try:
        return tuple(map(taken.value_of, value)) if isinstance(value, list | tuple) else taken.value_of(value)
    except ValueError as error:
        raise typer.BadParameter(str(error), ctx=context, param=parameter) from None
