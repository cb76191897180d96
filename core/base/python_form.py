"""Hints translated from command lines into Python calls, for callers of the library.

A hint is written once, for a shell: `try: edl-ckpt tag add run@100 good --force`, or `--force replaces it`. A caller of
a function reads `try: edl_ckpt.core.add_tag('run@100', 'good', force=True)`, and `force=True replaces it`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from edl_ckpt.core.base.patterns import LatePattern

_COMMAND: Final = LatePattern(r"`(?:edl-ckpt )?([a-z]+(?: [^`]*)?)`|\bedl-ckpt ([a-z]+(?: (?:'[^']*'|[^\s';,()`])+)*)")
"""A command between backquotes, or from the name of the program to the next sign of a sentence."""
_OPTION: Final = LatePattern(r"(?<![\w-])--([a-z][a-z-]*)")
_VALUE: Final = LatePattern(
    r"[ =]('[^']*'|(?!or\b|and\b|in\b)[A-Z][A-Za-z_]*(?:=[A-Z]+)?\b|[\w./*:]+=[\w./*:]+|\d\w*\b)"
)
"""A value behind an option: quoted, a placeholder, a pair, or a number."""
_WORD: Final = LatePattern(r"[ =]([A-Za-z][\w|-]*)")
"""A value of an option that takes one of a few words."""
_SIZES: Final = {"kB": "10**3", "MB": "10**6", "GB": "10**9", "KiB": "2**10", "MiB": "2**20", "GiB": "2**30"}
_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_OF_DASK: Final = frozenset({"memory-limit", "nthreads", "scheduler-file"})
"""The options of Dask's own programs, which stay."""


def in_python(hint: str) -> str:
    """Return a hint with its commands and options as calls and arguments of the library.

    >>> in_python("nothing was changed; try: edl-ckpt verify 'my run@30' --deep")
    "nothing was changed; try: edl_ckpt.core.verify_version('my run@30', level='deep')"
    >>> in_python("--force replaces it, or: --rename 'user=NEW'")
    "force=True replaces it, or: rename=(('user', NEW),)"
    """
    if "--" not in hint and "edl-ckpt " not in hint and "`" not in hint:
        return hint
    return _options(_COMMAND.sub(_called, hint))


def _called(found: re.Match[str]) -> str:
    """Return a command as a call; as it is where the library has none, or the words are none of a shell."""
    import shlex

    try:
        words = shlex.split(found[1] or found[2])
    except ValueError:
        return found[0]
    is_of_group = words[0] in _GROUPS and len(words) > 1
    name = " ".join(words[: 2 if is_of_group else 1])
    call = CALLS.get(name)
    if call is None:
        return found[0]
    plain, given = _arguments_of(words[len(name.split()) :])
    function, arguments = call(plain, given)
    if not plain and found[1] and name != "list":  # `export --partial`: the call that is meant, in few words
        arguments = ["...", *arguments] if arguments else []
        return f"`{function}({', '.join(arguments)})`" if arguments else f"`{function}`"
    text = f"edl_ckpt.core.{function}({', '.join(arguments)})"
    return f"`{text}`" if found[1] else text


def _arguments_of(words: Iterable[str]) -> tuple[list[str], list[tuple[str, str]]]:
    """Return the arguments of a command, and its options without dashes, each with its value or ''."""
    plain: list[str] = []
    given: list[tuple[str, str]] = []
    remaining = [word for word in words if word != "..."]
    while remaining:
        word = remaining.pop(0)
        if not word.startswith("--"):
            plain.append(word.strip("[]"))
            continue
        option = word[2:]
        takes_next = option not in _FLAGS and remaining and not remaining[0].startswith("--")
        given.append((option, remaining.pop(0) if takes_next else ""))
    return plain, given


def _options(text: str) -> str:
    """Return a text with its options as arguments."""
    parts: list[str] = []
    end = 0
    for found in _OPTION.finditer(text):
        option = found[1]
        if found.start() < end or option in _OF_DASK:
            continue
        value = None
        if option not in _FLAGS:
            pattern = _WORD if option in _CHOICES else _VALUE
            value = pattern.match(text, found.end())
        parts += [text[end : found.start()], argument(option, value[1].strip("'") if value else "")]
        end = value.end() if value else found.end()
    return "".join([*parts, text[end:]])


def argument(option: str, value: str) -> str:
    """Return the argument for an option and its value, which is empty where a sentence gives none.

    >>> argument("lock-wait", "10m"), argument("ranks", "N"), argument("table", "")
    ('wait_seconds=600', 'ranks=N', 'tables=...')
    """
    if option in _FLAGS:
        return _FLAGS[option]
    if option in _RULES:
        rule, form = _RULES[option]
        return rule.format(form(value) if value else "...")
    name, form = _VALUES.get(option, (option.replace("-", "_"), _literal))
    return f"{name}={form(value)}" if value else f"{name}=..."


