"""Tensor bundles of any content, right or wrong, with checksums that are right."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from edl_ckpt.core.kernel.checksums import crc32c
from edl_ckpt.core.model.dtypes import DTYPES

MAGIC = 0xDB4775248B80FB57.to_bytes(8, "little")
HEADER = b"\x08\x01\x1a\x02\x08\x01"
"""One data file, little-endian, version 1."""


def varint(number: int) -> bytes:
    """Return a number as protobuf and LevelDB have it."""
    out = bytearray()
    number &= (1 << 64) - 1
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def masked(data: bytes) -> bytes:
    """Return the masked checksum of bytes."""
    crc = crc32c(data)
    return ((((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF).to_bytes(4, "little")


def block(pairs: Sequence[tuple[bytes, bytes]]) -> bytes:
    """Return a block, in which each key begins like the one before it."""
    out, last = b"", b""
    for key, value in pairs:
        shared = next((k for k, (a, b) in enumerate(zip(key, last, strict=False)) if a != b), min(len(key), len(last)))
        out += varint(shared) + varint(len(key) - shared) + varint(len(value)) + key[shared:] + value
        last = key
    return out + bytes(4) + (1).to_bytes(4, "little")


def table(blocks: Sequence[bytes], *, compression: int = 0, handles: Sequence[tuple[int, int]] = ()) -> bytes:
    """Return a table of some blocks; its handles are those of the blocks, unless others are given."""
    out, right = b"", []
    for data in blocks:
        right.append((len(out), len(data)))
        out += data + bytes([compression]) + masked(data + bytes([compression]))
    index = block([(b"%05d" % k, varint(at) + varint(size)) for k, (at, size) in enumerate(handles or right)])
    start = len(out)
    out += index + b"\0" + masked(index + b"\0")
    return out + (varint(0) + varint(8) + varint(start) + varint(len(index))).ljust(40, b"\0") + MAGIC


def entry(
    dtype: int, shape: Sequence[int], start: int, size: int, *, shard: int = 0, crc: bytes = bytes(4), more: bytes = b""
) -> bytes:
    """Return the message of a tensor."""
    dims = b"".join(b"\x12" + varint(len(dim)) + dim for dim in (b"\x08" + varint(length) for length in shape))
    numbers = ((0x18, shard), (0x20, start), (0x28, size))
    fields = b"".join(bytes([tag]) + varint(number) for tag, number in numbers if number)
    return b"\x08" + varint(dtype) + b"\x12" + varint(len(dims)) + dims + fields + b"\x35" + crc + more


def write_bundle(prefix: Path, arrays: Mapping[str, Any]) -> None:
    """Write a bundle of one data file, as TensorFlow does."""
    pairs, data = [(b"", HEADER)], bytearray()
    for name, values in sorted(arrays.items(), key=lambda item: item[0].encode()):
        octets = np.ascontiguousarray(values).tobytes()
        number = DTYPES[np.asarray(values).dtype.name].tf_enum
        message = entry(number, np.shape(values), len(data), len(octets), crc=masked(octets))
        pairs.append((name.encode(), message))
        data += octets
    prefix.parent.mkdir(parents=True, exist_ok=True)
    prefix.with_name(f"{prefix.name}.data-00000-of-00001").write_bytes(data)
    prefix.with_name(f"{prefix.name}.index").write_bytes(table([block(pairs)]))
