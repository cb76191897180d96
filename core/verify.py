"""Whether a version is whole and right: a list of findings, each with file, shard, subject and byte offset.

Three levels: `quick` reads names and headers; `default` also every id (placement, duplicates, counts); `deep` also
every value. An error means that ElasticDL would not restore what was saved, or that nobody can say it would; a
warning leaves the version restorable. Nothing is raised for what a checkpoint may hold: everything is found.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import pairwise
from threading import Lock
from typing import Final

import numpy as np
import numpy.typing as npt

from edl_ckpt.core import bulk, placement
from edl_ckpt.core.catalog import list_versions
from edl_ckpt.core.consistency import BLOCKING, WARNINGS, cross_check
from edl_ckpt.core.errors import CorruptError, EdlCkptError, LockedError, NotFoundError, UsageError
from edl_ckpt.core.fingerprint import ContentSketch, fingerprint_of
from edl_ckpt.core.generations import Draft, draft_shard, index_shards
from edl_ckpt.core.model import DenseEntry, DType, Problem, ShardFile, ShardIndex, State, TableEntry, Version
from edl_ckpt.core.parallel import default_workers, run_parallel
from edl_ckpt.core.progress import SILENT, Progress
from edl_ckpt.core.reader import Checkpoint, open_checkpoint
from edl_ckpt.core.reshard import LARGE_SHARD_BYTES
from edl_ckpt.core.scan import (
    VALUE_BATCH_BYTES,
    DensePiece,
    IdPiece,
    dense_pieces,
    id_pieces,
    number_rows,
    read_dense,
    read_piece,
    row_batches,
)
from edl_ckpt.core.seal import (
    Seal,
    check_chunks,
    differing_sizes,
    file_name,
    make_seal,
    read_seal,
    seal_bytes,
    seal_file,
)
from edl_ckpt.core.store import RangeReader, is_local, open_store
from edl_ckpt.core.wire import Cursor

LEVELS: Final = ("quick", "default", "deep")
HUGE_EXPONENT: Final = 100
"""A float of 2**100 or more in magnitude is 'huge': no trained weight is, a flipped exponent bit is."""
_SORTED_AT_ONCE: Final = 8 << 20
"""Ids held and sorted at a time to find duplicates: 64 MiB."""
_ATTEMPTS: Final = 10
_PAUSE_SECONDS: Final = 0.1
_NAMED: Final = 5
"""How many ids a finding names."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong, or worth a warning."""

    severity: str
    code: str
    shard: int | None
    path: str
    subject: str
    offset: int | None
    message: str
    hint: str = ""


@dataclass(frozen=True, slots=True)
class VerifyResult:
    """What verify found; `fingerprint` only where every value was read and every shard is whole."""

    ref: str
    level: str
    findings: tuple[Finding, ...]
    fingerprint: str | None
    bytes_read: int
    sealed: bool = False
    """True when there is a record of what the bytes must be, and at the level `deep` they were compared with it."""

    @property
    def ok(self) -> bool:
        """Return True when nothing found is an error."""
        return all(finding.severity != "error" for finding in self.findings)


_HINTS: Final = {
    "missing-shard": "a job may still be writing it; else it is an orphan of a save that never finished",
    "extra-file": "move it away: ElasticDL counts the entries and refuses a directory with more than its shards",
    "misplaced-row": "ElasticDL re-places rows on restore; `edl-ckpt reshard` writes them where they belong",
    "misplaced-variable": "ElasticDL re-places variables on restore; `edl-ckpt reshard` puts them right",
    "old-generation": "`edl-ckpt reshard` writes the current generation, the only one today's ElasticDL reads",
    "over-2gib": "`edl-ckpt reshard` to more servers makes shards that Python can read",
    "negative-id": "Go servers drop negative ids that ps_num does not divide",
    "empty-file": "the save was cut short, or the disk lost it; restore another version",
    "truncated": "the save was cut short; restore another version",
    "checksum-mismatch": "restore another version; if a job wrote this one anew: verify --seal --force",
    "fingerprint-mismatch": "restore another version; if a job wrote this one anew: verify --seal --force",
}


