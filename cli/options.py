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
from dataclasses import dataclass
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
        except BrokenPipeError:  # stderr's reader went away; stdout's is met in Output.write
            raise SystemExit(141) from None
        except Exception:  # noqa: BLE001 - anything else is our bug: shown whole, with its own exit code
            out.bug()
        finally:
            out.end_progress()

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
                written = (info.default, *(info.param_decls or ()))  # within Annotated the first flag is `default`
                flags = [flag for flag in written if isinstance(flag, str) and flag.startswith("--")]
                option = flags[0].lstrip("-") if flags else parameter.name
                info.envvar = f"EDL_CKPT_{option.replace('-', '_').upper()}"
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


@dataclass(frozen=True, slots=True)
class Option:
    """What a configuration file may set: the parameter it becomes, and the type TOML must give it."""

    parameter: str
    kind: str
    least: int | None = None

    def fault(self, value: Any) -> str | None:
        """Return what is wrong with a value, None when nothing is."""
        fits = {
            "true or false": isinstance(value, bool),
            "a whole number": isinstance(value, int) and not isinstance(value, bool),
            "a list of texts": isinstance(value, list) and all(isinstance(v, str) for v in value),
            "a text": isinstance(value, str),
        }
        if not fits[self.kind]:
            return f"must be {self.kind}, got {value!r}"
        return f"must be at least {self.least}, got {value}" if self.least is not None and value < self.least else None


def known_options(app: typer.Typer) -> dict[str, dict[str, Option]]:
    """Return, for each command, its options by the name they have on the command line, '-' written '_'."""
    import typer.main

    return {
        name: {
            flag.lstrip("-").replace("-", "_"): _option_of(parameter)
            for parameter in command.params
            if parameter.param_type_name == "option" and parameter.name != "help"
            for flag in parameter.opts
            if flag.startswith("--")
        }
        for name, command in getattr(typer.main.get_command(app), "commands", {}).items()
    }


def _option_of(parameter: Any) -> Option:
    number = parameter.type.name.startswith("int")
    kind = "true or false" if parameter.is_flag else "a whole number" if number else "a text"
    return Option(
        parameter.name,
        "a list of texts" if parameter.multiple else kind,
        getattr(parameter.type, "min", None),
    )


def read_config(known: dict[str, dict[str, Option]]) -> dict[str, dict[str, Any]]:
    """Return the defaults of each command from the configuration files.

    Top-level keys hold for every command that has such an option, a table for the command it names. Raises
    UsageError, naming the file, for what is not TOML, for keys that no command has and for values of a wrong type.
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
    except OSError as error:
        raise UsageError(f"cannot be read: {error.strerror}", path=str(path)) from None


def _merge(
    defaults: dict[str, dict[str, Any]],
    path: Path,
    commands: list[str],
    values: dict[str, Any],
    known: dict[str, dict[str, Option]],
) -> None:
    for command in commands:
        for key, value in values.items():
            option = known.get(command, {}).get(key.replace("-", "_"))
            if option is None:
                raise UsageError(f"no option {key!r} for command {command!r}", path=str(path))
            fault = option.fault(value)
            if fault:
                raise UsageError(f"{key} {fault}", path=str(path))
            defaults[command][option.parameter] = value


def wants_json(arguments: list[str]) -> bool:
    """Say whether a failure before any command has begun is to end with a document."""
    return "--json" in arguments or os.environ.get("EDL_CKPT_JSON", "").lower() in {"1", "true", "t", "yes", "y", "on"}


def usage_exit(error: UsageError, argv: list[str]) -> int:
    """Say what is wrong with the configuration, as any command would, and return the exit code."""
    out = Output(json=wants_json(argv))
    try:
        out.fail(error)
    except SystemExit:
        sys.stderr.flush()
    return error.exit_code
