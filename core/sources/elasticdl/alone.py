"""A checkpoint in a file by itself: a single-file checkpoint of 2019, or one merged shard."""

from __future__ import annotations

from edl_ckpt.core.base.errors import CorruptError
from edl_ckpt.core.sources.elasticdl.names import number_in_name
from edl_ckpt.core.sources.elasticdl.wire import BYTES, VARINT, Cursor, signed32
from edl_ckpt.core.storage.interface import RangeReader


def number_in_model(reader: RangeReader, name: str) -> int:
    """Return the version in a model, read from its first fields; without any, the number at the end of the name."""
    if not reader.size_bytes:
        raise CorruptError("the file is empty (0 bytes)", code="empty-file", path=reader.path, offset=0)
    cursor = Cursor(reader)
    at, known = 0, False
    try:
        while at < cursor.size_bytes:
            found = cursor.field(at, cursor.size_bytes)
            if found.number == 1 and found.wire_type == VARINT:
                return signed32(found.value)
            if found.number not in {2, 3, 4, 5} or found.wire_type != BYTES:  # the fields of all generations
                break  # a field that no reader knows, or damage: whoever reads the rest says what it is
            at, known = found.end, True
    except CorruptError:
        if not known:
            raise _no_checkpoint(reader) from None
    if not known:
        raise _no_checkpoint(reader)
    return number_in_name(name) or 0


def _no_checkpoint(reader: RangeReader) -> CorruptError:
    return CorruptError(
        "not a checkpoint: its first bytes are no field of a model",
        path=reader.path,
        offset=0,
        hint="arrays of other tools become a version with: edl-ckpt import FILE LOCATION@VERSION --ps N",
    )
