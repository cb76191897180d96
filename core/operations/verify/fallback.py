"""The fallback for a damaged version: the newest other version that is good, as far as that is known."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from edl_ckpt.core.base.choices import Level
from edl_ckpt.core.base.errors import EdlCkptError
from edl_ckpt.core.base.words import command
from edl_ckpt.core.catalog.listing import list_versions
from edl_ckpt.core.model.verdicts import DEPTHS, READ_AT
from edl_ckpt.core.model.versions import Version
from edl_ckpt.core.operations.verify.check import VerifyRun, verify_version
from edl_ckpt.core.operations.verify.findings import VerifyResult

_MOST_TRIED: Final = 3


class Fallback(NamedTuple):
    """A version to resume from: its path, the level at which it was verified without an error, and what that means.

    `command` is one that is useful before it is used: it moves a tag of the damaged version, or checks what was not
    checked; '' for none.
    """

    ref: str
    path: str
    level: Level
    why: str
    command: str = ""


class Others(NamedTuple):
    """What the location of verified versions shows besides them."""

    newer: tuple[Version, ...] = ()
    """Versions that are newer, and not whole."""
    fallback: Fallback | None = None


def others_of(run: VerifyRun, versions: Sequence[Version], *, latest: bool) -> Others:
    """Look again at the location from which one version was verified, or all of them.

    `newer` is for the newest complete version, when the `latest` was asked for. `fallback` is for damaged versions: the
    newest other one that is not known to be damaged, whose headers can be read at least.
    """
    results = {result.ref: result for result in run.results}
    damaged = {result.ref for result in run.results if result.has_errors}
    damaged.update(ref for ref, _ in run.failed)
    if not versions or versions[0].is_alone or not (latest or damaged):
        return Others()
    present = versions
    if len(versions) == 1:
        with suppress(EdlCkptError):
            present = list_versions(versions[0].location, seals=bool(damaged)).versions
    newer = _newer_unfinished(present, versions[0].version) if latest else ()
    return Others(newer, _newest_good(present, damaged, results) if damaged else None)


def _newer_unfinished(present: Sequence[Version], than: int) -> tuple[Version, ...]:
    """Return the versions with a higher number that are not whole."""
    return tuple(version for version in present if version.version > than and not _is_whole(version))


def _newest_good(
    present: Sequence[Version], damaged: Collection[str], results: Mapping[str, VerifyResult]
) -> Fallback | None:
    """Return the newest version that is not damaged, as far as that is known; None where none of the newest is good."""
    tags = sorted({tag for version in present if version.ref in damaged for tag in version.tags})
    others = [version for version in present if _is_whole(version) and version.ref not in damaged]
    others.sort(key=lambda version: version.version, reverse=True)
    for version in others[:_MOST_TRIED]:
        level = _level_of(version, results)
        if level is not None:
            return _fallback(version, level, tags)
    return None


def _fallback(version: Version, level: Level, tags: Sequence[str]) -> Fallback:
    useful = ""
    if tags:
        useful = command("tag", "add", version.ref, tags[0])
    elif level != "deep":
        useful = command("verify", version.ref, "--deep")
    return Fallback(version.ref, version.path, level, READ_AT[level], useful)


def _is_whole(version: Version) -> bool:
    return version.is_good and not version.mixture


def _level_of(version: Version, results: Mapping[str, VerifyResult]) -> Level | None:
    """Return the deepest level at which a version is known to be good, by this run or a former one; None for none."""
    known: list[Level] = [results[version.ref].level] if version.ref in results else []
    if version.verdict is not None and version.verdict.ok:
        known.append(version.verdict.level)
    if known:
        return max(known, key=DEPTHS.__getitem__)
    with suppress(EdlCkptError):
        if verify_version(version, level="quick", beside=False).ok:
            return "quick"
    return None
