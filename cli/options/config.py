"""Configuration files: defaults for the options of commands, from `edl-ckpt.toml`.

The user's own file, or the one that `--config` names, may set every option but the destructive ones. A file in the
current directory may be somebody else's. It may only set how output looks and what a command may use, it never stops a
command, and whatever else it says is ignored with a warning.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from edl_ckpt.cli.catalogue import COMMANDS, command_at
from edl_ckpt.cli.manual.parsing import Taken, kinds_of
from edl_ckpt.cli.terminal.output import Output
from edl_ckpt.core.base.errors import EdlCkptError, UsageError
from edl_ckpt.core.base.words import closest, meant

if TYPE_CHECKING:
    import typer

    from edl_ckpt.core.sources.determined.storages import Storages

Defaults = dict[str, dict[str, Any]]
"""The values of options by command and parameter."""

_NAME: Final = "edl-ckpt.toml"
_MOST_BYTES: Final = 1 << 20
"""No more of a file is read: nobody writes so much by hand."""
_MOST_LINES: Final = 500
"""In a longer file, no line is looked for: each costs a parsing."""
STORAGE: Final = "checkpoint_storage"
"""The section that is Determined's, and sets no option of a command."""
_HARMLESS: Final = ("max-memory", "no-color", "progress", "workers")
"""The options that a file in the current directory may set."""
COMMAND_LINE_ONLY: Final = frozenset({
    # These lift a guard, delete or run something, or stand for LOCATION.
    "allow-empty-rule", "apply", "delete", "drop-copies", "drop-tag", "even-newest", "exec", "experiment", "force",
    "ignore-seal", "incomplete", "purge", "shell", "yes",
    # These choose or change what comes out.
    "against", "also", "best", "cast", "dense-rows", "digests", "drop", "drop-companions", "drop-rows", "dtype", "fill",
    "format", "from", "id", "id-column", "ignore-pointers", "ids-file", "key", "like", "limit", "loader", "map",
    "map-template", "max-shard-size", "mix", "newest", "order", "partial", "quantize", "remap", "rename", "resize",
    "sample", "seed", "shard", "since", "slice", "strip-after", "system", "table", "tag", "tolerance",
    "variable", "vector-column", "verified", "with-foreign",
})  # fmt: skip
"""The options that neither the environment nor a file may set, in any command."""
_PREFIX: Final = "EDL_CKPT_"
_OTHERS: Final = frozenset({"DIR", "COMPLETE_REMOTE", "PS", "EVENT", "REF", "LOCATION", "NUMBER", "PATH"})
"""The variables of no option, or of an old name, without the prefix.

The last five tell the command of `watch --exec` about its event.
"""


def variable_of(option: str) -> str:
    """Return the variable of an option.

    >>> variable_of("--lock-wait")
    'EDL_CKPT_LOCK_WAIT'
    """
    return _PREFIX + option.lstrip("-").replace("-", "_").upper()


def stray_variables() -> Iterator[str]:
    """Yield a warning for each variable that looks like ours and sets nothing."""
    ours = {name.removeprefix(_PREFIX) for name in os.environ if name.startswith(_PREFIX)} - _OTHERS
    ours = {name for name in ours if not name.startswith(("TEST_", "BENCH_"))}
    if not ours:
        return
    from edl_ckpt.cli.completion.grammar import load

    options: dict[str, str] = {}
    for command in load()["commands"].values():
        options.update((variable_of(flag).removeprefix(_PREFIX), flag) for flag in command["options"])
    refused = {name: flag for name, flag in options.items() if flag.lstrip("-") in COMMAND_LINE_ONLY}
    for name in sorted(ours):
        if name in refused:
            yield f"{_PREFIX}{name} sets nothing: this option can only be given on the command line"
        elif name not in options:
            close = [refused.get(each, _PREFIX + each) for each in closest(name, sorted({*_OTHERS, *options}))]
            guess = f"; did you mean {' or '.join(close)}?" if close else ""
            yield f"{_PREFIX}{name} sets nothing: no option has this variable{guess}"


