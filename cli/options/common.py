"""Options: their types, those that every command has, and the variables of the environment that set them.

The command line wins over the environment (`EDL_CKPT_<OPTION>`), and that over a configuration file (`config.py`).
"""

from __future__ import annotations

import functools
import inspect
import os
import typing
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Annotated, Any, TypedDict, TypeVar

import typer

from edl_ckpt.cli.options.config import COMMAND_LINE_ONLY, stray_variables, user_directory, variable_of
from edl_ckpt.cli.options.hints import add_hint, check_named, is_named
from edl_ckpt.cli.options.usage import origin
from edl_ckpt.cli.terminal.documents import REFERENCES, Template
from edl_ckpt.cli.terminal.output import Output, reported_errors
from edl_ckpt.cli.terminal.secrets import exposed, hide, is_secret
from edl_ckpt.cli.terminal.text import escaped, parse_duration, parse_limit, parse_size
from edl_ckpt.core.base.errors import EdlCkptError, ReplacedError, UsageError
from edl_ckpt.core.base.interruption import COMMIT
from edl_ckpt.core.base.words import LayoutName, command, meant
from edl_ckpt.core.base.words import Mode as ModeName

if TYPE_CHECKING:
    from edl_ckpt.core.model.versions import CheckpointRef, Version
    from edl_ckpt.core.operations.verify.findings import ValueSample
    from edl_ckpt.core.reading.loss import Loss
    from edl_ckpt.core.storage.location import Location


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


class CommandLineOnly:
    """Marks an option that neither the environment nor a file may set, though one of this name elsewhere may be set."""


def argument(metavar: str, text: str) -> Any:
    """Declare an argument of a command: the words that stand for it, and its help."""
    return typer.Argument(metavar=metavar, help=text)


def option(metavar: str, text: str, *flags: str, least: int | None = None, most: int | None = None) -> Any:
    """Declare an option with a value: what stands for it, its help, and flags; the long one comes of its name."""
    return typer.Option(*flags, metavar=metavar, help=text, min=least, max=most)


def flag(text: str, *flags: str) -> Any:
    """Declare an option without a value: its help, and its flags; the long one comes of its name."""
    return typer.Option(*flags, help=text)


_DEFAULT_PLACE = "$EDL_CKPT_DIR, the default storage or the current directory"
_REF_HELP = (
    "LOCATION, @VERSION or both; a version is a number, latest, a tag, best:METRIC or a UUID. Or a single checkpoint "
    "FILE. Default: "
)
_LOCATION_HELP = f"A checkpoint_dir, on disk or at a URL, or a storage's name. Default: {_DEFAULT_PLACE}."
_LOCATIONS_HELP = f"Any number of checkpoint_dirs. Default: {_DEFAULT_PLACE}."
_MODE_HELP = "Whether higher (max) or lower (min) is better."
_GRACE_HELP = "An incomplete version changed within this time counts as still being written."

Ref = Annotated[str | None, argument("[REF]", f"{_REF_HELP}the newest complete version in {_DEFAULT_PLACE}.")]
Browsed = Annotated[str | None, argument("[REF]", f"{_REF_HELP}all versions in {_DEFAULT_PLACE}.")]
Places = Annotated[list[str] | None, argument("[LOCATION...]", _LOCATIONS_HELP)]
Grace = Annotated[str, option("DURATION", _GRACE_HELP)]
System = Annotated[
    str | None, option("NAME", "Read only files of this checkpoint system; `edl-ckpt systems` lists them.")
]
Csv = Annotated[bool, flag("Print rows as CSV.")]
Jsonl = Annotated[bool, flag("Print rows as JSON, one object on each line.")]
Table = Annotated[str | None, option("NAME", "The embedding table. Default: the only table.")]
Rows = Annotated[int, option("N", "How many rows to print.", "-n", least=1)]
Prometheus = Annotated[bool, flag("Print metrics in the text format of Prometheus, for a textfile collector.")]
Every = Annotated[bool, flag("Show every row of a long table on a terminal too.", "--all")]
Workers = Annotated[int | None, option("N", "Number of threads. Default: the number of cores.", least=1)]
Place = Annotated[str | None, argument("[LOCATION]", _LOCATION_HELP)]
Experiment = Annotated[
    str | None, option("DIR", "Take the trials of an experiment: the directories in DIR that have versions.")
]
DryRun = Annotated[bool, flag("Show what would happen, and change nothing.")]
LockWait = Annotated[str, option("DURATION", "How long to wait for the lock.")]
Mode = Annotated[ModeName | None, option("max|min", _MODE_HELP)]

