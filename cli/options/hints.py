"""Hints that only the command line knows: what was meant by a missing location, and where a wrong value came from."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from edl_ckpt.cli.options import slips
from edl_ckpt.cli.options.no_versions import trials_hint
from edl_ckpt.cli.options.usage import origin
from edl_ckpt.cli.terminal.text import escaped
from edl_ckpt.core.base.errors import (
    EdlCkptError,
    NotFoundError,
    UnsupportedError,
    UsageError,
)
from edl_ckpt.core.base.words import closest

if TYPE_CHECKING:
    from edl_ckpt.cli.terminal.output import Output

_UNSURE: Final = "is this"
"""The engine's own hint about a directory without versions begins so; a better one replaces it."""
_A_FILE: Final = "expected a file"
"""The engine's words begin so where a directory stands in place of a file: no location was meant."""
_ADDRESS: Final = r"([a-zA-Z][a-zA-Z0-9]+):/+([^/].*)"
"""An address, which may have lost a slash."""


def add_hint(error: EdlCkptError, context: Any, values: Mapping[str, Any], out: Output) -> None:
    """Give an error the hint that only the command line knows: what was meant, or where a value came from."""
    if isinstance(error, UsageError | UnsupportedError) and context is not None and "`" in error.message:
        from edl_ckpt.cli.options.parameters import in_options  # few errors quote a parameter

        error.message = in_options(error.message, _flags_of(context))
    is_of_words = isinstance(error, NotFoundError | UsageError) and context is not None
    if is_of_words and (meant := slips.swapped(context)):
        error.hint = meant
        return
    if _is_about_place(error):
        error.hint = _better_hint(str(error.path), context, values, out) or error.hint
    if is_of_words:
        sources = "; ".join(_sources(error, context, values, out))
        joined = " " if str(error.hint).endswith("?") else "; "
        error.hint = joined.join(part for part in (error.hint, sources) if part) or None


def _flags_of(context: Any) -> set[str]:
    """Return all flags of a command."""
    flags: set[str] = set()
    for parameter in context.command.params:
        flags.update(parameter.opts)
    return flags


def _is_about_place(error: EdlCkptError) -> bool:
    """Return True for a location that is not there, unless the engine has a better hint than a question."""
    if not isinstance(error, NotFoundError) or error.message.startswith(_A_FILE) or not error.path:
        return False
    return not error.hint or error.hint.startswith(_UNSURE)


def _better_hint(path: str, context: Any, values: Mapping[str, Any], out: Output) -> str | None:
    """Return where a location that is not there came from, or what was meant by it; None where nothing shows it."""
    if path == os.environ.get("EDL_CKPT_DIR"):
        return "EDL_CKPT_DIR names it"
    takes_ref = any("REF" in str(parameter.metavar) for parameter in context.command.params)
    return _one_of_two(path, context, values) or _place_hint(path, out, takes_ref=takes_ref)


def _sources(error: EdlCkptError, context: Any, values: Mapping[str, Any], out: Output) -> Iterator[str]:
    """Yield the variables and lines whose values an error quotes."""
    for parameter in context.command.params:
        value = values.get(parameter.name)
        if parameter.name in out.defaulted and isinstance(value, str) and repr(value) in error.message:
            place = origin(context, parameter)
            if not error.message.startswith(place):
                yield f"{escaped(value)} comes from {place}"


def _one_of_two(path: str, context: Any, values: Mapping[str, Any]) -> str | None:
    """Return what a command expects that got one directory, took it for the second of its words, and looked here."""
    if path != ".":
        return None
    for parameter in context.command.params:
        expected = str(parameter.metavar)
        words = values.get(parameter.name)
        if not expected.startswith("[REF] ") or not isinstance(words, list | tuple) or len(words) != 1:
            continue
        (word,) = words
        if word and os.path.isdir(word):
            return f"{escaped(word)} was taken for {expected.removeprefix('[REF] ')}; expected {expected}"
    return None


def _place_hint(path: str, out: Output, *, takes_ref: bool) -> str | None:
    """Return what was meant by a location that is not there, or has no version; None when nothing is like it."""
    if found := re.fullmatch(_ADDRESS, path):
        address = f"{found[1].lower()}://{found[2]}"
        return f"did you mean {address}?" if address != path else None
    head, at, version = path.rpartition("@")
    if at and "/" not in version and os.path.isdir(head or "."):
        return None if takes_ref else f"a location is expected here, and {version} is a version: try {head or '.'}"
    if takes_ref and "/" not in path and (meant := _as_version(path, out)):
        return f"did you mean @{meant}?"
    if os.path.isdir(path):
        from edl_ckpt.core.catalog.listing import list_versions

        return trials_hint(list_versions(path))
    return neighbour_hint(path, () if out.storages is None else out.storages.named)


def neighbour_hint(path: str, others: Iterable[str] = ()) -> str | None:
    """Return the names beside the first part of a path that is not there, and the others, if one is like it."""
    path, rest = path.rstrip("/"), ""
    if os.path.lexists(path):  # it is there, and is something else than was expected
        return None
    while not os.path.isdir(os.path.dirname(path) or "."):
        path, last = os.path.split(path)
        rest = os.path.join(last, rest) if rest else last
    folder, name = os.path.split(path)
    try:
        names = [entry.name for entry in os.scandir(folder or ".") if not entry.name.startswith(".")]
    except OSError:
        return None
    found = closest(name, [*names, *(others if not folder else ())])
    paths = [os.path.join(folder, each, rest) for each in found]
    close = [escaped(path.rstrip("/")) for path in paths if not rest or os.path.lexists(path)]
    return f"did you mean {' or '.join(close)}?" if close else None


def _as_version(word: str, out: Output) -> str | None:
    """Return a word that names a version of the default location, or the tag there that was perhaps meant."""
    from edl_ckpt.core.catalog.listing import list_versions

    if not (word.isdigit() or word in {"latest", "best"} or word.startswith("best:") or word.isidentifier()):
        return None
    try:
        versions = list_versions(out.location(None)).versions
    except EdlCkptError:
        return None
    known = {"latest", "best", *(str(v.key) for v in versions), *(tag for v in versions for tag in v.tags)}
    if versions and (word in known or word.startswith("best:")):
        return word
    return next(iter(closest(word, known)), None) if versions and not word.isdigit() else None
