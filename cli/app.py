"""The program: its commands and their configuration. `--version` is fast: it imports no typer."""

from __future__ import annotations

import atexit
import gc
import os
import sys
import threading
from typing import TYPE_CHECKING, Any, NoReturn

from edl_ckpt.cli import __version__
from edl_ckpt.cli.catalogue import COMMANDS, GROUPS, SECTIONS, function_of

if TYPE_CHECKING:
    import typer


def build(only: str | None = None) -> typer.Typer:
    """Return the typer application; with `only`, it has one command, which takes half the time."""
    import typer

    from edl_ckpt.cli.help import HelpCommand, HelpGroup
    from edl_ckpt.cli.options import with_output

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
    import typer.main

    return typer.main.get_command(build(only))


def main(argv: list[str] | None = None) -> NoReturn:
    """Run the program with `argv`, by default the arguments of the process, and exit with the code of the command."""
    try:
        _main(sys.argv[1:] if argv is None else argv)
    except SystemExit as end:
        if argv is None and sys._getframe(1).f_back is None:  # noqa: SLF001 - no program runs around ours
            _leave(end.code)
        raise


def _leave(code: object) -> None:
    """End the process, as Python would, but leave its memory to the kernel: taking it apart costs 0.2 s.

    Return where Python must do it: for other codes than numbers, for threads that it waits for, and for a stdout that
    cannot be flushed. Not called where a profiler, a debugger or the like is around the program: it must have its turn.
    """
    threads = [thread for thread in threading.enumerate() if not thread.daemon]
    if not isinstance(code, int | None) or threads != [threading.main_thread()]:
        return
    atexit._run_exitfuncs()  # noqa: SLF001 - the only door to what others registered
    try:
        for stream in filter(None, (sys.stdout, sys.stderr)):  # None where the caller has closed it
            stream.flush()
    except (OSError, ValueError):
        return
    os._exit((code or 0) & 0xFF)


def _main(arguments: list[str]) -> NoReturn:
    """Run the program and raise SystemExit with its exit code."""
    if (shell := os.environ.get("_EDL_CKPT_COMPLETE")) in {"bash", "zsh", "fish"}:
        from edl_ckpt.cli.completion.shells import answer

        answer(shell, arguments)
    if arguments in [["--version"], ["-V"]]:
        print(f"edl-ckpt {__version__}")
        raise SystemExit(0)
    _open_streams()
    from edl_ckpt.cli.secrets import hide_arguments
    from edl_ckpt.cli.signals import handle_signals

    hide_arguments(arguments)
    # Our own threads do the work. Threads of BLAS would only wait, and starting them costs 0.1 s.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    # pyarrow's own pools keep 80 MiB more than the C library does.
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    handle_signals()
    # The index of many names is many objects without a cycle, and each look for cycles goes over all of them.
    gc.set_threshold(100_000, 50, 50)
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
            stream = open(number, "r" if number == 0 else "w", encoding="utf-8", closefd=False)  # noqa: SIM115
            stream.absent = True  # type: ignore[attr-defined]  # an export to stdout must not say that it was written
            setattr(sys, name, stream)


def run(arguments: list[str]) -> NoReturn:
    """Run one command, and raise SystemExit with its exit code."""
    from edl_ckpt.cli.config import config_files, error_exit, known_options, named_config, read_config
    from edl_ckpt.cli.output import AlreadyReported, Output
    from edl_ckpt.cli.secrets import check_arguments
    from edl_ckpt.cli.usage import is_refusal
    from edl_ckpt.core.errors import UsageError

    if arguments in [["--help"], ["-h"]]:
        _show_help()
    defaults: dict[str, dict[str, Any]] = {}
    configured = None
    try:
        check_arguments(arguments)
        files = config_files(named_config(arguments))
        known = {command.partition(" ")[0] for command in COMMANDS}
        only = arguments[0] if arguments and arguments[0] in known and not files else None
        app = build(only)
        if files:
            defaults, configured = read_config(files, known_options(app))
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
        if not is_refusal(error):
            raise
        json = any(values.get("json") for values in defaults.values())
        raise SystemExit(_refused(error, arguments, json=json)) from None
    raise SystemExit(code or 0)


def _refused(error: Any, arguments: list[str], *, json: bool) -> int:
    """Report a refusal of the parser, with the help when only a command is missing; return the exit code."""
    from edl_ckpt.cli.config import error_exit
    from edl_ckpt.cli.help import command_of, drawn
    from edl_ckpt.cli.manual.pages import page
    from edl_ckpt.cli.usage import explained, is_plain_call

    if not is_plain_call(error):
        return error_exit(explained(error), arguments, json=json)
    print(drawn(page(command_of(error.ctx)), sys.stderr), file=sys.stderr)
    return 2


def _show_help() -> NoReturn:
    """Print the help of the program, for which no command needs to be built."""
    from edl_ckpt.cli.help import drawn
    from edl_ckpt.cli.manual.pages import root

    print(drawn(root()), flush=True)
    raise SystemExit(0)