@dataclass(slots=True)
class _Report:
    """Collects findings from several threads."""

    findings: list[Finding] = field(default_factory=list)
    lock: Lock = field(default_factory=Lock)

    def add(
        self,
        code: str,
        message: str,
        *,
        shard: ShardFile | None = None,
        path: str = "",
        subject: str = "",
        offset: int | None = None,
        warning: bool = False,
    ) -> None:
        """Add a finding; its hint follows from its code, and its severity unless `warning` is said."""
        severity = "warning" if warning or code in WARNINGS else "error"
        found = Finding(
            severity,
            code,
            shard.ps_id if shard else None,
            shard.path if shard else path,
            subject,
            offset,
            message,
            _HINTS.get(code, ""),
        )
        with self.lock:
            self.findings.append(found)

    def add_problem(self, shard: ShardIndex, problem: Problem) -> None:
        """Add a problem that the index of a shard, or the comparison of shards, came with."""
        self.add(problem.code, problem.message, shard=shard.file, subject=problem.subject, offset=problem.offset)

    def add_error(self, error: CorruptError, shard: ShardFile) -> None:
        """Add what stopped the reading of a shard."""
        self.add(error.code, error.message, shard=shard, offset=error.offset)


def verify_version(
    version: Version,
    *,
    level: str = "default",
    workers: int | None = None,
    storage_options: Mapping[str, str] | None = None,
    progress: Progress = SILENT,
    use_seal: bool = True,
) -> VerifyResult:
    """Check a version at one of LEVELS and return all findings, errors before warnings.

    A sealed version is compared with its seal: names and sizes at each level, every byte at `deep`; without `use_seal`
    it is taken for unsealed. What a job is saving meanwhile is looked at again. Raises UsageError for another level,
    LockedError when a shard goes on changing, and what storage raises; a damaged checkpoint raises nothing.
    """
    if level not in LEVELS:
        raise UsageError(f"no level {level!r}; expected {', '.join(LEVELS)}")
    workers = default_workers(remote=not is_local(version.location)) if workers is None else workers
    for attempt in range(_ATTEMPTS):
        try:
            return _verify(version, level, workers, storage_options, progress, use_seal=use_seal)
        except LockedError:  # a job is saving it just now: look at what is there then
            if attempt == _ATTEMPTS - 1:
                raise
            time.sleep(_PAUSE_SECONDS)
            there = list_versions(version.location, storage_options=storage_options).versions
            version = next((v for v in there if v.path == version.path), version)
    raise AssertionError  # the loop always ends by a return or a raise


def _verify(
    version: Version,
    level: str,
    workers: int,
    storage_options: Mapping[str, str] | None,
    progress: Progress,
    *,
    use_seal: bool,
) -> VerifyResult:
    report = _Report()
    _check_listing(version, report)
    with ExitStack() as stack:
        readers: dict[str, RangeReader] = {}
        checkpoint, whole = _open_what_can_be(version, storage_options, report, stack, readers)
        _check_headers(version, checkpoint, report)
        fingerprint = None
        seal = _find_seal(version, storage_options, report) if use_seal else None
        if seal is not None and level == "deep":
            _check_chunks(seal, version, readers, report, workers, progress)
        if level != "quick":
            scan = _Scan(checkpoint, version, report, workers, progress)
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
    storage_options: Mapping[str, str] | None = None,
    progress: Progress = SILENT,
) -> None:
    """Record what the bytes of a version are, in the place of an older record; the caller has verified it and locks.

    `fingerprint` is what that found. Raises LockedError when a shard has changed since then.
    """
    with open_checkpoint(version, storage_options=storage_options) as checkpoint:
        workers = default_workers(remote=not is_local(version.location)) if workers is None else workers
        seal = make_seal(checkpoint, fingerprint, workers=workers, progress=progress)
        checkpoint.check_unchanged()
    now = list_versions(version.location, storage_options=storage_options).versions
    if all(v.path != version.path or v.shards != version.shards for v in now):
        raise LockedError("the version changed while it was sealed; somebody is writing it", path=version.path)
    open_store(version.location, storage_options).write_small(seal_file(version.version), seal_bytes(seal))


