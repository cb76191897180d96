"""Slips of the hand: the command line that was perhaps meant by one that was refused.

Each line keeps the words that were typed, and changes the least. No line deletes anything, unless its command did.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from edl_ckpt.cli.completion import grammar
from edl_ckpt.cli.manual.parsing import ARGUMENTS, command_of
from edl_ckpt.cli.options import dialects
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
_NUMBERS: Final = {"reshard": "--ranks", "wait": "--version-ge", "watch": "--after"}
"""The option of a command that a number without an option may be for."""
_FOLLOWING: Final = frozenset({"wait", "watch"})
"""The commands that take a location without a version."""
_EXAMPLE_NUMBER: Final = "4"
"""A number for a dry run that needs one."""


def line(name: str, arguments: Iterable[str]) -> str:
    """Return the hint that names a command line."""
    return f"try: {words.command(*name.split(), *arguments)}"


def without_deletions(names: Iterable[str]) -> list[str]:
    """Return those of the commands, or of the options, that a guess may name.

    >>> without_deletions(["list", "prune", "--keep", "--delete"])
    ['list', '--keep']
    """
    return [name for name in names if name not in DELETING | _RISKY]


def _refused(context: Any) -> tuple[str, list[str]]:
    """Return the name of the command that was refused, and the words that were typed after it."""
    return command_of(context), list(context.meta.get(ARGUMENTS, ()))


def for_extra_words(context: Any, extra: Sequence[str]) -> str | None:
    """Return the line that was perhaps meant by more words than a command takes; None where none is plain."""
    name, typed = _refused(context)
    if not all(word in typed for word in extra):
        return None
    if name == "diff":
        return _of_two_versions(typed, context.params["a"], (context.params["b"], *extra))
    ref = context.params.get("ref", context.params.get("location"))
    if ref is None:
        return None
    if name == "verify" and list(extra) == ["all"]:
        return line(name, _replaced(typed, {"all": ["--all"]}))
    if name == "get" and "@" in ref and context.params.get("table") and all(map(_is_number, extra)):
        return line(name, _replaced(typed, _as_ids(extra)))
    changes: dict[str, list[str]] = {}
    remaining = list(extra)
    number_option = _NUMBERS.get(name)
    wants_number = name in _FOLLOWING or (number_option is not None and len(extra) == 1)
    if _is_version(remaining[0]) and "@" not in ref and not wants_number:
        version = remaining.pop(0)
        changes[ref] = [f"{ref}@{version.lstrip('@')}"]
        changes[version] = []
    if len(remaining) == 1 and number_option is not None and remaining[0].isdigit():
        number = remaining.pop()
        changes[number] = [number_option, number]
    if remaining:
        table_and_ids = _as_table(name, typed, remaining)
        if table_and_ids is None:
            return None
        changes |= table_and_ids
    return line(name, _replaced(typed, changes))


def _as_table(name: str, typed: Sequence[str], extra: Sequence[str]) -> dict[str, list[str]] | None:
    """Return what stands in place of a table and ids without options; None where words are something else.

    Only `get` takes ids. Where no word asks for rows, `ID` stands for the id that it needs.
    """
    table, *ids = extra
    if name not in _TABLES or _is_version(table):
        return None
    if ids and (name != "get" or not all(map(_is_number, ids))):
        return None
    changes = {table: ["--table", table]}
    asks_for_rows = any(word.startswith(("--id", "--slice", "--nearest")) for word in typed)
    if name == "get" and not ids and not asks_for_rows:
        changes[table] += ["--id", "ID"]
    return changes | _as_ids(ids)


def _as_ids(words: Iterable[str]) -> dict[str, list[str]]:
    """Return what stands in place of ids without options."""
    return {word: ["--id", word] for word in words}


def _of_two_versions(typed: Sequence[str], first: str, others: Sequence[str]) -> str | None:
    """Return the line for `diff LOCATION 10 20`."""
    if len(others) != 2 or "@" in first or not all(map(_is_version, others)):
        return None
    old, new = (word.lstrip("@") for word in others)
    place = len(typed) - 1 - typed[::-1].index(others[1])
    less = [*typed[:place], *typed[place + 1 :]]
    return line("diff", _replaced(less, {first: [f"{first}@{old}"], others[0]: [f"@{new}"]}))


def _is_version(word: str) -> bool:
    return bool(re.fullmatch(r"@\S+|\d+", word))


def _is_number(word: str) -> bool:
    return bool(re.fullmatch(r"-?\d+", word))


def _replaced(typed: Sequence[str], changes: Mapping[str, Sequence[str]]) -> list[str]:
    """Return words with others in place of some: each where it stands last."""
    places = {len(typed) - 1 - typed[::-1].index(word): new for word, new in changes.items()}
    return [new for place, word in enumerate(typed) for new in places.get(place, [word])]


@dataclass(frozen=True, slots=True)
class _TypedOption:
    """An option as it was typed, with the words around it."""

    word: str
    """Its name without dashes, in small letters, with `-` between its parts."""
    has_equals: bool
    """True where its value stands behind `=`."""
    values: list[str]
    """Its value; empty where it has none."""
    before: list[str]
    after: list[str]
    """The words behind the option and its value."""


def _typed_option(typed: Sequence[str], option: str) -> _TypedOption | None:
    """Return an option as it stands among the words of a command line; None where it does not."""
    names = [word.partition("=")[0] for word in typed]
    if option not in names:
        return None
    place = names.index(option)
    _, equals, value = typed[place].partition("=")
    after = list(typed[place + 1 :])
    values: list[str] = []
    if equals:
        values = [value]
    elif after and not after[0].startswith("-"):
        values = [after.pop(0)]
    word = option.lstrip("-").replace("_", "-").lower()
    return _TypedOption(word, bool(equals), values, list(typed[:place]), after)


def for_unknown_option(context: Any, option: str, flags: Iterable[str]) -> str | None:
    """Return the line that was perhaps meant by an option of another program; None for one that nothing is known of.

    `flags` are the long options of the command.
    """
    known = set(flags)
    name, typed = _refused(context)
    found = _typed_option(typed, option)
    if found is None or option[1:].isdigit():
        return _for_bare_number(name, option, typed)
    respelt = f"--{found.word}"
    if respelt in known and respelt != option:
        return None if found.has_equals else line(name, [*found.before, respelt, *found.values, *found.after])
    changed = _as_options(name, found, known)
    if changed is not None:
        safely = ["--dry-run"] if name == "prune" and "--dry-run" not in [*typed, *changed] else []
        return line(name, [*found.before, *changed, *found.after, *safely])
    if name in {"list", "du"} and not found.has_equals and option in dialects.SUPERFLUOUS:
        return line(name, [*found.before, *found.values, *found.after])
    placeholders = [str(p.metavar) for p in context.command.params if p.param_type_name == "argument"]
    arguments = _as_argument(found, placeholders)
    return None if arguments is None else line(name, arguments)


def _as_options(name: str, found: _TypedOption, known: Container[str]) -> list[str] | None:
    """Return our option with its value in place of another program's; None without one."""
    ours = _ours(found.word, known, found.values)
    if ours:
        return [ours, *found.values]
    if not found.values:
        return None
    value = found.values[0]
    if value.isdigit() and found.word in dialects.PERIODS and "--keep-within" in known:
        return ["--keep-within", f"{value}{dialects.PERIODS[found.word]}"]
    if name == "verify" and found.word == "level" and f"--{value}" in known:
        return [f"--{value}"]
    return None


