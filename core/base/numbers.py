"""Whole numbers: those that a caller gives (versions, counts, steps), and how files of several formats spell them."""

from __future__ import annotations

import operator

from edl_ckpt.core.base.errors import UsageError


class MalformedError(ValueError):
    """Bytes that cannot be what they should be; who knows the file makes a CorruptError of it."""


def whole_number(what: str, number: object, *, least: int | None = None) -> int:
    """Return a number of any integer type, or an array or variable of one, as an int; UsageError below `least`.

    Raises UsageError for anything else. Arrays are those of any library.

    >>> whole_number("ps_num", 4)
    4
    """
    try:
        value = operator.index(number)  # type: ignore[arg-type]
    except TypeError:
        value = _of_array(what, number)
    if isinstance(number, bool):
        raise UsageError(f"{what} must be a whole number, got {number!r}")
    if least is not None and value < least:
        raise UsageError(f"{what} must be at least {least}, got {value}")
    return value


def _of_array(what: str, number: object) -> int:
    """Return the number in an array without dimensions, as a variable of TensorFlow is one."""
    from edl_ckpt.core.base.arrays import as_array, is_array  # imports numpy, which most callers do without

    array = as_array(number, what) if is_array(number) else None
    if array is None or array.shape or array.dtype.kind not in "iu":
        raise UsageError(f"{what} must be a whole number, got {number!r}")
    return int(array)


def varint(value: int) -> bytes:
    r"""Return the varint of an integer; a negative one takes ten bytes, as protobuf's int32 and int64 do.

    >>> varint(300), len(varint(-1))
    (b'\xac\x02', 10)
    """
    if 0 <= value < 0x80:
        return bytes((value,))
    value &= (1 << 64) - 1
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def varint_at(data: bytes, position: int, end: int) -> tuple[int, int]:
    r"""Return the varint of at most 64 bits at a position, and where it ends; MalformedError for anything else.

    >>> varint_at(b"\xac\x02", 0, 2)
    (300, 2)
    """
    value = shift = 0
    for offset in range(position, min(end, position + 10)):
        byte = data[offset]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value >> 64:
                break
            return value, offset + 1
        shift += 7
    raise MalformedError("a varint is cut short or too long")
