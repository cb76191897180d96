"""The program: its commands, its configuration, its signals. `--version` answers before typer is imported."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

from edl_ckpt.cli import __version__

if TYPE_CHECKING:
    import typer

COMMANDS = (
    *("list", "inspect", "get", "diff", "verify", "reshard", "copy", "export", "import"),
    *("prune", "undo", "recover"),
    *("metrics set", "metrics show", "metrics import", "metrics remove", "metrics mode"),
    *("tag add", "tag remove", "tag list", "note"),
    *("policy show", "policy set", "policy clear", "demo"),
)
"""The commands, in the order of the help: `list` is `list_command` in `commands/list_.py`, `tag add` is
`tag_add_command` in `commands/tag_.py`."""
GROUPS = {
    "metrics": "Record metrics of versions, import them from logs, show them.",
    "tag": "Give versions names; a tagged version is never deleted.",
    "policy": "Keep rules of retention with a location, so that plain `edl-ckpt prune` follows them.",
}


def build(only: str | None = None) -> typer.Typer:
    """Return the typer application with all commands, or with the one named (a group is one): a tenth of the start."""
    from importlib import import_module

    import typer

    from edl_ckpt.cli.options import with_output

    app = typer.Typer(
        name="edl-ckpt",
        help="See, check, reshard, prune and export the checkpoints of ElasticDL's parameter servers.",
        epilog="Exit codes: 0 done, 3 findings, 4 incomplete, 5 corrupt, 10 not found, 16 refused; README has all.",
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

    groups = {
        name: typer.Typer(name=name, help=words, no_args_is_help=True, rich_markup_mode=None)
        for name, words in GROUPS.items()
    }
    for command in COMMANDS:
        group, _, name = command.rpartition(" ")
        if only not in {None, group or name}:
            continue
        module = import_module(f"edl_ckpt.cli.commands.{group or name}_")
        function = getattr(module, f"{command.replace(' ', '_')}_command")
        if group and name == next(c for c in COMMANDS if c.startswith(f"{group} ")).partition(" ")[2]:
            app.add_typer(groups[group])
        groups.get(group, app).command(name)(with_output(function))
    return app


def main(argv: list[str] | None = None) -> NoReturn:
    """Run the program on `argv`, the process's own when None, and exit with the command's code."""
    arguments = sys.argv[1:] if argv is None else argv
    if arguments == ["--version"]:
        print(f"edl-ckpt {__version__}")
        raise SystemExit(0)
    _open_streams()
    # Our own threads share the work out; BLAS's would only wait beside them, which costs 0.1 s at every start.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    signal.signal(signal.SIGTERM, _terminate)
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:  # a shell's background job is not to be interrupted
        signal.signal(signal.SIGINT, _interrupt)
    try:
        run(arguments)
    except KeyboardInterrupt:  # before a command has begun; within one, `with_output` meets it
        raise SystemExit(130) from None


def _open_streams() -> None:
    """Give a closed stdout or stderr /dev/null, so that no file we open takes its number and gets our words."""
    for number, name in ((0, "stdin"), (1, "stdout"), (2, "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free number: this one
            setattr(sys, name, open(number, "r" if number == 0 else "w", encoding="utf-8", closefd=False))  # noqa: SIM115


def run(arguments: list[str]) -> NoReturn:
    """Run one command; always raises SystemExit."""
    from edl_ckpt.cli.options import config_files, known_options, read_config, usage_exit, wants_json
    from edl_ckpt.cli.output import Output, Told
    from edl_ckpt.core.errors import UsageError

    defaults: dict[str, dict[str, Any]] = {}
    configured = any(path.is_file() for path in config_files())
    known = {command.partition(" ")[0] for command in COMMANDS}
    app = build(arguments[0] if arguments and arguments[0] in known and not configured else None)
    if configured:
        try:
            defaults = read_config(known_options(app))
        except UsageError as error:
            raise SystemExit(usage_exit(error, arguments)) from None
    try:
        app(arguments, prog_name="edl-ckpt", default_map=defaults)
    except SystemExit as end:
        if isinstance(end.__context__, BrokenPipeError) and not isinstance(end, Told):
            # Typer met it while it printed the help, and ends with 1.
            Output.abandon_stdout()
            raise SystemExit(141) from None
        json = wants_json(arguments) or any(values.get("json") for values in defaults.values())
        if end.code == UsageError.exit_code and json and not isinstance(end, Told):
            _usage_document(end.__context__)
        raise
    raise SystemExit(0)


def _usage_document(error: BaseException | None) -> None:
    """End a usage error, which typer has told in words, as every other failure with --json ends."""
    import json

    told = getattr(error, "format_message", None)
    message = str(told()) if told else "see the lines above"
    document = {"schema": "edl-ckpt/error/1", "code": 2, "id": "usage", "message": message}
    print(json.dumps(document | {"hint": "edl-ckpt COMMAND --help", "path": None}), file=sys.stderr)


def _terminate(_signal: int, _frame: FrameType | None) -> NoReturn:
    """Unwind as SIGTERM asks: what was staged is removed on the way out."""
    _end_at_once()
    raise SystemExit(143)


def _interrupt(_signal: int, _frame: FrameType | None) -> NoReturn:
    """Unwind as SIGINT asks."""
    _end_at_once()
    raise KeyboardInterrupt


def _end_at_once() -> None:
    """Have a second signal, of either kind, end the process where it stands; what is left then, `recover` finds."""
    for number in (signal.SIGTERM, signal.SIGINT):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