def _as_argument(found: _TypedOption, placeholders: Sequence[str]) -> list[str] | None:
    """Return the words of a line whose argument is the value of an option; None where it is no argument.

    `placeholders` are those of the command's arguments, such as REF.
    """
    if not found.values:
        return None
    before, after = found.before, found.after
    takes_ref = any("REF" in each for each in placeholders)
    takes_place = takes_ref or any("LOCATION" in each for each in placeholders)
    takes_target = any(each.endswith(("OUTPUT", " LOCATION")) for each in placeholders)
    if found.word in dialects.PLACES and takes_place:
        return [*found.values, *before, *after]
    if found.word in dialects.TARGETS and takes_target:
        return [*before, *after, *found.values]
    if found.word in dialects.VERSIONS and takes_ref and before and "@" not in before[0]:
        return [f"{before[0]}@{found.values[0]}", *before[1:], *after]
    return None


def _ours(word: str, known: Container[str], values: Sequence[str]) -> str | None:
    """Return our option for a word of another program; None without one, and for one that wants a number."""
    named = (flag for flag, others in dialects.OPTIONS.items() if flag in known and word in others)
    return next((flag for flag in named if flag != "--ranks" or all(map(str.isdigit, values))), None)


def _for_bare_number(name: str, option: str, typed: Sequence[str]) -> str | None:
    """Return the line that was perhaps meant by `-10`, as `head` takes it elsewhere."""
    numbers = [word for word in typed if re.fullmatch(r"-\d+", word)]
    if name not in {"head", "sample", "ids"} or len(numbers) != 1 or not re.fullmatch(r"-\d", option):
        return None
    return line(name, _replaced(typed, {numbers[0]: ["-n", numbers[0][1:]]}))


