"""What all commands share: option types, the common options of every command, and where defaults come from.

The command line wins, then the environment (`EDL_CKPT_<OPTION>`), then `edl-ckpt.toml`.
"""

from __future__ import annotations

import functools
import inspect
import os
import sys
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from edl_ckpt.cli.output import Output
from edl_ckpt.core.errors import EdlCkptError, UsageError

Ref = Annotated[
    str | None,
    typer.Argument(metavar="[REF]", help="[LOCATION][@VERSION]; the newest complete version of $EDL_CKPT_DIR or ."),
]
Locations = Annotated[list[str] | None, typer.Argument(metavar="[LOCATION...]", help="checkpoint_dirs")]
Grace = Annotated[str, typer.Option(help="An incomplete version touched within this time is still being written.")]
Csv = Annotated[bool, typer.Option("--csv", help="Print rows as CSV.")]
Workers = Annotated[int | None, typer.Option(min=1, help="Threads at work; the number of cores when not given.")]

_COMMON: dict[str, Any] = {
    "json": Annotated[bool, typer.Option("--json", help="Print one JSON document, nothing else, on stdout.")],
    "quiet": Annotated[bool, typer.Option("--quiet", "-q", help="No warnings, no progress.")],
    "verbose": Annotated[bool, typer.Option("--verbose", "-v", help="Say more on stderr.")],
    "no_color": Annotated[bool, typer.Option("--no-color", help="No colours (NO_COLOR is kept too).")],
    "storage_option": Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="Goes to fsspec; may be repeated.")
    ],
}


def default_location() -> str:
    """Return the location that is meant when none is named."""
    return os.environ.get("EDL_CKPT_DIR") or "."


def with_output(function: Callable[..., None]) -> Callable[..., None]:
    """Give a command the common options, and its first parameter an Output made from them.

    This is the one place where an error becomes an exit code.
    """

    @functools.wraps(function)
    def command(**values: Any) -> None:
        out = Output()
        try:
            common = {name: values.pop(name) for name in _COMMON}
            out.json, out.quiet, out.verbose = common["json"], common["quiet"], common["verbose"]
            out.no_color, out.csv = common["no_color"], values.pop("csv", False)
            out.storage_options = parse_pairs(common["storage_option"] or [])
            function(out, **values)
        except EdlCkptError as error:
            out.fail(error)
        except KeyboardInterrupt:
            raise SystemExit(130) from None
        except Exception:  # noqa: BLE001 - anything else is our bug: shown whole, with its own exit code
            out.bug()

    hints = typing.get_type_hints(function, include_extras=True)
    own = list(inspect.signature(function).parameters.values())[1:]
    parameters = [p.replace(annotation=hints[p.name], kind=p.KEYWORD_ONLY) for p in own]
    for name, annotation in _COMMON.items():
        default = None if name == "storage_option" else False
        parameters.append(
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
        )
    for parameter in parameters:
        for info in getattr(parameter.annotation, "__metadata__", ()):
            if type(info).__name__ == "OptionInfo":
                info.envvar = f"EDL_CKPT_{parameter.name.upper()}"
                info.show_envvar = False
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in parameters}
    return command


def parse_pairs(texts: list[str]) -> dict[str, str]:
    """Return KEY=VALUE texts as a dict; UsageError for one without '='. Values are secrets: never shown."""
    pairs: dict[str, str] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise UsageError("--storage-option takes KEY=VALUE")
        pairs[key] = value
    return pairs


def config_files() -> list[Path]:
    """Return where defaults may be written, the strongest first."""
    home = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return [Path("edl-ckpt.toml"), Path(home) / "edl-ckpt" / "edl-ckpt.toml"]


def read_config(known: dict[str, set[str]]) -> dict[str, dict[str, Any]]:
    """Return the defaults of each command from the configuration files.

    Top-level keys hold for every command that has such an option, a table for the command it names. Raises
    UsageError, naming the file, for what is not TOML and for keys that no command has.
    """
    defaults: dict[str, dict[str, Any]] = {name: {} for name in known}
    for path in reversed(config_files()):
        if not path.is_file():
            continue
        for key, value in _parse_toml(path).items():
            if isinstance(value, dict):
                _merge(defaults, path, [key], value, known)
            else:
                users = [name for name, options in known.items() if key.replace("-", "_") in options]
                _merge(defaults, path, users or [f"any ({key})"], {key: value}, known)
    return defaults


def _parse_toml(path: Path) -> dict[str, Any]:
    import tomllib

    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"not a TOML file: {error}", path=str(path)) from None


def _merge(
    defaults: dict[str, dict[str, Any]],
    path: Path,
    commands: list[str],
    values: dict[str, Any],
    known: dict[str, set[str]],
) -> None:
    for command in commands:
        for key, value in values.items():
            name = key.replace("-", "_")
            if name not in known.get(command, set()):
                raise UsageError(f"no option {key!r} for command {command!r}", path=str(path))
            defaults[command][name] = value


def usage_exit(error: UsageError, argv: list[str]) -> int:
    """Say what is wrong with the configuration, as any command would, and return the exit code."""
    out = Output(json="--json" in argv)
    try:
        out.fail(error)
    except SystemExit:
        sys.stderr.flush()
    return error.exit_code
