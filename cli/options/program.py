"""The parser of all commands, and one command run with its configuration."""

from __future__ import annotations

import sys
from typing import Any, NoReturn

import typer
import typer.main

from edl_ckpt.cli import __version__
from edl_ckpt.cli.catalogue import COMMANDS, GROUPS, SECTIONS, function_of
from edl_ckpt.cli.manual.parsing import HelpCommand, HelpGroup, command_of
from edl_ckpt.cli.options.config import config_files, error_exit, named_config, read_config
from edl_ckpt.cli.terminal.output import AlreadyReported, Output
from edl_ckpt.cli.terminal.secrets import check_arguments
from edl_ckpt.core.base.errors import UsageError


def build(only: str | None = None) -> typer.Typer:
    """Return the typer application; with `only`, it has one command, which takes half the time."""
    from edl_ckpt.cli.options.decorator import with_output

    settings = {"help_option_names": ["-h", "--help"], "color": True}  # whether there are colours, `help` decides

    def application(name: str) -> typer.Typer:
        return typer.Typer(
            name=name,
            cls=HelpGroup,
            add_completion=False,
            no_args_is_help=True,
            suggest_commands=False,
            pretty_exceptions_enable=False,
            rich_markup_mode=None,
            context_settings=settings,
        )

    app = application("edl-ckpt")

    @app.callback()
    def options(
        print_version: bool = typer.Option(False, "--version", "-V", help="Print the version."),
    ) -> None:
        if print_version:  # not `version`, a command whose defaults typer would take for a value of this
            print(f"edl-ckpt {__version__}")
            raise typer.Exit

    for name in [name for section in SECTIONS.values() for name in section if only in {None, name}]:
        if name not in GROUPS:
            app.command(name, cls=HelpCommand, context_settings=settings)(with_output(function_of(name)))
            continue
        group = application(name)
        for member in GROUPS[name][1]:
            group.command(member, cls=HelpCommand, context_settings=settings)(
                with_output(function_of(f"{name} {member}"))
            )
        app.add_typer(group)
    return app


def parser(only: str | None = None) -> Any:
    """Return the program as typer's parser sees it, with all commands or with one."""
    return typer.main.get_command(build(only))


def run(arguments: list[str]) -> NoReturn:
    """Run one command, and raise SystemExit with its exit code."""
    defaults: dict[str, dict[str, Any]] = {}
    configured = None
    try:
        check_arguments(arguments)
        files = config_files(named_config(arguments))
        known = {command.partition(" ")[0] for command in COMMANDS}
        only = arguments[0] if arguments and arguments[0] in known and not files else None
        app = build(only)
        if files:
            defaults, configured = read_config(files, app)
    except UsageError as error:
        raise SystemExit(error_exit(error, arguments)) from None
    try:
        code = app(arguments, prog_name="edl-ckpt", default_map=defaults, obj=configured, standalone_mode=False)
    except SystemExit as end:
        if isinstance(end.__context__, BrokenPipeError) and not isinstance(end, AlreadyReported):
            # The reader of the help went away; typer would end with 1.
            Output.abandon_stdout()
            raise SystemExit(141) from None
        raise
    except Exception as error:
        from edl_ckpt.cli.options.usage import explained, is_refusal, plain_call  # most command lines are not refused

        if not is_refusal(error):
            raise
        if context := plain_call(error):
            from edl_ckpt.cli.manual.pages import overview  # most commands show no page
            from edl_ckpt.cli.manual.terminal import drawn

            print(drawn(overview(command_of(context)), sys.stderr), file=sys.stderr)
            raise SystemExit(2) from None
        json = any(values.get("json") for values in defaults.values())
        raise SystemExit(error_exit(explained(error), arguments, json=json)) from None
    raise SystemExit(code or 0)
