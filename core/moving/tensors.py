"""A version as tensors alone, as files of its own system get it: row numbers stay, and so do ids next to them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from edl_ckpt.core.base.errors import UnsupportedError, UsageError
from edl_ckpt.core.base.job import Job
from edl_ckpt.core.converting.changes import Changes, Outgoing, OutVariable, outgoing
from edl_ckpt.core.reading.reader import Checkpoint
from edl_ckpt.core.sources.dcp.table_names import is_table_name
from edl_ckpt.core.sources.steps import source as steps


def as_tensors(source: Checkpoint) -> Checkpoint:
    """Return the same open files as tensors alone."""
    shards = steps.index(source.version, source.files, tables=False)
    return Checkpoint(source.version, shards, source.files, source.store)


def tensors_out(source: Checkpoint, whole: Checkpoint, changes: Changes) -> Outgoing:
    """Return the tensors that go out; those that lie in several boxes are spread over ranks again."""
    if changes.rows:
        message = f"rows of {source.version.layout.system} have numbers: none can be left out"
        raise UnsupportedError(message, path=source.version.ref, hint="try: export --format tfra or dynamicemb")
    sizes = {source.table_name(name): rows for name, rows in changes.resize}
    for name in sizes:
        if owner := source.infos[name].companion_of:
            raise UsageError(f"{name!r} has the rows of {owner!r}: resize that table", path=source.version.ref)
        if any(run.is_stored for _, entry in source.entries(name) for run in entry.ids):
            message = f"table {name!r} has managed collision: nothing proves that another size keeps its raw ids"
            raise UnsupportedError(message, path=source.version.ref)
    plain = replace(
        changes, variables=(*changes.tables, *changes.variables), tables=(), drop_companions=False, resize=()
    )
    out = outgoing(whole, plain, meaning=source)
    out = out.without(_dropped_companions(source, out, changes), "a companion of its table")
    new_sizes = dict(sizes)
    for name, info in source.infos.items():
        if info.companion_of in sizes:
            new_sizes[name] = sizes[info.companion_of]
    return replace(out, variables=tuple(_in_slabs(whole, variable, new_sizes) for variable in out.variables))


def _dropped_companions(source: Checkpoint, out: Outgoing, changes: Changes) -> set[str]:
    """Return the companions that stay behind: all of them if asked for, else those of tables that were dropped."""
    companions = {name: info.companion_of for name, info in source.infos.items() if info.companion_of}
    if changes.drop_companions:
        return set(companions)
    if not changes.drop:
        return set()
    going = {variable.source for variable in out.variables}
    return {name for name, table in companions.items() if table not in going}


def _in_slabs(whole: Checkpoint, variable: OutVariable, sizes: Mapping[str, int]) -> OutVariable:
    """Return a tensor that is cut over ranks again if boxes of several files have it, with its new number of rows."""
    if variable.is_item:
        return variable
    shard, entry = whole.find_variable(variable.source)
    is_spread = entry.values.file >= len(shard.file.files)
    shape = variable.shape
    if shape:
        shape = (sizes.get(variable.source, shape[0]), *shape[1:])
    return replace(variable, in_slabs=is_spread, shape=shape)


def warn_of_lost_tables(source: Checkpoint, out: Outgoing, job: Job) -> None:
    """Warn of tables that no loader finds under their new names; they go out as plain tensors."""
    is_dcp = source.version.layout.system == "dcp"
    for variable in out.variables if is_dcp else ():
        is_table = source.has_table(variable.source) and not source.infos[variable.source].companion_of
        if is_table and not is_table_name(variable.name):
            job.reporter.warn(
                f"{variable.name!r} is no name of a table, so {variable.source!r} becomes a plain tensor;"
                " the names of TorchRec end with embedding_bags.TABLE.weight"
            )
