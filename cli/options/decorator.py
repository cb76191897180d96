"""The decorator of all commands: it gives each the common options, checks the values, and reports errors.

The command line wins over the environment (`EDL_CKPT_<OPTION>`), and that over a configuration file (`config.py`).
"""

from __future__ import annotations

import functools
import inspect
import os
import typing
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from typing import Annotated, Any, TypeVar

import typer

from edl_ckpt.cli.options.common import CommandLineOnly, Csv, DeclaredOption, Jsonl, System, flag, option
from edl_ckpt.cli.options.config import COMMAND_LINE_ONLY, stray_variables, user_directory, variable_of
from edl_ckpt.cli.terminal.output import Output, reported_errors
from edl_ckpt.cli.terminal.quantities import parse_duration, parse_limit, parse_size
from edl_ckpt.cli.terminal.secrets import exposed, hide, is_secret
from edl_ckpt.core.base.errors import EdlCkptError, ReplacedError, UsageError
from edl_ckpt.core.base.interruption import COMMIT
from edl_ckpt.core.base.words import meant

Value = TypeVar("Value")

_KEYWORD_ONLY = inspect.Parameter.KEYWORD_ONLY
_CONTEXT = "context"
_REPLACED_ATTEMPTS = 5
_FORMATS = ("json", "csv", "jsonl")
_ELSEWHERE = {"ENVIRONMENT", "DEFAULT_MAP"}
"""Where values of options come from that are not on the command line: the second is a configuration file."""
_MAY_BE_EMPTY = ("NAME", "GLOB")
_PARSERS: Mapping[str, Callable[[str], object]] = {
    "SIZE": parse_size,
    "DURATION": parse_duration,
    "DURATION|none": parse_limit,
}
"""What reads a value, by the metavar of its option."""
_COMMON: dict[str, Any] = {
    "json": Annotated[bool, flag("Print one JSON document instead of text.")],
    "quiet": Annotated[bool, flag("Print no warnings and no progress.", "-q")],
    "verbose": Annotated[bool, flag("Print more details on stderr.", "-v")],
    "no_color": Annotated[bool, flag("Print no colours; NO_COLOR does the same.")],
    "progress": Annotated[
        str, option("auto|bar|lines|none", "Progress display; auto: a bar on a terminal, lines in a log.")
    ],
    "config": Annotated[str | None, option("FILE", "Read option defaults from this file only.")],
    "storage_option": Annotated[list[str] | None, option("KEY=VALUE", "An option for S3 or fsspec; may be repeated.")],
}


def with_output(function: Callable[..., None]) -> Callable[..., None]:
    """Give a command the common options, and make its first parameter an Output with their values.

    A parameter whose type is a dataclass of options (`RuleOptions`) becomes those options.
    """
    hints = typing.get_type_hints(function, include_extras=True)
    own = list(inspect.signature(function).parameters.values())[1:]
    bundles = {p.name: hints[p.name] for p in own if is_dataclass(hints[p.name])}

    @functools.wraps(function)
    def command(**values: Any) -> None:
        out = Output()

        def look_again(error: ReplacedError) -> None:
            if out.streams:
                raise error
            out.detail(f"{error}: looking again")

        with reported_errors(out):
            COMMIT.more()  # `demo` runs one command after another
            context, given = values.pop(_CONTEXT), dict(values)
            sources = {name: context.get_parameter_source(name) for name in values}
            out.defaulted = frozenset(name for name, source in sources.items() if source and source.name in _ELSEWHERE)
            out.storages = None if context.obj is None else context.obj.storages
            _configure(out, context, values)
            out.warn(*stray_variables(), *(context.obj.warnings if context.obj is not None else ()))
            for name, bundle in bundles.items():
                values[name] = bundle(**{field.name: values.pop(field.name) for field in fields(bundle)})
            try:
                attempted(lambda: function(out, **values), look_again)
            except EdlCkptError as error:
                from edl_ckpt.cli.options.hints import add_hint  # most commands meet no error

                add_hint(error, context, given, out)
                raise

    parameters: list[inspect.Parameter] = []
    for p in own:
        parameters += _spread(hints[p.name]) if p.name in bundles else [p.replace(annotation=hints[p.name])]
    rows = {"csv": Csv, "jsonl": Jsonl} if getattr(function, "prints_rows", False) else {}
    marks = (info for p in parameters for info in getattr(p.annotation, "__metadata__", ()))
    metavars = " ".join(str(getattr(info, "metavar", "")) for info in marks)
    systems = {"system": System} if "REF" in metavars or "LOCATION" in metavars else {}
    for name, annotation in (rows | systems | _COMMON).items():
        default = {"config": None, "storage_option": None, "system": None, "progress": "auto"}.get(name, False)
        parameters.append(inspect.Parameter(name, _KEYWORD_ONLY, default=default, annotation=annotation))
    parameters.append(inspect.Parameter(_CONTEXT, _KEYWORD_ONLY, annotation=typer.Context))
    parameters = [_with_option(p.replace(kind=_KEYWORD_ONLY)) for p in parameters]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in parameters}
    return command


def attempted(work: Callable[[], Value], again: Callable[[ReplacedError], object]) -> Value:
    """Do some work; once more, with a new listing, when a version was replaced between the listing and the reading.

    `again` gets the error before each new attempt.
    """
    for _ in range(_REPLACED_ATTEMPTS - 1):
        try:
            return work()
        except ReplacedError as error:
            again(error)
    return work()


