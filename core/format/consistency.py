"""The checks that compare the shards of one version: only if they agree does a restore give the saved model."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Final

from edl_ckpt.core.format.initializers import KERAS_INITIALIZERS
from edl_ckpt.core.format.model import DType, Problem, ShardIndex, TableEntry, TableInfo, Version
from edl_ckpt.core.format.names import FREE_FILE, SINGLE_FILE

WARNINGS: Final = frozenset(
    {
        "negative-id",
        "dense-skew",
        "empty-table-form",
        "over-2gib",
        "ambiguous-dtype",
        "old-generation",
        "unknown-field",
        "scan-crash",
        "old-seal",
    }
)
"""Finding codes that leave a version restorable; all others are errors."""
_OF_PYTHON: Final = frozenset({"float64", "int8", "int16", "int32", "int64"})
"""The dtypes other than float32 that ElasticDL's Python server can write."""


BLOCKING: Final = frozenset(
    {
        "malformed",
        "version-mismatch",
        "duplicate-variable",
        "content-size-mismatch",
        "id-row-mismatch",
        "unsupported-dtype",
        "values-outside-content",
        "info-mismatch",
        "lost-info",
    }
)
"""Codes of problems that make the content of a version uncertain: no command makes anything from it."""


def blocking_problems(version: Version, shards: Sequence[ShardIndex]) -> list[tuple[ShardIndex, Problem]]:
    """Return the problems that make the content of a version uncertain, each with the shard that shows it."""
    found = [(shard, problem) for shard in shards for problem in shard.problems] + _contradictions(version, shards)
    return [(shard, problem) for shard, problem in found if problem.code in BLOCKING]


def cross_check(version: Version, shards: Sequence[ShardIndex]) -> list[tuple[ShardIndex, Problem]]:
    """Return the contradictions between the shards of one version, each with the shard that shows it."""
    found = _contradictions(version, shards)
    current = [shard for shard in shards if shard.generation == "v4"]
    return found + _initializers(current) + _info_dtypes(current) + _empty_tensors(current)


def _contradictions(version: Version, shards: Sequence[ShardIndex]) -> list[tuple[ShardIndex, Problem]]:
    """Return those that make the content uncertain, with a few others."""
    return _versions(version, shards) + _duplicate_names(shards) + _infos(shards) + _vectors(shards)


def _versions(version: Version, shards: Sequence[ShardIndex]) -> list[tuple[ShardIndex, Problem]]:
    if not shards:
        return []
    first = shards[0]
    if any(shard.version != first.version for shard in shards):
        return [
            (
                shard,
                Problem(
                    "version-mismatch",
                    "version",
                    0,
                    f"this shard has version {shard.version}, shard {first.file.ps_id} has version {first.version}:"
                    " ElasticDL's Python restore fails",
                ),
            )
            for shard in shards
            if shard.version != first.version
        ]
    if first.version != version.version and not version.uuid:  # a UUID names no number
        have = "the shard has" if len(shards) == 1 else "all shards have"
        name = "file" if version.layout in {SINGLE_FILE, FREE_FILE} else "directory"
        message = f"{have} version {first.version}, the {name} name has version {version.version}"
        return [(first, Problem("directory-version-mismatch", "version", 0, message))]
    return []


def _duplicate_names(shards: Sequence[ShardIndex]) -> list[tuple[ShardIndex, Problem]]:
    first_shard: dict[str, int] = {}
    found = []
    for shard in shards:
        for variable in shard.variables:
            first = first_shard.setdefault(variable.name, shard.file.ps_id)
            if first != shard.file.ps_id:
                message = f"shard {first} has this variable too: the order of the listing decides which one is restored"
                problem = Problem("duplicate-variable", variable.name, variable.offset, message)
                found.append((shard, problem))
    return found


def _infos(shards: Sequence[ShardIndex]) -> list[tuple[ShardIndex, Problem]]:
    """Every shard must have every info (ElasticDL's Python restore raises KeyError otherwise), and the same one."""
    known: dict[str, TableInfo] = {}
    found: list[tuple[ShardIndex, Problem]] = []
    for shard in shards:
        for info in shard.infos:
            first = known.setdefault(info.name, info)
            if info != first:
                message = (
                    f"this info has dim {info.dim} and initializer {info.initializer!r},"
                    f" another one has dim {first.dim} and initializer {first.initializer!r}"
                )
                found.append((shard, Problem("info-mismatch", info.name, info.offset, message)))
    for shard in shards:
        own = {info.name for info in shard.infos}
        wanted = dict.fromkeys(known, 0) | {t.name: t.offset for t in shard.tables}
        for name, offset in wanted.items():
            if name not in own:
                message = "this shard has no info for the table: ElasticDL's Python restore raises KeyError"
                found.append((shard, Problem("missing-table-info", name, offset, message)))
    return found


