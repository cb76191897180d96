"""The program: its commands, their configuration, and signals. `--version` is fast: it imports no typer."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Mapping
from types import FrameType
from typing import TYPE_CHECKING, Any, Final, NoReturn

from edl_ckpt.cli import __version__

if TYPE_CHECKING:
    import typer

SECTIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "Look": ("list", "inspect", "get", "diff"),
    "Check": ("verify",),
    "Follow": ("wait", "watch"),
    "Change": ("reshard", "copy", "export", "import"),
    "Keep": ("prune", "undo", "policy"),
    "Record": ("metrics", "tag", "note", "metadata"),
    "Mend": ("recover", "unlock"),
    "Learn": ("demo",),
}
"""The commands by the headings of the help, in its order."""
GROUPS: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = {
    "policy": ("Store retention rules with a location.", ("show", "set", "clear")),
    "metrics": ("Record, import and show metrics of versions.", ("set", "show", "import", "remove", "mode")),
    "metadata": ("Record values of your own with versions.", ("set", "show", "remove")),
    "tag": ("Name versions, and protect them from pruning.", ("add", "remove", "list")),
}
"""The commands that are groups: the first line of their help, and their sub-commands."""
COMMANDS: Final = tuple(
    command
    for section in SECTIONS.values()
    for name in section
    for command in ([f"{name} {sub}" for sub in GROUPS[name][1]] if name in GROUPS else [name])
)
"""All commands.

`list` is `list_command` in `commands/list_.py`; `tag add` is `tag_add_command` in `commands/tag_.py`.
"""

_HELP: Final = """Look at, check, change and prune the checkpoints of ElasticDL's parameter servers.

`edl-ckpt COMMAND --help` shows the options of a command, with examples."""
_EPILOG: Final = """Exit codes: 0 done, 3 findings, 4 incomplete, 5 corrupt, 10 not found, 16 refused.
The README lists all of them.

edl-ckpt demo
edl-ckpt list s3://models/run"""


def build(only: str | None = None, *, parameters: bool = True) -> typer.Typer:
    """Return the typer application.

    With `only`, it has one command. Without `parameters`, its commands have none, which is enough to list them. Each
    halves the time that this takes.
    """
    import typer

    from edl_ckpt.cli.help import HelpGroup, example_lines

    class Root(HelpGroup):
        sections = SECTIONS

    app = typer.Typer(
        name="edl-ckpt",
        cls=Root,
        help=_HELP,
        epilog=_EPILOG,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )

    @app.callback()
    def options(
        version: bool = typer.Option(False, "--version", help="Print the version."),
    ) -> None:
        if version:
            print(f"edl-ckpt {__version__}")
            raise typer.Exit

    for name in [name for section in SECTIONS.values() for name in section if only in {None, name}]:
        if name not in GROUPS:
            _add(app, name, parameters=parameters)
            continue
        words, members = GROUPS[name]
        group = typer.Typer(name=name, cls=HelpGroup, help=words, no_args_is_help=True, rich_markup_mode=None)
        functions = [_add(group, f"{name} {member}", parameters=parameters) for member in members]
        epilog = "\n".join(line for function in functions[:2] for line in example_lines(function)[:1])
        app.add_typer(group, short_help=words, epilog=epilog)
    return app


def _add(app: typer.Typer, command: str, *, parameters: bool) -> Callable[..., None]:
    """Add a command, `list` or `tag add`, to the application or group and return its function."""
    from importlib import import_module

    from edl_ckpt.cli.help import HelpCommand, example_lines, first_line
    from edl_ckpt.cli.options import with_output

    group, _, name = command.rpartition(" ")
    module = import_module(f"edl_ckpt.cli.commands.{group or name}_")
    function: Callable[..., None] = getattr(module, f"{command.replace(' ', '_')}_command")
    summary, epilog = first_line(function), "\n".join(example_lines(function))
    app.command(name, cls=HelpCommand, short_help=summary, epilog=epilog)(
        with_output(function) if parameters else _without_parameters
    )
    return function


def _without_parameters() -> None:
    """Stand for a command in the list of commands."""