StallAfter = Annotated[
    str, option("DURATION|none", "Report a stall after this time without a change; 0 or `none`: never.")
]
Interval = Annotated[
    str | None,
    option("DURATION", "Time between polls. Default: 1s on a disk, at once with inotify; 10s on other storage."),
]

Layout = Annotated[
    LayoutName | None,
    option("design|elasticdl", "Names of directories and files. Default: those at the location, else design."),
]

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


ForceSeal = Annotated[
    bool, flag("Continue even if the version does not match its seal; the new seal records it.", "--force")
]


def pair_of(word: str, flag: str, form: str) -> tuple[str, str]:
    """Return both sides of a value such as OLD=NEW; UsageError where one is missing.

    >>> pair_of("a=b", "--rename", "OLD=NEW")
    ('a', 'b')
    """
    name, _, value = word.partition("=")
    if not (name and value):
        raise UsageError(f"{flag}: {word!r} is no pair", hint=f"expected {form}")
    return name, value


def resolve_ref(ref: str | None, out: Output, *, to_change: bool = False, aloud: bool = False) -> Version:
    """Return the version that a reference on the command line names, by default the newest complete one.

    With `to_change`, the work of a killed command in the location is finished or undone first, and a checkpoint in a
    file by itself is refused. With `aloud`, the command says which version it takes when none was named.
    """
    from edl_ckpt.core.catalog.files import check_in_location, named_file, named_step
    from edl_ckpt.core.catalog.listing import resolve

    parsed = parsed_ref(ref, out)
    if to_change:
        from edl_ckpt.core.commit.repair.recovery import settle_first

        if alone := named_step(parsed) or named_file(parsed):
            check_in_location(alone)
        settle_first(parsed.location, reporter=out)
    version = resolve(parsed, reporter=out)
    if to_change:
        check_in_location(version)
    if aloud and not is_named(ref, parsed, version):
        out.say(f"{escaped(version.ref)} is the newest complete version")
    return version


def looked_at(ref: str | None, out: Output) -> Version:
    """Return the version that a reference names, for a command that only reads it; warn where it breaks its seal."""
    version = resolve_ref(ref, out)
    if version.seal_warning:
        out.warn(f"{version.ref}: {version.seal_warning}")
    if version.is_newer and version.metadata_fault:
        out.warn(f"{version.ref}: its metadata: {version.metadata_fault}")
    return version


def resolve_named(ref: str | None, out: Output, name: str, *rest: str) -> Version:
    """Return the version that a reference names in words, for a command that records; `rest` follows the reference."""
    check_named(ref, parsed_ref(ref, out), name, *rest)
    return resolve_ref(ref, out, to_change=True)


def parsed_ref(ref: str | None, out: Output) -> CheckpointRef:
    """Return a reference on the command line in its parts, with the storage options of the command."""
    from dataclasses import replace

    from edl_ckpt.core.catalog.listing import parse_ref

    parsed = parse_ref(ref or "", default_location="")
    return replace(parsed, location=out.location(parsed.location.url))