@dataclass(frozen=True, slots=True)
class TomlKey:
    """A key in a configuration file: the file, its text, the tables around the key, and the key."""

    path: str
    text: str = field(repr=False)
    keys: tuple[str, ...]

    @property
    def place(self) -> str:
        """Return the file, and the line where the key begins, or its table; no line of a long file.

        No parser of TOML that Python has says where a key stands. So the first lines of the file are parsed, one more
        at a time, until the key is there.
        """
        import tomllib

        lines, begin = self.text.splitlines(), 0
        for number in range(1, len(lines) + 1) if len(lines) <= _MOST_LINES else ():
            try:
                document: Any = tomllib.loads("\n".join(lines[:number]))
            except ValueError:  # in the middle of a value of several lines
                continue
            for key in self.keys:
                document = document.get(key) if isinstance(document, dict) else None
            if document is not None:
                return f"{self.path}, line {begin + 1}"
            begin = number
        return TomlKey(self.path, self.text, self.keys[:-1]).place if len(self.keys) > 1 else self.path

    def below(self, *keys: str) -> TomlKey:
        """Return a key in the table that this one is."""
        return TomlKey(self.path, self.text, (*self.keys, *keys))

    def error(self, message: str, hint: str | None = None) -> UsageError:
        """Return an error about this key."""
        return UsageError(f"{self.place}: {message}", path=self.path, hint=hint)


class _FileEntry(NamedTuple):
    """A key that sets an option of some commands: its place, its name on the command line, and its value."""

    key: TomlKey
    commands: list[str]
    value: Any

    @property
    def name(self) -> str:
        return self.key.keys[-1]


@dataclass(frozen=True, slots=True)
class Configured:
    """What configuration files set beside the options of commands, and warnings about what is ignored."""

    warnings: tuple[str, ...] = ()
    storages: Storages | None = None
    """The section `checkpoint_storage`; None without it."""
    places: Mapping[tuple[str, str], TomlKey] = field(default_factory=dict)
    """Where each default stands, by command and parameter, and each storage, by `checkpoint_storage` and name."""

    def origin(self, command: str, parameter: str) -> str:
        """Return the file and the line of a default."""
        return self.places[command, parameter].place


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """A configuration file that is there."""

    path: str
    trusted: bool = True
    """False for a file in the current directory."""


def config_files(named: str | None) -> list[ConfigFile]:
    """Return the configuration files that are there, the one that wins last.

    A file that was named (`--config`) stands for all others. Raises UsageError when it, or the user's, cannot be read.
    """
    if named is not None:
        if not named:
            raise UsageError("--config or EDL_CKPT_CONFIG is empty, and should name a file")
        if not _is_there(named):
            from edl_ckpt.cli.options.hints import neighbour_hint

            raise UsageError("no such configuration file", path=named, hint=neighbour_hint(named))
        return [ConfigFile(named)]
    folder = user_directory("XDG_CONFIG_HOME", ".config")
    own = folder and os.path.join(folder, _NAME)
    files = [ConfigFile(own)] if own and _is_there(own) else []
    try:
        here = _is_there(_NAME)
    except UsageError:  # whatever it says, the command goes on without it
        here = True
    if here and not (files and os.path.realpath(own) == os.path.realpath(_NAME)):
        files.append(ConfigFile(_NAME, trusted=False))
    return files


def user_directory(variable: str, otherwise: str) -> str:
    """Return the directory of ours below one of the user's own, which a variable may name; '' without a home."""
    folder = os.environ.get(variable, "")
    if not os.path.isabs(folder):  # the specification says so; and "~" stays where nobody knows the home
        folder = os.path.expanduser(os.path.join("~", otherwise))
    return os.path.join(folder, "edl-ckpt") if os.path.isabs(folder) else ""


def _is_there(path: str) -> bool:
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise UsageError(f"cannot be read: {error.strerror}", path=path) from None
    return True


