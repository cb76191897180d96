"""What DeepRec restores of an embedding variable, as its `embedding_var_restore.cc` says, for small bundles."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from edl_ckpt.core.model.dtypes import TF_DTYPES
from edl_ckpt.core.sources.bundle.index import read_index

GROUPS = 1000
Row: TypeAlias = tuple[bytes, int, int]
"""The values, frequency and version of a key; -1 where the files have none."""


def tensors_of(prefix: Path) -> dict[str, Any]:
    """Return all tensors of a bundle."""
    index = read_index(prefix.with_name(f"{prefix.name}.index").read_bytes())
    found = {}
    for name, one in index.tensors.items():
        if one.dtype in TF_DTYPES and not one.slices:
            data = prefix.with_name(f"{prefix.name}.data-{one.shard:05}-of-{index.shards:05}").read_bytes()
            found[name] = np.frombuffer(data[one.start : one.end], TF_DTYPES[one.dtype].name).reshape(one.shape)
    return found


def c_mod(key: int, divisor: int) -> int:
    """Return a remainder as C has it: with the sign of the number."""
    return key % divisor if key >= 0 else -(-key % divisor)


def parts_in(tensors: dict[str, Any], name: str, begin: str, rest: str) -> list[str]:
    """Return the names of the parts that were saved, or that of the whole."""
    parts: list[str] = []
    while f"{begin}{len(parts)}{rest}-keys" in tensors:
        parts.append(f"{begin}{len(parts)}{rest}")
    return parts or [name]


def restore(prefix: Path, name: str, part: int, count: int) -> dict[int, Row]:
    """Return what the part of so many gets of the variable NAME, which is `EV/part_N` or EV."""
    tensors = tensors_of(prefix)
    where = name.find("part_")
    if where < 0:
        names, chosen = parts_in(tensors, name, f"{name}/part_", ""), range(GROUPS)
        new_form = (f"{name}-partition_offset", f"{name}/part_0-partition_offset")
    else:
        begin, rest = name[: where + 5], name[where + 5 + len(str(part)) :]
        names = parts_in(tensors, name[: where - 1] + rest, begin, rest)
        chosen = range(part, GROUPS, count)
        new_form = (f"{begin}0{rest}-partition_offset", f"{name[: where - 1]}{rest}-partition_offset")
    is_old = not any(key in tensors for key in new_form)
    rows: dict[int, Row] = {}
    for stem in names:
        if not all(f"{stem}-{end}" in tensors for end in ("keys", "values", "versions")):
            continue  # an error in the log, and nothing of it is restored
        keys, values, versions = (tensors[f"{stem}-{end}"] for end in ("keys", "values", "versions"))
        assert keys.dtype == np.int64
        freqs = tensors.get(f"{stem}-freqs", versions[:0])
        if is_old:
            places = list(range(len(keys)))
        else:
            offsets = tensors[f"{stem}-partition_offset"]
            assert (offsets.dtype, offsets.shape) == (np.int32, (GROUPS + 1,))
            places = [place for group in chosen for place in range(offsets[group], offsets[group + 1])]
        for place in places:
            key = int(keys[place])
            if c_mod(c_mod(key, GROUPS), count) == part:
                assert key not in rows
                freq, version = (int(one[place]) if len(one) else -1 for one in (freqs, versions))
                rows[key] = values[place].tobytes(), freq, version
    return rows
