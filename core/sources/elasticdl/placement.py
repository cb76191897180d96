"""The parameter server that owns a dense variable or an embedding row: pure functions, vectorised for ids.

Every ElasticDL parameter server follows these rules (`proto/README.md`, section Placement). A restore with another
number of servers re-partitions by them, so a reshard that follows them changes nothing for a job.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy.typing as npt

from edl_ckpt.core.base.arrays import Ids, as_ids
from edl_ckpt.core.base.names import name_bytes
from edl_ckpt.core.kernel.placement import mod_owners

MAX_PS_NUM = 65_535
"""Owners are stored as uint16; no deployment comes near this limit."""


def variable_owner(name: str, ps_num: int) -> int:
    """Return the `ps_id` of the server, among `ps_num`, that owns the dense variable `name`.

    The base is 32 although the digits are hexadecimal: every parameter server computes it like that, so it is the
    rule (ElasticDL, `string_to_id`).

    >>> [variable_owner("dense/kernel:0", n) for n in (1, 2, 3)]
    [0, 0, 1]
    """
    digest = hashlib.sha256(name_bytes(name)).hexdigest()
    return int(digest, base=32) % ps_num


def row_owners(ids: Ids, ps_num: int) -> npt.NDArray[Any]:
    """Return the `ps_id` of each id, `id % ps_num` with Python's sign: never negative.

    `ids` is int64 [n], or any array or list of whole numbers. The result is uint16 [n], or int64 for a number of
    servers that only a file's name claims.

    >>> row_owners([5, -1, -9223372036854775808], 3).tolist()
    [2, 2, 1]
    """
    return mod_owners(as_ids(ids), ps_num)


def crowded_shards(ps_num: int) -> int:
    """Return how many shards can have dense variables: half of them when `ps_num` is a multiple of 32, else all.

    The hexadecimal digits are read in base 32. Modulo 32 only the last digit counts, and it is below 16, so half of
    the residues never occur.

    >>> crowded_shards(8), crowded_shards(32), crowded_shards(64)
    (8, 16, 32)
    """
    return ps_num // 2 if ps_num % 32 == 0 else ps_num
