"""Verifying one version: a list of findings, each with file, shard, subject and byte offset.

Three levels: `quick` reads names and headers; `default` also every id (placement, duplicates, counts); `deep` also
every value. An error means that ElasticDL would not restore the saved values, or that nothing proves that it would; a
warning leaves the version restorable. A damaged checkpoint raises nothing: verify finds all its faults.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Final

from edl_ckpt.core.base.errors import LockedError, UsageError
from edl_ckpt.core.base.job import Job
from edl_ckpt.core.base.parallel import Beside, awaited, default_workers
from edl_ckpt.core.base.progress import WARNINGS, Reporter
from edl_ckpt.core.catalog.files import named_file
from edl_ckpt.core.catalog.listing import VersionLike, as_version, being_replaced, list_versions
from edl_ckpt.core.cluster.choice import ExecutorLike, job_of
from edl_ckpt.core.model.seals import Seal
from edl_ckpt.core.model.tables import ShardIndex
from edl_ckpt.core.model.versions import CheckpointRef, State, Version
from edl_ckpt.core.operations.verify.findings import LEVELS, Report, VerifyResult
from edl_ckpt.core.operations.verify.headers import (
    check_headers,
    check_listing,
    check_location,
    check_runs,
    open_readable_shards,
)
from edl_ckpt.core.operations.verify.ids import ContentCheck
from edl_ckpt.core.operations.verify.seals import compare_with_seal, find_seal, sums_of_seal
from edl_ckpt.core.reading.reader import check_not_replaced
from edl_ckpt.core.sources.registry import source_of
from edl_ckpt.core.storage import Location, Store, open_store
from edl_ckpt.core.storage.interface import RangeReader

ATTEMPTS: Final = 10
_PAUSE_SECONDS: Final = 0.1
_FAR_READERS: Final = 24
"""Threads that read from far storage: some of them look at what they have read, and 16 requests stay on their way."""


def verify_version(
    version: VersionLike,
    *,
    level: str = "default",
    workers: int | None = None,
    executor: ExecutorLike | None = None,
    reporter: Reporter = WARNINGS,
    use_seal: bool = True,
    beside: bool = True,
) -> VerifyResult:
    """Check a version at one of LEVELS and return all findings, errors before warnings.

    A sealed version is compared with its seal: names and sizes at each level, every byte at `deep`. `use_seal=False`
    ignores the seal. `beside=False` does not look at the other names in the location, on which ElasticDL's scan may
    crash. With a `distributed.Client` as `executor`, its workers read the ids and values. When a job changes a shard
    meanwhile, the version is verified again. Raises UsageError for another level, LockedError when a shard keeps
    changing, and the errors of storage; a damaged checkpoint raises nothing.
    """
    version = as_version(version)
    job = verify_job(version, workers=workers, executor=executor, reporter=reporter)
    return verify_indexed(version, job, level=level, use_seal=use_seal, beside=beside)[0]


def verify_job(
    version: Version,
    *,
    workers: int | None = None,
    executor: ExecutorLike | None = None,
    reporter: Reporter = WARNINGS,
) -> Job:
    """Return the job for the verification of a version; raises as `job_of`."""
    if workers is None and version.location.is_far and default_workers(remote=True) > 1:
        workers = _FAR_READERS
    return job_of(executor, [version], workers=workers, reporter=reporter)


def verify_indexed(
    version: Version, job: Job, *, level: str, use_seal: bool = True, beside: bool = True
) -> tuple[VerifyResult, tuple[ShardIndex, ...]]:
    """Verify a version, and return the indexes of the shards whose headers could be read with the findings."""
    if level not in LEVELS:
        raise UsageError(f"no level {level!r}; expected {', '.join(LEVELS)}")
    if version.replaced_by:
        raise being_replaced(version.ref, version.replaced_by)
    for attempt in range(ATTEMPTS):
        try:
            return _verify(version, level, job, use_seal=use_seal, beside=beside)
        except LockedError:  # a job is saving it: verify the files that it leaves
            if attempt == ATTEMPTS - 1:
                raise
            time.sleep(_PAUSE_SECONDS)
            alone = named_file(CheckpointRef(Location(version.path, version.location.options), "latest"))
            present = (alone,) if alone else list_versions(version.location).versions
            version = next((v for v in present if v.path == version.path), version)
            if version.replaced_by:
                raise being_replaced(version.ref, version.replaced_by) from None
    raise AssertionError  # the loop always ends by a return or a raise


def _verify(
    version: Version, level: str, job: Job, *, use_seal: bool, beside: bool
) -> tuple[VerifyResult, tuple[ShardIndex, ...]]:
    if version.fault and not version.shards:
        raise version.fault.error()
    store = open_store(version.location)
    report, read_before = Report(), job.executor.bytes_read()
    with ExitStack() as stack:
        others = Beside(2)  # far away, each of these takes a request or two, as the headers do
        stack.callback(others.close)
        names = others.begin(lambda: _check_names(store, version, beside=beside))
        sealed = others.begin(lambda: _sealed(store, version, use_seal=use_seal))
        readers: dict[str, RangeReader] = {}
        with report.checking("headers"):
            checkpoint, whole = open_readable_shards(store, version, report, stack, readers)
            check_headers(version, checkpoint, report)
        report.take(awaited(names))
        seal, found = awaited(sealed)
        report.take(found)
        fingerprint, sound = None, True
        if level != "quick":
            content = ContentCheck(checkpoint, version, report, job, values=level == "deep")
            stack.callback(content.close)
            with report.checking("ids"):
                content.check_ids()
            if level == "deep":
                contradicted = source_of(version).blocking(version, checkpoint.shards)
                certain = whole and not contradicted and version.state is not State.MIXED
                fingerprint = _check_all(content, seal, readers, certain=certain)
                if seal is not None and fingerprint not in {None, seal.fingerprint}:
                    message = f"the fingerprint was {seal.fingerprint} when the version was sealed"
                    with report.checking("seal"):
                        report.add("fingerprint-mismatch", message, path=version.path)
            with report.checking("ids"):
                content.wait_for_ids()
            sound = content.sound
        checkpoint.check_unchanged()
        bytes_read = checkpoint.bytes_read + job.executor.bytes_read() - read_before
        shards_read = len(checkpoint.shards)
    if any(finding.severity == "error" for finding in report.findings):  # names, shards and seal may be of two moments
        check_not_replaced(version)
    order = {"error": 0, "warning": 1}
    findings = sorted(
        report.findings,
        key=lambda f: (order[f.severity], f.shard is None, f.shard or 0, f.offset or 0, f.code, f.subject),
    )
    result = VerifyResult(
        version.ref,
        level,
        tuple(findings),
        fingerprint,
        bytes_read,
        sealed=seal is not None,
        shards=version.ps_num or len(version.shards),
        shards_read=shards_read,
        ids_read=sound,
        checks=report.checks(),
    )
    return result, checkpoint.shards


def _check_all(
    content: ContentCheck, seal: Seal | None, readers: Mapping[str, RangeReader], *, certain: bool
) -> str | None:
    """Check every value, and in the same pass every byte against the seal; return the fingerprint of certain content.

    A read that was damaged on its way has other values, too: then they are read again.
    """
    report = content.report
    small = content.small_parts(certain=certain)
    sums = None if seal is None else sums_of_seal(seal, content.checkpoint, readers, small.extents())
    with report.checking("values"):
        fingerprint = content.check_values(certain=certain, sums=sums, small=small)
    if seal is not None and sums is not None:
        with report.checking("seal"):
            sound = compare_with_seal(seal, content.checkpoint, readers, report, sums, workers=content.job.workers)
        if not sound:
            with report.checking("ids"):
                content.wait_for_ids()
            content.checkpoint.forget_ids()
            with report.checking("values"):
                fingerprint = content.check_values(certain=certain)
    with report.checking("values"):
        content.report_odd()
    return fingerprint


def _check_names(store: Store, version: Version, *, beside: bool) -> Report:
    """Report what names show: those of the shards, of the notes on them, and of what is `beside` the version."""
    report = Report()
    with report.checking("names"):
        check_listing(version, report)
        check_runs(store, version, report)
        if beside:
            check_location(store, version, report)
    return report


def _sealed(store: Store, version: Version, *, use_seal: bool) -> tuple[Seal | None, Report]:
    """Return the seal of a version, and what differs from it in names and sizes."""
    report = Report()
    if not use_seal:
        return None, report
    with report.checking("seal"):
        seal = find_seal(store, version, report)
    if seal is None and not report.findings:
        del report.seconds["seal"]  # there was nothing to compare with
    return seal, report
