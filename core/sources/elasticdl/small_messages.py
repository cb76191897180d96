"""The two small messages in the headers of a shard: what describes a table, and a shape.

As savers write them, they are read and written here. protobuf reads every other form of them, and says which bytes are
no message.
"""

from __future__ import annotations

from typing import Final

from edl_ckpt.core.base.numbers import MalformedError, varint, varint_at

_NAME: Final = 0x0A
_DIM: Final = 0x10
_INITIALIZER: Final = 0x1A
_DTYPE: Final = 0x20
"""The tags of an EmbeddingTableInfo (`proto/tensor.proto`): a field's number, and whether it is a varint or bytes."""
_SHAPE_DIM: Final = 0x12
_DIM_SIZE: Final = 0x08


def read_info(data: bytes) -> tuple[str, int, str, int]:
    """Return the name, dim, initializer and dtype of a table; MalformedError for other bytes."""
    usual = _usual_info(data)
    if usual is not None:
        return usual
    from edl_ckpt.core.sources.elasticdl.by_protobuf import info_of

    return info_of(data)


def info_bytes(name: str, dim: int, initializer: str, dtype: int) -> bytes:
    """Return an EmbeddingTableInfo as ElasticDL's own code writes it: fields in their order, without empty ones."""
    fields = (_text(_NAME, name), _number(_DIM, dim), _text(_INITIALIZER, initializer), _number(_DTYPE, dtype))
    return b"".join(fields)


def _text(tag: int, text: str) -> bytes:
    data = text.encode()
    return bytes((tag,)) + varint(len(data)) + data if data else b""


def _number(tag: int, number: int) -> bytes:
    return bytes((tag,)) + varint(number) if number else b""


def read_shape(data: bytes) -> tuple[int, ...]:
    """Return the sizes of a shape; MalformedError for other bytes."""
    usual = _usual_shape(data)
    if usual is not None:
        return usual
    from edl_ckpt.core.sources.elasticdl.by_protobuf import shape_of

    return shape_of(data)


def _usual_info(data: bytes) -> tuple[str, int, str, int] | None:
    """Return what `read_info` returns where each field is there once at most, and none is of another kind."""
    texts, numbers = {_NAME: b"", _INITIALIZER: b""}, {_DIM: 0, _DTYPE: 0}
    seen: set[int] = set()
    at, end = 0, len(data)
    try:
        while at < end:
            tag = data[at]
            value, at = varint_at(data, at + 1, end)
            if tag in seen:
                return None
            seen.add(tag)
            if tag in numbers:
                numbers[tag] = value
            elif tag in texts and value <= end - at:
                texts[tag] = data[at : at + value]
                at += value
            else:
                return None
        name, initializer = texts[_NAME].decode("utf-8"), texts[_INITIALIZER].decode("utf-8")
    except (MalformedError, UnicodeDecodeError):
        return None
    if numbers[_DIM] >> 63 or numbers[_DTYPE] >> 31:  # negative, or cut to 32 bits
        return None
    return name, numbers[_DIM], initializer, numbers[_DTYPE]


def _usual_shape(data: bytes) -> tuple[int, ...] | None:
    """Return what `read_shape` returns where all is sizes without names."""
    sizes: list[int] = []
    at, end = 0, len(data)
    try:
        while at < end:
            if data[at] != _SHAPE_DIM:
                return None
            length, at = varint_at(data, at + 1, end)
            stop = at + length
            if stop > end or (length and data[at] != _DIM_SIZE):
                return None
            size, at = varint_at(data, at + 1, stop) if length else (0, at)
            if at != stop or size >> 63:
                return None
            sizes.append(size)
    except MalformedError:
        return None
    return tuple(sizes)
