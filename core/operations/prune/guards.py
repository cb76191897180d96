"""Guards: the versions that no rule may delete.

Guarded are the newest complete version, every version that is newer by number or by time (a job may be writing it),
tagged versions, and versions that still change. Savers write in place, so a listing can show all files of a version
that is half written. So `readable.find_unreadable` opens the newest versions: one that cannot be read does not count.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from edl_ckpt.core.base.errors import EdlCkptError, RefusedError
from edl_ckpt.core.base.several import several
from edl_ckpt.core.base.words import counted
from edl_ckpt.core.catalog.swaps import GRACE_SECONDS
from edl_ckpt.core.model.versions import State, Version
from edl_ckpt.core.sources.systems import system_named
from edl_ckpt.core.state.shard_note import has_newer_note, noted_versions
from edl_ckpt.core.storage import Store, open_store

Why = Mapping[str, tuple[str, ...]]
"""Why a version must not be deleted: each reason, with the option that lifts it and its value; () when none does."""
NEWEST: Final = ("--even-newest",)
"""The option that lifts the guard of the newest complete version; of a version that is named, of newer ones too."""
_IS_NEWEST: Final = "newest complete version"
_NEWER: Final[Why] = {"a newer edl-ckpt wrote its state; upgrade": ()}
ELASTICDL: Final = "elasticdl"
_ORDER: Final = ("dcp", "tensorflow", "tfra", "dynamicemb", "torch-checkpointing", "torch", "safetensors")
"""What jobs save comes before what is exported from it."""
WRITTEN: Final = "still being written"
"""The reason to keep a version that a job may still be writing."""
_NO_COPY: Final = frozenset({State.INCOMPLETE, State.WRITING, State.MIXED, State.INVALID})
"""The states in which ElasticDL restores nothing from a version."""


@dataclass(frozen=True, slots=True)
class Guards:
    """The exceptions that the caller makes from the guards, and the grace period; none is made by default.

    The library takes an exception as it is given. Only the command line asks before it leaves no complete version.
    """

    incomplete: bool = False
    """Delete incomplete versions older than the newest complete one."""
    everything: bool = False
    """Delete even the newest complete version when no rule keeps it (`--even-newest`), and no newer one.

    It needs a rule or `delete`: a version of `delete` goes even if it is newer than the newest complete one.
    """
    delete: tuple[int, ...] = ()
    """Delete these versions, whatever the rules keep; mixed and invalid versions are deleted only if named here.

    An incomplete one goes even if it is newer than the newest complete one, unless it may still be written.
    """
    drop_tags: tuple[str, ...] = ()
    """Tags that do not protect."""
    grace_seconds: float = GRACE_SECONDS
    ignore_pointers: bool = False
    """Delete even what files and links of others name, as `latest`; a warning says what will lead nowhere."""
    with_foreign: bool = False
    """Delete the versions of `delete` even if there is more in their directories than a checkpoint; all of it goes."""
    allow_empty_rule: bool = False
    """Delete although no version of any location has the metric or the tag that a rule names: it keeps nothing."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "delete", several(self.delete, "delete"))
        object.__setattr__(self, "drop_tags", several(self.drop_tags, "drop_tags"))

    @property
    def ask_for_deletion(self) -> bool:
        """Return True when these ask for a deletion even without a rule."""
        return bool(self.incomplete or self.delete)


NO_EXCEPTIONS: Final = Guards()
IN_A_JOB: Final = Guards(allow_empty_rule=True)
"""The exceptions for savers: a job must not stop pruning because no version has a metric yet; it warns."""


def main_system(trial: Iterable[Version]) -> str:
    """Return the system whose versions the rules of one location are about.

    It is ElasticDL's where it has a version there, else that of the newest complete version, and of two with one number
    the first one in a fixed order. No prune changes the answer: the newest complete version stays. The system of most
    versions would be another one after a prune, and the next prune would delete the others.
    """
    versions = list(trial)
    if not versions or any(v.is_elasticdl for v in versions):
        return ELASTICDL
    named = [v for v in versions if not is_only_a_number(v)] or versions
    complete = [v for v in named if v.state is State.COMPLETE] or named
    newest = max(v.version for v in complete)
    systems = [v.layout.system for v in complete if v.version == newest]
    return min(systems, key=lambda system: (_ORDER.index(system) if system in _ORDER else len(_ORDER), system))


