"""What to go on with where a version is damaged: the newest other version that is good, as far as that is known."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, NamedTuple

from edl_ckpt.core.base.errors import EdlCkptError
from edl_ckpt.core.base.words import command
from edl_ckpt.core.catalog.listing import list_versions
from edl_ckpt.core.model.versions import State, Version
from edl_ckpt.core.operations.verify.check import VerifyRun, verify_version

_MOST_TRIED: Final = 3


@dataclass(frozen=True, slots=True)
class Fallback:
    """A version to go on with, what is known of it, and the command that makes it the one that others load."""

    ref: str
    why: str
    command: str

    @property
    def hint(self) -> str:
        """Return the fallback in a sentence."""
        return f"{self.ref} is the newest other version that {self.why}; try: {self.command}"


class Others(NamedTuple):
    """What the location of verified versions shows besides them."""

    newer: tuple[Version, ...] = ()
    """Versions that are newer, and not whole."""
    fallback: Fallback | None = None


def others_of(run: VerifyRun, versions: Sequence[Version], *, latest: bool) -> Others:
    """Look at a location again, from which some versions were verified: all of them, or one.

    `newer` is for the newest complete version, when the `latest` was asked for; `fallback` for damaged ones.
    """
    bad = {result.ref for result in run.results if not result.ok}.union(ref for ref, _ in run.failed)
    if not versions or not (bad or latest) or versions[0].is_alone:
        return Others()
    try:
        present = versions if len(versions) > 1 else list_versions(versions[0].location).versions
    except EdlCkptError:
        return Others()
    newer = (v for v in present if latest and v.version > versions[0].version and not _is_whole(v))
    verified = {result.ref for result in run.results if result.ok}
    return Others(tuple(newer), _find(bad, present, verified) if bad else None)


def _is_whole(version: Version) -> bool:
    return version.state is State.COMPLETE and not version.mixture


def _find(bad: Collection[str], versions: Sequence[Version], verified: Collection[str]) -> Fallback | None:
    """Return the newest version that is good and not among the `bad` references, to which a tag of those moves."""
    tags = sorted({tag for version in versions if version.ref in bad for tag in version.tags})
    others = [version for version in versions if version.ref not in bad and _is_whole(version)]
    for version in sorted(others, key=lambda v: v.version, reverse=True)[:_MOST_TRIED]:
        if why := _known_of(version, verified):
            ref = version.ref
            return Fallback(
                ref, why, command("tag", "add", ref, tags[0]) if tags else command("copy", ref, "NEW_LOCATION")
            )
    return None


def _known_of(version: Version, verified: Collection[str]) -> str:
    """Return what is known to be right of a version, '' for nothing: only headers are read."""
    if version.ref in verified:
        return "verifies"
    if version.fingerprint:
        return "is complete and sealed"
    with suppress(EdlCkptError):
        return "is complete and has right headers" if verify_version(version, level="quick", beside=False).ok else ""
    return ""