def named_config(arguments: list[str]) -> str | None:
    """Return the file that --config or EDL_CKPT_CONFIG names, None without either.

    >>> named_config(["list", "--config", "night.toml"]), named_config(["list", "--config=a.toml"])
    ('night.toml', 'a.toml')
    """
    for i, word in enumerate(arguments):
        if word == "--":
            break
        if word == "--config" and i + 1 < len(arguments):
            return arguments[i + 1]
        if word.startswith("--config="):
            return word.partition("=")[2]
    return os.environ.get("EDL_CKPT_CONFIG")


class ConfigOption(NamedTuple):
    """An option in a configuration file: the parameter that it sets, and the type that it must have in TOML."""

    parameter: str
    taken: Taken
    is_list: bool

    def fault(self, value: Any) -> str | None:
        """Return the fault of a value, None if it has none."""
        if self.is_list:
            fits = isinstance(value, list) and {str} >= set(map(type, value))
            return None if fits else f"must be a list of strings, got {value!r}"
        if type(value) is not self.taken.type:
            return f"must be {self.taken.words}, got {value!r}"
        return self.taken.fault(value)


def read_config(files: Iterable[ConfigFile], app: typer.Typer) -> tuple[Defaults, Configured]:
    """Return the defaults of each command from configuration files, and what else they set.

    Top-level keys apply to every command with such an option. Keys in a table apply to the command that the table names
    ([metrics.set] for `metrics set`). Raises UsageError with the file's name for invalid TOML, for keys that no command
    has, and for values of a wrong type; in a file that is not trusted they are ignored.
    """
    reading = _Reading(app)
    warnings: list[str] = []
    storages: Storages | None = None
    for file in files:
        if file.trusted:
            document, top = _parse_toml(file.path)
            if STORAGE in document:
                storages = _storages(document.pop(STORAGE), top)
                reading.places |= {(STORAGE, name): top.below(STORAGE, name) for name in storages.named}
                reading.places[STORAGE, ""] = top.below(STORAGE)
            for setting in reading.settings(document, top):
                reading.set(setting)
        else:
            warnings += reading.take_harmless(file.path)
    return reading.defaults, Configured(tuple(warnings), storages, reading.places)


def _known_options(app: typer.Typer) -> dict[str, dict[str, ConfigOption]]:
    """Return, for each command ('tag add' is one), its options by their names on the command line, '-' written '_'.

    Options marked `CommandLineOnly` are not among them.
    """
    import typer.main

    program = typer.main.get_command(app)
    every: dict[str, dict[str, ConfigOption]] = {}
    for name in COMMANDS:
        if name != "help":  # typer would take its defaults for a value of --help
            every[name] = _options_of(command_at(program, name))
    return every


def _options_of(command: Any) -> dict[str, ConfigOption]:
    """Return the options of one command, by each of their long flags."""
    kinds = kinds_of(command)
    options: dict[str, ConfigOption] = {}
    for parameter in command.params:
        if parameter.param_type_name != "option" or parameter.name == "help" or parameter.envvar is None:
            continue
        option = ConfigOption(parameter.name, kinds[parameter.name], parameter.multiple)
        for flag in parameter.opts:
            if flag.startswith("--"):
                options[flag.lstrip("-").replace("-", "_")] = option
    return options


def _storages(section: Any, top: TomlKey) -> Storages:
    """Return the storages of a file's section; UsageError names the file and the key."""
    from edl_ckpt.cli.terminal.secrets import hide_section
    from edl_ckpt.core.sources.determined.storages import SectionError, Storages

    hide_section(section)
    if not isinstance(section, dict):
        raise top.below(STORAGE).error(f"{STORAGE} must be a table: [{STORAGE}]")
    try:
        return Storages.from_config(section)
    except SectionError as error:
        raise top.below(*error.keys).error(error.message, error.hint) from None
    except UsageError as error:
        raise UsageError(error.message, path=top.path, hint=error.hint) from None


