"""References on the command line: the version or the location that one names."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from edl_ckpt.cli.options.named_versions import check_named, is_named
from edl_ckpt.cli.terminal.output import Output
from edl_ckpt.cli.terminal.text import escaped
from edl_ckpt.core.base.errors import UsageError
from edl_ckpt.core.base.words import command

if TYPE_CHECKING:
    from edl_ckpt.core.model.versions import CheckpointRef, Version
    from edl_ckpt.core.storage.location import Location


def resolve_ref(ref: str | None, out: Output, *, to_change: bool = False, aloud: bool = False) -> Version:
    """Return the version that a reference on the command line names, by default the newest complete one.

    With `to_change`, the work of a killed command in the location is finished or undone first, and a checkpoint in a
    file by itself is refused. With `aloud`, the command says which version it takes when none was named.
    """
    from edl_ckpt.core.catalog.files import check_in_location, named_step
    from edl_ckpt.core.catalog.listing import resolve
    from edl_ckpt.core.catalog.single_file import named_file

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
    _warn_of(version, out)
    return version


def looked_at_each(refs: Sequence[str], out: Output) -> tuple[Version, ...]:
    """Return the same of several references; a location that two of them name is listed once."""
    from edl_ckpt.core.catalog.listing import resolve_each

    versions = resolve_each([parsed_ref(ref, out) for ref in refs], reporter=out)
    for version in versions:
        _warn_of(version, out)
    return versions


def _warn_of(version: Version, out: Output) -> None:
    """Warn of a version that breaks its seal, or has newer metadata."""
    if version.seal_warning:
        out.warn(f"{version.ref}: {version.seal_warning}")
    if version.is_newer and version.metadata_fault:
        out.warn(f"{version.ref}: its metadata: {version.metadata_fault}")


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
