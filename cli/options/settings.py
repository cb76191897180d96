"""Every setting in force, and where it comes from: the environment, a configuration file, or nowhere but the program.

The parser itself is asked, so what is shown is what a command would take.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

from edl_ckpt.cli.catalogue import COMMANDS
from edl_ckpt.cli.options.config import STORAGE, ConfigFile, Configured, config_files, read_config, stray_variables
from edl_ckpt.cli.options.decorator import check_values
from edl_ckpt.cli.options.program import build
from edl_ckpt.cli.options.usage import explained, is_refusal
from edl_ckpt.cli.terminal.secrets import is_secret
from edl_ckpt.core.base.errors import UsageError
from edl_ckpt.core.storage.location import check_no_password

_DIR: Final = "EDL_CKPT_DIR"
HIDDEN: Final = "***"
_SOURCES: Final = {"ENVIRONMENT": "environment", "DEFAULT_MAP": "file"}


@dataclass(frozen=True, slots=True)
class Setting:
    """A value that commands take; `commands` is empty where all that have such an option take it."""

    name: str
    value: Any
    source: str
    """`environment`, `file` or `default`."""
    origin: str
    """The variable, or the file and the line; '' for a default."""
    variable: str | None = None
    commands: tuple[str, ...] = ()
    fault: str | None = None
    """Why a command would refuse it."""


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings, the files that were read, and what is ignored."""

    files: tuple[ConfigFile, ...]
    settings: tuple[Setting, ...]
    warnings: tuple[str, ...]


def settings_in_force(named: str | None) -> Settings:
    """Return the settings of all commands, with the file of --config or with the user's own."""
    import typer.main

    app = build()
    files = config_files(named)
    defaults, configured = read_config(files, app)
    program: Any = typer.main.get_command(app)
    found: dict[tuple[str, str, str], tuple[Setting, list[str]]] = {}
    having: dict[str, list[str]] = {}
    for name in COMMANDS:
        command, values = program, defaults
        for word in name.split():
            command, values = command.commands[word], values.get(word, {})
        context = command.make_context(
            f"edl-ckpt {name}", [], default_map=dict(values), obj=configured, resilient_parsing=True
        )
        for setting in _of_command(command, context, name, configured):
            having.setdefault(setting.name, []).append(name)
            found.setdefault((setting.name, repr(setting.value), setting.origin), (setting, []))[1].append(name)
    every = ((setting, () if names == having[setting.name] else tuple(names)) for setting, names in found.values())
    options = [replace(setting, commands=commands) for setting, commands in every]
    options.sort(key=lambda setting: (setting.name, len(setting.commands), setting.commands))
    places = [_location(configured), *_storages(configured)]
    return Settings(tuple(files), (*places, *options), (*configured.warnings, *stray_variables()))


def _of_command(command: Any, context: Any, name: str, configured: Configured) -> Iterator[Setting]:
    """Yield what one command would take for each option that the environment or a file may set."""
    for parameter in command.params:
        if parameter.param_type_name != "option" or parameter.envvar is None or parameter.hidden:
            continue
        flag = next(flag for flag in parameter.opts if flag.startswith("--")).lstrip("-")
        source = _SOURCES.get(context.get_parameter_source(parameter.name).name, "default")
        value = context.params.get(parameter.name)
        variable = str(parameter.envvar)
        origin = ""
        fault = None
        if source == "environment":
            origin, fault = variable, _fault(parameter, context, parameter.value_from_envvar(context))
            value = os.environ[variable] if fault else value
        elif source == "file":
            origin, fault = configured.origin(name, parameter.name), _fault(parameter, context, value)
        yield Setting(flag, _shown(flag, value), source, origin, variable, fault=fault)


def _fault(parameter: Any, context: Any, value: Any) -> str | None:
    """Return why a command would refuse a value, None if it would not."""
    try:
        parameter.process_value(context, value)
        check_values(context, {parameter.name: value})
    except UsageError as error:
        return error.message.partition(": ")[2] or error.message
    except Exception as error:
        if not is_refusal(error):
            raise
        return explained(error).message.partition(": ")[2]
    return None


def _shown(name: str, value: Any) -> Any:
    """Return a value without its secrets: of storage options, those that name one."""
    if isinstance(value, list | tuple):
        return [_shown(name, each) for each in value]
    if name == "storage-option" and isinstance(value, str):
        key, equals, _ = value.partition("=")
        hides = is_secret(key) or not equals or len(value.split()) > 1  # several, where one is wrong
        return f"{key}{equals}{HIDDEN}" if hides else value
    return value


def _location(configured: Configured) -> Setting:
    """Return the location of commands that are given none."""
    storages = configured.storages
    named = os.environ.get(_DIR)
    if named is not None:
        fault = None if named else "it is empty"
        try:
            check_no_password(named)
        except UsageError as error:
            named, fault = HIDDEN, error.message
        return Setting("location", named, "environment", _DIR, _DIR, fault=fault)
    if storages is not None and storages.default is not None:
        return Setting("location", storages.default.location.url, "file", configured.origin(STORAGE, ""), _DIR)
    return Setting("location", ".", "default", "", _DIR)


def _storages(configured: Configured) -> Iterator[Setting]:
    """Yield the storages with names."""
    for name, storage in configured.storages.named.items() if configured.storages is not None else ():
        options = "".join(
            f" {key}={HIDDEN if is_secret(key) else value}" for key, value in sorted(storage.location.options.items())
        )
        yield Setting(f"{STORAGE}.{name}", f"{storage.location.url}{options}", "file", configured.origin(STORAGE, name))
