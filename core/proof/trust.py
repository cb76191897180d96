"""Whether a version can be relied on: its seal is absent, or it can be read and matches the files.

Every operation that makes something from a version, or replaces its seal, asks here first. Otherwise damage would get a
new seal, and would look right from then on; so would a mixture of two runs of a job. `force` goes on all the same. The
new seal then records who decided that, when and why.

The seal of a version from the notes of the servers that saved its shards: headers are read, and no value.

The sums behind the fingerprint add up, and each server knows the checksums of its own shard. So the last server to
arrive needs none of the bytes that the others wrote. The seal says what they handed to the storage, not what a reader
finds there: a deep `verify` compares the two.

The proof of a written version: every byte of it is read back, and must be what was meant.

What stands besides values and ids must be that of the layout, byte by byte. Values and ids must have the fingerprint of
their source, and each id must be in its shard: a fingerprint is the same for any placement. Shards are proved some at a
time, so that memory does not depend on how many there are.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from edl_ckpt.core.base.errors import CorruptError, EdlCkptError, UnavailableError, UnsupportedError
from edl_ckpt.core.base.ids import user_name
from edl_ckpt.core.base.job import Job
from edl_ckpt.core.base.packing import together
from edl_ckpt.core.base.parallel import run_all
from edl_ckpt.core.base.progress import WARNINGS, Reporter
from edl_ckpt.core.base.words import base_name, command
from edl_ckpt.core.kernel import bulk
from edl_ckpt.core.model.versions import (
    Override,
    PackedChunks,
    Seal,
    SealedShard,
    ShardFile,
    Version,
    describe_change,
    now_text,
)
from edl_ckpt.core.proof.fingerprint import ContentSketch, Fingerprint, Forms, agrees, fingerprint_of
from edl_ckpt.core.proof.sealing import cut
from edl_ckpt.core.proof.values import Marks, ValueOptions, read_back
from edl_ckpt.core.reading.reader import (
    Checkpoint,
    check_not_replaced,
    open_checkpoint,
    openings,
    problem_error,
    raise_problems,
)
from edl_ckpt.core.sources.elasticdl.target import VersionLayout, planned_shards
from edl_ckpt.core.sources.registry import source_of
from edl_ckpt.core.state.seal import read_seal
from edl_ckpt.core.state.shard_note import (
    NoteName,
    ShardNote,
    are_mixed,
    find_notes,
    has_newer_note,
    mixture,
    named_shards,
    read_note,
)
from edl_ckpt.core.storage import open_store
from edl_ckpt.core.storage.interface import RangeReader, Store

_OF_FILES: Final = "take the file from another copy; if you know that its values are right: --force"


@dataclass(slots=True)
class Trust:
    """What is known of a version's seal; `forced` says what `force` had to overrule, None for nothing so far."""

    version: Version | None
    """None for a source that is no version: arrays in files, `source` says which."""
    seal: Seal | None
    """The seal that matches the names and sizes of the files; None without one, and when it was overruled."""
    force: bool
    forced: str | None = None
    history: tuple[Override, ...] = ()
    reporter: Reporter = WARNINGS
    source: str = ""

    def overrule(self, error: EdlCkptError) -> None:
        """Note why the version does not match its seal, or raise the error without `force`."""
        if not self.force:
            raise error
        if not self.forced:
            self.forced = error.message
            ref = self.source if self.version is None else self.version.ref
            self.reporter.warn(f"{ref}: going on because of the option: {error.message}")

    def doubt(self, fault: str, code: str, *, path: str = "", offset: int | None = None) -> None:
        """Overrule a fault of the version, or of the file at a path; CorruptError without `force`."""
        whole, advice = (self.source, _OF_FILES) if self.version is None else (self.version.path, hint(self.version))
        self.overrule(CorruptError(fault, code=code, path=path or whole, offset=offset, hint=advice))

    def confirm(self, fingerprint: str) -> None:
        """Compare the fingerprint of the values that were read with the seal; CorruptError when it is another one."""
        if self.seal is not None and not agrees(self.seal.fingerprint, fingerprint):
            self.doubt("the values do not have the fingerprint in the version's seal", "fingerprint-mismatch")

    def sign(self, seal: Seal, command: str) -> Seal:
        """Return a new seal of the version's content, with the decisions that led to it."""
        if not self.forced:
            return replace(seal, history=self.history)
        return replace(seal, history=(*self.history, Override(now_text(), user_name(), command, self.forced)))