def counted_versions(trial: Iterable[Version]) -> list[Version]:
    """Return the versions of one location that rules look at: those of its system whose name says that they are steps.

    The others neither go by a rule nor count. A directory that is named by a number alone may be anything: a run of a
    sweep, a year, an exported model.
    """
    versions = list(trial)
    system = main_system(versions)
    return [v for v in versions if v.layout.system == system and not is_only_a_number(v)]


def is_only_a_number(version: Version) -> bool:
    """Say whether the name of a version's directory is a number and nothing else."""
    return not version.is_file and version.path.rpartition("/")[2].isdigit()


def _not_of_the_location(version: Version, system: str, *, is_named: bool) -> Why:
    """Return why no rule deletes a version that does not count; nothing for one that is named."""
    if is_named:
        return {}
    own, number = version.layout.system, str(version.key)
    if own != system:
        return {f"of {own}, and rules look at the versions of {system} here (--system {own})": ("--system", own)}
    return {f"its name is only a number: deleted only when named (--delete {number})": ("--delete", number)}


def is_good(version: Version, unreadable: Mapping[str, str]) -> bool:
    """Say whether a job could resume from a version, as far as is known; `unreadable` is as of `looked_at`.

    Only a good version is the newest one, counts for a rule, or is the reason to delete another one.
    """
    return version.is_good and version.path not in unreadable


def guard_reasons(
    trial: Sequence[Version], guards: Guards, unreadable: Mapping[str, str], *, now: float
) -> dict[str, Why]:
    """Return, by path, why versions of one location must not be deleted whatever the rules say."""
    reasons: dict[str, Why] = {}
    if not trial:
        return reasons
    system = main_system(trial)
    counts = {v.path for v in counted_versions(trial)}
    whole = [v for v in trial if v.layout.system == system and is_good(v, unreadable)]
    newest = next((v for v in reversed(whole) if v.path in counts), whole[-1] if whole else None)
    compared = counts if newest is not None and newest.path in counts else {v.path for v in trial}
    store = open_store(trial[0].location)
    noted: list[int] = []
    with suppress(EdlCkptError):  # where our state cannot be read, tags cannot either, and they protect all versions
        noted = noted_versions(store)
    for version in trial:
        is_named = version.version in guards.delete
        strange: Why = {}
        if version.path not in counts:
            strange = _not_of_the_location(version, system, is_named=is_named)
        first: list[str] = []
        if version.path in compared and not strange:
            first = _first_of_all(version, newest, guards, unreadable, is_named=is_named)
        why = dict(_NEWER) if version.is_newer else {}
        why |= strange
        why |= _while_written(version, first, guards, age=now - version.modified, is_torn=version.path in unreadable)
        why |= _by_its_own(version, guards, is_named=is_named)
        if why or (version.version in noted and _has_newer_note(store, version.version)):
            reasons[version.path] = why or _NEWER
    return reasons


def _first_of_all(
    version: Version, newest: Version | None, guards: Guards, unreadable: Mapping[str, str], *, is_named: bool
) -> list[str]:
    """Return the reasons that the newest complete version gives, but for those that `everything` lifts."""
    if guards.everything and is_named:
        return []
    reasons = _against_the_newest(version, newest, guards.grace_seconds, unreadable)
    return [reason for reason in reasons if not (guards.everything and reason == _IS_NEWEST)]


def _while_written(version: Version, first: Sequence[str], guards: Guards, *, age: float, is_torn: bool) -> Why:
    """Return the reasons `first`, and whether a job may still be writing the version; `age` is in seconds.

    A version that is named, and of which nothing can be restored, is given up: only its age protects it.
    """
    why: dict[str, tuple[str, ...]] = {}
    is_given_up = version.version in guards.delete and version.state in _NO_COPY
    if not is_given_up:
        why |= dict.fromkeys(first, NEWEST)
    is_fresh = age <= guards.grace_seconds
    is_doubtful = version.state is State.INCOMPLETE or is_torn or bool(version.doubts) or bool(is_given_up and first)
    if version.state is State.WRITING or (is_doubtful and is_fresh):
        why[WRITTEN] = ("--grace", f"{int(age)}s") if is_fresh and age >= 0 else ()
    return why


