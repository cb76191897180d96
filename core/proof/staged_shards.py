"""Written shards of ElasticDL as the proof opens them: by the layout by which they were written, some at a time.

What stands besides values and ids must be that of the layout, byte by byte. Values and ids must have the fingerprint of
their source, and each id must be in its shard: a fingerprint is the same for any placement.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Final

from edl_ckpt.core.base.errors import CorruptError
from edl_ckpt.core.base.job import Job
from edl_ckpt.core.base.packing import together
from edl_ckpt.core.base.parallel import run_all
from edl_ckpt.core.model.versions import ShardFile, Version
from edl_ckpt.core.proof.fingerprint import ContentSketch, Fingerprint, Forms
from edl_ckpt.core.proof.proving import OpenedPart, Staged
from edl_ckpt.core.proof.values import Marks, ValueOptions
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


class StagedShards(Staged):
    """Written shards."""

    def __init__(
        self,
        store: Store,
        written: Version,
        layouts: VersionLayout,
        source: Fingerprint | ContentSketch,
        *,
        options: ValueOptions,
        marks: Marks | None = None,
    ) -> None:
        """Take shards in a store, and the `layouts` by which they were written.

        `source` is the fingerprint of the source, or the sketch of its values when the source is not a checkpoint.
        """
        super().__init__()
        self.version, self.options, self.marks = written, replace(options, placed=True), marks
        self._store, self._layouts, self._source = store, layouts, source

    @property
    def value_bytes(self) -> int:
        """Return the bytes of all values by the layout."""
        return self._layouts.value_bytes

    def parts(self, job: Job) -> Iterator[OpenedPart]:
        """Open as many shards at a time as have few variables and tables."""
        written, layouts = self.version, self._layouts
        most = MOST_ENTRIES * (_CLUSTER_TIMES if job.executor.is_cluster else 1)
        for numbers in together(enumerate(layouts.entries.tolist()), most):
            files = [written.shards[number] for number in numbers]
            literals = {file.path: layouts.literals(number) for file, number in zip(files, numbers, strict=True)}
            shards = planned_shards(files, list(literals.values()), written.version)
            raise_problems(written, shards)
            with Checkpoint(written, shards, _open(self._store, files), self._store) as checkpoint:
                yield OpenedPart(checkpoint, literals)

    def differing(self, found: Fingerprint, forms: Forms, sketch: ContentSketch) -> Sequence[str]:
        """Return the variables and tables whose parts of the fingerprint are not those of the source."""
        del sketch
        source = self._source
        expected = forms.fingerprint(source) if isinstance(source, ContentSketch) else source
        return () if found.text == expected.text else found.differing(expected) or ["all values"]


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
