"""The help of the parser's commands: pages of the manual, drawn for the terminal."""

from __future__ import annotations

import os
import shutil
import sys
from typing import Any, TextIO

import typer
from typer.core import TyperCommand, TyperGroup

from edl_ckpt.cli.catalogue import function_of
from edl_ckpt.cli.manual.values import take_words
from edl_ckpt.cli.terminal.style import uses_colour


class HelpCommand(TyperCommand):
    """A command whose help is its page.

    Typer 0.28 brings its own copy of click, so the type of a context has no public name.
    """

    def get_help(self, ctx: Any) -> str:
        """Return the help for the stream that it goes to."""
        from edl_ckpt.cli.manual.page import command_page  # most commands are not asked for their help

        name = command_of(ctx)
        return drawn(command_page(name, self, ctx, function_of(name)))

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the words behind the command, none of which is an option that another option would take as its value.

        The parser alone takes `--dry-run` of `prune --keep-tag --dry-run` for a tag, and the versions are deleted.
        """
        take_words(self, ctx)
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

        return drawn(overview(command_of(ctx)))

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the words before the command."""
        take_words(self, ctx)
        return super().parse_args(ctx, args)


def command_of(context: Any) -> str:
    """Return the command of a context, such as `tag add`, '' for the program."""
    return str(context.command_path).partition(" ")[2]


def drawn(page: Any, stream: TextIO | None = None) -> str:
    """Return a page for a stream, by default stdout: as wide as the window, and in colour if the stream has colours."""
    from edl_ckpt.cli.manual.terminal import draw

    no_color = "--no-color" in sys.argv or bool(os.environ.get("EDL_CKPT_NO_COLOR"))
    width = shutil.get_terminal_size((80, 24)).columns
    return draw(page, width=width, colour=uses_colour(stream or sys.stdout, no_color=no_color))
