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
    kept, owners = {v.source for v in out.variables}, {n: i.companion_of for n, i in source.infos.items()}
    without = changes.drop_companions or changes.drop
    gone = {n for n, owner in owners.items() if owner and without and (changes.drop_companions or owner not in kept)}
    out = out.without(gone, "a companion of its table")
    new = sizes | {n: sizes[i.companion_of] for n, i in source.infos.items() if i.companion_of in sizes}
    return replace(out, variables=tuple(_in_slabs(whole, variable, new) for variable in out.variables))


def _in_slabs(whole: Checkpoint, variable: OutVariable, sizes: Mapping[str, int]) -> OutVariable:
    if variable.is_item:
        return variable
    shard, entry = whole.find_variable(variable.source)
    is_spread = entry.values.file >= len(shard.file.files)
    shape = (sizes.get(variable.source, variable.shape[0]), *variable.shape[1:]) if variable.shape else ()
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