def check_trust(version: Version, *, force: bool = False, reporter: Reporter = WARNINGS) -> Trust:
    """Return what is known of a version's seal.

    Raises CorruptError for a seal that is damaged or does not match names and sizes, and for shards of two runs without
    a seal, UnsupportedError for a version whose metadata, seal or notes a newer edl-ckpt wrote, and the error of
    reading the seal. `force` goes on, except when the storage does not answer and where something is newer.
    Raises ReplacedError when another command replaced the version since it was listed.
    """
    if version.fault is not None:  # what is listed of its files says nothing about the seal
        raise version.fault.error()
    if version.unread is not None and version.is_newer:
        raise version.unread.error()
    trust = Trust(version, None, force, reporter=reporter)
    if version.is_alone or version.is_named:
        return trust  # the seals next to it are of others
    try:
        store = open_store(version.location)
        seal = read_seal(store, version.version)
    except (UnavailableError, UnsupportedError):
        raise
    except EdlCkptError as error:
        error.hint = error.hint or hint(version)
        trust.overrule(error)
        return trust
    if seal is None:
        if has_newer_note(store, version.version):
            raise UnsupportedError("a newer edl-ckpt wrote the notes on its shards; upgrade", path=version.path)
        if mixed := mixture(store, version):
            trust.doubt(mixed, "mixed-runs")
        return trust
    trust.history = seal.history
    change = describe_change(seal, version)
    if not change:
        trust.seal = seal
        return trust
    check_not_replaced(version)  # or it is the seal of the next shards
    trust.doubt(f"does not match its seal: {change}", "checksum-mismatch")
    return trust


def hint(version: Version) -> str:
    """Return what a person can do about a version that does not match its seal."""
    return (
        f"see {command('verify', version.ref, '--deep')}; if a job has rewritten the version,"
        " or you know that its files are right: --force (export: --ignore-seal, or --partial for what is left)"
    )


_CONTRADICTIONS: Final = frozenset(
    {
        "version-mismatch",
        "duplicate-variable",
        "missing-table-info",
        "lost-info",
        "info-mismatch",
        "table-dtype-mismatch",
        "info-dtype-mismatch",
    }
)
"""What makes shards of several servers no checkpoint; what only ElasticDL cannot read is sealed."""


def seal_from_notes(store: Store, version: Version, *, own: tuple[NoteName, ShardNote] | None = None) -> Seal:
    """Return the seal of a complete version that servers of one run saved, each its own shard.

    `own` is the note on the shard of this process, which need not be read. The caller holds the lock of the location.
    Raises CorruptError when the shards are of several runs, contradict each other or have no notes that fit, and
    UnsupportedError when a note has no sums.
    """
    found = find_notes(store, version)
    if found.unknown:
        shards = named_shards(found.unknown, version.ps_num or 0)
        raise CorruptError(f"no note fits {shards}: saved by another program or run", path=version.path)
    if are_mixed(store, version, found):
        raise CorruptError("its shards are of several runs", code="mixed-runs", path=version.path)
    notes = {ps_id: _note(store, version, name, own) for ps_id, name in found.notes.items()}
    with open_checkpoint(version) as checkpoint:
        sketch = ContentSketch()
        for ps_id, note in sorted(notes.items()):
            _add(sketch, note, version, ps_id)
        tables = {table.name for shard in checkpoint.shards for table in shard.tables if table.rows}
        if set(checkpoint.variable_names) != sketch.variable_names() or tables != set(sketch.tables):
            raise CorruptError("the notes on its shards do not fit their content", path=version.path)
        _check_agreement(checkpoint)
        fingerprint = fingerprint_of(checkpoint, sketch).text
        checkpoint.check_unchanged()
    sealed = []
    for shard in version.shards:
        chunks = notes[shard.ps_id].chunks
        if (chunks[-1].end if chunks else 0) != shard.size_bytes:
            raise CorruptError("its note is about a file of another size", path=shard.path)
        sealed.append(SealedShard(base_name(shard.path), shard.size_bytes, chunks))
    return Seal(version.version, fingerprint, tuple(sealed), now_text(), run=next(iter(notes.values())).run)


def _note(store: Store, version: Version, name: NoteName, own: tuple[NoteName, ShardNote] | None) -> ShardNote:
    if name.mark.startswith("size_"):
        raise UnsupportedError("this storage does not tell one file from another of its size", path=version.path)
    if own is not None and own[0] == name:
        return own[1]
    note = read_note(store, version.version, name)
    if note is None:
        raise EdlCkptError("a note disappeared: another server replaces its shard", path=version.path)
    if not note.has_sums:
        raise UnsupportedError(
            f"the note on shard {name.ps_id} has no sums: they were too large, or an older edl-ckpt wrote it",
            path=version.path,
            hint=f"try: {command('verify', version.ref, '--seal')}",
        )
    return note