class _Reading:
    """What configuration files set: defaults by command and parameter, and where each stands."""

    def __init__(self, app: typer.Typer) -> None:
        self._known = _known_options(app)
        self.defaults: Defaults = {}
        """Those of `tag add` stand in `tag`, as typer expects them."""
        self.places: dict[tuple[str, str], TomlKey] = {}

    def take_harmless(self, path: str) -> list[str]:
        """Take the harmless options of a file that is not trusted; return warnings about the others."""
        refused: dict[str, None] = {}
        faults: list[str] = []
        try:
            document, top = _parse_toml(path)
            if document.pop(STORAGE, None) is not None:
                refused[STORAGE] = None
            for setting in self.settings(document, top):
                try:
                    if setting.name.replace("_", "-") in _HARMLESS:
                        self.set(setting)
                    else:
                        refused[setting.name] = None
                except UsageError as error:
                    faults.append(f"{error}; ignored")
        except UsageError as error:
            faults.append(f"{error}; the file is ignored")
        if refused:
            names = ", ".join(repr(name) for name in list(refused)[:5]) + (", ..." if len(refused) > 5 else "")
            faults.append(
                f"{path}: {names} ignored: a file in the current directory can only set {', '.join(_HARMLESS)}; "
                f"to use all of it, give --config {path}"
            )
        return faults

    def settings(self, document: dict[str, Any], top: TomlKey) -> list[_FileEntry]:
        """Return the settings of a file; UsageError when no command has a top-level key."""
        settings: list[_FileEntry] = []
        for key, value in document.items():
            if isinstance(value, dict):
                for name, item in value.items():
                    if isinstance(item, dict) and f"{key} {name}" in self._known:
                        settings += [_FileEntry(top.below(key, name, k), [f"{key} {name}"], v) for k, v in item.items()]
                    else:
                        settings.append(_FileEntry(top.below(key, name), [key], item))
            else:
                commands = [name for name, names in self._known.items() if key.replace("-", "_") in names]
                if not commands and key.replace("_", "-") not in COMMAND_LINE_ONLY:
                    flags = {flag for names in self._known.values() for flag in names}
                    raise top.below(key).error(f"no command has an option {key!r}", meant(key.replace("-", "_"), flags))
                settings.append(_FileEntry(top.below(key), commands, value))
        return settings

    def set(self, setting: _FileEntry) -> None:
        """Take a setting for each of its commands; UsageError for one that a file may not set, or of a wrong type."""
        if setting.name.replace("_", "-") in COMMAND_LINE_ONLY:
            raise setting.key.error(f"{setting.name} can only be given on the command line")
        for command in setting.commands:
            option = self._known.get(command, {}).get(setting.name.replace("-", "_"))
            if option is None:
                hint = meant(f"[{command}]", (f"[{known.replace(' ', '.')}]" for known in (*self._known, STORAGE)))
                if command in self._known:
                    hint = meant(setting.name.replace("-", "_"), self._known[command])
                raise setting.key.error(f"the command {command!r} has no option {setting.name!r}", hint)
            if fault := option.fault(setting.value):
                raise setting.key.error(f"{setting.name} {fault}")
            table: dict[str, Any] = self.defaults
            for word in command.split():
                table = table.setdefault(word, {})
            table[option.parameter] = setting.value
            self.places[command, option.parameter] = setting.key


def _parse_toml(path: str) -> tuple[dict[str, Any], TomlKey]:
    """Return the document in a file, and the key of no key: the top of the file."""
    import tomllib

    from edl_ckpt.core.storage.user_files import open_input

    try:
        with open_input(path, "rb") as file:
            text = file.read(_MOST_BYTES).decode()
        return tomllib.loads(text), TomlKey(path, text, ())
    except EdlCkptError as error:
        raise UsageError(f"cannot be read: {error.message}", path=path) from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"not a TOML file: {error}", path=path) from None


def error_exit(error: EdlCkptError, argv: list[str], *, json: bool = False) -> int:
    """Report an error before a command began as the command would, and return the exit code."""
    from edl_ckpt.cli.terminal.truths import is_set

    no_color = "--no-color" in argv or is_set("EDL_CKPT_NO_COLOR")
    out = Output(json=json or "--json" in argv or is_set("EDL_CKPT_JSON"), no_color=no_color)
    try:
        out.fail(error)
    except SystemExit:
        sys.stderr.flush()
    return error.exit_code