def followed_location(out: Output, text: str | None) -> Location:
    """Return the location that a command follows; UsageError for a version: the command would wait for ever."""
    from edl_ckpt.core.catalog.listing import split_version_dir

    where = out.location(text)
    path = where.local_path
    head, at, word = where.url.rpartition("@")
    is_version = at and (word.isdigit() or word in {"latest", "best"} or word.startswith("best:"))
    if (is_version and not (path and os.path.lexists(path))) or split_version_dir(where):
        raise UsageError(
            "expected a location, not a version of it",
            path=where.url,
            hint=f"to wait for one: {command('wait', head or 'LOCATION', '--version-ge', 'V')}",
        )
    return where


def sampled(percent: str | None, seed: int | None, *, clashes: bool) -> ValueSample | None:
    """Return the part of the values that `--sample` asks for; UsageError for no part, or next to another level."""
    from edl_ckpt.core.operations.verify.findings import ValueSample

    if percent is None:
        if seed is not None:
            raise UsageError("--seed can only be used with --sample")
        return None
    if clashes:
        raise UsageError("--sample cannot be used with --quick, --deep or --seal")
    try:
        part = float(percent.strip().removesuffix("%"))
    except ValueError:
        part = 0.0
    if not 0 < part <= 100:
        raise UsageError(f"--sample {percent}: expected a part such as 5%")
    return ValueSample(part, int.from_bytes(os.urandom(4)) if seed is None else seed)


def show_loss(out: Output, loss: Loss, *, fails: bool = True) -> None:
    """Warn of what could not be read of a version; raise its error where that was asked for, once the rest is shown."""
    out.warn(*loss.lines())
    if loss and fails:
        raise loss.error("the rest is shown")


def asked_layout(out: Output, layout: Layout, target: Location | None) -> LayoutName | None:
    """Return the layout that a command asks for; None lets the versions at the target decide.

    A layout from the environment or a configuration file is for empty locations: it never mixes layouts. `target` is
    None for a version that is replaced in place.
    """
    from edl_ckpt.core.catalog.target import layouts_at
    from edl_ckpt.core.sources.elasticdl.target import writable_layout
    from edl_ckpt.core.storage import open_store

    if layout is None or "layout" not in out.defaulted:
        return layout
    writable_layout(layout)  # an error for another name
    return None if target is None or layouts_at(open_store(target)) else layout


def looks_like_ref(word: str, out: Output) -> bool:
    """Return True for a reference among other arguments: a version, a URL, a directory, a storage, or a file."""
    if out.storages is not None and out.storages.split(word)[0]:
        return True
    is_file = word.endswith((".ckpt", ".chkpt")) and os.path.exists(word)
    return "@" in word or "://" in word or is_file or os.path.isdir(word)


def split_word(words: list[str], out: Output, name: str, advice: str = "") -> tuple[str | None, str]:
    """Return (reference, word) of `REF NAME`; UsageError without the word, and with `advice` for more than one."""
    expected = f"expected REF {name}"
    if len(words) > 2:
        raise UsageError(f"{expected}{advice}")
    if len(words) == 1 and looks_like_ref(words[0], out):
        raise UsageError(f"{name} is missing", hint=expected)
    return words[0] if len(words) == 2 else None, words[-1]


def split_names(words: list[str], out: Output, name: str, what: str) -> tuple[str | None, list[str]]:
    """Return (reference, names) of `REF NAME...`; UsageError without a name, which is that of `what` to remove."""
    ref, names = (words[0], words[1:]) if looks_like_ref(words[0], out) else (None, words)
    if not names:
        raise UsageError(f"{name} is missing, the {what} to remove", hint=f"expected REF {name}...")
    return ref, names


def split_pairs(
    words: list[str], pair: str, value_of: Callable[[str, str], Value], *, has_ref: bool
) -> tuple[str | None, dict[str, Value]]:
    """Return (reference, values) of `REF NAME=VALUE...`; UsageError for a word that is no `pair`, and without any.

    `value_of` makes the value of a name and a text.
    """
    values: dict[str, Value] = {}
    for word in words[has_ref:]:
        name, equals, text = word.partition("=")
        if not equals:
            raise UsageError(f"{word!r}: expected {pair}")
        values[name] = value_of(name, text)
    if not values:
        raise UsageError(f"{pair} is missing", hint=f"expected REF {pair}...")
    return words[0] if has_ref else None, values


