"""Seals in a verification: compare a version with its seal, or seal it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from edl_ckpt.core.base.errors import (
    AuthError,
    CorruptError,
    EdlCkptError,
    RefusedError,
    UnavailableError,
    UnsupportedError,
)
from edl_ckpt.core.base.job import Job
from edl_ckpt.core.base.progress import WARNINGS, Reporter
from edl_ckpt.core.base.words import base_name, command
from edl_ckpt.core.catalog.files import check_in_location
from edl_ckpt.core.catalog.listing import VersionLike, as_version, check_listed
from edl_ckpt.core.cluster.choice import ExecutorLike, job_of
from edl_ckpt.core.commit.repair.recovery import location_lock
from edl_ckpt.core.model.seals import Seal, differing_sizes
from edl_ckpt.core.model.versions import Version
from edl_ckpt.core.operations.verify.findings import HINTS, Report
from edl_ckpt.core.proof.sealing import Mismatch, comparable, make_seal, rereads_correctly, tensors_of
from edl_ckpt.core.proof.summing import ChunkSums
from edl_ckpt.core.proof.trust import check_trust
from edl_ckpt.core.reading.reader import Checkpoint, open_checkpoint, openings
from edl_ckpt.core.sources.registry import version_named
from edl_ckpt.core.state.holder import write_proved
from edl_ckpt.core.state.lock import LOCK_WAIT_SECONDS
from edl_ckpt.core.state.paths import seal_file
from edl_ckpt.core.state.seal import read_seal, seal_bytes
from edl_ckpt.core.storage import Store
from edl_ckpt.core.storage.interface import RangeReader


def seal_version(
    version: VersionLike,
    fingerprint: str,
    *,
    force: bool = False,
    workers: int | None = None,
    executor: ExecutorLike | None = None,
    wait_seconds: float = LOCK_WAIT_SECONDS,
    reporter: Reporter = WARNINGS,
) -> None:
    """Record checksums of all bytes of a version that verify found whole; they replace an older seal.

    `fingerprint` is that of the verification. Takes the location's lock itself. Raises LockedError when a shard has
    changed since the version was listed, or when the lock is not free in time; CorruptError when the version has a seal
    that is damaged or does not match. `force` replaces that too, and the new seal records it.
    """
    version = as_version(version)
    job = job_of(executor, [version], workers=workers, reporter=reporter)
    write_seal(version, fingerprint, job, force=force, wait_seconds=wait_seconds)


def write_seal(version: Version, fingerprint: str, job: Job, *, force: bool, wait_seconds: float) -> None:
    """Do what `seal_version` does, by a job."""
    check_in_location(version)
    if version.uuid:
        raise RefusedError(
            "a directory named by a UUID belongs to Determined, and gets no seal",
            path=version.path,
            hint=f"a copy of it is sealed: {command('copy', version.ref, 'LOCATION')}",
        )
    reporter = job.reporter
    with (
        location_lock(
            version.location,
            "verify --seal",
            wait_seconds=wait_seconds,
            reporter=reporter,
            may_be_empty=version_named(base_name(version.path)) is None,  # only its own source knows such names
        ),
        open_checkpoint(version) as checkpoint,
    ):
        trust = check_trust(version, force=force, reporter=reporter)
        trust.confirm(fingerprint)
        seal = make_seal(checkpoint, fingerprint, job)
        checkpoint.check_unchanged()
        check_listed(version, "the version changed before it was sealed; a job may be writing it")
        if trust.seal is not None and _contradict(trust.seal, seal):
            fault, hint = "the shards are not the bytes that were sealed; the seal stays", HINTS["checksum-mismatch"]
            trust.overrule(CorruptError(fault, code="checksum-mismatch", path=version.path, hint=hint))
        write_proved(checkpoint.store, seal_file(version.version), seal_bytes(trust.sign(seal, "verify --seal")))


def _contradict(one: Seal, other: Seal) -> bool:
    """Say whether two seals have different checksums of the same bytes; they may be cut into other chunks."""
    sums, found = ({(s.name, c.start, c.end): c.sum for s in seal.shards for c in s.chunks} for seal in (one, other))
    return any(sums[extent] != found[extent] for extent in sums.keys() & found.keys())


def find_seal(store: Store, version: Version, *, use_seal: bool) -> tuple[Seal | None, Report]:
    """Return the version's seal, and a report of one that cannot be read, or of each shard of another size.

    Without `use_seal` there is none. Raises UnsupportedError for a seal that is newer than this program, and
    UnavailableError and AuthError.
    """
    report = Report()
    if not use_seal or version.is_alone or version.uuid:  # the seals beside such a version are of others
        return None, report
    with report.checking("seal"):
        try:
            seal = read_seal(store, version.version)
        except (UnsupportedError, UnavailableError, AuthError):
            raise
        except EdlCkptError as error:
            where = error.path or version.path
            report.add("checksum-mismatch", f"the seal cannot be read: {error.message}", path=where)
            return None, report
        for fault in differing_sizes(seal, version) if seal else ():
            report.add("checksum-mismatch", fault, path=version.path, subject=fault.partition(" ")[0])
        if seal is not None and not seal.has_digest:
            why = "the seal has no digest, so damage of the seal itself may not show"
            report.add("old-seal", why, path=version.path)
    if seal is None:
        del report.seconds["seal"]  # there was nothing to compare with
    return seal, report


def sums_of_seal(
    seal: Seal,
    checkpoint: Checkpoint,
    readers: Mapping[str, RangeReader],
    others: Mapping[int, Sequence[tuple[int, int]]],
) -> ChunkSums:
    """Return the sums of the chunks of a seal, to which the bytes are added while the values are checked.

    `others` are those of `ChunkSums.add_rest`.
    """
    sums = ChunkSums((readers[shard.name], shard.chunks) for shard in comparable(seal, readers))
    sums.add_rest(checkpoint.shards, checkpoint.files, workers=openings(checkpoint.store), others=others)
    return sums


def compare_with_seal(
    seal: Seal,
    checkpoint: Checkpoint,
    readers: Mapping[str, RangeReader],
    report: Report,
    sums: ChunkSums,
    *,
    workers: int,
) -> bool:
    """Compare every byte with the seal; a finding names the shard, the chunk, its offset and its tensor.

    Returns whether all bytes were read as they are: a network or a disk may damage a single read.
    """
    name_of = checkpoint.version.name_of
    files = {name_of(file.path): file for file in checkpoint.version.files}
    indexes = {name_of(file.path): shard for shard in checkpoint.shards for file in shard.file.files}
    is_sound = True
    wrong: list[Mismatch] = []
    for shard in comparable(seal, readers):
        reader = readers[shard.name]
        for chunk, now in zip(shard.chunks, sums.finish(reader.path, workers=workers), strict=True):
            if chunk == now:
                continue
            if rereads_correctly(reader, chunk):
                is_sound = False
            else:
                wrong.append(Mismatch(shard.name, chunk))
    for name, chunk in wrong:
        tensors = tensors_of(chunk, indexes.get(name))
        report.add(
            "checksum-mismatch",
            f"chunk {chunk.number} of {tensors}, bytes {chunk.start} to {chunk.end}, differs from the seal",
            shard=files[name],
            subject=chunk.name,
            offset=chunk.start,
        )
    return is_sound
