"""Verifying several versions, and sealing those that are whole: an error in one does not stop the others."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Final

from edl_ckpt.core.base.errors import EdlCkptError
from edl_ckpt.core.base.interruption import COMMIT
from edl_ckpt.core.base.job import Job
from edl_ckpt.core.base.progress import WARNINGS, Reporter
from edl_ckpt.core.base.words import counted, describe
from edl_ckpt.core.catalog.listing import VersionLike, as_version
from edl_ckpt.core.cluster.choice import ExecutorLike
from edl_ckpt.core.model.versions import Version
from edl_ckpt.core.operations.verify.check import verify_indexed, verify_job
from edl_ckpt.core.operations.verify.findings import VerifyResult
from edl_ckpt.core.operations.verify.seals import write_seal
from edl_ckpt.core.state.lock import LOCK_WAIT_SECONDS
from edl_ckpt.core.storage.location import Location

_NOT_MATCHING: Final = frozenset({"checksum-mismatch", "fingerprint-mismatch"})


@dataclass(frozen=True, slots=True)
class VerifyRun:
    """The results of several verifications, and the errors of versions that could not be verified, by reference."""

    results: tuple[VerifyResult, ...]
    failed: tuple[tuple[str, EdlCkptError], ...] = ()

    @property
    def worst_error(self) -> EdlCkptError | None:
        """Return the error with the highest exit code, None when every version could be verified."""
        return max((error for _, error in self.failed), key=lambda error: error.exit_code, default=None)

    def __repr__(self) -> str:
        return describe(
            "VerifyRun", "", counted(len(self.results), "result"), f"{len(self.failed)} failed" if self.failed else ""
        )


def verify_versions(
    versions: Iterable[VersionLike],
    *,
    level: str = "default",
    seal: bool = False,
    use_seal: bool = True,
    workers: int | None = None,
    executor: ExecutorLike | None = None,
    wait_seconds: float = LOCK_WAIT_SECONDS,
    reporter: Reporter = WARNINGS,
    take: Callable[[VerifyResult | tuple[str, EdlCkptError]], None] = lambda _: None,
) -> VerifyRun:
    """Verify each version as `verify_version` does, or with `seal` as `verify_and_seal` does.

    An error of one version is in the result, and the next version is verified. The first result of a location has the
    warnings about names in it. `take` gets each result, or the reference and the error, as soon as it is known.
    """
    results: list[VerifyResult] = []
    failed: list[tuple[str, EdlCkptError]] = []
    seen: set[Location] = set()
    for wanted in versions:
        COMMIT.more()  # between two versions a signal ends the command: the one before may have been sealed
        try:
            version = as_version(wanted)
            beside = version.location not in seen
            job = verify_job(version, workers=workers, executor=executor, reporter=reporter)
            wanted_level = "deep" if seal else level
            result, _ = verify_indexed(version, job, level=wanted_level, use_seal=use_seal, beside=beside)
            if seal:
                result = _seal_if_whole(version, result, job, replaces=not use_seal, wait_seconds=wait_seconds)
        except EdlCkptError as error:
            failed.append((wanted.ref if isinstance(wanted, Version) else str(wanted), error))
            take(failed[-1])
            continue
        results.append(result)
        seen.add(version.location)
        take(result)
    return VerifyRun(tuple(results), tuple(failed))


def verify_and_seal(
    version: VersionLike,
    *,
    use_seal: bool = True,
    beside: bool = True,
    workers: int | None = None,
    executor: ExecutorLike | None = None,
    wait_seconds: float = LOCK_WAIT_SECONDS,
    reporter: Reporter = WARNINGS,
) -> VerifyResult:
    """Verify a version at the level `deep`, and seal it when it is whole and has no seal, or a matching old one.

    `use_seal=False` ignores an existing seal and replaces it, which the new seal records. A version that is not whole
    stays as it is, with a warning; so does one whose seal is damaged. Takes the location's lock itself, for the sealing
    only. Raises the errors of both.
    """
    version = as_version(version)
    job = verify_job(version, workers=workers, executor=executor, reporter=reporter)
    result, _ = verify_indexed(version, job, level="deep", use_seal=use_seal, beside=beside)
    return _seal_if_whole(version, result, job, replaces=not use_seal, wait_seconds=wait_seconds)


def _seal_if_whole(
    version: Version, result: VerifyResult, job: Job, *, replaces: bool, wait_seconds: float
) -> VerifyResult:
    """Seal a version after a deep verification, as `verify_and_seal` does."""
    if result.fingerprint is None:
        job.reporter.warn(f"{result.ref}: not sealed, because shards are missing or damaged")
        return result
    codes = {finding.code for finding in result.findings}
    if _NOT_MATCHING & codes:
        job.reporter.warn(f"{result.ref}: not sealed, because its seal is damaged or does not match; see --force")
        return result
    if not result.sealed or "old-seal" in codes:
        write_seal(version, result.fingerprint, job, force=replaces, wait_seconds=wait_seconds)
    return replace(result, sealed=True, findings=tuple(f for f in result.findings if f.code != "old-seal"))
