"""Verdicts of verify, remembered with the locations of their versions.

Several versions are verified one after the other. What was found is written at most once a second, and at the end:
a process that is killed loses a second, and a thousand versions make no thousand files.
"""

from __future__ import annotations

import time
from collections import defaultdict
from types import TracebackType
from typing import Final, Self

from edl_ckpt.core.base.choices import Level
from edl_ckpt.core.base.words import base_name, command
from edl_ckpt.core.model.verdicts import DEPTHS, Verdict
from edl_ckpt.core.model.versions import State, Version
from edl_ckpt.core.operations.verify.findings import Finding, VerifyResult
from edl_ckpt.core.state.verdicts import Remembered, remember_verdicts
from edl_ckpt.core.storage import Location

_EVERY_SECONDS: Final = 1.0
_TICK_SECONDS: Final = 0.05
_COARSE_SECONDS: Final = 2.0
"""Two writes in so short a time may leave the same times: where a file system counts in fine steps, and in seconds."""


KNOWN: Final = "known-damage"
"""The code of the finding that an earlier verification, which read more of the same files, has found errors."""


class Memory:
    """Takes the results of verifications, and remembers them; a context manager, which writes at its end."""

    def __init__(self) -> None:
        self._found: defaultdict[Location, list[Remembered]] = defaultdict(list)
        self._written = time.monotonic()

    def take(self, location: Location, result: VerifyResult) -> None:
        """Remember what was found for a version of a location."""
        if not result.files:
            return
        self._found[location].append(Remembered(base_name(result.path), result.files, verdict_from(result)))
        if time.monotonic() - self._written >= _EVERY_SECONDS:
            self.write()

    def write(self) -> None:
        """Write what was not written yet."""
        for location, found in self._found.items():
            remember_verdicts(location, found)
        self._found.clear()
        self._written = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.write()


def is_settled(version: Version, now: float) -> bool:
    """Say whether a version is whole, and no file of it can change any more without another identity.

    A file that was written a moment ago may be written again with the same size and time. An ETag is of the content.
    """
    if version.state is not State.COMPLETE or version.is_alone:
        return False
    for file in version.files:
        if file.mark and not file.changed_ns:
            continue
        changed = max(file.modified, file.changed_ns / 1e9)
        settles_in = _TICK_SECONDS if file.changed_ns % 10**9 else _COARSE_SECONDS
        if not changed or now - changed < settles_in:
            return False
    return True


def known_damage(version: Version, level: Level) -> tuple[Finding, ...]:
    """Return the finding that a deeper verification of the very same files has found errors; nothing without one.

    What a verification at `level` cannot see is as true as before, so it is no success.
    """
    known = version.verdict
    if known is None or known.ok or DEPTHS[level] >= DEPTHS[known.level]:
        return ()
    way = command("verify", version.ref, *(["--deep"] if known.level == "deep" else []))
    message = f"a deeper verification of the same files found them {known.words}"
    check = "values" if known.level == "deep" else "ids"
    return (Finding("error", KNOWN, None, version.path, "", None, message, f"to look again: {way}", check),)


def verdict_from(result: VerifyResult) -> Verdict:
    """Return the verdict of a verification: errors of the files that it found itself, whatever a loader would say."""
    errors = [finding for finding in result.own_errors if finding.code != KNOWN]
    return Verdict(result.level, not errors, result.begun, len(errors), described(errors[0]) if errors else "")


def described(finding: Finding) -> str:
    """Return a finding in a few words, such as 'checksum of user.weight'."""
    of = f" of {finding.subject}" if finding.subject else ""
    return f"{finding.code.removesuffix('-mismatch').replace('-', ' ')}{of}"