def _find_seal(version: Version, storage_options: Mapping[str, str] | None, report: _Report) -> Seal | None:
    """Return the version's seal, with a finding for each shard that is not of the size that was sealed."""
    try:
        seal = read_seal(open_store(version.location, storage_options), version.version)
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
    progress: Progress,
) -> None:
    """Compare every byte with what was sealed; a finding names shard, chunk, offset and what it lies in."""
    shards = {file_name(shard.path): shard for shard in version.shards}
    progress.start("comparing with the seal", version.size_bytes)
    for name, chunk in check_chunks(seal, readers, workers=workers, progress=progress):
        what = f"{chunk.kind} {chunk.name!r}" if chunk.kind else "the header"
        report.add(
            "checksum-mismatch",
            f"chunk {chunk.number} of {what}, bytes {chunk.start} to {chunk.end}, is not what was sealed",
            shard=shards[name],
            subject=chunk.name,
            offset=chunk.start,
        )


def _check_listing(version: Version, report: _Report) -> None:
    """Find what the names alone show."""
    for name in version.extra:
        report.add("extra-file", f"{name!r} is no shard of this version", path=version.path, subject=name)
    if version.state is State.MIXED:
        counts: dict[int, set[int]] = {}
        for shard in version.shards:
            counts.setdefault(shard.ps_num, set()).add(shard.ps_id)
        parts = [f"{len(ids)} of {n}" for n, ids in sorted(counts.items())]
        whole = [n for n, ids in counts.items() if len(ids) == n]
        extra = f"; the set of {whole[0]} is whole" if len(whole) == 1 else ""
        report.add("mixed-ps-num", f"shards of several ps_num: {', '.join(parts)}{extra}", path=version.path)
        return
    if version.ps_num is None:
        report.add("missing-shard", "no shard at all", path=version.path)
    writing = " (touched a moment ago: a job may be writing it)" if version.state is State.WRITING else ""
    for ps_id in version.missing:
        report.add(
            "missing-shard", f"shard {ps_id} of {version.ps_num} is not there{writing}", path=version.path,
            subject=version.layout.shard_file(ps_id, version.ps_num or 0),
        )  # fmt: skip


def _open_what_can_be(
    version: Version,
    storage_options: Mapping[str, str] | None,
    report: _Report,
    stack: ExitStack,
    opened: dict[str, RangeReader],
) -> tuple[Checkpoint, bool]:
    """Open every shard that can be indexed, with a finding for each that cannot; return whether all could.

    `opened` gets all that could be opened, by file name, whether or not they could be indexed.
    """
    store = open_store(version.location, storage_options)
    readers: dict[int, RangeReader] = {}
    drafts: list[Draft] = []
    for file in _one_set(version):
        try:
            reader = store.open(file.path)
            stack.callback(reader.close)
            opened[file_name(file.path)] = reader
            drafts.append(draft_shard(file, Cursor(reader)))
            readers[file.ps_id] = reader
        except CorruptError as error:
            report.add_error(error, file)
        except NotFoundError as error:
            report.add("missing-shard", f"cannot be opened: {error.message}", shard=file)
    shards: list[ShardIndex] = []
    while drafts:
        try:
            shards = index_shards([_fresh(d) for d in drafts])
            break
        except CorruptError as error:
            bad = next((d for d in drafts if d.file.path == error.path), drafts[0])
            report.add_error(error, bad.file)
            drafts.remove(bad)
    checkpoint = Checkpoint(version, shards, readers)
    return checkpoint, len(shards) == version.ps_num


def _one_set(version: Version) -> Sequence[ShardFile]:
    """Return the shards to look into: of a mixed directory, those of the largest whole set, else of any."""
    if version.state is not State.MIXED:
        return version.shards
    sets: dict[tuple[int, str], list[ShardFile]] = {}
    for shard in version.shards:
        sets.setdefault((shard.ps_num, shard.path.rpartition(".")[2]), []).append(shard)
    return max(sets.values(), key=lambda s: (len(s) == s[0].ps_num, s[0].ps_num))


def _fresh(draft: Draft) -> Draft:
    """Return a draft as it was before it was filled, to be indexed with fewer companions."""
    return Draft(
        draft.file,
        draft.cursor,
        fields=draft.fields,
        candidates=draft.candidates,
        version=draft.version,
        unknown=[u for u in draft.unknown if u[0] > 5],
    )


