"""References of commands that change something: they must name their version, and an output names none."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

from edl_ckpt.cli.terminal.text import escaped
from edl_ckpt.core.base.errors import (
    EdlCkptError,
    UsageError,
)
from edl_ckpt.core.base.words import command

if TYPE_CHECKING:
    from edl_ckpt.cli.terminal.output import Output
    from edl_ckpt.core.model.versions import CheckpointRef, Version
    from edl_ckpt.core.storage.location import Location


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