def _literal(value: str) -> str:
    """Return a value as Python writes it; a placeholder stays."""
    if re.fullmatch(r"\[?[A-Z][A-Z_]*\]?|-?\d+", value):
        return value.strip("[]")
    return repr(value)


def _several(value: str) -> str:
    return f"({_literal(value)},)"


def _pairs(value: str) -> str:
    old, _, new = value.partition("=")
    return f"(({_literal(old)}, {_literal(new)}),)"


def _mapping(value: str) -> str:
    old, _, new = value.partition("=")
    return f"{{{_literal(old)}: {_literal(new)}}}"


def _size(value: str) -> str:
    found = re.fullmatch(r"(\d+)([A-Za-z]+)", value)
    return f"{found[1]} * {_SIZES[found[2]]}" if found and found[2] in _SIZES else value


def _seconds(value: str) -> str:
    found = re.fullmatch(r"(\d+)([smhd])", value)
    return str(int(found[1]) * _SECONDS[found[2]]) if found else value


def _read_map(value: str) -> str:
    return f"read_map({_literal(value)})"


_FLAGS: Final[Mapping[str, str]] = {
    "allow-empty-rule": "allow_empty_rule=True",
    "deep": "level='deep'",
    "drop-copies": "drop_copies=True",
    "drop-companions": "drop_companions=True",
    "dry-run": "dry_run=True",
    "even-newest": "everything=True",
    "force": "force=True",
    "ignore-pointers": "ignore_pointers=True",
    "ignore-seal": "use_seal=False",
    "incomplete": "incomplete=True",
    "keep-old": "keep_old=True",
    "mix": "mix=True",
    "partial": "partial=True",
    "quick": "level='quick'",
    "recursive": "recursive",
    "remap": "remap=True",
    "seal": "seal=True",
    "trash": "trash=True",
    "with-foreign": "with_foreign=True",
    "yes": "confirm=...",
}
"""The options that take no value."""
_VALUES: Final[Mapping[str, tuple[str, Callable[[str], str]]]] = {
    "cast": ("cast", _pairs),
    "cluster": ("executor", _literal),
    "delete": ("delete", _several),
    "drop": ("drop", _several),
    "drop-tag": ("drop_tags", _several),
    "format": ("format_name", _literal),
    "from": ("source", _literal),
    "grace": ("grace_seconds", _seconds),
    "lock-wait": ("wait_seconds", _seconds),
    "map": ("names", _read_map),
    "max-memory": ("max_memory_bytes", _size),
    "max-shard-size": ("max_shard_bytes", _size),
    "rename": ("rename", _pairs),
    "storage-option": ("options", _mapping),
    "table": ("tables", _several),
    "variable": ("variables", _several),
    "max-size": ("max_size_bytes", _size),
}
"""The arguments whose name or form differs from the option's."""
_RULES: Final[Mapping[str, tuple[str, Callable[[str], str]]]] = {
    "keep": ("Latest({})", _literal),
    "keep-best": ("Best({}, METRIC)", _literal),
    "keep-every": ("EverySteps({})", _literal),
    "keep-tag": ("Tagged({})", _several),
    "keep-within": ("Within({})", _seconds),
    "policy": ("{}(METRIC)", str),
}
"""The options that are rules of a policy."""
_CHOICES: Final = frozenset({"format", "layout", "mode", "policy"})
_GUARDS: Final = frozenset({
    "allow-empty-rule", "delete", "drop-tag", "even-newest", "grace", "ignore-pointers", "incomplete", "with-foreign",
})  # fmt: skip
_CHANGES: Final = frozenset({"cast", "drop", "drop-companions", "rename"})
_SELECTED: Final = frozenset({"table", "variable", "dtype", "remap", "dense-rows"})

Given = Sequence[tuple[str, str]]


def _arguments(given: Given, *, besides: frozenset[str] = frozenset(), into: str = "", named: str = "") -> list[str]:
    """Return options as arguments; those of `besides` together as one value of a class, in one argument."""
    inner = [argument(*each) for each in given if each[0] in besides]
    outer = [argument(*each) for each in given if each[0] not in besides]
    return [*outer, f"{named}={into}({', '.join(inner)})"] if inner else outer