def _check_headers(version: Version, checkpoint: Checkpoint, report: _Report) -> None:
    """Find what headers show: contradictions, placement of variables, sizes, generation, unknown fields."""
    for shard in checkpoint.shards:
        for problem in shard.problems:
            report.add_problem(shard, problem)
        for number, offset in _first_of_each(shard.unknown_fields):
            report.add(
                "unknown-field", f"field {number}: no reader knows it, and a restore does not keep it",
                shard=shard.file, subject=str(number), offset=offset,
            )  # fmt: skip
        if shard.file.size_bytes > LARGE_SHARD_BYTES:
            report.add(
                "over-2gib",
                f"{shard.file.size_bytes} bytes: Python's protobuf cannot parse it",
                shard=shard.file,
            )
        for kind, entry in _odd_dtypes(shard):
            report.add(
                "unsupported-dtype", f"{kind} is {entry.dtype.name if entry.dtype else ''}, which today's ElasticDL"
                " does not read", shard=shard.file, subject=entry.name, offset=entry.offset, warning=True,
            )  # fmt: skip
        _check_placed(shard, report)
    for shard, problem in cross_check(version, checkpoint.shards):
        if problem.code != "lost-info":
            report.add_problem(shard, problem)
    generation = checkpoint.generation
    if generation and generation != "v4":
        report.add("old-generation", f"written as {generation}; today's ElasticDL reads v4", path=version.path)
    if version.ps_num and placement.crowded_shards(version.ps_num) < version.ps_num:
        usable = placement.crowded_shards(version.ps_num)
        message = f"with {version.ps_num} servers only {usable} can hold dense variables"
        report.add("dense-skew", message, path=version.path)


