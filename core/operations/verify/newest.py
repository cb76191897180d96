"""The newest good version of a location, by verifying from the newest one down to the first without an error."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from edl_ckpt.core.base.choices import Level
from edl_ckpt.core.model.verdicts import READ_AT
from edl_ckpt.core.model.versions import DAMAGED, State, Version
from edl_ckpt.core.operations.verify.check import VerifyRun
from edl_ckpt.core.operations.verify.findings import VerifyResult
from edl_ckpt.core.operations.verify.memory import described


@dataclass(frozen=True, slots=True)
class PassedOver:
    """A version that is newer than the one that was found, and why it is not good."""

    ref: str
    state: str
    why: str


@dataclass(frozen=True, slots=True)
class NewestGood:
    """The newest version without an error, None when there is none, and those that were passed over."""

    version: Version | None
    level: Level
    passed_over: tuple[PassedOver, ...]
    run: VerifyRun
    """What was verified on the way; a version that was known to be damaged was not read again."""

    @property
    def what(self) -> str:
        """Return what is known of the version that was found."""
        return READ_AT[self.level]


def newest_good(versions: Sequence[Version], verify: Callable[[Version], VerifyRun], *, level: Level) -> NewestGood:
    """Verify versions of one location, in the order of their numbers, from the last one down to the first good one.

    `verify` verifies one version at this level. Versions that are not whole, and
    those that are known to be damaged, are passed over without a read.
    """
    passed: list[PassedOver] = []
    runs: list[VerifyRun] = []
    found: Version | None = None
    for version in reversed(versions):
        why = _known_fault(version)
        if not why:
            runs.append(verify(version))
            why = _fault(runs[-1])
        if not why:
            found = version
            break
        state = DAMAGED if version.shown_state == State.COMPLETE else version.shown_state
        passed.append(PassedOver(version.ref, state, why))
    results = tuple(result for run in runs for result in run.results)
    failed = tuple(failure for run in runs for failure in run.failed)
    return NewestGood(found, level, tuple(passed), VerifyRun(results, failed))


def _known_fault(version: Version) -> str:
    """Return why a listing shows that a version is not good; '' when it does not."""
    if version.state is not State.COMPLETE:
        about = version.why_unreadable or version.absent
        return f"{version.state}{': ' if about else ''}{about}"
    if version.damage or version.mixture:
        return version.damage or version.mixture
    return version.why_not_good  # values can be sound where the rest of the save is missing, or still to come


def _fault(run: VerifyRun) -> str:
    for _, error in run.failed:
        return str(error)
    (result,) = run.results
    return _first_error(result)


def _first_error(result: VerifyResult) -> str:
    if not result.is_whole:
        return result.shown_state
    if not result.has_errors:
        return ""
    errors = result.own_errors or [f for f in result.findings if f.severity == "error"]
    more = f" and {len(errors) - 1} more" if len(errors) > 1 else ""
    return f"{'damaged: ' if result.own_errors else ''}{described(errors[0])}{more}"
