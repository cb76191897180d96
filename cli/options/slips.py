"""Hands that slip: the command line that would work in place of one that was refused.

Each line keeps the words that were typed, and changes the least. No line deletes anything, unless its command did.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from edl_ckpt.cli.manual.parsing import ARGUMENTS, command_of
from edl_ckpt.core.base import words

DELETING: Final = frozenset({"prune", "remove", "clear", "unlock"})
"""The commands, and members of groups, that no guess names."""
_RISKY: Final = frozenset({
    "--even-newest", "--delete", "--with-foreign", "--ignore-pointers", "--purge", "--drop-tag", "--apply", "--yes",
    "--allow-empty-rule", "--force", "--incomplete", "--drop", "--drop-rows", "--drop-companions",
})  # fmt: skip
"""The options that no guess names."""
_TABLES: Final = frozenset({"get", "head", "sample", "ids", "inspect"})
"""The commands of which a second word is a table."""
_OF_OTHERS: Final[Mapping[str, tuple[str, ...]]] = {
    "--keep": (
        "keep-checkpoint-max", "max-to-keep", "save-total-limit", "keep-last", "keep-latest", "keep-n", "keep-last-n",
        "keep-n-latest", "keep-max", "max-checkpoints", "num-to-keep",
    ),
    "--keep-best": ("keep-best-n", "save-top-k", "keep-top"),
    "--metric": ("metric-name", "monitor", "key-metric", "metric-for-best-model"),
    "--ranks": (
        "num-ps-pods", "ps-num", "num-ps", "ps-pods", "num-ranks", "num-shards", "shards", "nproc", "nproc-per-node",
        "parts", "num-parts", "world-size", "ps",
    ),
    "--table": ("table-name", "embedding", "embedding-table"),
    "--rows": ("num-rows", "limit", "lines"),
    "--dry-run": ("dryrun", "simulate"),
    "--format": ("fmt", "to-format"),
    "--version-ge": ("min-version",),
    "--output": ("out", "output-dir", "out-dir", "dest"),
}  # fmt: skip
"""The words of ElasticDL, tf.train, Keras, Lightning, Hugging Face, restic and torchrun, by our options."""
_PLACES: Final = frozenset({
    "checkpoint", "checkpoint-dir", "checkpoint-dir-for-init", "checkpoint-path", "ckpt", "ckpt-dir", "dir",
    "directory", "input", "location", "path", "ref",
})  # fmt: skip
"""The words of other programs for a location, which is an argument here."""
_TARGETS: Final = frozenset({"o", "out", "output", "output-dir", "dest", "destination", "target", "to"})
"""The words of other programs for a target, which is the last argument of `export` and `copy`."""
_SOME: Final = "4"
"""A number for a dry run that needs one."""
_VERSIONS: Final = frozenset({"version", "step", "global-step", "checkpoint-version"})


def line(name: str, arguments: Iterable[str]) -> str:
    """Return the hint that names a command line."""
    return f"try: {words.command(*name.split(), *arguments)}"


def without_deletions(names: Iterable[str]) -> list[str]:
    """Return those of the commands, or of the options, that a guess may name.

    >>> without_deletions(["list", "prune", "--keep", "--delete"])
    ['list', '--keep']
    """
    return [name for name in names if name not in DELETING | _RISKY]


def for_extra_words(context: Any, extra: Sequence[str]) -> str | None:
    """Return the line that was perhaps meant by more words than a command takes; None where none is plain."""
    name, typed = command_of(context), list(context.meta.get(ARGUMENTS, ()))
    if not all(word in typed for word in extra):
        return None
    if name == "diff":
        first, *others = (context.params["a"], context.params["b"], *extra)
        if len(others) != 2 or "@" in first or not all(map(_is_version, others)):
            return None
        old, new = (word.lstrip("@") for word in others)
        return line(name, _replaced(typed, {first: [f"{first}@{old}"], others[0]: [f"@{new}"], others[1]: []}))
    ref = context.params.get("ref", context.params.get("location"))
    if ref is None:
        return None
    changes: dict[str, list[str]] = {}
    rest = list(extra)
    numbers = {"reshard": "--ranks", "wait": "--version-ge", "watch": "--after"}
    takes_number = numbers.get(name)
    is_full = len(rest) == 1 and takes_number is not None
    if _is_version(rest[0]) and "@" not in ref and not is_full and name not in {"wait", "watch"}:
        changes |= {ref: [f"{ref}@{rest[0].lstrip('@')}"], rest[0]: []}
        rest = rest[1:]
    if len(rest) == 1 and takes_number is not None and rest[0].isdigit():
        changes[rest.pop()] = [takes_number, extra[-1]]
    if rest and name in _TABLES and not _is_version(rest[0]):
        ids = rest[1:] if name == "get" else []
        if all(re.fullmatch(r"-?\d+", each) for each in ids):
            asks = any(word.startswith(("--id", "--slice", "--nearest")) for word in typed)
            changes[rest[0]] = ["--table", rest[0], *["--id", "ID"] * (name == "get" and not ids and not asks)]
            changes |= {each: ["--id", each] for each in ids}
            rest = rest[1 + len(ids) :]
    return None if rest or not changes else line(name, _replaced(typed, changes))


def _is_version(word: str) -> bool:
    return bool(re.fullmatch(r"@\S+|\d+", word))


def _replaced(typed: Sequence[str], changes: Mapping[str, Sequence[str]]) -> list[str]:
    """Return words with others in place of some: each where it stands last."""
    places = {len(typed) - 1 - typed[::-1].index(word): new for word, new in changes.items()}
    return [new for place, word in enumerate(typed) for new in places.get(place, [word])]


def for_unknown_option(context: Any, option: str, flags: Iterable[str]) -> str | None:
    """Return the line that was perhaps meant by an option of another program; None for one that nothing is known of.

    `flags` are the long options of the command.
    """
    known, name = set(flags), command_of(context)
    typed = list(context.meta.get(ARGUMENTS, ()))
    place = next((i for i, word in enumerate(typed) if word.partition("=")[0] == option), None)
    word = option.lstrip("-").replace("_", "-").lower()
    if place is None:
        return None
    _, has_value, value = typed[place].partition("=")
    has_next = place + 1 < len(typed) and not typed[place + 1].startswith("-")
    values = [value] if has_value else typed[place + 1 : place + 2] * has_next
    before, after = typed[:place], typed[place + (1 if has_value else 1 + len(values)) :]
    ours = next((flag for flag, others in _OF_OTHERS.items() if flag in known and word in others), None)
    if f"--{word}" in known and f"--{word}" != option:
        return line(name, [*before, f"--{word}", *typed[place + 1 :]]) if not has_value else None
    if ours:
        safely = ["--dry-run"] * (name == "prune" and "--dry-run" not in typed)
        return line(name, [*before, ours, *values, *after, *safely])
    takes = [str(p.metavar) for p in context.command.params if p.param_type_name == "argument"]
    if values and word in _PLACES and any("LOCATION" in each or "REF" in each for each in takes):
        return line(name, [*values, *before, *after])
    if values and word in _TARGETS and any(each.endswith(("OUTPUT", " LOCATION")) for each in takes):
        return line(name, [*before, *after, *values])
    if values and word in _VERSIONS and any("REF" in each for each in takes) and before and "@" not in before[0]:
        return line(name, [f"{before[0]}@{values[0]}", *before[1:], *after])
    return None


def for_unknown_command(name: str, context: Any, known: Iterable[str]) -> str | None:
    """Return the line that was perhaps meant where a path, or what a group records, stands in place of a command."""
    group, typed = command_of(context), list(context.meta.get(ARGUMENTS, ()))
    if typed[:1] != [name]:
        return None
    rest = typed[1:]
    if not group and _is_place(name):
        if rest and rest[0] in set(known):
            return line(rest[0], [name, *rest[1:]])
        return line("inspect" if "@" in name else "list", [name])
    member = {"tag": "add", "metrics": "set", "metadata": "set"}.get(group)
    refs = [word for word in typed if "@" in word]
    others = [word for word in typed if "@" not in word]
    is_plain = len(refs) == 1 and (len(others) == 1 if group == "tag" else all("=" in word for word in others))
    return line(f"{group} {member}", [*refs, *others]) if member and others and is_plain else None


def for_synonym(form: str, name: str, context: Any) -> str | None:
    """Return the line of a command with what was typed behind a word for it; None where that is not all it takes.

    `form` has the command and its placeholders, as `reshard REF --ranks N`; only a dry run may lack its number.
    """
    typed = list(context.meta.get(ARGUMENTS, ()))
    is_dry = "--dry-run" in form
    deletes = "VERSION" in form or (not is_dry and not DELETING.isdisjoint(form.split()))
    if typed[:1] != [name] or "`" in form or deletes or (is_dry and any(word[0:1] == "-" for word in typed)):
        return None
    given, result = typed[1:], list[str]()
    for word in form.split():
        if word == "N":
            number = next((each for each in given if each.isdigit()), _SOME if is_dry else None)
            if number is None:
                return None
            given = [each for each in given if each != number]
            result.append(number)
        elif word.isupper():
            if not given or given[0].startswith("-"):
                return None
            result.append(given.pop(0))
        else:
            result.append(word)
    return line("", [*result, *given])


def _is_place(word: str) -> bool:
    """Say whether a word is a path that is there, a version in one, or an address."""
    head, at, _ = word.rpartition("@")
    return "://" in word or os.path.lexists(word) or bool(at and (not head or os.path.lexists(head)))


def swapped(context: Any) -> str | None:
    """Return the line with the arguments of a refused command in their order; None where that is not the fault."""
    name, typed = command_of(context), list(context.meta.get(ARGUMENTS, ()))
    given = context.params.get("words")
    if name in {"tag add", "tag remove", "note", "export", "copy"} and isinstance(given, list | tuple):
        first, second = given if len(given) == 2 else ("", "")
        is_file = name == "export" and os.path.splitext(first)[1] and not os.path.lexists(first)
        if first and _is_place(second) and not _is_place(first) and ("@" in second or is_file):
            return line(name, _exchanged(typed, first, second))
    if name in {"metrics set", "metadata set"} and isinstance(given, list | tuple):
        refs = [word for word in given if _is_place(word) and "=" not in word]
        others = [word for word in given if word not in refs]
        pairs = [f"{key}={value}" for key, value in zip(others[::2], others[1::2], strict=False)]
        if others and len(others) % 2 == 0 and not any("=" in word for word in others):
            return line(name, [*refs, *pairs])
        if refs and given[0] not in refs and all("=" in word for word in others):
            return line(name, [*refs, *others])
    source, target = context.params.get("source"), context.params.get("target")
    if name == "import" and source and target and re.search(r"@\d+$", source) and _is_place(target):
        return line(name, _exchanged(typed, source, target))
    a, b = context.params.get("a"), context.params.get("b")
    if name == "diff" and a and b and b.isdigit() and "@" in a:
        return line(name, _replaced(typed, {b: [f"@{b}"]}))
    return None


def _exchanged(typed: Sequence[str], first: str, second: str) -> list[str]:
    return [{first: second, second: first}.get(word, word) for word in typed]
