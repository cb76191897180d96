"""Missing and damaged files of a version, replaced from another copy of it, one by one and in place.

`verify` finds what is damaged. A file of the other copy is taken only if something proves that it is the file that was
here: the version's own seal names its bytes; or, without a seal, all other files of the two are equal, byte for byte.
Equal fingerprints are no proof of equal files. `mix` overrules that, and the new seal says so. All files are written
and compared before the first one is put in its place. Each becomes visible whole, and a damaged one goes to the
trash. So a repair that is killed leaves a version that lacks less than before, and the same repair goes on. Where the
own seal proves everything it stays. In every other case the result is verified, and sealed at the end.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, replace
from typing import Final, Self

from edl_ckpt.core.base.errors import CorruptError, EdlCkptError, RefusedError, UsageError
from edl_ckpt.core.base.ids import new_id
from edl_ckpt.core.base.interruption import COMMIT
from edl_ckpt.core.base.job import Job
from edl_ckpt.core.base.progress import WARNINGS, Reporter
from edl_ckpt.core.base.words import command, counted, describe, escaped
from edl_ckpt.core.catalog.contents import Contents
from edl_ckpt.core.catalog.files import check_in_location
from edl_ckpt.core.catalog.listing import VersionLike, as_version, check_listed, list_versions
from edl_ckpt.core.commit.interface import written_version
from edl_ckpt.core.commit.publish.uploads import marked_uploads
from edl_ckpt.core.commit.repair.kinds import kind_of
from edl_ckpt.core.commit.repair.recovery import location_lock
from edl_ckpt.core.commit.shard import ShardOutput, ShardPlace
from edl_ckpt.core.converting.items import NO_ITEMS, ItemCounts, items_of
from edl_ckpt.core.model.seals import Seal, SealedShard
from edl_ckpt.core.model.versions import ShardFile, Version
from edl_ckpt.core.operations.copy.carry import carry
from edl_ckpt.core.operations.verify.check import verify_version
from edl_ckpt.core.proof.sealing import batches, make_seal, sums_of
from edl_ckpt.core.proof.trust import Trust, check_trust
from edl_ckpt.core.reading.reader import Checkpoint, open_checkpoint, raise_problems
from edl_ckpt.core.sources.registry import completes, source_of
from edl_ckpt.core.state.lock import LOCK_WAIT_SECONDS
from edl_ckpt.core.state.lock_proof import write_proved
from edl_ckpt.core.state.paths import TRASH_DIR, seal_file
from edl_ckpt.core.state.seal import read_seal, seal_bytes
from edl_ckpt.core.state.shard_note import forget_notes
from edl_ckpt.core.storage import LocalStore, ObjectStore, Store
from edl_ckpt.core.storage.inside import is_inside
from edl_ckpt.core.storage.interface import RangeReader, Sink, has_parts

_ODD: Final = frozenset({"nan", "inf", "huge-value"})
"""What verify finds in values that may have been saved so."""
_OWN: Final = "the seal of the version names these bytes"


@dataclass(frozen=True, slots=True)
class Replacement:
    """A file that is replaced: from where, and why; `kept` is where the damaged one is now, '' where none was."""

    shard: int
    path: str
    source: str
    size_bytes: int
    reason: str
    kept: str = ""


@dataclass(frozen=True, slots=True)
class RepairResult:
    """What a repair replaced, or would; `proof` says what proves the files, `forced` why nothing does.

    The `fingerprint` is that of the repaired version, '' where that is not known.
    """

    ref: str
    source: str
    replaced: tuple[Replacement, ...]
    proof: str
    forced: str | None
    fingerprint: str
    seconds: float
    dry_run: bool
    items: ItemCounts = NO_ITEMS
    """Those of the version, where something proves the files that were replaced."""

    def __repr__(self) -> str:
        return describe("RepairResult", escaped(self.ref), counted(len(self.replaced), "file"), self.proof)


@dataclass(frozen=True, slots=True)
class BothCopies:
    """The open files of both copies, by the names that they have in the version that is repaired."""

    ours: Mapping[str, RangeReader]
    others: Mapping[str, RangeReader]
    sums: Mapping[str, SealedShard]
    """The checksums of the files of the other copy."""
    workers: int

    @classmethod
    def of(
        cls,
        ours: Mapping[str, RangeReader],
        other: Checkpoint,
        wanted: Mapping[str, ShardFile],
        seal: Seal,
        workers: int,
    ) -> Self:
        """Return both copies of the `wanted` files, where `seal` has the checksums of the other copy."""
        sealed = {shard.name: shard for shard in seal.shards}
        others: dict[str, RangeReader] = {}
        sums: dict[str, SealedShard] = {}
        for name, file in wanted.items():
            others[name] = other.files[file.path]
            sums[name] = sealed[other.version.name_of(file.path)]
        return cls(ours, others, sums, workers)

    def has(self, reader: RangeReader, file: SealedShard) -> bool:
        """Say whether a file has the bytes that checksums are of."""
        same_size = reader.size_bytes == file.size_bytes
        return same_size and sums_of(reader, file.chunks, workers=self.workers) == [*file.chunks]

    def are_equal(self, name: str) -> bool:
        """Say whether a file is there in both copies, with the same bytes."""
        return name in self.ours and self.has(self.ours[name], self.sums[name])

    def compare(self, store: Store, path: str, name: str) -> None:
        """Read back what was written for a file; EdlCkptError unless it has the bytes of the other copy."""
        with store.open(path) as reader:
            if not self.has(reader, self.sums[name]):
                raise EdlCkptError("reads back differently", path=path, hint="suspect the disk or the network")


def repair_version(
    version: VersionLike,
    source: VersionLike,
    *,
    mix: bool = False,
    dry_run: bool = False,
    workers: int | None = None,
    wait_seconds: float = LOCK_WAIT_SECONDS,
    reporter: Reporter = WARNINGS,
) -> RepairResult:
    """Replace the missing and damaged files of a version by those of another copy; both copies are read first.

    Takes the lock of the version's location itself. Raises RefusedError where nothing proves the files, unless `mix`;
    UsageError for a version and itself; LockedError when the version changes meanwhile; CorruptError when the other
    copy does not match its seal, or when the result of a mixture is none; and what `open_checkpoint` raises.
    """
    begin = time.perf_counter()
    version, source = as_version(version), as_version(source)
    job = Job.here(workers, reporter=reporter)
    wanted = _wanted(version, source)
    contents = Contents.of(version)
    other_trust = _trust_of(source, job)
    flagged, content = _flagged(version, wanted, job)
    with ExitStack() as stack:
        here = stack.enter_context(open_checkpoint(version, partial=True))
        other = stack.enter_context(open_checkpoint(source))
        trust = _own_trust(version, here.store, job, mix=mix)
        seal = other_trust.seal or make_seal(other, "", job)
        both = BothCopies.of(_opened_here(here, wanted, stack), other, wanted, seal, job.workers)
        damaged = {name: why for name, why in flagged.items() if not both.are_equal(name)}
        if flagged and not damaged:
            raise RefusedError(f"{source.ref} has the same damaged files", path=version.ref, hint="nothing was changed")
        if not damaged and trust.seal is None:
            _check_same_content(version, source, content)
        proof, doubt = _proof(trust, source, damaged, both) if damaged else ("", "")
        if doubt:
            _overrule(trust, doubt, version, source)
            staying = {name: reader for name, reader in both.ours.items() if name not in damaged}
            _check_mixture(version, {**both.others, **staying})
        replaced = _replacements(version, wanted, damaged, both)
        taken_from = source if damaged else None
        fingerprint = "" if doubt else _expected_fingerprint(trust, taken_from, content)
        if replaced and not dry_run:
            lock = stack.enter_context(
                location_lock(version.location, "repair", wait_seconds=wait_seconds, reporter=reporter)
            )
            check_listed(version, "the version changed before its repair; nothing was changed")
            replaced = _replace(contents, replaced, both, lock.store, job)
            forget_notes(lock.store, [version.version])
            if proof is not _OWN:
                fingerprint = _verify_and_seal(version, trust, lock.store, job)
        items = items_of(other) if proof and not dry_run else NO_ITEMS
    seconds = time.perf_counter() - begin
    return RepairResult(version.ref, source.ref, replaced, proof, trust.forced, fingerprint, seconds, dry_run, items)


def _expected_fingerprint(trust: Trust, source: Version | None, content: str) -> str:
    """Return the fingerprint of the version when its files are sound: that of its seal, of the source, or its own.

    `source` is the copy that files come from, None where none is replaced; `content` is what was read.
    """
    if trust.seal is not None:
        return trust.seal.fingerprint
    return content if source is None else source.fingerprint


def _opened_here(here: Checkpoint, wanted: Iterable[str], stack: ExitStack) -> dict[str, RangeReader]:
    """Return the files of a version that are there and open, by their names."""
    version = here.version
    opened = {name: here.files[path] for name in wanted if (path := version.path_of(name)) in here.files}
    for name in set(version.extra).intersection(wanted):  # of a version without any shard
        opened[name] = stack.enter_context(here.store.open(version.path_of(name)))
    return opened


def _check_same_content(version: Version, source: Version, content: str) -> None:
    """Raise RefusedError where no file is damaged, and the other copy has another fingerprint than the content."""
    if source.fingerprint not in {"", content}:
        raise RefusedError(
            f"no file is damaged, but the content is not that of {source.ref}",
            path=version.ref,
            hint=f"nothing was changed; try: {command('diff', version.ref, source.ref)}",
        )


def _overrule(trust: Trust, doubt: str, version: Version, source: Version) -> None:
    """Go on although nothing proves the files; RefusedError unless `mix` says so."""
    way = command("repair", version.ref, "--from", source.ref, "--mix")
    hint = f"nothing was changed; `{way}` combines the files of both saves"
    trust.overrule(RefusedError(doubt, path=version.ref, hint=hint))


def _replacements(
    version: Version, wanted: Mapping[str, ShardFile], damaged: Mapping[str, str], both: BothCopies
) -> tuple[Replacement, ...]:
    """Return what is done for each damaged file, before it is done."""
    replaced: list[Replacement] = []
    for name, why in damaged.items():
        file = wanted[name]
        size_bytes = both.sums[name].size_bytes
        replaced.append(Replacement(file.ps_id, version.path_of(name), file.path, size_bytes, why))
    return tuple(replaced)


def _wanted(version: Version, source: Version) -> dict[str, ShardFile]:
    """Return the files of the other copy by the names that they have in the version; RefusedError for another kind."""
    check_in_location(version)
    if version.path == source.path and version.location.is_same_place(source.location):
        raise UsageError("a version cannot be repaired from itself", path=version.ref)
    same_system = version.layout.system == source.layout.system and version.is_file == source.is_file
    same_shards = version.ps_num in {None, 0, source.ps_num}
    is_one_shard = version.has_only_shards and version.is_file
    if not (same_system and same_shards) or is_one_shard:
        for copy in (source, version):
            if copy.fault is not None:  # its kind is not known now
                raise copy.fault.error()
        hint = f"nothing was changed; try: {command('copy', source.ref, 'LOCATION')}"
        fault = f"{source.ref} is not a copy of it: another system, or another number of shards"
        raise RefusedError(fault, path=version.ref, hint=hint)
    if version.has_only_shards:
        return {version.layout.shard_file(file.ps_id, file.ps_num): file for file in source.shards}
    return {name: file for file in source.files if is_inside(name := source.name_of(file.path))}


def _trust_of(source: Version, job: Job) -> Trust:
    """Return the seal of the other copy, which has to match it."""
    try:
        return check_trust(source, reporter=job.reporter)
    except CorruptError as error:
        error.hint = "nothing was changed; a copy that does not match its seal repairs no other"
        raise


def _own_trust(version: Version, store: Store, job: Job, *, mix: bool) -> Trust:
    """Return the version's own seal, which need not match what is left; a damaged one is overruled by `mix` alone."""
    trust = Trust(version, None, mix, reporter=job.reporter)
    try:
        trust.seal = read_seal(store, version.key) if version.has_place_for_seal else None
    except CorruptError as error:
        error.hint = "--mix continues without that seal"
        trust.overrule(error)
    trust.history = trust.seal.history if trust.seal else ()
    return trust


