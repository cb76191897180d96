"""A version compared with another one: tables and variables that it lacks, and those with other dims, shapes or dtypes.

Nothing in a version shows that a table is missing from all of its shards. Another version that is known to be right
shows it. More tables or variables than the other version has are no fault.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from edl_ckpt.core.catalog.listing import VersionLike, as_version
from edl_ckpt.core.model.tables import ShardIndex
from edl_ckpt.core.model.versions import Version
from edl_ckpt.core.operations.verify.findings import Report
from edl_ckpt.core.reading.reader import open_checkpoint

TableForm: TypeAlias = tuple[int, str]
"""The dim of a table, and the dtype of its rows; '' where it has none."""
VariableForm: TypeAlias = tuple[tuple[int, ...], str]
"""The shape and the dtype of a variable."""


@dataclass(frozen=True, slots=True)
class Form:
    """The tables and variables of a version, without their values."""

    ref: str
    tables: Mapping[str, TableForm]
    variables: Mapping[str, VariableForm]


def form_of(version: VersionLike) -> Form:
    """Return what a version has, from its headers; errors as `open_checkpoint`."""
    listed = as_version(version)
    with open_checkpoint(listed) as checkpoint:
        return _form(listed.ref, checkpoint.shards)


def _form(ref: str, shards: Sequence[ShardIndex]) -> Form:
    tables: dict[str, TableForm] = {info.name: (info.dim, "") for shard in shards for info in shard.infos}
    for shard in shards:
        for entry in shard.tables:
            if entry.dtype is not None:
                tables[entry.name] = (entry.dim, entry.dtype.name)
    variables = {v.name: (v.shape, v.dtype.name) for shard in shards for v in shard.variables if not v.is_item}
    return Form(ref, tables, variables)


def check_like(version: Version, shards: Sequence[ShardIndex], wanted: Form | None, report: Report) -> None:
    """Report the tables and variables of another version that this one lacks, or has in another form."""
    if wanted is None:
        return
    found = _form(version.ref, shards)
    for name, (dim, dtype) in wanted.tables.items():
        if name not in found.tables:
            _add(report, version, "like-missing-table", name, f"{wanted.ref} has this table with dim {dim}")
            continue
        own_dim, own_dtype = found.tables[name]
        if own_dim != dim:
            _add(report, version, "like-dim", name, f"the table has dim {own_dim}, and {dim} in {wanted.ref}")
        if own_dtype != dtype and own_dtype and dtype:
            _add(report, version, "like-dtype", name, f"the rows are {own_dtype}, and {dtype} in {wanted.ref}")
    for name, (shape, dtype) in wanted.variables.items():
        if name not in found.variables:
            _add(report, version, "like-missing-variable", name, f"{wanted.ref} has this variable")
            continue
        own_shape, own_dtype = found.variables[name]
        if own_shape != shape:
            words = f"the variable has shape {list(own_shape)}, and {list(shape)} in {wanted.ref}"
            _add(report, version, "like-shape", name, words)
        if own_dtype != dtype:
            _add(report, version, "like-dtype", name, f"the variable is {own_dtype}, and {dtype} in {wanted.ref}")


def _add(report: Report, version: Version, code: str, name: str, message: str) -> None:
    report.add(code, message, path=version.path, subject=name)
