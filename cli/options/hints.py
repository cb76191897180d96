"""What a person probably meant by a location that is not there, and where a wrong value came from."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from edl_ckpt.cli.options import slips
from edl_ckpt.cli.options.usage import origin
from edl_ckpt.cli.terminal.text import escaped
from edl_ckpt.core.base.errors import (
    EdlCkptError,
    NotFoundError,
    UnsupportedError,
    UsageError,
)
from edl_ckpt.core.base.words import abridged, closest, command

if TYPE_CHECKING:
    from edl_ckpt.cli.terminal.output import Output
    from edl_ckpt.core.model.versions import CheckpointRef, Listing, Version
    from edl_ckpt.core.storage.location import Location

_SOME: Final = 8
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


def trials_hint(listing: Listing) -> str | None:
    """Return where the versions are, for a location that has none and is above some; None when it is not."""
    return _below(listing)[0]


def _below(listing: Listing) -> tuple[str | None, bool]:
    """Return where the versions are below a location that has none, None for nowhere; and whether all was looked at."""
    from edl_ckpt.core.catalog.experiment import glance_below

    below = glance_below(listing)
    if not below.locations:
        return None, below.is_whole
    names = abridged((escaped(found.url) for found in below.locations), _SOME)
    more = "" if below.is_whole else " (not every directory was looked into)"
    hint = f"versions are below: {names}{more}; --experiment takes them as trials, and `list --recursive` lists them"
    return hint, below.is_whole


def parent_error(listing: Listing) -> NotFoundError | None:
    """Return the error of a location without versions that is above some, or of which not all was looked at.

    None for any other directory.
    """
    if listing.versions:
        return None
    place = listing.location
    hint, is_whole = _below(listing)
    if listing.bound:
        way_on = "; ".join(filter(None, (listing.way_on, hint)))
        return NotFoundError(listing.none_here, path=place.url, hint=way_on)
    if hint is None and not is_whole:
        message = "no version is right here, and not every directory below was looked into"
        return NotFoundError(message, path=place.url, hint="name the directory in which the versions are")
    return NotFoundError("no version is right here", path=place.url, hint=hint) if hint else None


def check_no_parent(listing: Listing) -> None:
    """Raise NotFoundError for a listing without versions that says nothing of all that is there: see `parent_error`."""
    error = parent_error(listing)
    if error is not None:
        raise error


def check_clear(place: Location) -> None:
    """Raise NotFoundError, before anything is locked, for a place whose many names show no version."""
    from edl_ckpt.core.catalog.bounds import is_unclear
    from edl_ckpt.core.catalog.listing import list_versions

    if is_unclear(place):
        check_no_parent(list_versions(place))


def result_location(words: str, out: Output) -> Location:
    """Return the location that --output names; UsageError for a version, unless something of this name is there."""
    head, at, version = words.rpartition("@")
    if at and "/" not in version and not os.path.lexists(words):
        hint = f"the result has the number of the version; try: --output {escaped(head or '.')}"
        raise UsageError(f"--output: expected a location, got {words!r}", hint=hint)
    return out.location(words)


def is_named(ref: str | None, parsed: CheckpointRef, version: Version | None = None) -> bool:
    """Say whether a reference names its version in words: behind '@', or as the directory or file of the version."""
    from edl_ckpt.core.catalog.listing import split_version_dir

    in_words = parsed.version != "latest" or (ref or "").endswith("@latest") or split_version_dir(parsed.location)
    return bool(in_words) or (version is not None and version.path == parsed.location.url.rstrip("/"))


def check_named(ref: str | None, parsed: CheckpointRef, name: str, *rest: str) -> None:
    """Raise UsageError unless a reference names its version in words; `name` and `rest` are those of the command."""
    from edl_ckpt.core.base.progress import SILENT
    from edl_ckpt.core.catalog.listing import resolve

    if is_named(ref, parsed):
        return
    newest = None
    with suppress(EdlCkptError):
        newest = resolve(parsed, reporter=SILENT)
    if not is_named(ref, parsed, newest):
        known = f"; the newest complete version is {newest.key}" if newest else ""
        if ref is None and newest is None:
            expected = command(*name.split(), "LOCATION@VERSION", *rest)
            raise UsageError("the version to change must be named, as in run@100", hint=f"expected: {expected}")
        is_number = bool(ref and ref.isdigit() and not os.path.lexists(ref))
        meant = f"@{ref}" if is_number else f"{ref or ''}@latest"
        hint = f"try: {command(*name.split(), meant, *rest)}{known}"
        raise UsageError("the version to change must be named, as in @100 or @latest", path=ref or None, hint=hint)
