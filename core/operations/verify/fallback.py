"""What to go on with where a version is damaged: the newest other version that is good, as far as that is known."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from edl_ckpt.core.base.errors import EdlCkptError
from edl_ckpt.core.base.words import command
from edl_ckpt.core.catalog.listing import list_versions
from edl_ckpt.core.model.versions import State, Version
from edl_ckpt.core.operations.verify.check import VerifyRun, verify_version

_MOST_TRIED: Final = 3


class Fallback(NamedTuple):
    """A version to go on with, what is known of it, and the command that makes it the one that others load."""

    ref: str
    why: str
    command: str


class Others(NamedTuple):
    """What the location of verified versions shows besides them."""

    newer: tuple[Version, ...] = ()
    """Versions that are newer, and not whole."""
    fallback: Fallback | None = None


def others_of(run: VerifyRun, versions: Sequence[Version], *, latest: bool) -> Others:
    """Look again at the location from which one version was verified, or all of them.

    `newer` is for the newest complete version, when the `latest` was asked for. `fallback` is for damaged versions: a
    tag of one moves to it. It verifies, or is complete and sealed, or has right headers at least.
    """
    sound = {result.ref: result.ok for result in run.results} | {ref: False for ref, _ in run.failed}
    if not versions or versions[0].is_alone or not (latest or False in sound.values()):
        return Others()
    present, is_damaged = list(versions), False in sound.values()
    if len(versions) == 1:
        with suppress(EdlCkptError):
            present = [*list_versions(versions[0].location, seals=is_damaged).versions]
    newer = tuple(v for v in present if latest and v.version > versions[0].version and not _is_whole(v))
    tags = sorted({tag for version in present if sound.get(version.ref) is False for tag in version.tags})
    others = [v for v in present if _is_whole(v) and sound.get(v.ref, True)] if is_damaged else []
    for version in sorted(others, key=lambda v: v.version, reverse=True)[:_MOST_TRIED]:
        if why := "verifies" if version.ref in sound else _known_of(version):
            words = ("tag", "add", version.ref, tags[0]) if tags else ("copy", version.ref, "NEW_LOCATION")
            return Others(newer, Fallback(version.ref, why, command(*words)))
    return Others(newer)


def _is_whole(version: Version) -> bool:
    return version.state is State.COMPLETE and not version.mixture


def _known_of(version: Version) -> str:
    """Return what is known to be right of a version, '' for nothing: only headers are read."""
    with suppress(EdlCkptError):
        if version.fingerprint or verify_version(version, level="quick", beside=False).ok:
            return "is complete and sealed" if version.fingerprint else "is complete and has right headers"
    return ""