def _verified(version: Version, job: Job, *, use_seal: bool) -> tuple[dict[str | int, str], str]:
    """Return what `verify --deep` finds wrong with a version, by shard or subject, and its fingerprint or ''."""
    result = verify_version(version, level="deep", use_seal=use_seal, workers=job.workers, reporter=job.reporter)
    reasons: dict[str | int, str] = {}
    for finding in result.findings:
        if finding.severity == "error" and finding.code not in _ODD:
            place = finding.subject if finding.shard is None else finding.shard
            reasons.setdefault(place, finding.message)
    return reasons, result.fingerprint or ""


def _flagged(version: Version, wanted: Mapping[str, ShardFile], job: Job) -> tuple[dict[str, str], str]:
    """Return the files that are missing, and those of shards with an error, with reasons; and the fingerprint or ''."""
    reasons, content = _verified(version, job, use_seal=True)
    present = version.sizes
    why: dict[str, str] = {}
    for name, file in wanted.items():
        if name in present:
            why[name] = reasons.get(name) or reasons.get(file.ps_id) or ""
        elif name not in version.extra:
            why[name] = "missing"
        elif completes(name):  # nothing was read by it, since a shard is missing
            why[name] = "not read"
    return {name: reason for name, reason in why.items() if reason}, content


def _proof(trust: Trust, source: Version, damaged: Mapping[str, str], both: BothCopies) -> tuple[str, str]:
    """Return the proof of the files to take, and ''; or '' and the reason that there is none.

    A fingerprint is of content, and no proof of files: two versions with one have their rows in other places.
    """
    if trust.seal is not None:
        named = {shard.name: shard for shard in trust.seal.shards}
        for name in damaged:
            if name not in named or not both.has(both.others[name], named[name]):
                return "", f"its seal names other bytes for {name} than {source.ref} has"
        return _OWN, ""
    staying = [name for name in both.ours if name not in damaged]
    if not staying:
        return "", "no whole file is left to compare"
    for name in staying:
        if not both.are_equal(name):
            return "", f"{name} differs from that of {source.ref}"
    return "all other files are equal, byte for byte", ""