def _first_of_each(fields: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    first: dict[int, int] = {}
    for number, offset in fields:
        first.setdefault(number, offset)
    return sorted(first.items())


def _odd_dtypes(shard: ShardIndex) -> Iterator[tuple[str, DenseEntry | TableEntry]]:
    """Yield what only a v4 shard should not hold: older ElasticDL had float16."""
    if shard.generation == "v4":
        yield from (("variable", v) for v in shard.variables if not v.dtype.elasticdl)
        yield from (("table", t) for t in shard.tables if t.dtype and not t.dtype.elasticdl)


def _check_placed(shard: ShardIndex, report: _Report) -> None:
    for variable in shard.variables:
        owner = placement.variable_owner(variable.name, shard.file.ps_num)
        if owner != shard.file.ps_id:
            report.add(
                "misplaced-variable", f"belongs to shard {owner}", shard=shard.file, subject=variable.name,
                offset=variable.offset,
            )  # fmt: skip


@dataclass(slots=True)
class _TableTally:
    """What the ids of one table in one shard showed."""

    misplaced: int = 0
    negative: int = 0
    examples: list[int] = field(default_factory=list)
    negative_examples: list[int] = field(default_factory=list)


class _Scan:
    """The checks that read ids and values, over all shards with several workers."""

    def __init__(
        self, checkpoint: Checkpoint, version: Version, report: _Report, workers: int, progress: Progress
    ) -> None:
        self.checkpoint = checkpoint
        self.version = version
        self.report = report
        self.workers = workers
        self.progress = progress
        self.pieces: list[IdPiece] = []

    def check_ids(self) -> bool:
        """Check placement, duplicates and counts of all ids; return whether ids and rows match everywhere."""
        sound = True
        pieces: list[IdPiece] = []
        entries_of_all = [t for s in self.checkpoint.shards for t in s.tables]
        self.progress.start("checking ids", sum(run.end - run.start for t in entries_of_all for run in t.ids))
        for entries in self._units():
            try:
                pieces += self._check_unit(entries)
            except CorruptError as error:
                sound = False
                shard = next((s for s, _ in entries if s.file.path == error.path), entries[0][0])
                self.report.add(
                    error.code,
                    error.message,
                    shard=shard.file,
                    subject=entries[0][1].name,
                    offset=error.offset,
                )
        self.pieces = pieces
        return sound

    def _units(self) -> Iterator[list[tuple[ShardIndex, TableEntry]]]:
        """Yield each table's entry in each shard alone, so that a fault in one leaves the others checked."""
        for name in self.checkpoint.table_names:
            for shard, entry in self.checkpoint.entries(name):
                yield [(shard, entry)]

    def _check_unit(self, entries: list[tuple[ShardIndex, TableEntry]]) -> list[IdPiece]:
        """Check the ids of one table in one shard and return its pieces, numbered."""
        (shard, entry), *_ = entries
        view = Checkpoint(self.version, [_only(shard, entry)], {shard.file.ps_id: self.checkpoint.reader(shard)})
        pieces = list(id_pieces(view))
        keep = entry.rows <= _SORTED_AT_ONCE
        tally = _TableTally()

        def look(piece: IdPiece) -> tuple[int, bulk.I64 | None, bool]:
            ids = read_piece(view, piece).ids
            self._tally(shard, tally, ids)
            self.progress.advance(piece.end - piece.start)
            ascending = len(ids) < 2 or bool((ids[1:] > ids[:-1]).all())
            return len(ids), ids if keep else ids[[0, -1]] if len(ids) else ids, ascending

        seen = list(run_parallel(look, pieces, self.workers))
        self._report_tally(shard, entry, tally)
        numbered = number_rows(view, pieces, [rows for rows, _, _ in seen])
        edges = [ids for _, ids, _ in seen if ids is not None and len(ids)]
        rising = all(up for _, _, up in seen) and all(a[-1] < b[0] for a, b in pairwise(edges))
        if not rising:
            found = _duplicates(edges) if keep else self._duplicates_in_turns(view, numbered, entry.rows)
            self._report_duplicates(shard, entry, found)
        return [IdPiece(shard, entry, p.run, p.start, p.end, p.first_row, p.rows) for p in numbered]

    def _tally(self, shard: ShardIndex, tally: _TableTally, ids: bulk.I64) -> None:
        wrong = np.flatnonzero(bulk.owners(ids, shard.file.ps_num) != shard.file.ps_id)
        negative = np.flatnonzero(ids < 0)
        if len(wrong) or len(negative):
            with self.report.lock:
                tally.misplaced += len(wrong)
                tally.negative += len(negative)
                tally.examples += ids[wrong[:_NAMED]].tolist()
                tally.negative_examples += ids[negative[:_NAMED]].tolist()

    def _report_tally(self, shard: ShardIndex, entry: TableEntry, tally: _TableTally) -> None:
        n = shard.file.ps_num
        if tally.misplaced:
            named = ", ".join(f"{i} (of shard {i % n})" for i in sorted(tally.examples)[:_NAMED])
            message = f"{tally.misplaced} rows belong to other shards: {named}"
            self.report.add("misplaced-row", message, shard=shard.file, subject=entry.name, offset=entry.offset)
        if tally.negative:
            named = ", ".join(map(str, sorted(tally.negative_examples)[:_NAMED]))
            message = f"{tally.negative} negative ids: {named}"
            self.report.add("negative-id", message, shard=shard.file, subject=entry.name, offset=entry.offset)

    def _duplicates_in_turns(self, view: Checkpoint, pieces: list[IdPiece], rows: int) -> tuple[int, list[int]]:
        """Find duplicates among more ids than are sorted at once: each turn takes those of one hash."""
        bits = (-(-rows // _SORTED_AT_ONCE) - 1).bit_length()
        turns, shift = 1 << bits, np.uint64(64 - bits)
        total, named = 0, list[int]()
        for turn in range(turns):

            def mine(piece: IdPiece, turn: int = turn) -> bulk.I64:
                ids = read_piece(view, piece).ids
                mixed: bulk.U64 = (ids.view(np.uint64) * np.uint64(bulk.CHUNK_STEP)) >> shift
                held: bulk.I64 = ids[mixed == turn]
                return held

            count, some = _duplicates(list(run_parallel(mine, pieces, self.workers)))
            total += count
            named += some
        return total, sorted(named)[:_NAMED]

    def _report_duplicates(self, shard: ShardIndex, entry: TableEntry, found: tuple[int, list[int]]) -> None:
        count, named = found
        if count:
            message = f"{count} rows repeat an id: {', '.join(map(str, named))}; which one is restored is chance"
            self.report.add("duplicate-id", message, shard=shard.file, subject=entry.name, offset=entry.offset)

    def check_values(self, *, certain: bool) -> str | None:
        """Read every value: find NaN, infinite and huge ones, and return the fingerprint of content that is certain.

        Shards that contradict each other have none: their rows, of one name and two sizes, do not even add up.
        """
        checkpoint, sketch = self.checkpoint, ContentSketch()
        odd: dict[tuple[int, str, str], npt.NDArray[np.int64]] = {}
        sizes = [v.size_bytes for s in checkpoint.shards for v in s.variables]
        sizes += [t.values.size_bytes for s in checkpoint.shards for t in s.tables]
        self.progress.start("checking values", sum(sizes))

        def look(piece: IdPiece | DensePiece) -> None:
            key = (
                piece.shard.file.ps_id,
                "variable" if isinstance(piece, DensePiece) else "table",
                piece.entry.name,
            )
            counts = np.zeros(3, np.int64)
            if isinstance(piece, DensePiece):
                data = read_dense(checkpoint, piece)
                if certain:
                    sketch.add_dense(piece.entry.name, piece.entry.size_bytes, piece.start, data)
                counts += odd_values(data, piece.entry.dtype)
                self.progress.advance(piece.size)
            else:
                ids = read_piece(checkpoint, piece).ids
                for some, rows in row_batches(checkpoint, piece, len(ids), VALUE_BATCH_BYTES):
                    if certain:
                        sketch.add_rows(piece.entry.name, ids[some], rows)
                    counts += odd_values(rows.reshape(-1), piece.entry.dtype)
                    self.progress.advance(rows.nbytes)
            if counts.any():
                with self.report.lock:
                    odd[key] = odd.get(key, np.zeros(3, np.int64)) + counts

        tasks: list[IdPiece | DensePiece] = [*dense_pieces(checkpoint), *self.pieces]
        for _ in run_parallel(look, tasks, self.workers):
            pass
        self._report_odd(odd)
        if not certain:
            return None
        try:
            return fingerprint_of(checkpoint, sketch).text
        except (KeyError, EdlCkptError):
            return None

    def _report_odd(self, odd: Mapping[tuple[int, str, str], npt.NDArray[np.int64]]) -> None:
        for (ps_id, kind, name), counts in sorted(odd.items()):
            shard = next(s for s in self.checkpoint.shards if s.file.ps_id == ps_id)
            held: tuple[DenseEntry | TableEntry, ...] = shard.variables if kind == "variable" else shard.tables
            entry = next(e for e in held if e.name == name)
            for code, count in zip(("nan", "inf", "huge-value"), counts.tolist(), strict=True):
                if count:
                    what = {"nan": "NaN", "inf": "infinite", "huge-value": f"of 2**{HUGE_EXPONENT} or more"}[code]
                    message = f"{count} of the {kind}'s values in this shard are {what}"
                    self.report.add(code, message, shard=shard.file, subject=name, offset=entry.values.start)


def _only(shard: ShardIndex, entry: TableEntry) -> ShardIndex:
    """Return the index of a shard as if it held one table only."""
    return ShardIndex(shard.file, shard.version, shard.generation, (), (), (entry,))


def _duplicates(parts: Sequence[bulk.I64]) -> tuple[int, list[int]]:
    """Return (how many ids repeat another, some of them)."""
    ids = np.sort(np.concatenate(parts)) if parts else np.zeros(0, np.int64)
    again = np.flatnonzero(ids[1:] == ids[:-1])
    return len(again), np.unique(ids[again])[:_NAMED].tolist()


_FLOATS: Final = {  # name: (unsigned view, mask of the magnitude, least huge, infinity)
    "float16": ("<u2", 0x7FFF, 0x7C00, 0x7C00),
    "bfloat16": ("<u2", 0x7FFF, (127 + HUGE_EXPONENT) << 7, 0x7F80),
    "float32": ("<u4", 0x7FFFFFFF, (127 + HUGE_EXPONENT) << 23, 0x7F800000),
    "float64": ("<u8", 0x7FFFFFFFFFFFFFFF, (1023 + HUGE_EXPONENT) << 52, 0x7FF0000000000000),
}


def odd_values(data: bulk.U8, dtype: DType | None) -> npt.NDArray[np.int64]:
    """Return how many elements are NaN, infinite and huge: int64 [3]; none of an integer type is.

    >>> from edl_ckpt.core.model import DTYPES
    >>> odd_values(np.array([1, np.nan, -np.inf, 2.0**101], "<f4").view(np.uint8), DTYPES["float32"]).tolist()
    [1, 1, 1]
    """
    counts = np.zeros(3, np.int64)
    if dtype is None or dtype.name not in _FLOATS or not len(data):
        return counts
    view, mask, huge, infinity = _FLOATS[dtype.name]
    magnitude = data.view(view) & mask
    if int(magnitude.max()) < huge:
        return counts
    counts[0] = np.count_nonzero(magnitude > infinity)
    counts[1] = np.count_nonzero(magnitude == infinity)
    counts[2] = np.count_nonzero((magnitude >= huge) & (magnitude < infinity))
    return counts