class Locking(TypedDict):
    """The arguments of an operation that takes a location's lock."""

    wait_seconds: float
    reporter: Output


def locking(out: Output, lock_wait: str) -> Locking:
    """Return how long an operation waits for a lock, and to whom it reports."""
    return {"wait_seconds": parse_duration(lock_wait), "reporter": out}


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
    parameters = [p.replace(kind=_KEYWORD_ONLY) for p in parameters]
    for parameter in parameters:
        _name_option(parameter)
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
                raise UsageError(f"{origin(context, parameter)}: {error.message}") from None
        elif metavar.islower() and text not in (known := metavar.split("|")):
            *others, last = known
            listed = f"{', '.join(others)} or {last}" if others else last
            hint = meant(text, known)
            raise UsageError(f"{origin(context, parameter)}: expected {listed}, got {text!r}", hint=hint)


def _check_empty(context: Any, parameter: Any, value: object) -> None:
    """Raise UsageError for an empty text, and for an empty variable in place of a location, which the parser ignores.

    Names of tables, variables and metrics may be empty, and so may the text of a note.
    """
    texts = list(value) if isinstance(value, list | tuple) else [value]
    metavar = str(parameter.metavar)
    is_argument = parameter.param_type_name == "argument"
    if "" in (texts[:-1] if is_argument and metavar.endswith("TEXT") else texts) and metavar not in _MAY_BE_EMPTY:
        where = "" if is_argument else f"{origin(context, parameter)}: "
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
            raise UsageError(f"{origin(context, option)} expects KEY=VALUE")
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


def _name_option(parameter: inspect.Parameter) -> None:
    """Name an option: by the parameter unless it declares a long flag, and EDL_CKPT_ with that flag in the environment.

    A flag that typer names itself would have a second one, `--no-...`.
    """
    metadata = getattr(parameter.annotation, "__metadata__", ())
    command_line_only = any(isinstance(info, CommandLineOnly) for info in metadata)
    for info in metadata:
        if type(info).__name__ == "OptionInfo":
            declared = (info.default, *(info.param_decls or ()))  # within Annotated the first flag is `default`
            flags = [flag for flag in declared if isinstance(flag, str)]
            if not any(flag.startswith("--") for flag in flags):
                flags.insert(0, f"--{parameter.name.replace('_', '-')}")
            info.default, *info.param_decls = flags
            option = next(flag for flag in flags if flag.startswith("--")).lstrip("-")
            info.envvar = None if command_line_only or option in COMMAND_LINE_ONLY else variable_of(option)
            info.show_envvar = False


def _spread(bundle: type) -> list[inspect.Parameter]:
    """Return the fields of a dataclass of options as parameters."""
    hints = typing.get_type_hints(bundle, include_extras=True)
    return [
        inspect.Parameter(f.name, _KEYWORD_ONLY, default=f.default, annotation=hints[f.name]) for f in fields(bundle)
    ]


def check_prometheus(out: Output, *, prometheus: bool) -> None:
    """Raise UsageError when two formats are asked for at once."""
    if prometheus and (out.json or out.csv or out.jsonl):
        raise UsageError("--prometheus cannot be used with --json, --jsonl or --csv")


def template_of(out: Output, template: str | None, *, null: bool) -> Template | None:
    """Return what `--format`, `-q` and `-0` ask for; None for a table.

    Quiet in the environment or in a file is about warnings only: it must not change what a command prints.
    """
    if template is None and not null and (not out.quiet or "quiet" in out.defaulted):
        return None
    if out.is_for_programs:
        if template is not None or null:
            raise UsageError("--format and -0 cannot be used with --json, --jsonl or --csv")
        return None
    return Template(REFERENCES if template is None else template, end="\0" if null else "\n")