def _check_mixture(version: Version, readers: Mapping[str, RangeReader]) -> None:
    """Raise CorruptError when headers of files of two copies contradict each other; nothing was written yet."""
    if version.has_only_shards:
        sizes = [reader.size_bytes for reader in readers.values()]
        whole = written_version(version.location, version.path, version.layout, version.version, sizes)
        raise_problems(whole, source_of(whole).index(whole, {f"{version.path}/{n}": r for n, r in readers.items()}))


def _replace(
    contents: Contents,
    replaced: tuple[Replacement, ...],
    both: BothCopies,
    store: LocalStore | ObjectStore,
    job: Job,
) -> tuple[Replacement, ...]:
    """Write all files beside the version, then put them in place one by one, and read them back.

    Before each is put in place, the version is looked at again: what a job wrote there meanwhile stays.
    """
    version = contents.version
    paths = {replacement.path for replacement in replaced}
    trash_entry = f"{TRASH_DIR}/{new_id()}"
    root = store.path("")
    outputs: list[tuple[Replacement, ShardOutput, str]] = []
    done: list[Replacement] = []
    job.reporter.start("repairing", sum(replacement.size_bytes for replacement in replaced))
    with ExitStack() as stack:
        if not isinstance(store, LocalStore) and has_parts(store):  # there no journal lists what a killed repair began
            began = [replacement.path.removeprefix(root) for replacement in replaced]
            stack.enter_context(marked_uploads(store, began, "repair"))
        for replacement in replaced:
            name = version.name_of(replacement.path)
            relative = replacement.path.removeprefix(root)
            like = _neighbour(version, replacement.path, paths).removeprefix(root)
            goal = ShardPlace(
                store, version.layout, version.version, replacement.shard, version.ps_num or 0, relative, like
            )
            output = stack.enter_context(kind_of(store).shard(goal, nullcontext, job.reporter))
            sink = output.create(replacement.size_bytes)
            _carry_all(both, name, sink, replacement.source, job.reporter)
            output.written()
            if store.properties.rename:  # what is uploaded cannot be read before it is visible
                both.compare(store, sink.path, name)
            outputs.append((replacement, output, f"{trash_entry}/{relative}"))
        for replacement, output, trash_path in outputs:
            _check_unchanged(contents, [version.name_of(finished.path) for finished in done])
            with COMMIT:
                done.append(replace(replacement, kept=output.take_place(trash_path)))
    for replacement in done:
        both.compare(store, replacement.path, version.name_of(replacement.path))
    return tuple(done)


