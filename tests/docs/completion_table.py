"""The table from which the program completes, `cli/completion/table.json`, made of the parser."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from edl_ckpt.cli.catalogue import COMMANDS, GROUPS, OLD_FLAGS, command_at, function_of
from edl_ckpt.cli.manual.pages import topics
from edl_ckpt.core.operations import metric_series
from edl_ckpt.core.operations.export import FORMATS
from edl_ckpt.core.operations.export.interface import CASTS, FILLS
from edl_ckpt.core.operations.follow.observe import EventKind
from edl_ckpt.core.operations.verify.file_loaders import FILE_LOADERS
from edl_ckpt.core.operations.verify.loaders import LOADERS
from edl_ckpt.core.sources.registry import BUILT_IN

_OF_OPTION: Final[Mapping[str, str]] = {
    "--after": "version",
    "--best": "metric",
    "--delete": "version",
    "--drop": "name",
    "--drop-tag": "tag",
    "--experiment": "directory",
    "--keep-tag": "tag",
    "--metric": "metric",
    "--since": "version",
    "--sort": "metric",
    "--table": "table",
    "--tag": "tag",
    "--variable": "variable",
    "--version-ge": "version",
}
"""What the value of an option is, where its metavar does not say it."""
_OF_WORD: Final[Mapping[str, str]] = {
    "REF": "ref",
    "LOCATION": "location",
    "LOCATION@VERSION": "location",
    "DIR": "directory",
    "FILE": "file",
    "INPUT": "file",
    "OUTPUT": "file",
    "SOURCE": "file",
    "TAG": "tag",
    "NAME": "metric",
    "NAME=VALUE": "metric=",
    "KEY": "key",
    "KEY=JSON": "key=",
    "COMMAND": "command",
    "COMMAND|TOPIC": "page",
}
"""What an argument is, by the word that stands for it."""


def make(program: Any) -> str:
    """Return the text of the table, from the parser."""
    commands = {}
    for name in COMMANDS:
        command = command_at(program, name)
        commands[name] = _command(name, command, command.make_context(name, [], resilient_parsing=True))
    groups = {name: {"help": summary, "members": members} for name, (summary, members) in GROUPS.items()}
    about = {name: page.summary for name, page in topics().items()}
    return json.dumps({"commands": commands, "groups": groups, "topics": about}, indent=1) + "\n"


def _command(name: str, command: Any, context: Any) -> dict[str, Any]:
    parameters = [p for p in command.get_params(context) if not getattr(p, "hidden", False)]
    arguments = [_repeated(str(p.metavar), p.nargs) for p in parameters if p.param_type_name == "argument"]
    return {
        "help": (function_of(name).__doc__ or "").strip().partition("\n")[0],
        "arguments": [kind for metavar in arguments for kind in _arguments(metavar)],
        "options": dict(_options(name, (p for p in parameters if p.param_type_name == "option"))),
    }


def _arguments(metavar: str) -> Iterator[str]:
    """Yield what each word of a metavar takes; '?' follows one that may be left out, '*' one that may be repeated.

    >>> list(_arguments("[REF] NAME=VALUE...")), list(_arguments("[LOCATION...]"))
    (['ref?', 'metric=*'], ['location*'])
    """
    words = metavar.split()
    for word in words:
        plain = word.replace("...", "").strip("[]")
        kind = _OF_WORD.get(plain) or (f"={plain}" if plain.islower() else "")
        yield kind + ("*" if "..." in word else "?" if word.startswith("[") and len(words) > 1 else "")


def _repeated(metavar: str, nargs: int) -> str:
    """Return a metavar of one word, for which several may stand, with '...'; several words say it themselves."""
    return f"{metavar}..." if nargs == -1 and " " not in metavar and "..." not in metavar else metavar


def _options(name: str, options: Iterable[Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for option in options:
        found: dict[str, Any] = {"help": _first_sentence(str(option.help or ""))}
        if option.name == "help":
            found["help"] = "Show this help."
        if not option.is_flag:
            found["takes"] = _taken(name, option)
        if option.multiple:
            found["again"] = True
        long, *short = sorted((flag for flag in option.opts if flag not in OLD_FLAGS), key=len, reverse=True)
        if short:
            found["short"] = short[0]
        yield long, found


def _taken(name: str, option: Any) -> str:
    """Return what an option takes: a kind of names, words behind '=', or nothing that can be listed."""
    metavar = str(option.metavar)
    words = (
        _listed().get((name, option.opts[0]))
        or _listed().get(("", option.opts[0]))
        or [word for word in metavar.split("|") if re.fullmatch("[a-z][a-z-]*", word)]
    )
    return f"={'|'.join(words)}" if words else _OF_OPTION.get(option.opts[0]) or _OF_WORD.get(metavar, "")


def _listed() -> dict[tuple[str, str], Iterable[str]]:
    """Return the values of options whose metavar does not list them, by command and option; "" is any command."""
    return {
        ("", "--system"): [name for source in BUILT_IN for name in source.systems],
        ("export", "--format"): FORMATS,
        ("metrics import", "--format"): metric_series.FORMATS,
        ("export", "--dtype"): CASTS,
        ("export", "--fill"): FILLS,
        ("verify", "--loader"): [*LOADERS, *FILE_LOADERS],
        ("watch", "--on"): [kind.value for kind in EventKind],
    }


def _first_sentence(text: str) -> str:
    """Return the first sentence of a help text, without its full stop.

    >>> _first_sentence("Number of threads. Default: the number of cores.")
    'Number of threads'
    """
    return re.split(r"[.;] |\.$", text, maxsplit=1)[0]
