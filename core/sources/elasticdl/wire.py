"""The protobuf wire format as byte extents: tags are walked, payloads are skipped, no message object is made.

A message is a run of fields, each a tag varint (number << 3 | wire type) and a payload. The tags and lengths alone show
where payloads lie, so a shard of any size is indexed from a few kilobytes. The rules come from protobuf's encoding
specification; groups, which ElasticDL never wrote, are an error.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np

from edl_ckpt.core.base.errors import CorruptError
from edl_ckpt.core.base.numbers import varint
from edl_ckpt.core.base.words import counted, ends_early
from edl_ckpt.core.kernel import bulk
from edl_ckpt.core.model.tables import Encoding, IdRun
from edl_ckpt.core.storage.interface import RangeReader

VARINT: Final = 0
FIXED64: Final = 1
BYTES: Final = 2
FIXED32: Final = 5
_FIRST_WINDOW: Final = 4 << 10
_LAST_WINDOW: Final = 256 << 10
_FIRST_RUN: Final = 16 << 10
SMALL_BYTES: Final = 1 << 20
"""The size limit of a name, a shape or a table info: a claimed length alone never allocates memory."""


class Field(NamedTuple):
    """One field: its tag at `offset`, its payload [start, end), and its value when it is a varint."""

    number: int
    wire_type: int
    offset: int
    start: int
    end: int
    value: int = 0


class Cursor:
    """Reads the tags of one file through a small window, which grows while reads follow each other."""

    def __init__(self, reader: RangeReader) -> None:
        self.reader = reader
        self.path = reader.path
        self.size_bytes = reader.size_bytes
        self._base = 0
        self._window = b""
        self._step = _FIRST_WINDOW

    def _load(self, offset: int) -> None:
        """Move the window to `offset`; it grows when it continues the last one, or begins soon after it."""
        follows = self._base <= offset <= self._base + 2 * len(self._window)
        self._step = min(self._step * 2, _LAST_WINDOW) if follows and self._window else _FIRST_WINDOW
        self._base = offset
        self._window = self.reader.read(offset, min(self._step, self.size_bytes - offset))

    def window(self, offset: int) -> tuple[bytes, int]:
        """Return some bytes of the file that are in memory, with `offset` among them, and where they begin."""
        if not self._base <= offset < self._base + len(self._window):
            self._load(offset)
        return self._window, self._base

    def moves_to(self, offset: int) -> bool:
        """Move the window so that it begins at a field, which it then has whole; False where it cannot.

        It reads no more than it would read next. Raises CorruptError as `field` does.
        """
        found = self.field(offset, self.size_bytes)
        if self._base == offset or found.end - offset > min(self._step * 2, _LAST_WINDOW):
            return False
        self._load(offset)
        return True

    def varint(self, offset: int, end: int) -> tuple[int, int]:
        """Return (unsigned value, offset behind it); CorruptError when it passes `end` or has more than 64 bits."""
        value = shift = 0
        at = offset
        while True:
            if at >= end:
                raise self._past_end(bulk.CUT_SHORT, offset, end)
            if not self._base <= at < self._base + len(self._window):
                self._load(at)
            byte = self._window[at - self._base]
            at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
            shift += 7
            if shift > 63:
                raise self.corrupt(bulk.TOO_LONG, offset)
        if value >> 64:
            raise self.corrupt(bulk.TOO_WIDE, offset)
        return value, at

    def field(self, offset: int, end: int) -> Field:
        """Return the field whose tag is at `offset`, in a message that ends at `end`."""
        tag, at = self.varint(offset, end)
        number, wire_type = tag >> 3, tag & 7
        if not 0 < number < 1 << 29:
            raise self.corrupt(f"field number {number} is out of range", offset)
        if wire_type == VARINT:
            value, after = self.varint(at, end)
            return Field(number, wire_type, offset, at, after, value)
        if wire_type == BYTES:
            size, at = self.varint(at, end)
        elif wire_type in {FIXED64, FIXED32}:
            size = 8 if wire_type == FIXED64 else 4
        else:
            fault = "is a group" if wire_type in {3, 4} else f"has wire type {wire_type}"
            raise self.corrupt(f"field {number} {fault}, which ElasticDL never wrote", offset)
        if size > end - at:
            fault = f"field {number} needs {counted(size, 'byte')}, got {end - at}"
            raise self._past_end(ends_early(end, at + size) if end == self.size_bytes else fault, offset, end)
        return Field(number, wire_type, offset, at, at + size)

    def fields(self, start: int, end: int) -> Iterator[Field]:
        """Walk the fields of the message [start, end)."""
        at = start
        while at < end:
            found = self.field(at, end)
            yield found
            at = found.end

    def small(self, start: int, end: int, part: str) -> bytes:
        """Return the bytes of a part that is always small; CorruptError when it is not."""
        if end - start > SMALL_BYTES:
            raise self.corrupt(f"{part} has {end - start} bytes, the limit is {SMALL_BYTES}", start)
        if self._base <= start and end <= self._base + len(self._window):
            return self._window[start - self._base : end - self._base]
        if end - start <= _FIRST_WINDOW:
            self._load(start)
            return self._window[: end - start]
        return self.reader.read(start, end - start)

    def text(self, start: int, end: int, part: str) -> str:
        """Return a string field; CorruptError unless it is UTF-8, since every reader refuses other text."""
        try:
            return self.small(start, end, part).decode("utf-8")
        except UnicodeDecodeError:
            raise self.corrupt(f"{part} is not UTF-8", start) from None

    def tagged_run(self, offset: int, end: int, tag: int, block_bytes: int) -> Iterator[IdRun]:
        """Yield the runs of unpacked numbers from `offset` on: each is a `tag` byte and a varint.

        The runs end at the first other tag, or at `end`; none is longer than `block_bytes`. They are decoded in bulk:
        a file of ten million unpacked ids costs no Python step per id. The first read is small, since every other
        field between the ids costs another one.
        """
        at, step = offset, min(_FIRST_RUN, block_bytes)
        while at < end:
            data = np.frombuffer(self.reader.read(at, min(step, end - at)), np.uint8)
            step = min(step * 8, block_bytes)
            try:
                whole = bulk.complete_prefix(data)
                values, lengths = bulk.decode_varints(data[:whole])
            except bulk.VarintError as error:
                raise self.corrupt(str(error), at + error.position) from None
            pairs = len(values) // 2
            if pairs == 0:
                raise self._past_end("an id is cut short", at, end)
            wrong = np.flatnonzero((values[: 2 * pairs : 2] != tag) | (lengths[: 2 * pairs : 2] != 1))
            good = int(wrong[0]) if len(wrong) else pairs
            size = int(lengths[: 2 * good].sum(dtype=np.int64))
            if size:
                yield IdRun(at, at + size, Encoding.TAGGED)
            at += size
            if len(wrong):
                return

    def corrupt(self, message: str, offset: int, code: str = "malformed") -> CorruptError:
        """Return the error for invalid bytes of this file."""
        return CorruptError(message, code=code, path=self.path, offset=offset)

    def _past_end(self, message: str, offset: int, end: int) -> CorruptError:
        """Return the error 'truncated' when the file itself ends too early, 'malformed' when only a message does."""
        return self.corrupt(message, offset, "truncated" if end == self.size_bytes else "malformed")


def tag(number: int, wire_type: int) -> bytes:
    """Return the tag of a field.

    >>> tag(4, BYTES)
    b'"'
    """
    return varint(number << 3 | wire_type)


@functools.lru_cache(1 << 14)  # the heads of small tables in many shards are often the same
def head(number: int, size_bytes: int) -> bytes:
    """Return the tag and length of a length-delimited field whose payload follows."""
    return tag(number, BYTES) + varint(size_bytes)


def signed32(value: int) -> int:
    """Return a varint as protobuf's int32 reads it: its low 32 bits, signed.

    >>> signed32(2**64 - 1)
    -1
    """
    return (value & 0xFFFFFFFF ^ 0x80000000) - 0x80000000
