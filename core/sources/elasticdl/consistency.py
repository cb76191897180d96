"""The checks that compare the shards of one version: only if they agree does a restore give the saved model."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Final, TypeAlias

from edl_ckpt.core.model.dtypes import DType
from edl_ckpt.core.model.tables import DenseEntry, Problem, ShardIndex, TableEntry, TableInfo
from edl_ckpt.core.model.versions import Version
from edl_ckpt.core.sources.elasticdl.checks import KERAS_INITIALIZERS, LARGE_SHARD_BYTES, READABLE
from edl_ckpt.core.sources.elasticdl.names import SINGLE_FILE
from edl_ckpt.core.sources.elasticdl.placement import crowded_shards, variable_owner

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


Found: TypeAlias = tuple[ShardIndex, Problem]


def blocking_problems(version: Version, shards: Sequence[ShardIndex]) -> list[Found]:
    """Return the problems that make the content of a version uncertain, each with the shard that shows it."""
    alone = ((shard, problem) for shard in shards for problem in shard.problems)
    return [each for each in chain(alone, _contradictions(version, shards)) if each[1].code in BLOCKING]


def cross_check(version: Version, shards: Sequence[ShardIndex]) -> list[tuple[ShardIndex | None, Problem]]:
    """Return the contradictions between the shards of one version, and all that ElasticDL cannot read or would move."""
    current = [shard for shard in shards if shard.generation == "v4"]
    alone = ((shard, problem) for shard in shards for problem in _of_one_shard(shard))
    refused = chain(_initializers(current), _info_dtypes(current), _empty_tensors(current))
    of_all = ((None, problem) for problem in _of_all(version, shards))
    return [*alone, *_contradictions(version, shards), *refused, *of_all]


def _of_one_shard(shard: ShardIndex) -> Iterator[Problem]:
    """Yield what is wrong with a shard whatever the others are: fields, size, dtypes, misplaced variables."""
    for number, offset in sorted(dict(reversed(shard.unknown_fields)).items()):  # the first of each number
        message = f"field {number} is unknown: no reader knows it, and no restore keeps it"
        yield Problem("unknown-field", str(number), offset, message)
    if shard.file.size_bytes > LARGE_SHARD_BYTES:
        message = f"the shard has {shard.file.size_bytes} bytes: Python's protobuf cannot parse it"
        yield Problem("over-2gib", "", None, message)
    typed: list[tuple[str, DenseEntry | TableEntry, DType | None]]
    typed = [("variable", variable, variable.dtype) for variable in shard.variables]
    typed += [("table", table, table.dtype or table.empty_dtype) for table in shard.tables]
    for kind, entry, dtype in typed if shard.generation == "v4" else ():  # older ones could have float16
        if dtype is not None and dtype.name not in READABLE:
            message = f"the {kind} has dtype {dtype.name}: ElasticDL's Python restore raises ValueError"
            yield Problem("unsupported-dtype", entry.name, entry.offset, message)
    for variable in shard.variables:
        owner = variable_owner(variable.name, shard.file.ps_num)
        if owner != shard.file.ps_id:
            message = f"the variable belongs to shard {owner}"
            yield Problem("misplaced-variable", variable.name, variable.offset, message)


def _of_all(version: Version, shards: Sequence[ShardIndex]) -> Iterator[Problem]:
    """Yield what is wrong with all shards together: an old generation, and servers without dense variables."""
    generation = max((shard.generation for shard in shards), default="")
    if generation and generation != "v4":
        message = f"the shards have wire generation {generation}; today's ElasticDL reads only v4"
        yield Problem("old-generation", "", None, message)
    if version.ps_num and (usable := crowded_shards(version.ps_num)) < version.ps_num:
        message = f"with {version.ps_num} servers only {usable} can have dense variables"
        yield Problem("dense-skew", "", None, message)


def _contradictions(version: Version, shards: Sequence[ShardIndex]) -> Iterator[Found]:
    """Yield those that make the content uncertain, with a few others."""
    return chain(_versions(version, shards), _duplicate_names(shards), _infos(shards), _vectors(shards))


def _versions(version: Version, shards: Sequence[ShardIndex]) -> Iterator[Found]:
    others = [shard for shard in shards if shard.version != shards[0].version]
    for shard in others:
        first = f"shard {shards[0].file.ps_id} has version {shards[0].version}"
        message = f"this shard has version {shard.version}, {first}: ElasticDL's Python restore fails"
        yield shard, Problem("version-mismatch", "version", 0, message)
    if shards and not others and shards[0].version != version.version and not version.uuid:  # a UUID names no number
        have = "the shard has" if len(shards) == 1 else "all shards have"
        name = "file" if version.is_alone or version.layout == SINGLE_FILE else "directory"
        message = f"{have} version {shards[0].version}, the {name} name has version {version.version}"
        yield shards[0], Problem("directory-version-mismatch", "version", 0, message)


def _duplicate_names(shards: Sequence[ShardIndex]) -> Iterator[Found]:
    first_shard: dict[str, int] = {}
    for shard in shards:
        for variable in shard.variables:
            first = first_shard.setdefault(variable.name, shard.file.ps_id)
            if first != shard.file.ps_id:
                message = f"shard {first} has this variable too: the order of the listing decides which one is restored"
                yield shard, Problem("duplicate-variable", variable.name, variable.offset, message)


def _infos(shards: Sequence[ShardIndex]) -> Iterator[Found]:
    """Every shard must have every info (ElasticDL's Python restore raises KeyError otherwise), and the same one."""
    known: dict[str, TableInfo] = {}
    for shard in shards:
        for info in shard.infos:
            first = known.setdefault(info.name, info)
            if info is not first and info != first:
                message = (
                    f"this info has dim {info.dim} and initializer {info.initializer!r},"
                    f" another one has dim {first.dim} and initializer {first.initializer!r}"
                )
                yield shard, Problem("info-mismatch", info.name, info.offset, message)
    for shard in shards:
        own = {info.name for info in shard.infos}
        if len(own) == len(known) and own.issuperset(table.name for table in shard.tables):
            continue  # as in nearly every shard
        wanted = dict.fromkeys(known, 0) | {t.name: t.offset for t in shard.tables}
        for name, offset in wanted.items():
            if name not in own:
                message = "this shard has no info for the table: ElasticDL's Python restore raises KeyError"
                yield shard, Problem("missing-table-info", name, offset, message)


def _vectors(shards: Sequence[ShardIndex]) -> Iterator[Found]:
    """All vectors of a table must have the same dtype, and the dim of its info."""
    infos = {info.name: info for shard in reversed(shards) for info in shard.infos}
    first: dict[str, TableEntry] = {}
    found: defaultdict[str, list[Found]] = defaultdict(list)
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
    return chain.from_iterable(found.values())


def _initializers(shards: Sequence[ShardIndex]) -> Iterator[Found]:
    """Python creates a table by the name of its initializer, and raises an exception for a name that Keras lacks."""
    for shard in shards:
        for info in shard.infos:
            if info.initializer not in KERAS_INITIALIZERS:
                message = f"Keras has no initializer {info.initializer!r}: ElasticDL's Python restore raises ValueError"
                yield shard, Problem("unknown-initializer", info.name, info.offset, message)


def _info_dtypes(shards: Sequence[ShardIndex]) -> Iterator[Found]:
    """The dtype in an info must be that of the rows: Go takes the width of a row from it (`NewEmbeddingTable`).

    A warning where ElasticDL's Python server cannot write anything else: it names float32 whatever the rows are.
    """
    rows = _row_dtypes(shards)
    by_python = _named_by_python(shards, rows)
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
            yield shard, Problem("info-dtype-mismatch", info.name, info.offset, message, warning=usual)


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


def _empty_tensors(shards: Sequence[ShardIndex]) -> Iterator[Found]:
    """A tensor without rows must have the dtype and the dim of the others: Go merges them (`MergeIndexedSlices`)."""
    dtypes = _row_dtypes(shards)
    dims = {info.name: info.dim for shard in reversed(shards) for info in shard.infos}
    for shard in shards:
        for entry in shard.tables:
            if entry.empty_dtype is None:
                continue
            dtype, dim = dtypes.setdefault(entry.name, entry.empty_dtype), dims.get(entry.name, entry.empty_dim)
            faults = {}
            if entry.empty_dtype != dtype:
                faults["table-dtype-mismatch"] = f"is {entry.empty_dtype.name}, other shards have {dtype.name}"
            if entry.empty_dim != dim:
                faults["empty-table-form"] = f"has dim {entry.empty_dim}, the table has dim {dim}"
            for code, fault in faults.items():
                message = f"the tensor without rows {fault}: ElasticDL's Go server crashes"
                yield shard, Problem(code, entry.name, entry.offset, message)
