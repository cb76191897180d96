"""Bytes that snappy has compressed; TensorFlow may compress the blocks of an index so.

Source: snappy's `format_description.txt`.
"""

from __future__ import annotations

from typing import Final

from edl_ckpt.core.base.numbers import MalformedError, varint_at

_SNAPPY_FACTOR: Final = 32
"""More than snappy can expand anything by: a copy of 64 bytes takes three."""


def decompressed(data: bytes) -> bytes:
    r"""Return what snappy has compressed to these bytes; MalformedError for bytes that it cannot have made.

    >>> decompressed(b"\x09\x08abc\x09\x03")
    b'abcabcabc'
    """
    size, position = varint_at(data, 0, len(data))
    if size > _SNAPPY_FACTOR * len(data):
        raise MalformedError("a compressed block is larger than it can be")
    out = bytearray()
    while position < len(data):
        tag = data[position]
        kind = tag & 3
        length = (tag >> 2) + 1
        position = position + 1
        more = kind or max(length - 60, 0)  # bytes of the offset, or of the length of bytes as they are
        more = 4 if kind == 3 else more
        number = int.from_bytes(data[position : position + more], "little")
        position += more
        if position > len(data):
            raise MalformedError("a compressed block is cut short")
        if kind == 0:
            length = number + 1 if more else length
            if position + length > len(data):
                raise MalformedError("a compressed block is cut short")
            out += data[position : position + length]
            position += length
            continue
        if kind == 1:
            number, length = number | tag >> 5 << 8, (length - 1 & 7) + 4
        if not 0 < number <= len(out):
            raise MalformedError("a compressed block copies from before its begin")
        start = len(out) - number
        source = out[start : start + length]
        out += (source * (length // len(source) + 1))[:length]
        if len(out) > size:
            break
    if len(out) != size:
        raise MalformedError("a compressed block has another size than it says")
    return bytes(out)