def _carry_all(both: BothCopies, name: str, sink: Sink, source_path: str, reporter: Reporter) -> None:
    """Copy a file of the other copy to a sink; CorruptError when its bytes are no longer those of its checksums."""
    for chunks in batches(both.sums[name].chunks):
        start, end = chunks[0].start, chunks[-1].end
        if carry(both.others[name], chunks, sink) != [chunk.sum for chunk in chunks]:
            fault = "the file changed while it was read; nothing was replaced"
            raise CorruptError(fault, code="checksum-mismatch", path=source_path, offset=start)
        reporter.advance(end - start)


def _neighbour(version: Version, path: str, replaced: Collection[str]) -> str:
    """Return the path of the file that stays and has the name most like that of another one; '' without any."""
    present = sorted({version.path_of(name) for name in version.names_inside} - set(replaced))
    return max(present, key=lambda other: _alike(path, other), default="")


def _alike(one: str, other: str) -> int:
    """Return how many characters two paths begin with alike."""
    return next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def _check_unchanged(contents: Contents, own: Sequence[str]) -> None:
    """Raise LockedError when the version is not as it was, but for files that were replaced."""
    if contents.tree:
        contents.check_unchanged(own)
    elif not own:  # files side by side
        check_listed(contents.version, "the version changed before its repair; nothing was changed")


def _verify_and_seal(version: Version, trust: Trust, store: LocalStore | ObjectStore, job: Job) -> str:
    """Seal a repaired version that its own seal does not prove; return its fingerprint. CorruptError if it is none."""
    now = next(v for v in list_versions(version.location).versions if v.path == version.path)
    errors, text = _verified(now, job, use_seal=False)
    for fault in errors.values():
        hint = f"the replaced files are in place, and the damaged ones in {TRASH_DIR}: {command('verify', version.ref)}"
        raise CorruptError(f"not whole: {fault}", path=version.ref, hint=hint)
    if version.has_place_for_seal:
        with open_checkpoint(now) as checkpoint:
            seal = trust.sign(make_seal(checkpoint, text, job), "repair --mix")
            checkpoint.check_unchanged()
        write_proved(store, seal_file(version.key), seal_bytes(seal))
    return text
