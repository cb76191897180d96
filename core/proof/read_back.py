"""The proof of a written version: every byte of it is read back, and must be what was meant.

What stands besides values and ids must be that of the layout, byte by byte. Values and ids must have the fingerprint of
their source, and each id must be in its shard: a fingerprint is the same for any placement. Shards are proved some at a
time, so that memory does not depend on how many there are.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Final, NamedTuple

from edl_ckpt.core.base.errors import CorruptError, EdlCkptError
from edl_ckpt.core.base.job import Job
from edl_ckpt.core.base.packing import together
from edl_ckpt.core.base.parallel import run_all
from edl_ckpt.core.base.words import base_name
from edl_ckpt.core.model.versions import Seal, SealedShard, ShardFile, Version, now_text
from edl_ckpt.core.proof.fingerprint import ContentSketch, Fingerprint, Forms
from edl_ckpt.core.proof.sealing import cut
from edl_ckpt.core.proof.values import Marks, ValueOptions, read_back
from edl_ckpt.core.reading.reader import (
    Checkpoint,
    openings,
    raise_problems,
)
from edl_ckpt.core.sources.elasticdl.target import VersionLayout, planned_shards
from edl_ckpt.core.storage.interface import RangeReader, Store

MOST_ENTRIES: Final = 8192
"""Variables and tables, counted in each shard, whose index and checksums are in memory at a time."""
_CLUSTER_TIMES: Final = 8
"""So many times as many where other processes read: all of them wait for the last task of the shards before."""


class ProvedVersion(NamedTuple):
    """A version that was read back: its seal, and the fingerprint with those of its parts."""

    seal: Seal
    fingerprint: Fingerprint


def prove_version(
    store: Store,
    written: Version,
    layouts: VersionLayout,
    source: Fingerprint | ContentSketch,
    job: Job,
    *,
    options: ValueOptions,
    marks: Marks | None = None,
) -> ProvedVersion:
    """Read back a written version and return its seal and fingerprint; EdlCkptError when it is not what was meant.

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
                sealed.append(SealedShard(base_name(shard.file.path), shard.file.size_bytes, chunks))
    except CorruptError as error:
        raise _differs(error.message, error.path or written.path, error.offset) from error
    read = forms.fingerprint(sketch)
    expected = forms.fingerprint(source) if isinstance(source, ContentSketch) else source
    if read.text != expected.text:
        raise _differs(", ".join(map(repr, read.differing(expected)[:5])), written.path)
    return ProvedVersion(Seal(written.version, read.text, tuple(sealed), now_text()), read)


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
