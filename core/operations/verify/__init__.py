"""Whether a version is whole and right: a list of findings, each with file, shard, subject and byte offset.

Three levels: `quick` reads names and headers; `default` also every id (placement, duplicates, counts); `deep` also
every value. An error means that ElasticDL would not restore what was saved, or that nobody can say it would; a
warning leaves the version restorable. Nothing is raised for what a checkpoint may hold: everything is found.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Final

from edl_ckpt.core.checkpoint.catalog import list_versions
from edl_ckpt.core.checkpoint.reader import open_checkpoint
from edl_ckpt.core.checkpoint.sealing import check_chunks, make_seal
from edl_ckpt.core.errors import LockedError, UsageError
from edl_ckpt.core.format.consistency import BLOCKING
from edl_ckpt.core.format.model import State, Version
from edl_ckpt.core.operations.verify.findings import LEVELS, VerifyResult, _Report
from edl_ckpt.core.operations.verify.headers import _check_headers, _check_listing, _open_what_can_be
from edl_ckpt.core.operations.verify.ids import _Scan
from edl_ckpt.core.parallel import default_workers
from edl_ckpt.core.progress import SILENT, Reporter
from edl_ckpt.core.state.paths import seal_file
from edl_ckpt.core.state.seal import Seal, base_name, differing_sizes, read_seal, seal_bytes
from edl_ckpt.core.storage import open_store
from edl_ckpt.core.storage.interface import RangeReader

_ATTEMPTS: Final = 10
_PAUSE_SECONDS: Final = 0.1


def verify_version(
    version: Version,
    *,
    level: str = "default",
    workers: int | None = None,
    reporter: Reporter = SILENT,
    use_seal: bool = True,
) -> VerifyResult:
    """Check a version at one of LEVELS and return all findings, errors before warnings.

    A sealed version is compared with its seal: names and sizes at each level, every byte at `deep`; without `use_seal`
    it is taken for unsealed. What a job is saving meanwhile is looked at again. Raises UsageError for another level,
    LockedError when a shard goes on changing, and what storage raises; a damaged checkpoint raises nothing.
    """
    if level not in LEVELS:
        raise UsageError(f"no level {level!r}; expected {', '.join(LEVELS)}")
    workers = (
        default_workers(remote=open_store(version.location).properties.round_trips) if workers is None else workers
    )
    for attempt in range(_ATTEMPTS):
        try:
            return _verify(version, level, workers, reporter, use_seal=use_seal)
        except LockedError:  # a job is saving it just now: look at what is there then
            if attempt == _ATTEMPTS - 1:
                raise
            time.sleep(_PAUSE_SECONDS)
            there = list_versions(version.location).versions
            version = next((v for v in there if v.path == version.path), version)
    raise AssertionError  # the loop always ends by a return or a raise


def _verify(
    version: Version,
    level: str,
    workers: int,
    reporter: Reporter,
    *,
    use_seal: bool,
) -> VerifyResult:
    report = _Report()
    _check_listing(version, report)
    with ExitStack() as stack:
        readers: dict[str, RangeReader] = {}
        checkpoint, whole = _open_what_can_be(version, report, stack, readers)
        _check_headers(version, checkpoint, report)
        fingerprint = None
        seal = _find_seal(version, report) if use_seal else None
        if seal is not None and level == "deep":
            _check_chunks(seal, version, readers, report, workers, reporter)
        if level != "quick":
            scan = _Scan(checkpoint, version, report, workers, reporter)
            sound = scan.check_ids()
            if level == "deep":
                contradicted = any(f.severity == "error" and f.code in BLOCKING for f in report.findings)
                certain = whole and sound and not contradicted and version.state is not State.MIXED
                fingerprint = scan.check_values(certain=certain)
                if seal is not None and fingerprint not in {None, seal.fingerprint}:
                    report.add(
                        "fingerprint-mismatch",
                        f"the content was {seal.fingerprint} when it was sealed",
                        path=version.path,
                    )
        for shard in checkpoint.shards:
            checkpoint.reader(shard).check_unchanged()
        bytes_read = checkpoint.bytes_read
    order = {"error": 0, "warning": 1}
    findings = sorted(
        report.findings,
        key=lambda f: (order[f.severity], f.shard is None, f.shard or 0, f.offset or 0, f.code, f.subject),
    )
    return VerifyResult(version.ref, level, tuple(findings), fingerprint, bytes_read, seal is not None)


def seal_version(
    version: Version,
    fingerprint: str,
    *,
    workers: int | None = None,
    reporter: Reporter = SILENT,
) -> None:
    """Record what the bytes of a version are, in the place of an older record; the caller has verified it and locks.

    `fingerprint` is what that found. Raises LockedError when a shard has changed since then.
    """
    with open_checkpoint(version) as checkpoint:
        workers = (
            default_workers(remote=open_store(version.location).properties.round_trips) if workers is None else workers
        )
        seal = make_seal(checkpoint, fingerprint, workers=workers, reporter=reporter)
        checkpoint.check_unchanged()
    now = list_versions(version.location).versions
    if all(v.path != version.path or v.shards != version.shards for v in now):
        raise LockedError("the version changed while it was sealed; somebody is writing it", path=version.path)
    open_store(version.location).write_small(seal_file(version.version), seal_bytes(seal))


def _find_seal(version: Version, report: _Report) -> Seal | None:
    """Return the version's seal, with a finding for each shard that is not of the size that was sealed."""
    try:
        seal = read_seal(open_store(version.location), version.version)
    except UsageError as error:
        report.add("checksum-mismatch", f"its seal cannot be read: {error.message}", path=version.path)
        return None
    for fault in differing_sizes(seal, version) if seal is not None else ():
        report.add("checksum-mismatch", fault, path=version.path, subject=fault.partition(" ")[0])
    return seal


def _check_chunks(
    seal: Seal,
    version: Version,
    readers: Mapping[str, RangeReader],
    report: _Report,
    workers: int,
    reporter: Reporter,
) -> None:
    """Compare every byte with what was sealed; a finding names shard, chunk, offset and what it lies in."""
    shards = {base_name(shard.path): shard for shard in version.shards}
    reporter.start("comparing with the seal", version.size_bytes)
    for name, chunk in check_chunks(seal, readers, workers=workers, reporter=reporter):
        what = f"{chunk.kind} {chunk.name!r}" if chunk.kind else "the header"
        report.add(
            "checksum-mismatch",
            f"chunk {chunk.number} of {what}, bytes {chunk.start} to {chunk.end}, is not what was sealed",
            shard=shards[name],
            subject=chunk.name,
            offset=chunk.start,
        )
