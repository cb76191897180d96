"""Verifying a version: a list of findings, each with file, shard, subject and byte offset.

Three levels: `quick` reads names and headers; `default` also every id (placement, duplicates, counts); `deep` also
every value. An error means that ElasticDL would not restore the saved values, or that nothing proves that it would; a
warning leaves the version restorable. A damaged checkpoint raises nothing: verify finds all its faults.

Of several versions an error in one does not stop the others. Those that are whole are sealed on request.

Seals in a verification: compare a version with its seal, or seal it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, NamedTuple, TypeAlias

from edl_ckpt.core.base.choices import Level
from edl_ckpt.core.base.errors import (
    AuthError,
    CorruptError,
    EdlCkptError,
    LockedError,
    RefusedError,
    UnavailableError,
    UnsupportedError,
    UsageError,
)
from edl_ckpt.core.base.interruption import COMMIT
from edl_ckpt.core.base.job import Job
from edl_ckpt.core.base.parallel import Beside, awaited, default_workers
from edl_ckpt.core.base.patterns import LatePattern
from edl_ckpt.core.base.progress import WARNINGS, Reporter, expect
from edl_ckpt.core.base.several import several
from edl_ckpt.core.base.words import base_name, command, counted, describe
from edl_ckpt.core.catalog.files import check_in_location
from edl_ckpt.core.catalog.listing import VersionLike, as_version, being_replaced, check_listed, list_versions
from edl_ckpt.core.catalog.single_file import named_file
from edl_ckpt.core.cluster.choice import ExecutorLike, job_of
from edl_ckpt.core.kernel.bulk import I64
from edl_ckpt.core.model.listings import Listing
from edl_ckpt.core.model.seals import Seal, differing_sizes
from edl_ckpt.core.model.tables import ShardIndex
from edl_ckpt.core.model.versions import CheckpointRef, State, Version
from edl_ckpt.core.operations.verify.against import check_against
from edl_ckpt.core.operations.verify.companions import check_companions
from edl_ckpt.core.operations.verify.findings import (
    HINTS,
    LEVELS,
    UNREAD,
    Against,
    Finding,
    LoaderView,
    Report,
    ValueSample,
    VerifyResult,
)
from edl_ckpt.core.operations.verify.headers import check_headers, open_readable_shards
from edl_ckpt.core.operations.verify.ids import ContentCheck, ids_of
from edl_ckpt.core.operations.verify.like import Form, check_like, form_of
from edl_ckpt.core.operations.verify.memory import Memory, is_settled, known_damage
from edl_ckpt.core.operations.verify.names import check_names
from edl_ckpt.core.operations.verify.other_files import NOTHING_ELSE, Others, check_others
from edl_ckpt.core.operations.verify.stored_sums import check_sample, check_stored_sums, report_chunks
from edl_ckpt.core.proof.digests import Digests, read_digests
from edl_ckpt.core.proof.fingerprint import Fingerprint, agrees
from edl_ckpt.core.proof.sealing import ChunkSums, Mismatch, comparable, make_seal, rereads_correctly
from edl_ckpt.core.proof.trust import check_trust
from edl_ckpt.core.reading.reader import Checkpoint, check_not_replaced, open_checkpoint, openings
from edl_ckpt.core.sources.registry import source_of, version_named
from edl_ckpt.core.state.lock import LOCK_WAIT_SECONDS
from edl_ckpt.core.state.lock_proof import write_proved
from edl_ckpt.core.state.paths import seal_file
from edl_ckpt.core.state.seal import read_seal, seal_bytes
from edl_ckpt.core.storage import Location, Store, open_store
from edl_ckpt.core.storage.interface import RangeReader


def seal_version(
    version: VersionLike,
    fingerprint: str,
    *,
    force: bool = False,
    wait_seconds: float = LOCK_WAIT_SECONDS,
    executor: ExecutorLike | None = None,
    workers: int | None = None,
    reporter: Reporter = WARNINGS,
) -> None:
    """Record checksums of all bytes of a version that verify found whole; they replace an older seal.

    `fingerprint` is that of the verification. Takes the location's lock itself. Raises LockedError when a shard has
    changed since the version was listed, or when the lock is not free in time; CorruptError when the version has a seal
    that is damaged or does not match. `force` replaces that too, and the new seal records it.
    """
    version = as_version(version)
    write_seal(
        version,
        fingerprint,
        job_of(executor, [version], workers=workers, reporter=reporter),
        force=force,
        wait_seconds=wait_seconds,
    )


def write_seal(
    version: Version,
    fingerprint: str,
    job: Job,
    *,
    force: bool,
    wait_seconds: float,
    faults: Sequence[str] = (),
) -> None:
    """Do what `seal_version` does, by a job; with `force` the seal records `faults` that the verification found."""
    from edl_ckpt.core.commit.repair.recovery import location_lock  # most verifications write no seal

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
        for fault in faults:
            trust.overrule(CorruptError(fault, code="checksum-mismatch", path=version.path))
        seal = make_seal(checkpoint, fingerprint, job)
        checkpoint.check_unchanged()
        check_listed(version, "the version changed before it was sealed; a job may be writing it")
        if trust.seal is not None and _contradict(trust.seal, seal):
            fault, hint = "the shards are not the bytes that were sealed; the seal stays", HINTS["checksum-mismatch"]
            trust.overrule(CorruptError(fault, code="checksum-mismatch", path=version.path, hint=hint))
        write_proved(checkpoint.store, seal_file(version.key), seal_bytes(trust.sign(seal, "verify --seal")))


def _contradict(one: Seal, other: Seal) -> bool:
    """Say whether two seals have different checksums of the same bytes; they may be cut into other chunks."""
    sums, found = _sums_of(one), _sums_of(other)
    return any(sums[extent] != found[extent] for extent in sums.keys() & found.keys())


def _sums_of(seal: Seal) -> dict[tuple[str, int, int], str]:
    """Return the checksums of a seal by the name of the file, and by the begin and the end of the chunk."""
    sums = {}
    for shard in seal.shards:
        for chunk in shard.chunks:
            sums[shard.name, chunk.start, chunk.end] = chunk.sum
    return sums


def find_seal(store: Store, version: Version, *, use_seal: bool) -> tuple[Seal | None, Report]:
    """Return the version's seal, and a report of one that cannot be read, or of each shard of another size.

    Without `use_seal` there is none. Findings without a seal are of the seal itself, and say nothing of the version's
    files. Raises UnsupportedError for a seal that is newer than this program, and UnavailableError and AuthError.
    """
    report = Report()
    if not use_seal or not version.has_place_for_seal:  # the seals beside such a version are of others
        return None, report
    with report.checking("seal"):
        try:
            seal = read_seal(store, version.key)
        except (UnsupportedError, UnavailableError, AuthError):
            raise
        except EdlCkptError as error:
            where = error.path or version.path
            words = f"the seal cannot be read: {error.message}"
            report.add("checksum-mismatch", words, path=where, hint=error.hint or "")
            return None, report
        for fault in differing_sizes(seal, version) if seal else ():
            report.add("checksum-mismatch", fault, path=version.path, subject=fault.partition(" ")[0])
        if seal is not None and not seal.has_digest:
            why = "the seal has no digest, so damage of the seal itself may not show"
            report.add("old-seal", why, path=version.path)
    if seal is None:
        del report.seconds["seal"]  # there was nothing to compare with
    return seal, report


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
    report_chunks(checkpoint, wrong, report)
    return is_sound


ATTEMPTS: Final = 10
_PAUSE_SECONDS: Final = 0.1
_LEAST: Final = LatePattern(r"of at least [\d,]+ bytes")
_BROKEN: Final = frozenset({"truncated", "empty-file", "malformed", "missing-shard", "missing-file"})
_FORCED: Final = "; --force seals it all the same, and the seal records it"
_NOT_MATCHING: Final = frozenset({"checksum-mismatch", "fingerprint-mismatch"})
_FAR_READERS: Final = 24
"""Threads that read from far storage: some of them look at what they have read, and 16 requests stay on their way."""


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


def verify_version(
    version: VersionLike,
    *,
    level: Level = "default",
    use_seal: bool = True,
    beside: bool = True,
    sample: ValueSample | None = None,
    loader: tuple[str, int | None] | None = None,
    take_ids: TakeIds | None = None,
    like: VersionLike | Form | None = None,
    against: str | Digests | None = None,
    remember: bool = True,
    listing: Listing | None = None,
    executor: ExecutorLike | None = None,
    workers: int | None = None,
    reporter: Reporter = WARNINGS,
) -> VerifyResult:
    """Check a version at one of LEVELS and return all findings, errors before warnings.

    A sealed version is compared with its seal: names and sizes at each level, every byte at `deep`. `use_seal=False`
    ignores the seal. `beside=False` does not look at the other names in the location, on which ElasticDL's scan may
    crash. A `sample` reads a random part of the values at the level `default`, and compares it with the checksums that
    there are. What was found is remembered for `list`, `prune` and others (`state/verdicts.py`), unless `remember` is
    False; an error that a deeper verification of the same files found is a finding here too. With a `loader`, its name
    and a number of ranks or None, the result says what that loader would do with the files. With `like`, another
    version, all its tables and variables must be there in the same form. With `against`, digests or a file of them, all
    its names must be there with the same content; the level is `deep` then. `take_ids` gets the ids of all rows in
    findings. A `listing` of the location that was made just now shows what is beside the version. With a
    `distributed.Client` as `executor`, its workers read the ids and values. When a job changes a shard meanwhile, the
    version is verified again. Raises UsageError for another level, LockedError when a shard keeps changing, and the
    errors of storage; a damaged checkpoint raises nothing.

    >>> result = verify_version("run@200", level="deep")
    >>> result.ok, [finding.code for finding in result.findings]
    (True, [])
    """
    version = as_version(version)
    form = like if isinstance(like, Form) or like is None else form_of(like)
    digests = read_digests(against) if isinstance(against, str) else against
    scope = Scope(level, use_seal, beside, sample, loader, take_ids, form, digests, listing)
    result = verify_indexed(
        version,
        verify_job(
            version,
            executor=executor,
            workers=workers,
            reporter=reporter,
        ),
        scope,
    )[0]
    if remember:
        with Memory() as memory:
            memory.take(version.location, result)
    return result


def verify_job(
    version: Version,
    *,
    executor: ExecutorLike | None = None,
    workers: int | None = None,
    reporter: Reporter = WARNINGS,
) -> Job:
    """Return the job for the verification of a version; raises as `job_of`."""
    if workers is None and version.location.is_far and default_workers(remote=True) > 1:
        workers = _FAR_READERS
    return job_of(executor, [version], workers=workers, reporter=reporter)


TakeIds: TypeAlias = Callable[[str, Iterator[tuple[Finding, I64]]], None]
"""Takes a reference, and for its findings the ids of all their rows. When its iterator fails, it may be called again
with the same reference, and forgets what it took."""


class Scope(NamedTuple):
    """What a verification looks at, as `verify_version` takes it."""

    level: Level
    use_seal: bool = True
    beside: bool = True
    sample: ValueSample | None = None
    loader: tuple[str, int | None] | None = None
    take_ids: TakeIds | None = None
    like: Form | None = None
    against: Digests | None = None
    listing: Listing | None = None
    """Of the location, where the caller has just made one."""


def verify_indexed(version: Version, job: Job, scope: Scope) -> tuple[VerifyResult, tuple[ShardIndex, ...]]:
    """Verify a version, and return the indexes of the shards whose headers could be read with the findings."""
    if scope.level not in LEVELS:
        raise UsageError(f"no level {scope.level!r}; expected {', '.join(LEVELS)}")
    if scope.against is not None and scope.level != "deep":
        raise UsageError("digests are compared at the level deep")
    if version.replaced_by:
        raise being_replaced(version.ref, version.replaced_by)
    for attempt in range(ATTEMPTS):
        try:
            return _verify(version, job, scope)
        except LockedError:  # a job is saving it: verify the files that it leaves
            if attempt == ATTEMPTS - 1:
                raise
            time.sleep(_PAUSE_SECONDS)
            scope = scope._replace(listing=None)
            alone = named_file(CheckpointRef(Location(version.path, version.location.options), "latest"))
            present = (alone,) if alone else list_versions(version.location).versions
            version = next((v for v in present if v.path == version.path), version)
            if version.replaced_by:
                raise being_replaced(version.ref, version.replaced_by) from None
    raise AssertionError  # the loop always ends by a return or a raise


class _Read(NamedTuple):
    """What a check of ids and values found besides its findings."""

    fingerprint: Fingerprint | None = None
    sound: bool = True
    """False where ids and rows do not match everywhere."""
    compared: int = 0
    """How many checksums were compared."""
    beside: Others = NOTHING_ELSE
    against: Against | None = None


_NOTHING_READ: Final = _Read()


def _check_contents(
    content: ContentCheck, seal: Seal | None, readers: Mapping[str, RangeReader], scope: Scope, *, whole: bool
) -> _Read:
    """Check ids, and as the scope says all values, or a part of them; `whole` says that every shard is indexed."""
    checkpoint, report, job = content.checkpoint, content.report, content.job
    version = checkpoint.version
    read = _NOTHING_READ
    with report.checking("ids"):
        content.check_ids()
        check_companions(checkpoint, report)
    if scope.level == "deep":
        contradicted = source_of(version).blocking(version, checkpoint.shards)
        certain = whole and not contradicted and version.state is not State.MIXED
        fingerprint = _check_all(content, seal, readers, certain=certain)
        _check_sealed(seal, fingerprint, version, report)
        with report.checking("values"):
            against = check_against(version, fingerprint, scope.against, report)
            beside = check_others(checkpoint, seal, report)
            compared = check_stored_sums(checkpoint, report, job) + beside.compared
        read = _Read(fingerprint, compared=compared, beside=beside, against=against)
    elif scope.sample is not None:
        with report.checking("values"):
            check_sample(checkpoint, seal, readers, report, job, scope.sample)
    with report.checking("ids"):
        content.wait_for_ids()
    return read._replace(sound=content.sound)


def _verify(version: Version, job: Job, scope: Scope) -> tuple[VerifyResult, tuple[ShardIndex, ...]]:
    level = scope.level
    begun = time.time()
    if version.fault and not version.shards:
        raise version.fault.error()
    store = open_store(version.location)
    report = Report()
    read_before = job.executor.bytes_read()
    with ExitStack() as stack:
        others = Beside(2)  # far away, each of these takes a request or two, as the headers do
        stack.callback(others.close)
        names = others.begin(lambda: check_names(store, version, beside=scope.beside, listing=scope.listing))
        sealed = others.begin(lambda: find_seal(store, version, use_seal=scope.use_seal))
        readers: dict[str, RangeReader] = {}
        with report.checking("headers"):
            checkpoint, whole = open_readable_shards(version, report, stack, readers)
            check_headers(version, checkpoint, report)
            check_like(version, checkpoint.shards, scope.like, report)
        report.take(awaited(names))
        seal, found = awaited(sealed)
        report.take(found)
        read = _NOTHING_READ
        if level != "quick":
            content = ContentCheck(checkpoint, report, job, values=level == "deep")
            stack.callback(content.close)
            read = _check_contents(content, seal, readers, scope, whole=whole)
        view = None if scope.loader is None else _look(checkpoint, scope.loader, report)
        known = known_damage(version, level)
        findings = _in_order([*report.findings, *known], {} if seal is None else seal.sizes, version)
        if scope.take_ids:
            scope.take_ids(version.ref, _ids_of_all(checkpoint, findings))
        checkpoint.check_unchanged()
        bytes_read = checkpoint.bytes_read + job.executor.bytes_read() - read_before
    if any(finding.severity == "error" for finding in report.findings):  # names, shards and seal may be of two moments
        check_not_replaced(version)
    return VerifyResult(
        version.ref,
        level,
        findings,
        read.fingerprint.text if read.fingerprint else None,
        bytes_read,
        sealed=seal is not None,
        shards=version.ps_num or len(version.shards),
        shards_read=len(checkpoint.shards),
        ids_read=read.sound,
        checks=report.checks(),
        sample=scope.sample,
        checksums=read.compared,
        uncompared=read.beside.uncompared,
        unread_files=read.beside.unread,
        loader=view,
        like=scope.like.ref if scope.like else "",
        against=read.against,
        content=read.fingerprint,
        state=version.state,
        doubts=version.doubts,
        modified=version.modified,
        path=version.path,
        files="" if seal is None and found.findings else _read_files(version, checkpoint, begun),
        begun=begun,
    ), checkpoint.shards


def _look(checkpoint: Checkpoint, loader: tuple[str, int | None], report: Report) -> LoaderView:
    """Return what a loader would do with a version."""
    from edl_ckpt.core.operations.verify.loaders import look_with  # with the readers of other systems

    return look_with(checkpoint, *loader, report)


def _check_sealed(seal: Seal | None, found: Fingerprint | None, version: Version, report: Report) -> None:
    """Report content that has another fingerprint than its seal says."""
    if seal is not None and found is not None and not agrees(seal.fingerprint, found.text):
        with report.checking("seal"):
            was = f"the fingerprint was {seal.fingerprint} when the version was sealed"
            report.add("fingerprint-mismatch", was, path=version.path)


def _read_files(version: Version, checkpoint: Checkpoint, begun: float) -> str:
    """Return what tells the files that were read from any others; '' where not all were there to be read."""
    was_gone = any(lost.code == "missing-shard" for lost in checkpoint.lost)  # it was there when it was listed
    return version.files_identity if is_settled(version, begun) and not was_gone else ""


def _in_order(findings: Sequence[Finding], sealed: Mapping[str, int], version: Version) -> tuple[Finding, ...]:
    """Return findings, errors first. Where files are cut or absent, the seal knows their sizes, and is not renewed."""
    if any(finding.code in _BROKEN for finding in findings):
        findings = [_of_broken(finding, sealed.get(version.name_of(finding.path))) for finding in findings]
    return tuple(
        sorted(findings, key=lambda f: (f.severity, f.shard is None, f.shard or 0, f.offset or 0, f.code, f.subject))
    )


def _of_broken(finding: Finding, sealed_bytes: int | None) -> Finding:
    """Return a finding in a version that lacks bytes: with the size of its file, if a seal says it."""
    if finding.code in _NOT_MATCHING:
        finding = replace(finding, hint="")
    if sealed_bytes:
        finding = replace(finding, message=_LEAST.sub(f"of {sealed_bytes:,} bytes", finding.message))
    return finding


def _ids_of_all(checkpoint: Checkpoint, findings: Iterable[Finding]) -> Iterator[tuple[Finding, I64]]:
    """Yield the ids of all findings that name some; findings of several parts of one table have the same ids."""
    with_ids = {(finding.code, finding.path, finding.subject): finding for finding in findings if finding.ids}
    for finding in with_ids.values():
        of_table = checkpoint.entries(finding.subject)
        within = [pair for pair in of_table if finding.shard is None or pair[0].file.path == finding.path]
        for ids in ids_of(checkpoint, finding.code, within):
            if len(ids):
                yield finding, ids
    checkpoint.check_unchanged()


def _check_all(
    content: ContentCheck, seal: Seal | None, readers: Mapping[str, RangeReader], *, certain: bool
) -> Fingerprint | None:
    """Check every value, and in the same pass every byte against the seal; return the fingerprint of certain content.

    A read that was damaged on its way has other values, too: then they are read again.
    """
    report = content.report
    small = content.small_parts(certain=certain)
    sums, checkpoint = None, content.checkpoint
    if seal is not None:  # its chunks, to which the bytes are added while the values are checked
        sums = ChunkSums((readers[shard.name], shard.chunks) for shard in comparable(seal, readers))
        workers = openings(checkpoint.store)
        sums.add_rest(checkpoint, small.extents(), workers=workers)
    with report.checking("values"):
        fingerprint = content.check_values(certain=certain, sums=sums, small=small)
    if seal is not None and sums is not None:
        with report.checking("seal"):
            sound = compare_with_seal(seal, checkpoint, readers, report, sums, workers=content.job.workers)
        if not sound:
            with report.checking("ids"):
                content.wait_for_ids()
            checkpoint.forget_ids()
            with report.checking("values"):
                fingerprint = content.check_values(certain=certain)
    with report.checking("values"):
        content.report_odd()
    return fingerprint


def verify_versions(
    versions: Iterable[VersionLike],
    *,
    level: Level = "default",
    seal: bool = False,
    use_seal: bool = True,
    sample: ValueSample | None = None,
    loader: tuple[str, int | None] | None = None,
    may_be_writing: bool = False,
    take_ids: TakeIds | None = None,
    like: VersionLike | None = None,
    against: str | None = None,
    listing: Listing | None = None,
    wait_seconds: float = LOCK_WAIT_SECONDS,
    take: Callable[[VerifyResult | tuple[str, EdlCkptError]], None] = lambda _: None,
    executor: ExecutorLike | None = None,
    workers: int | None = None,
    reporter: Reporter = WARNINGS,
) -> VerifyRun:
    """Verify each version as `verify_version` does, or with `seal` as `verify_and_seal` does.

    An error of one version is in the result, and the next version is verified. The first result of a location has the
    warnings about names in it; a `listing` of it that was made just now shows them. `take` gets each result, or the
    reference and the error, as soon as it is known. Where versions `may_be_writing`, findings in one that a job is
    still writing, and that has no seal, are warnings.
    """
    results: list[VerifyResult] = []
    failed: list[tuple[str, EdlCkptError]] = []
    seen: set[Location] = set()
    verify: Callable[..., VerifyResult]
    if seal:
        verify = partial(verify_and_seal, wait_seconds=wait_seconds, take_ids=take_ids, remember=False)
    else:
        verify = partial(
            verify_version,
            level=level,
            sample=sample,
            loader=loader,
            take_ids=take_ids,
            like=None if like is None else form_of(like),
            against=None if against is None else read_digests(against),
            remember=False,
        )
    versions = several(versions, "versions")
    if level == "deep" or seal:
        expect(reporter, _bytes_to_read(versions, seal=seal))
    with Memory() as memory:
        for wanted in versions:
            COMMIT.more()  # between two versions a signal ends the command: the one before may have been sealed
            try:
                version = as_version(wanted)
                beside = version.location not in seen
                result = verify(
                    version,
                    use_seal=use_seal,
                    beside=beside,
                    listing=listing if listing is not None and listing.location == version.location else None,
                    executor=executor,
                    workers=workers,
                    reporter=reporter,
                )
                memory.take(version.location, result)
                if may_be_writing and version.state is State.WRITING and not result.sealed:
                    warnings = [replace(finding, severity="warning") for finding in result.findings]
                    result = replace(result, findings=tuple(warnings))
            except EdlCkptError as error:
                failed.append((wanted.ref if isinstance(wanted, Version) else str(wanted), error))
                take(failed[-1])
                continue
            results.append(result)
            seen.add(version.location)
            take(result)
    return VerifyRun(tuple(results), tuple(failed))


def _bytes_to_read(versions: Iterable[VersionLike], *, seal: bool) -> int:
    """Return the bytes that a run reads of the versions whose size is known; to seal one takes a second pass."""
    total = 0
    for version in versions:
        if isinstance(version, Version):
            passes = 2 if seal and not version.fingerprint else 1
            total += passes * version.size_bytes
    return total


def verify_and_seal(
    version: VersionLike,
    *,
    use_seal: bool = True,
    beside: bool = True,
    take_ids: TakeIds | None = None,
    wait_seconds: float = LOCK_WAIT_SECONDS,
    remember: bool = True,
    listing: Listing | None = None,
    executor: ExecutorLike | None = None,
    workers: int | None = None,
    reporter: Reporter = WARNINGS,
) -> VerifyResult:
    """Verify a version at the level `deep`, and seal it when it is whole and has no seal, or a matching old one.

    `use_seal=False` ignores an existing seal and replaces it, which the new seal records. A version that is not whole
    stays as it is, with a warning; so does one whose seal is damaged. Takes the location's lock itself, for the sealing
    only. Raises the errors of both.
    """
    version = as_version(version)
    job = verify_job(
        version,
        executor=executor,
        workers=workers,
        reporter=reporter,
    )
    result, _ = verify_indexed(version, job, Scope("deep", use_seal, beside, take_ids=take_ids, listing=listing))
    sealed = _seal_checked(version, result, job, use_seal=use_seal, wait_seconds=wait_seconds)
    if remember:
        with Memory() as memory:
            memory.take(version.location, sealed)
    return sealed


def _why_not_sealed(result: VerifyResult, codes: Collection[str]) -> str:
    """Return what of the findings is against a seal, the worst first."""
    if not _NOT_MATCHING.isdisjoint(codes):
        if result.sealed or any(finding.check == "seal" for finding in result.findings):
            return "its seal is damaged or does not match; see --force"
        return f"a checksum in its files does not match{_FORCED}"
    if "empty-file" in codes:
        return f"a file is empty{_FORCED}"
    return f"not every tensor was read{_FORCED}"


def _seal_checked(
    version: Version, result: VerifyResult, job: Job, *, use_seal: bool, wait_seconds: float
) -> VerifyResult:
    """Seal a version that was verified, if nothing is against it; return the result as it is then."""
    if result.fingerprint is None:
        job.reporter.warn(f"{result.ref}: not sealed, because shards are missing or damaged")
        return result
    codes = {finding.code for finding in result.findings}
    doubts = [finding for finding in result.findings if finding.code in {*_NOT_MATCHING, UNREAD, "empty-file"}]
    if doubts and use_seal:
        job.reporter.warn(f"{result.ref}: not sealed, because {_why_not_sealed(result, codes)}")
        return result
    if not result.sealed or "old-seal" in codes:
        faults = [f"{finding.subject!r}: {finding.message}" for finding in doubts]
        write_seal(version, result.fingerprint, job, force=not use_seal, wait_seconds=wait_seconds, faults=faults)
    return replace(result, sealed=True, findings=tuple(f for f in result.findings if f.code != "old-seal"))