def _like(function: str, *, of_list: bool = False) -> Callable[[Sequence[str], Given], tuple[str, list[str]]]:
    """Return the form of a command that has a function with the same arguments."""

    def call(plain: Sequence[str], given: Given) -> tuple[str, list[str]]:
        values = [_literal(word) for word in plain]
        return function, [*([f"[{', '.join(values)}]"] if of_list and values else values), *_arguments(given)]

    return call


def _verify(plain: Sequence[str], given: Given) -> tuple[str, list[str]]:
    options = dict(given)
    if "newest" in options or "all" in options:
        listed = f"list_versions({_literal(plain[0]) if plain else '...'}).versions"
        return "verify_versions", [listed, *_arguments([each for each in given if each[0] in {"deep", "seal"}])]
    if "seal" in options:
        forced = [("force", "")] if "force" in options else []
        fingerprint = [f"verify_version({_literal(plain[0])}, level='deep').fingerprint"] if forced and plain else []
        function = "seal_version" if forced else "verify_and_seal"
        return function, [*map(_literal, plain), *fingerprint, *_arguments(forced)]
    return "verify_version", [*map(_literal, plain), *_arguments(given)]


def _import(plain: Sequence[str], given: Given) -> tuple[str, list[str]]:
    ranks = dict(given).get("ranks", "N")
    others = _arguments([each for each in given if each[0] != "ranks"])
    source, target = (*plain, "", "")[:2]
    location, _, version = target.rpartition("@")
    function = "import_arrays" if source == "FILE" or "@" not in source else "import_checkpoint"
    where = [_literal(source), _literal(location), _literal(version), _literal(ranks)] if target else []
    return function, [*where, *others]


def _export(plain: Sequence[str], given: Given) -> tuple[str, list[str]]:
    chosen = _arguments(given, besides=_SELECTED, into="Selection", named="selection")
    return "export_version", [*map(_literal, plain), *chosen]


def _edit(plain: Sequence[str], given: Given) -> tuple[str, list[str]]:
    return "convert_version", [
        *map(_literal, plain),
        *_arguments(given, besides=_CHANGES, into="Changes", named="changes"),
    ]


def _prune(plain: Sequence[str], given: Given) -> tuple[str, list[str]]:
    where = [f"[{', '.join(map(_literal, plain))}]", "Policy()"] if plain else []
    return "prune", [*where, *_arguments(given, besides=_GUARDS, into="Guards", named="guards")]


def _list(plain: Sequence[str], given: Given) -> tuple[str, list[str]]:
    is_deep = ("recursive", "") in given
    return "glance_below" if is_deep else "list_versions", [*map(_literal, plain), *["location"] * (not plain)]


def _copy(plain: Sequence[str], given: Given) -> tuple[str, list[str]]:
    if not plain:  # the command by its name alone
        return "execute_copy", []
    source, *target = map(_literal, plain)
    return "execute_copy", [f"plan_copy({', '.join([f'[{source}]', *target, *_arguments(given)])})"]


def _repair(plain: Sequence[str], given: Given) -> tuple[str, list[str]]:
    source = [_literal(value) for name, value in given if name == "from"]
    return "repair_version", [
        *map(_literal, plain),
        *source,
        *_arguments([each for each in given if each[0] != "from"]),
    ]


def _mode(plain: Sequence[str], _: Given) -> tuple[str, list[str]]:
    location, name, mode = (*map(_literal, plain), "...", "...", "...")[:3]
    return "set_modes", [location, f"{{{name}: {mode.split('|')[0].strip(chr(39))!r}}}"]


def _unlock(plain: Sequence[str], _: Given) -> tuple[str, list[str]]:
    return "unlock", [*map(_literal, plain), "confirm=lambda holders: True"]


def _keep(plain: Sequence[str], given: Given) -> tuple[str, list[str]]:
    count = _literal(dict(given).get("keep", "N"))
    return "store_policy", [*map(_literal, plain), f"Policy((Latest({count}),))"]


CALLS: Final[Mapping[str, Callable[[Sequence[str], Given], tuple[str, list[str]]]]] = {
    "copy": _copy,
    "diff": _like("diff_versions"),
    "edit": _edit,
    "export": _export,
    "import": _import,
    "inspect": _like("open_checkpoint"),
    "list": _list,
    "metrics mode": _mode,
    "metrics set": _like("set_metrics"),
    "policy set": _keep,
    "prune": _prune,
    "recover": _like("recover"),
    "repair": _repair,
    "reshard": _like("convert_version"),
    "tag add": _like("add_tag"),
    "undo": _like("undo"),
    "unlock": _unlock,
    "verify": _verify,
}
"""How a command is called in Python: the name of the function, and its arguments in order."""
_GROUPS: Final = frozenset(name.split()[0] for name in CALLS if " " in name)