def main(argv: list[str] | None = None) -> NoReturn:
    """Run the program with `argv`, by default the arguments of the process, and exit with the code of the command."""
    arguments = sys.argv[1:] if argv is None else argv
    if arguments == ["--version"]:
        print(f"edl-ckpt {__version__}")
        raise SystemExit(0)
    _open_streams()
    from edl_ckpt.cli.secrets import hide_arguments

    hide_arguments(arguments)
    # Our own threads do the work. Threads of BLAS would only wait, and starting them costs 0.1 s.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    signal.signal(signal.SIGTERM, _terminate)
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:  # a shell ignores it for background jobs
        signal.signal(signal.SIGINT, _interrupt)
    try:
        run(arguments)
    except KeyboardInterrupt:  # no command has begun; in a command, `reported_errors` catches it
        raise SystemExit(130) from None
    except (OSError, MemoryError, RecursionError) as error:  # as above
        raise SystemExit(_failed_before(error, arguments)) from None


def _failed_before(error: OSError | MemoryError | RecursionError, arguments: list[str]) -> int:
    """Report an error of the system before a command began, and return its exit code."""
    from edl_ckpt.cli.config import error_exit
    from edl_ckpt.core.storage.faults import error_of_system

    if isinstance(error, BrokenPipeError):
        return 141
    return error_exit(error_of_system(error), arguments)


def _open_streams() -> None:
    """Open /dev/null for closed standard streams: else a file that we open later gets the number and our output."""
    for number, name in ((0, "stdin"), (1, "stdout"), (2, "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free number is this one
            setattr(sys, name, open(number, "r" if number == 0 else "w", encoding="utf-8", closefd=False))  # noqa: SIM115


def run(arguments: list[str]) -> NoReturn:
    """Run one command, and raise SystemExit with its exit code."""
    from edl_ckpt.cli.config import config_files, error_exit, known_options, named_config, read_config, wants_json
    from edl_ckpt.cli.output import AlreadyReported, Output
    from edl_ckpt.cli.secrets import check_arguments
    from edl_ckpt.core.errors import UsageError

    defaults: dict[str, dict[str, Any]] = {}
    configured = None
    try:
        check_arguments(arguments)
        files = config_files(named_config(arguments))
        known = {command.partition(" ")[0] for command in COMMANDS}
        only = arguments[0] if arguments and arguments[0] in known and not files else None
        app = build(only, parameters=bool(files) or arguments not in [["--help"], ["-h"]])
        if files:
            defaults, configured = read_config(files, known_options(app))
    except UsageError as error:
        raise SystemExit(error_exit(error, arguments)) from None
    try:
        app(arguments, prog_name="edl-ckpt", default_map=defaults, obj=configured)
    except SystemExit as end:
        if isinstance(end.__context__, BrokenPipeError) and not isinstance(end, AlreadyReported):
            # The reader of the help went away; typer would end with 1.
            Output.abandon_stdout()
            raise SystemExit(141) from None
        json = wants_json(arguments) or any(values.get("json") for values in defaults.values())
        if end.code == UsageError.exit_code and json and not isinstance(end, AlreadyReported):
            _usage_document(end.__context__)
        raise
    raise SystemExit(0)


def _usage_document(error: BaseException | None) -> None:
    """Print the JSON document for a usage error that typer has already reported as text."""
    import json

    format_message = getattr(error, "format_message", None)
    message = str(format_message()) if format_message else "see the message above"
    document = {"schema": "edl-ckpt/error/1", "code": 2, "id": "usage", "message": message}
    print(json.dumps(document | {"hint": "edl-ckpt COMMAND --help", "path": None}), file=sys.stderr)


def _terminate(_signal: int, _frame: FrameType | None) -> NoReturn:
    """End with 143 on SIGTERM; on the way out, commands remove their staged files."""
    _end_at_once()
    raise SystemExit(143)


def _interrupt(_signal: int, _frame: FrameType | None) -> NoReturn:
    """End with 130 on SIGINT; on the way out, commands remove their staged files."""
    _end_at_once()
    raise KeyboardInterrupt


def _end_at_once() -> None:
    """Let a second signal of either kind kill the process at once; `recover` then cleans up."""
    for number in (signal.SIGTERM, signal.SIGINT):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
