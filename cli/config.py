"""Configuration files: defaults for the options of commands, from `edl-ckpt.toml`.

The file in the current directory wins over the one in the user's configuration directory.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edl_ckpt.cli.output import Output
from edl_ckpt.core.errors import UsageError

if TYPE_CHECKING:
    import typer


def config_files() -> list[Path]:
    """Return the paths of configuration files; the first one wins."""
    home = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return [Path("edl-ckpt.toml"), Path(home) / "edl-ckpt" / "edl-ckpt.toml"]


@dataclass(frozen=True, slots=True)
class ConfigOption:
    """An option in a configuration file: the parameter that it sets, and the type that it must have in TOML."""

    parameter: str
    kind: str
    least: int | None = None

    def fault(self, value: Any) -> str | None:
        """Return the fault of a value, None if it has none."""
        fits = {
            "true or false": isinstance(value, bool),
            "a whole number": isinstance(value, int) and not isinstance(value, bool),
            "a list of strings": isinstance(value, list) and all(isinstance(v, str) for v in value),
            "a string": isinstance(value, str),
        }
        if not fits[self.kind]:
            return f"must be {self.kind}, got {value!r}"
        return f"must be at least {self.least}, got {value}" if self.least is not None and value < self.least else None


def known_options(app: typer.Typer) -> dict[str, dict[str, ConfigOption]]:
    """Return, for each command ('tag add' is one), its options by their names on the command line, '-' written '_'.

    Options marked `CommandLineOnly` are not among them.
    """
    import typer.main

    found: dict[str, Any] = {}
    for name, command in getattr(typer.main.get_command(app), "commands", {}).items():
        inner = getattr(command, "commands", None)
        found |= {name: command} if inner is None else {f"{name} {sub}": c for sub, c in inner.items()}
    return {
        name: {
            flag.lstrip("-").replace("-", "_"): _option_of(parameter)
            for parameter in command.params
            if parameter.param_type_name == "option" and parameter.name != "help" and parameter.envvar is not None
            for flag in parameter.opts
            if flag.startswith("--")
        }
        for name, command in found.items()
    }


def _option_of(parameter: Any) -> ConfigOption:
    number = parameter.type.name.startswith("int")
    kind = "true or false" if parameter.is_flag else "a whole number" if number else "a string"
    return ConfigOption(
        parameter.name,
        "a list of strings" if parameter.multiple else kind,
        getattr(parameter.type, "min", None),
    )


def read_config(known: dict[str, dict[str, ConfigOption]]) -> dict[str, dict[str, Any]]:
    """Return the defaults of each command from the configuration files.

    Top-level keys apply to every command with such an option. Keys in a table apply to the command that the table names
    ([metrics.set] for `metrics set`). Raises UsageError with the file's name for invalid TOML, for keys that no command
    has, and for values of a wrong type.
    """
    defaults: dict[str, dict[str, Any]] = {name: {} for name in known}
    for path in reversed(config_files()):
        if not path.is_file():
            continue
        for key, value in _parse_toml(path).items():
            if isinstance(value, dict):
                inner = {k: v for k, v in value.items() if isinstance(v, dict) and f"{key} {k}" in known}
                for name, options in inner.items():
                    _merge(defaults, path, [f"{key} {name}"], options, known)
                _merge(defaults, path, [key], {k: v for k, v in value.items() if k not in inner}, known)
            else:
                commands = [name for name, names in known.items() if key.replace("-", "_") in names]
                if not commands:
                    raise UsageError(f"no command has an option {key!r}", path=str(path))
                _merge(defaults, path, commands, {key: value}, known)
    return _nested(defaults)


def _nested(defaults: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the defaults with those of `tag add` nested in `tag`, as typer expects them."""
    nested: dict[str, dict[str, Any]] = {}
    for command, values in defaults.items():
        group, _, name = command.rpartition(" ")
        if group:
            nested.setdefault(group, {})[name] = values
        else:
            nested[name] = values
    return nested


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
    known: dict[str, dict[str, ConfigOption]],
) -> None:
    for command in commands:
        for key, value in values.items():
            option = known.get(command, {}).get(key.replace("-", "_"))
            if option is None:
                raise UsageError(f"the command {command!r} has no option {key!r}", path=str(path))
            fault = option.fault(value)
            if fault:
                raise UsageError(f"{key} {fault}", path=str(path))
            defaults[command][option.parameter] = value


def wants_json(arguments: list[str]) -> bool:
    """Return True if a failure before the start of a command should end with a JSON document."""
    return "--json" in arguments or os.environ.get("EDL_CKPT_JSON", "").lower() in {"1", "true", "t", "yes", "y", "on"}


def usage_exit(error: UsageError, argv: list[str]) -> int:
    """Report a fault in the configuration as a command would, and return the exit code."""
    out = Output(json=wants_json(argv))
    try:
        out.fail(error)
    except SystemExit:
        sys.stderr.flush()
    return error.exit_code
