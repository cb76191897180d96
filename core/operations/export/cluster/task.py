"""A task of an export on a cluster: it writes one whole file, reads it back, and returns the sums of what it read."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, NamedTuple, TypeAlias

import numpy as np
import xxhash

from edl_ckpt.core.base.parallel import Advance
from edl_ckpt.core.base.progress import Counted
from edl_ckpt.core.commit.sent_parts import Sending
from edl_ckpt.core.operations.export.cluster.files import PartFile, Span
from edl_ckpt.core.operations.export.content.forms import ContentForms
from edl_ckpt.core.operations.export.content.reader import ContentReader
from edl_ckpt.core.operations.export.content.tables import LookedAt, Name, TableIds
from edl_ckpt.core.operations.export.interface import ContentCounts, ExportContent, Selection
from edl_ckpt.core.operations.export.output.places import OutputFile
from edl_ckpt.core.operations.export.output.shared import NewPart, WrittenFile
from edl_ckpt.core.proof.fingerprint import ContentSketch
from edl_ckpt.core.reading.blocks import read_piece
from edl_ckpt.core.reading.picklable import CheckpointValue
from edl_ckpt.core.reading.reader import Checkpoint
from edl_ckpt.core.sorting.partition import PART_BYTES, parts_needed, sample_step

WritePart: TypeAlias = Callable[[ExportContent, str, Callable[[str, int], OutputFile]], None]
"""Writes some content to one new file; a function of a module, by whose name other processes know it."""
_SENT_BYTES: Final = 32 << 20
"""Memory for the parts of uploads that a process sends at a time."""


class PartDone(NamedTuple):
    """What a task has done: its file, the sums that it returns, and digests of the sums of all else in the file."""

    written: WrittenFile
    sums: ContentSketch
    digests: tuple[bytes, ...]
    overflowed: int


@dataclass(frozen=True, slots=True, eq=False)
class PartWork:
    """Writing the files of an export; a task is one of them, and where it is written."""

    source: CheckpointValue
    selection: Selection
    metadata: dict[str, str]
    counts: ContentCounts
    """Those of the whole export."""
    looked: LookedAt
    write: WritePart

    def open(self) -> Sending[Checkpoint]:
        """Open the checkpoint in another process."""
        return Sending(self.source.open(), _SENT_BYTES)

    def do(self, opened: Sending[Checkpoint], task: tuple[PartFile, NewPart], advance: Advance) -> PartDone:
        """Write a file."""
        (file, part), checkpoint = task, opened.source
        ids = {span.table: self._ids(checkpoint, span) for span in file.spans}
        forms = ContentForms(checkpoint, self.selection, ids)
        reader = ContentReader(forms, self.metadata, tempfile.gettempdir(), reporter=Counted(advance))
        with part.place() as path:
            content = reader.content(file.variables, list(ids))
            new_file = partial(OutputFile, durable=not part.is_temporary)
            self.write(replace(content, counts=self.counts), path, new_file)
            written = part.deliver(path, opened.memory)
        digests = tuple(digest_of(reader.source, name) for name in file.unsummed())
        return PartDone(written, _only(reader.source, file.summed), digests, reader.casting.overflowed)

    def _ids(self, checkpoint: Checkpoint, span: Span) -> TableIds:
        """Return the ids of a span, counted, with a sample of them if they are sorted in parts."""
        pieces = [at.piece(checkpoint) for at in self.looked.places[span.table][span.first : span.last]]
        rows, width = sum(piece.rows for piece in pieces), 8 + max((p.entry.row_bytes for p in pieces), default=0)
        step = sample_step(rows // span.total, parts_needed(rows // span.total * width, PART_BYTES))
        if not span.is_range and not step:
            return TableIds(span.title, pieces, rows, np.empty(0, np.int64))
        count, samples = 0, [np.empty(0, np.int64)]
        for piece in pieces:
            ids = read_piece(checkpoint, piece).ids
            ids = ids[span.has(ids)]
            count += len(ids)
            samples.append(ids[::step].copy() if step else ids[:0])
        return TableIds(span.title, pieces, count, np.concatenate(samples), span.has if span.is_range else None)


def digest_of(sums: ContentSketch, name: Name) -> bytes:
    """Return a digest of the sums of a variable or a table; b"" for a table without rows."""
    whole = None if name[1] else sums.whole.get(name[0])
    if whole is not None:
        return xxhash.xxh3_128(whole).digest()
    found = (sums.tables if name[1] else sums.variables).get(name[0])
    return b"" if found is None else xxhash.xxh3_128(found.tobytes()).digest()


def _only(sums: ContentSketch, names: frozenset[Name]) -> ContentSketch:
    """Return the sums of some variables and tables."""
    kept = ContentSketch(tables={name: own for name, own in sums.tables.items() if (name, True) in names})
    kept.take_variables(sums, {name for name, is_table in names if not is_table})
    return kept
