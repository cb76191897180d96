"""The fingerprint in plain Python, by docs/fingerprint.md: shares no code with the engine it judges."""

from __future__ import annotations

import hashlib
import struct

import numpy as np

from oracle import Model


def slow_key(identifier: int, chunk: int) -> list[int]:
    """The key of a row, from the definition on docs/fingerprint.md, in plain Python."""
    mask = 2**64 - 1
    word = (identifier + chunk * 0x9E3779B97F4A7C15 + 0x9FB21C651E98DF25) * 0xBF58476D1CE4E5B9 & mask
    word ^= word >> 32
    word = word * 0x94D049BB133111EB & mask
    first = word ^ word >> 29
    word = (first + 0xD6E8FEB86659FD93) * 0xA0761D6478BD642F & mask
    second = word ^ word >> 32
    return list(struct.unpack("<8h", struct.pack("<QQ", first, second)))


def slow_sketch(rows: dict[int, bytes], width: int) -> list[list[int]]:
    """The sketch, from the definition on docs/fingerprint.md, in plain Python."""
    columns = (min(width, 4096) + 1) // 2
    sums = [[0] * (columns + 1) for _ in range(8)]
    for identifier, data in rows.items():
        for chunk in range(max(1, -(-width // 4096))):
            part = data[chunk * 4096 : (chunk + 1) * 4096]
            numbers = struct.unpack(f"<{(len(part) + 1) // 2}h", part + b"\0" * (len(part) % 2))
            for m, key in enumerate(slow_key(identifier, chunk)):
                for j, x in enumerate(numbers):
                    sums[m][j] = (sums[m][j] + key * x) % 2**32
                sums[m][columns] = (sums[m][columns] + key) % 2**32
    return sums


def slow_fingerprint(model: Model) -> str:
    """What docs/fingerprint.md says, step by step."""

    def lp(data: bytes) -> bytes:
        return struct.pack("<q", len(data)) + data

    def packed(sums: list[list[int]]) -> bytes:
        return b"".join(struct.pack(f"<{len(row)}I", *row) for row in sums)

    digest = hashlib.blake2b(b"edl-ckpt fingerprint 1\n", digest_size=32)
    for name in sorted(model.dense, key=str.encode):
        dtype, shape, data = model.dense[name]
        sums = slow_sketch({0: data}, len(data))
        parts = (name.encode(), dtype.encode(), struct.pack(f"<{len(shape)}q", *shape), packed(sums))
        digest.update(b"D" + b"".join(map(lp, parts)))
    for name in sorted(model.tables, key=str.encode):
        table = model.tables[name]
        digest.update(b"T" + lp(name.encode()) + lp(table.initializer.encode()))
        digest.update(struct.pack("<qq", table.dim, len(table.rows)))
        sums = slow_sketch(table.rows, table.dim * np.dtype(table.dtype).itemsize) if table.rows else []
        digest.update(lp(table.dtype.encode() if table.rows else b"") + lp(packed(sums)))
    return "edl1:" + digest.hexdigest()
