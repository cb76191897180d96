"""Tasks of an export that encodes tables: spans are encoded into files of their own, then copied to their places."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import xxhash

from edl_ckpt.core.checkpoint.blocks import as_dtype
from edl_ckpt.core.checkpoint.elsewhere import CheckpointValue
from edl_ckpt.core.checkpoint.fingerprint import ContentSketch
from edl_ckpt.core.checkpoint.reader import Checkpoint
from edl_ckpt.core.commit.writers import StagedTargets
from edl_ckpt.core.format import bulk
from edl_ckpt.core.ids import kernel_id
from edl_ckpt.core.operations.export.interface import EncodedPart, EncodedRows, Encoder, batch_rows
from edl_ckpt.core.operations.export.places import compare_rows, reads_back_differently
from edl_ckpt.core.operations.export.runs import Found, NothingOpened
from edl_ckpt.core.operations.export.spans import Span, Tables
from edl_ckpt.core.parallel import Advance
from edl_ckpt.core.storage.faults import storage_errors
from edl_ckpt.core.storage.files import PreallocatedFile

_COPY_BYTES: Final = 4 << 20


@dataclass(frozen=True, slots=True, eq=False)
class EncodeWork:
    """Encoding tables; a task is some spans, each of whole batches or up to the end of its table.

    Every attempt writes a file of its own in `directory`: what two machines encode may differ, if only by a library.
    """

    source: CheckpointValue
    tables: Tables
    encoder: Encoder
    directory: str
    kernel: str

    def open(self) -> Checkpoint:
        """Open the checkpoint in another process, if that encodes as this one would."""
        self.encoder.check()
        return self.source.open()

    def do(self, opened: Checkpoint, task: tuple[Span, ...], advance: Advance) -> tuple[Found, list[EncodedPart]]:
        """Encode the spans of a task; what is found is that of `encoded_span`."""
        found, parts = Found(), []
        for span in task:
            parts.append(self._write(encoded_span(opened, self.tables, self.encoder, span, found)))
            advance((span.last - span.first) * (8 + self.tables.forms[span.table].width))
        return found, parts

    def _write(self, encoded: Iterator[EncodedRows]) -> EncodedPart:
        path = os.path.join(self.directory, f"encoded-{uuid.uuid4().hex}")
        batches, total = [], xxhash.xxh3_128()
        with storage_errors(path), open(path, "xb", buffering=0) as file:
            for each in encoded:
                total.update(each.data)
                file.writelines(each.data[at : at + _COPY_BYTES] for at in range(0, len(each.data), _COPY_BYTES))
                batches.append((each.rows, len(each.data), each.note))
            if self.kernel != kernel_id():
                os.fsync(file.fileno())
        return EncodedPart(path, tuple(batches), total.hexdigest())


def encoded_span(
    opened: Checkpoint, tables: Tables, encoder: Encoder, span: Span, found: Found, weight: Any = None
) -> Iterator[EncodedRows]:
    """Yield the batches of a span, encoded; add its sums to `found` at the end, and what it contains to a digest.

    What was encoded of runs is found as `written`, to be compared with what the runs were made from. What was read of
    the checkpoint is compared here.
    """
    form, read, sketch = tables.forms[span.table], Found(), ContentSketch()
    ids, rows, order = tables.rows(opened, span, read)
    step = batch_rows(form.dim)
    for start in range(0, len(ids), step):
        some = slice(start, start + step)
        values = rows[some]
        if order is not None and form.width:
            values = bulk.take_rows(rows, order[some])
        sketch.add_rows(form.name, ids[some], values)
        if weight is not None:
            weight.update(ids[some].data)
            weight.update(values.reshape(-1).data)
        vectors = as_dtype(values.reshape(-1), form.target).reshape(len(values), form.dim)
        yield encoder.encode(form.name, ids[some], vectors)
    if span.pieces:
        compare_rows(form.name, read.written if form.is_cast else read.source, sketch)
        found.source.add(read.source)
        found.overflowed += read.overflowed
    else:
        found.written.add(sketch)


class Placed(NamedTuple):
    """A part, and the number of the file and the offset where it belongs."""

    file: int
    offset: int
    part: EncodedPart


@dataclass(frozen=True, slots=True)
class PlaceWork:
    """Copying parts to their places; a task is one of them."""

    targets: StagedTargets

    def open(self) -> NothingOpened:
        """Open nothing."""
        return NothingOpened()

    def do(self, opened: NothingOpened, task: Placed, advance: Advance) -> None:  # noqa: ARG002
        """Copy a part."""
        with self.targets.opened([task.file]) as files:
            for at, data in _pieces(task.part.path, 0, task.part.size_bytes):
                files[task.file].write(task.offset + at, data.data)
                advance(len(data))


@dataclass(frozen=True, slots=True)
class PlacedWork:
    """Reading parts back in their places; a task is one of them."""

    paths: Sequence[str]

    def open(self) -> NothingOpened:
        """Open nothing: each task opens its file anew, and sees what other machines wrote."""
        return NothingOpened()

    def do(self, opened: NothingOpened, task: Placed, advance: Advance) -> None:  # noqa: ARG002
        """Compare a part with its checksum."""
        total, path = xxhash.xxh3_128(), self.paths[task.file]
        for _, data in _pieces(path, task.offset, task.part.size_bytes):
            total.update(data.data)
            advance(len(data))
        if total.hexdigest() != task.part.checksum:
            raise reads_back_differently(os.path.basename(path), path)


def _pieces(path: str, offset: int, size_bytes: int) -> Iterator[tuple[int, bulk.U8]]:
    """Yield (bytes before these, bytes) of a file from an offset on, in memory that the next ones take."""
    buffer = np.empty(min(_COPY_BYTES, size_bytes), np.uint8)
    file = PreallocatedFile(path, None)
    try:
        for at in range(0, size_bytes, _COPY_BYTES):
            some = buffer[: min(_COPY_BYTES, size_bytes - at)]
            file.read_into(offset + at, some.data)
            yield at, some
    finally:
        file.close()