def _vectors(shards: Sequence[ShardIndex]) -> list[tuple[ShardIndex, Problem]]:
    """All vectors of a table must have the same dtype, and the dim of its info."""
    infos = {info.name: info for shard in reversed(shards) for info in shard.infos}
    first: dict[str, TableEntry] = {}
    found: defaultdict[str, list[tuple[ShardIndex, Problem]]] = defaultdict(list)
    for shard in shards:
        for entry in shard.tables:
            if entry.name not in infos:
                message = "no shard has an info for the table: its initializer is lost"
                found[entry.name].append((shard, Problem("lost-info", entry.name, entry.offset, message)))
            if entry.dtype is None:
                continue
            reference = first.setdefault(entry.name, entry)
            if (entry.dtype, entry.dim) != (reference.dtype, reference.dim):
                got = f"{entry.dtype.name} of dim {entry.dim}"
                other = f"{reference.dtype.name if reference.dtype else '?'} of dim {reference.dim}"
                message = f"the vectors are {got} in this shard and {other} in another one"
            elif entry.name in infos and infos[entry.name].dim != entry.dim:
                message = f"the vectors have dim {entry.dim}, the info has dim {infos[entry.name].dim}"
            else:
                continue
            found[entry.name].append((shard, Problem("info-mismatch", entry.name, entry.offset, message)))
    return [problem for problems in found.values() for problem in problems]


def _initializers(shards: Sequence[ShardIndex]) -> list[tuple[ShardIndex, Problem]]:
    """Python creates a table by the name of its initializer, and raises an exception for a name that Keras lacks."""
    return [
        (
            shard,
            Problem(
                "unknown-initializer",
                info.name,
                info.offset,
                f"Keras has no initializer {info.initializer!r}: ElasticDL's Python restore raises ValueError",
            ),
        )
        for shard in shards
        for info in shard.infos
        if info.initializer not in KERAS_INITIALIZERS
    ]


def _info_dtypes(shards: Sequence[ShardIndex]) -> list[tuple[ShardIndex, Problem]]:
    """The dtype in an info must be that of the rows: Go takes the width of a row from it (`NewEmbeddingTable`).

    A warning where ElasticDL's Python server cannot write anything else: it names float32 whatever the rows are.
    """
    rows = _row_dtypes(shards)
    by_python = _named_by_python(shards, rows)
    found: list[tuple[ShardIndex, Problem]] = []
    for shard in shards:
        for info in shard.infos:
            named, own = info.named_dtype, rows.get(info.name)
            if named is None:
                names = f"dtype number {info.dtype}" if info.dtype else "no dtype"
            elif own in {None, named}:
                continue
            else:
                names = named.name
            but = f", the rows are {own.name}" if own else ""
            message = f"the info names {names}{but}: ElasticDL's Go server would load other values"
            usual = info.name in by_python
            if usual:
                message += "; its Python servers write float32 in every info, and restore the rows"
            found.append((shard, Problem("info-dtype-mismatch", info.name, info.offset, message, warning=usual)))
    return found


def _named_by_python(shards: Sequence[ShardIndex], rows: Mapping[str, DType]) -> set[str]:
    """Return the tables that a Python server may have written with rows of another dtype than their infos name.

    Each of its infos names float32, and its tensors without rows have no dim (`empty_dtype` is None).
    """
    named = {(info.name, info.named_dtype) for shard in shards for info in shard.infos}
    others = {name for name, dtype in named if dtype is None or dtype.name != "float32"}
    shaped = {entry.name for shard in shards for entry in shard.tables if entry.empty_dtype is not None}
    return {name for name, dtype in rows.items() if dtype.name in _OF_PYTHON} - others - shaped


def _row_dtypes(shards: Sequence[ShardIndex]) -> dict[str, DType]:
    """Return the dtype of the rows of each table that has any: the first shard's, where they differ."""
    return {table.name: table.dtype for shard in reversed(shards) for table in shard.tables if table.dtype}


def _empty_tensors(shards: Sequence[ShardIndex]) -> list[tuple[ShardIndex, Problem]]:
    """A tensor without rows must have the dtype and the dim of the others: Go merges them (`MergeIndexedSlices`)."""
    dtypes = _row_dtypes(shards)
    dims = {info.name: info.dim for shard in reversed(shards) for info in shard.infos}
    found: list[tuple[ShardIndex, Problem]] = []
    for shard in shards:
        for entry in shard.tables:
            if entry.empty_dtype is None:
                continue
            expected = dtypes.setdefault(entry.name, entry.empty_dtype)
            if entry.empty_dtype != expected:
                message = (
                    f"the tensor without rows is {entry.empty_dtype.name}, other shards have {expected.name}:"
                    " ElasticDL's Go server crashes"
                )
                found.append((shard, Problem("table-dtype-mismatch", entry.name, entry.offset, message)))
            dim = dims.get(entry.name, entry.empty_dim)
            if entry.empty_dim != dim:
                message = (
                    f"the tensor without rows has dim {entry.empty_dim}, the table has dim {dim}:"
                    " ElasticDL's Go server crashes"
                )
                found.append((shard, Problem("empty-table-form", entry.name, entry.offset, message)))
    return found