def _add(sketch: ContentSketch, note: ShardNote, version: Version, ps_id: int) -> None:
    """Add the sums of a note; CorruptError when they have another width than those of the other shards."""
    for sums, noted in ((sketch.variables, note.variables), (sketch.tables, note.tables)):
        for name, data in noted.items():
            columns, rest = divmod(len(data), 4 * bulk.LIMBS)
            if rest or (name in sums and sums[name].shape[1] != columns):
                raise CorruptError(f"the sums of {name!r} in shard {ps_id} do not fit the others", path=version.path)
            values: bulk.U32 = np.frombuffer(data, "<u4").astype(np.uint32, copy=False).reshape(bulk.LIMBS, columns)
            sums[name] = sums[name] + values if name in sums else values


def _check_agreement(checkpoint: Checkpoint) -> None:
    """Raise CorruptError when the shards contradict each other, so that ElasticDL would not restore them."""
    for shard, problem in source_of(checkpoint.version).check(checkpoint.version, checkpoint.shards):
        if problem.code in _CONTRADICTIONS:
            raise problem_error(checkpoint.version, shard, problem)


MOST_ENTRIES: Final = 8192
"""Variables and tables, counted in each shard, whose index and checksums are in memory at a time."""
_CLUSTER_TIMES: Final = 8
"""So many times as many where other processes read: all of them wait for the last task of the shards before."""


def prove_version(
    store: Store,
    written: Version,
    layouts: VersionLayout,
    source: Fingerprint | ContentSketch,
    job: Job,
    *,
    options: ValueOptions,
    marks: Marks | None = None,
) -> Seal:
    """Read back a written version and return its seal; EdlCkptError when it is not what was meant.

    `layouts` are those by which it was written. `source` is the fingerprint of the source, or the sketch of its values
    when the source is not a checkpoint. `marks` returns rows whose places are planned, by the names of their tables:
    other processes look for them there, and count none first.
    """
    options, sketch, forms = replace(options, placed=True), ContentSketch(), Forms()
    sealed: list[SealedShard] = []
    job.reporter.start("proving", layouts.value_bytes)
    most = MOST_ENTRIES * (_CLUSTER_TIMES if job.executor.is_cluster else 1)
    try:
        for numbers in together(enumerate(layouts.entries.tolist()), most):
            files = [written.shards[number] for number in numbers]
            literals = {file.path: layouts.literals(number) for file, number in zip(files, numbers, strict=True)}
            shards = planned_shards(files, list(literals.values()), written.version)
            raise_problems(written, shards)
            with Checkpoint(written, shards, _open(store, files), store) as checkpoint:
                sums, chunks_of = read_back(
                    checkpoint,
                    [cut(shard, checkpoint.reader(shard)) for shard in shards],
                    job,
                    options=options,
                    literals=literals,
                    total_bytes=layouts.value_bytes,
                    marks=marks,
                )
            sketch.add(sums)
            for shard, chunks in zip(shards, chunks_of, strict=True):
                forms.add(shard)
                sealed.append(SealedShard(base_name(shard.file.path), shard.file.size_bytes, PackedChunks(chunks)))
    except CorruptError as error:
        raise _differs(error.message, error.path or written.path, error.offset) from error
    read = forms.fingerprint(sketch)
    expected = forms.fingerprint(source) if isinstance(source, ContentSketch) else source
    if read.text != expected.text:
        raise _differs(", ".join(map(repr, read.differing(expected)[:5])), written.path)
    return Seal(written.version, read.text, tuple(sealed), now_text())


def _open(store: Store, files: Sequence[ShardFile]) -> dict[str, RangeReader]:
    """Open files, which must have their sizes."""
    readers: dict[str, RangeReader] = {}
    with ExitStack() as opened:

        def begin(file: ShardFile) -> None:
            readers[file.path] = reader = opened.enter_context(store.open(file.path))
            if reader.size_bytes != file.size_bytes:
                raise CorruptError(f"has {reader.size_bytes} bytes, expected {file.size_bytes}", path=file.path)

        run_all(begin, files, openings(store))
        opened.pop_all()
    return readers


def _differs(what: str, path: str, offset: int | None = None) -> EdlCkptError:
    return EdlCkptError(
        f"the written version differs from its source ({what}); nothing was published",
        path=path,
        offset=offset,
        hint="check the memory and the disk of this machine",
    )