def for_missing(context: Any) -> str | None:
    """Return the line that was perhaps meant by fewer words than a command takes: `diff A..B`, as in git and dvc."""
    name, typed = _refused(context)
    ranges = [word for word in typed if ".." in word.strip("./") and "@" in word]
    if name != "diff" or len(ranges) != 1:
        return None
    first, _, second = ranges[0].partition("..")
    return line(name, _replaced(typed, {ranges[0]: [first, second.lstrip(".")]})) if first and second else None


def for_bad_value(context: Any, flag: str) -> str | None:
    """Return the line that was perhaps meant by several values behind one option: `--id 5,6`."""
    name, typed = _refused(context)
    place = next((i for i, word in enumerate(typed) if word == flag), len(typed))
    value = "".join(typed[place + 1 : place + 2])
    if flag != "--id" or not re.fullmatch(r"-?\d+(,-?\d+)+", value):
        return None
    several = [word for number in value.split(",") for word in (flag, number)]
    return line(name, [*typed[:place], *several, *typed[place + 2 :]])


def for_unknown_command(name: str, context: Any, known: Iterable[str]) -> str | None:
    """Return the line that was perhaps meant where a path, or what a group records, stands in place of a command."""
    group, typed = _refused(context)
    if typed[:1] != [name]:
        return None
    if group:
        return _with_member(group, typed)
    others = typed[1:]
    command = others[0] if others and others[0] in set(known) else None
    if _is_place(name):
        if command is not None:
            return line(command, [name, *others[1:]])
        return line("inspect" if "@" in name else "list", [name])
    if command is None or command in DELETING:
        return None
    takes = grammar.load()["commands"].get(command, {}).get("arguments", ())
    if takes not in (["ref"], ["location"], ["location*"]):
        return None
    return f"there is no {words.escaped(name)} here; a location: {words.command(command, 'LOCATION')}"


def _with_member(group: str, typed: Sequence[str]) -> str | None:
    """Return the line of a group with the command that records something: a tag, or pairs KEY=VALUE."""
    member = {"tag": "add", "metrics": "set", "metadata": "set"}.get(group)
    refs = [word for word in typed if "@" in word]
    others = [word for word in typed if "@" not in word]
    if member is None or len(refs) != 1 or not others:
        return None
    is_plain = len(others) == 1 if group == "tag" else all("=" in word for word in others)
    return line(f"{group} {member}", [*refs, *others]) if is_plain else None


def for_synonym(form: str, name: str, context: Any) -> str | None:
    """Return the line of a command with what was typed behind a word for it; None where that is not all it takes.

    `form` has the command and its placeholders, as `reshard REF --ranks N`; only a dry run may lack its number.
    """
    _, typed = _refused(context)
    form_words = form.split()
    if typed[:1] != [name] or "`" in form or _deletes(form_words):
        return None
    options_of_command = _options_of(" ".join(itertools.takewhile(str.islower, form_words)))
    sorted_out = _sorted_out(typed[1:], options_of_command)
    if sorted_out is None:
        return None
    given, options = sorted_out
    result: list[str] = []
    needs_dry_run = False
    for word in _without_typed(form_words, options):
        if word == "N":
            number = next((candidate for candidate in given if candidate.isdigit()), None)
            given = [candidate for candidate in given if candidate != number]
            result.append(number or _EXAMPLE_NUMBER)
            needs_dry_run = number is None
        elif not word.isupper():
            result.append(word)
        elif given:
            result.append(given.pop(0))
        else:
            return None
    if given and result[0] not in {"list", "prune"}:  # these take several locations
        return None
    line_words = [*result, *given, *options]
    if needs_dry_run:
        line_words = [*(word for word in line_words if word != "--dry-run"), "--dry-run"]
    return line("", line_words)


def _deletes(form_words: Sequence[str]) -> bool:
    """Return True for the form of a command that deletes without a dry run, or deletes a version that it names."""
    if any("VERSION" in word for word in form_words):
        return True
    return "--dry-run" not in form_words and not DELETING.isdisjoint(form_words)


def _without_typed(form_words: Sequence[str], options: Sequence[str]) -> list[str]:
    """Return the words of a form without the options that were typed, nor the numbers after them.

    >>> _without_typed(["prune", "LOCATION", "--keep", "N", "--dry-run"], ["--keep", "3"])
    ['prune', 'LOCATION', '--dry-run']
    """
    remaining: list[str] = []
    before = ""
    for word in form_words:
        is_own_number = word == "N" and before in options
        if word not in options and not is_own_number:
            remaining.append(word)
        before = word
    return remaining


def _options_of(command: str) -> Mapping[str, Any]:
    """Return the options of a command by their long flags, as completion has them: without the parser."""
    found: Mapping[str, Any] = grammar.load()["commands"].get(command, {}).get("options", {})
    return found