def _by_its_own(version: Version, guards: Guards, *, is_named: bool) -> Why:
    """Return the reasons that a version has by itself: its tags, and what is wrong with it."""
    why: dict[str, tuple[str, ...]] = {}
    for tag in version.tags:
        if tag not in guards.drop_tags:
            why[f"tag {tag}"] = ("--drop-tag", tag)
    if version.metadata_fault:
        why["its tags cannot be read"] = ()
    if version.state is State.UNREADABLE:
        why[version.why_unreadable] = ()
    if version.state in {State.MIXED, State.INVALID} and not is_named:
        number = str(version.version)
        why[f"{version.state}: deleted only when named (--delete {number})"] = ("--delete", number)
    return why


def _has_newer_note(store: Store, number: int) -> bool:
    with suppress(EdlCkptError):
        return has_newer_note(store, number)
    return False


def guarded(ref: str, why: Why, *others: Why) -> RefusedError:
    """Return the error for a version that must not be deleted; its hint has the options that would delete all."""
    hint = None
    given: list[tuple[str, ...]] = []
    for reasons in (why, *others):
        given += reasons.values()
    if all(given):
        options = {option[:1] if "--grace" in option else option: shlex.join(option) for option in given}
        sure = "if no process is writing it" if ("--grace",) in options else "to delete it all the same"
        hint = f"it was not deleted; {sure}, add: {' '.join(options.values())}"
    return RefusedError(f"cannot be deleted: {', '.join(why)}", path=ref, hint=hint)


def _against_the_newest(
    version: Version, newest: Version | None, grace_seconds: float, unreadable: Mapping[str, str]
) -> list[str]:
    if newest is None:
        return ["there is no complete version to fall back on"]
    if version.path == newest.path:
        return [_IS_NEWEST]
    if version.path in unreadable:
        return [f"newer than the newest version that can be read: {unreadable[version.path]}"]
    if version.version >= newest.version and version.why_not_good:
        return [f"newer than the newest good version; {version.why_not_good}"]
    if version.version >= newest.version:
        return ["newer than the newest complete version"]
    if _written_long_after(version, newest, grace_seconds):
        return [f"written after version {newest.version}: did the job restart?"]
    return []


def _written_long_after(version: Version, newest: Version, grace_seconds: float) -> bool:
    """Return True for a version of a job that may have restarted its count; a shorter time is the order of a copy."""
    late = newest.modified + max(grace_seconds, GRACE_SECONDS)
    return version.state is State.COMPLETE and version.version < newest.version and version.modified > late


def guard_warnings(trial: Sequence[Version], guards: Guards, unreadable: Mapping[str, str]) -> list[str]:
    """Return warnings about one location: faults to check before its versions are deleted."""
    warnings = [f"{v.ref}: {v.why_unreadable}; it is kept" for v in trial if v.why_unreadable]
    torn = [v for v in trial if v.path in unreadable]
    if torn:
        older = len(torn) - 1
        has = f" and {counted(older, 'older version')} have all their" if older else " has all its"
        warnings.append(f"{torn[-1].ref}{has} files but cannot be read: {unreadable[torn[-1].path]}")
    warnings += _not_counted(trial)
    whole = [v for v in counted_versions(trial) if is_good(v, unreadable)]
    late = [str(v.version) for v in whole if _written_long_after(v, whole[-1], guards.grace_seconds)]
    if late:
        one = len(late) == 1
        was, kept = ("version {} was", "it is kept") if one else ("versions {} were", "they are kept")
        system = system_named(whole[-1].layout.system)
        restores = f"; {system.title} restores the highest number" if system.scans_locations else ""
        written = f"{trial[0].location}: {was.format(', '.join(late))} written long after higher numbers"
        warnings.append(f"{written}, so {kept} (did the job restart?){restores}")
    return warnings


def _not_counted(trial: Sequence[Version]) -> list[str]:
    """Return a warning for each reason why complete versions do not count as versions to keep."""
    by_reason: dict[str, list[Version]] = {}
    for version in trial:
        if version.state is State.COMPLETE and version.why_not_good:
            by_reason.setdefault(version.why_not_good, []).append(version)
    warnings = []
    for why, versions in by_reason.items():
        newest, older = versions[-1], len(versions) - 1
        many = f" and {counted(older, 'older version')} do not count as versions"
        warnings.append(f"{newest.ref}{many if older else ' does not count as a version'} to keep: {why}")
    return warnings
