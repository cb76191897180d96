"""Names of one version by those of another: two systems, or two releases of a model, name the same values differently.

The second version is opened as if it had the names of the first one, so nothing else of a comparison knows of it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from edl_ckpt.core.base.errors import UsageError
from edl_ckpt.core.base.words import meant
from edl_ckpt.core.model.tables import ShardIndex
from edl_ckpt.core.reading.reader import Checkpoint
from edl_ckpt.core.storage.local import read_toml


@dataclass(frozen=True, slots=True)
class NamePairs:
    """The names that tables and variables of the second version have, by those of the first."""

    tables: Mapping[str, str] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)


_SECTIONS = ("tables", "variables")


def read_pairs(path: str | os.PathLike[str]) -> NamePairs:
    """Read pairs of names: a TOML file with `"name in the first" = "name in the second"`, in [tables] and [variables].

    Raises UsageError for any other content, and for two names that stand for one.
    """
    path = os.fspath(path)
    document = read_toml(path)
    if unknown := sorted(set(document) - set(_SECTIONS)):
        hint = meant(unknown[0], _SECTIONS)
        raise UsageError(f"no section {unknown[0]!r}; expected [tables] and [variables]", path=path, hint=hint)
    for section, names in document.items():
        if not isinstance(names, dict) or not all(isinstance(name, str) for name in names.values()):
            raise UsageError(f'[{section}] takes "name in the first" = "name in the second"', path=path)
        if len(set(names.values())) != len(names):
            raise UsageError(f"[{section}] has the same second name twice", path=path)
    return NamePairs(**document)


def paired(one: Checkpoint, two: Checkpoint, pairs: NamePairs) -> Checkpoint:
    """Return the second checkpoint with the names that the first one has for the same values; it shares the files.

    Raises NameNotFoundError for an unknown name, UsageError for one that the second checkpoint has for something else.
    """
    tables = {two.table_name(second): one.table_name(first) for first, second in pairs.tables.items()}
    variables = {two.variable_name(second): one.variable_name(first) for first, second in pairs.variables.items()}
    for names, known in ((tables, two.table_names), (variables, two.variable_names)):
        if taken := sorted((set(names.values()) & set(known)) - names.keys()):
            raise UsageError(f"{taken[0]!r} is a name there, too", path=two.version.ref, hint="map that name as well")
    shards = [_renamed(shard, tables, variables) for shard in two.shards]
    return Checkpoint(two.version, shards, two.files, two.store)


def _renamed(shard: ShardIndex, tables: Mapping[str, str], variables: Mapping[str, str]) -> ShardIndex:
    def name_of(name: str) -> str:
        return tables.get(name, name)

    return replace(
        shard,
        infos=tuple(replace(i, name=name_of(i.name), companion_of=name_of(i.companion_of)) for i in shard.infos),
        tables=tuple(replace(table, name=name_of(table.name)) for table in shard.tables),
        variables=tuple(replace(v, name=variables.get(v.name, v.name)) for v in shard.variables),
    )