def _sorted_out(typed: Sequence[str], known: Mapping[str, Any]) -> tuple[list[str], list[str]] | None:
    """Return words and options of a line, the options as a command has them; None for one that it cannot have."""
    words = list[str]()
    options = list[str]()
    rest = list(typed)
    while rest:
        word = rest.pop(0)
        if not word.startswith("-") or word == "-":
            words.append(word)
            continue
        flag, equals, value = word.partition("=")
        values = [value] if equals else [each for each in rest[:1] if not each.startswith("-")]
        ours = flag if flag in known else _ours(flag.lstrip("-").replace("_", "-").lower(), known, values)
        if ours is None or ours in _RISKY:
            if flag not in dialects.SUPERFLUOUS:
                return None
            continue
        takes_value = "takes" in known[ours]
        options += [ours, *values] if takes_value else [ours]
        if takes_value and not equals:
            rest = rest[1:]
    return words, options


def _is_place(word: str) -> bool:
    """Say whether a word is a path that is there, a version in one, or an address."""
    head, at, _ = word.rpartition("@")
    return "://" in word or os.path.lexists(word) or bool(at and (not head or os.path.lexists(head)))


def swapped(context: Any) -> str | None:
    """Return the line with the arguments of a refused command in their order; None where that is not the fault."""
    name, typed = _refused(context)
    params = context.params
    given = params.get("words")
    if isinstance(given, list | tuple):
        if name in {"tag add", "tag remove", "note", "export", "copy"}:
            return _place_first(name, typed, given)
        if name in {"metrics set", "metadata set"}:
            return _ref_and_pairs(name, given)
    if name == "import":
        return _target_last(typed, params.get("source"), params.get("target"))
    return _as_version(name, typed, params)


def _place_first(name: str, typed: Sequence[str], given: Sequence[str]) -> str | None:
    """Return the line with a version before a tag, a note or an output, or with fewer words than were typed."""
    if len(given) > 2 and _is_place(given[0]):
        return _fewer(name, typed, given[1:])
    if len(given) != 2:
        return None
    first, second = given
    if not first or _is_place(first) or not _is_place(second):
        return None
    is_new_file = name == "export" and os.path.splitext(first)[1] and not os.path.lexists(first)
    if "@" not in second and not is_new_file:
        return None
    return line(name, _exchanged(typed, first, second))


def _ref_and_pairs(name: str, given: Sequence[str]) -> str | None:
    """Return the line with pairs KEY=VALUE behind a version, where their halves stand apart, or before it."""
    refs = [word for word in given if _is_place(word) and "=" not in word]
    others = [word for word in given if word not in refs]
    if others and len(others) % 2 == 0 and not any("=" in word for word in others):
        pairs = zip(others[::2], others[1::2], strict=True)
        return line(name, [*refs, *(f"{key}={value}" for key, value in pairs)])
    if refs and given[0] not in refs and all("=" in word for word in others):
        return line(name, [*refs, *others])
    return None


def _target_last(typed: Sequence[str], source: str | None, target: str | None) -> str | None:
    """Return the line of an import with the files before the new version, where they stand the other way round."""
    if not source or not target:
        return None
    if not re.search(r"@\d+$", source) or not _is_place(target):
        return None
    return line("import", _exchanged(typed, source, target))


def _as_version(name: str, typed: Sequence[str], values: Mapping[str, Any]) -> str | None:
    """Return the line with a number, or `all`, that was typed like a location and is a version."""
    a, b = values.get("a"), values.get("b")
    if name == "diff" and a and b and b.isdigit() and "@" in a:
        return line(name, _replaced(typed, {b: [f"@{b}"]}))
    places = list(values.get("locations") or ())
    if name == "list" and len(places) == 2 and places[1].isdigit() and "@" not in places[0]:
        return line("inspect", _replaced(typed, {places[0]: [f"{places[0]}@{places[1]}"], places[1]: []}))
    if name == "verify" and values.get("ref") == "all" and not _is_place("all"):
        return line(name, _replaced(typed, {"all": ["--all"]}))
    return None


def _fewer(name: str, typed: Sequence[str], others: Sequence[str]) -> str | None:
    """Return the line with the words that a command takes: a text in quotes, one tag, or one file and a table."""
    if name == "note":
        return line(name, [*(word for word in typed if word not in others), " ".join(others)])
    if name in {"tag add", "tag remove"}:
        return line(name, [word for word in typed if word not in others[1:]])
    files = [word for word in others if os.path.splitext(word)[1] or word == "-"]
    if name != "export" or len(others) != 2 or len(files) != 1:
        return None
    table = next(word for word in others if word not in files)
    return line(name, _replaced(typed, {table: ["--table", table]}))


def _exchanged(typed: Sequence[str], first: str, second: str) -> list[str]:
    return [{first: second, second: first}.get(word, word) for word in typed]