def check_values(context: Any, values: Mapping[str, Any]) -> None:
    """Raise UsageError, which names its origin, for a value that its option's metavar does not allow.

    A metavar is SIZE, DURATION, or words between bars (`max|min`); a word in capitals among them is not checked. An
    empty text is refused, because a variable of a script that is not set must not mean the default.
    """
    for parameter in context.command.params:
        text, metavar = values.get(parameter.name), str(parameter.metavar)
        _check_empty(context, parameter, text)
        if not isinstance(text, str) or parameter.param_type_name != "option":
            continue
        if metavar in _PARSERS:
            try:
                _PARSERS[metavar](text)
            except UsageError as error:
                raise UsageError(f"{_origin(context, parameter)}: {error.message}") from None
        elif metavar.islower() and text not in (known := metavar.split("|")):
            *others, last = known
            listed = f"{', '.join(others)} or {last}" if others else last
            hint = meant(text, known)
            raise UsageError(f"{_origin(context, parameter)}: expected {listed}, got {text!r}", hint=hint)


def _origin(context: Any, parameter: Any) -> str:
    """Return where the value of a parameter came from; only errors say it."""
    from edl_ckpt.cli.options.usage import origin

    return origin(context, parameter)


def _check_empty(context: Any, parameter: Any, value: object) -> None:
    """Raise UsageError for an empty text, and for an empty variable in place of a location, which the parser ignores.

    Names of tables, variables and metrics may be empty, and so may the text of a note.
    """
    texts = list(value) if isinstance(value, list | tuple) else [value]
    metavar = str(parameter.metavar)
    is_argument = parameter.param_type_name == "argument"
    if "" in (texts[:-1] if is_argument and metavar.endswith("TEXT") else texts) and metavar not in _MAY_BE_EMPTY:
        where = "" if is_argument else f"{_origin(context, parameter)}: "
        raise UsageError(f"{where}expected {metavar}, got an empty text", hint="is a variable of the script not set?")
    if metavar == "LOCATION" and value is None and os.environ.get(parameter.envvar or "") == "":
        raise UsageError(f"{parameter.envvar} is empty", hint="unset it, or name a location")


def _configure(out: Output, context: Any, values: dict[str, Any]) -> None:
    """Take the common options out of the values of a command, and apply them."""
    common = {name: values.pop(name) for name in _COMMON}
    out.json, out.quiet, out.verbose = common["json"], common["quiet"], common["verbose"]
    out.no_color, out.csv, out.jsonl = common["no_color"], values.pop("csv", False), values.pop("jsonl", False)
    _choose_format(out)
    check_values(context, common | values)
    out.progress, out.config = common["progress"], common["config"]
    if "system" in values:
        out.system = values.pop("system") or ""
        from edl_ckpt.core.state.user_cache import remember_in

        if folder := user_directory("XDG_CACHE_HOME", ".cache"):  # for what the indexes of other systems say
            remember_in(folder)
    for pair in common["storage_option"] or ():
        key, _, value = pair.partition("=")
        if not key or key == pair:  # which no message shows: it may be a secret
            option = next(p for p in context.command.params if p.name == "storage_option")
            raise UsageError(f"{_origin(context, option)} expects KEY=VALUE")
        out.storage_options[key] = value
    hide(value for name, value in out.storage_options.items() if is_secret(name))
    warning = None if "storage_option" in out.defaulted else exposed(out.storage_options)
    if warning:
        out.warn(warning)
    out.start_log()


def _choose_format(out: Output) -> None:
    """Raise UsageError when the command line asks for two formats; one that it asks for wins over the defaults."""
    asked = [name for name in _FORMATS if getattr(out, name) and name not in out.defaulted]
    if len(asked) > 1:
        raise UsageError(f"--{asked[1]} cannot be used with --{asked[0]}")
    if asked:
        out.json, out.csv, out.jsonl = (name in asked for name in _FORMATS)


def _with_option(parameter: inspect.Parameter) -> inspect.Parameter:
    """Return a parameter whose declared option, if it has one, is one of typer's, with its name and its variable."""
    marks = getattr(parameter.annotation, "__metadata__", ())
    declared = next((mark for mark in marks if isinstance(mark, DeclaredOption)), None)
    if declared is None:
        return parameter
    flags = _flags(declared, parameter.name)
    command_line_only = any(isinstance(mark, CommandLineOnly) for mark in marks)
    info = typer.Option(
        *flags,
        help=declared.help,
        metavar=declared.metavar,
        min=declared.least,
        max=declared.most,
        hidden=declared.hidden,
        envvar=None if command_line_only else _variable(flags),
        show_envvar=False,
    )
    kind = typing.get_args(parameter.annotation)[0]
    return parameter.replace(annotation=Annotated[kind, info])


def _flags(declared: DeclaredOption, name: str) -> tuple[str, ...]:
    """Return the flags of an option: one that comes of its name unless it declares a long one.

    A flag that typer names itself would have a second one, `--no-...`.
    """
    if any(flag.startswith("--") for flag in declared.flags):
        return declared.flags
    return (f"--{name.replace('_', '-')}", *declared.flags)


def _variable(flags: tuple[str, ...]) -> str | None:
    """Return the variable of an option: the one of its flags that is set, an old name too, else that of the first."""
    names = [flag.lstrip("-") for flag in flags if flag.startswith("--")]
    if names[0] in COMMAND_LINE_ONLY:
        return None
    variables = [variable_of(name) for name in names]
    return next((variable for variable in variables if variable in os.environ), variables[0])


def _spread(bundle: type) -> list[inspect.Parameter]:
    """Return the fields of a dataclass of options as parameters."""
    hints = typing.get_type_hints(bundle, include_extras=True)
    return [
        inspect.Parameter(f.name, _KEYWORD_ONLY, default=f.default, annotation=hints[f.name]) for f in fields(bundle)
    ]
