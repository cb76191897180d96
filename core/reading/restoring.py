"""The part of one parameter server, restored from as few shards as can have anything of it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from edl_ckpt.core.base.errors import IncompleteError, NotFoundError, RefusedError, ReplacedError
from edl_ckpt.core.base.progress import WARNINGS, Reporter
from edl_ckpt.core.base.words import command, missing_shards
from edl_ckpt.core.catalog import listing as catalog
from edl_ckpt.core.model.dtypes import DType
from edl_ckpt.core.model.layouts import Placement
from edl_ckpt.core.model.versions import ShardFile, State, Version
from edl_ckpt.core.reading.gather import Gathering, Restoring, Server
from edl_ckpt.core.reading.reader import Checkpoint, open_checkpoint
from edl_ckpt.core.reading.table import Part, PartLike
from edl_ckpt.core.sources.registry import source_of
from edl_ckpt.core.state.shard_note import mixed_runs

_PLACED: frozenset[str] = frozenset({"v3", "v4", ""})
"""The generations in which every server saved the rows that it owns, and one shard tells its own dtypes."""


def restore(
    version: catalog.VersionLike,
    ps_id: int,
    ps_num: int,
    *,
    all_shards: bool = False,
    out: PartLike | None = None,
    workers: int | None = None,
    reporter: Reporter = WARNINGS,
) -> Part:
    """Return what parameter server `ps_id` of `ps_num` has after it has restored a version, saved by any number.

    `id % ps_num` places a row, and the hash of its name a variable. So of N shards only those can have anything for
    this server whose number agrees with `ps_id` modulo gcd(N, ps_num); no other one is opened. With as many servers as
    shards that is one. Rows of a table come in the order of shards, then of rows. Memory is the part and at most
    64 MiB. `out` has arrays to fill in place, by name; an error while values are read leaves them partly filled.
    `workers` threads read: as many as cores, but at most 4 of a disk, and 8 of remote storage.

    A row that lies in a wrong shard, which `verify` reports, may be missed; `all_shards` reads everything, as ElasticDL
    does. When a shard that is read has a row or a variable of another one, all shards are read, with a warning. So
    are all shards of generations v0 to v2. Of rows with the same id the last one counts, with a warning. A version
    that does not match its seal is restored with a warning.

    Raises UsageError when arrays of `out` do not fit, with all mismatches and before any is filled; RefusedError for a
    version with shards of two runs of a job (`mixed_runs`); IncompleteError when shards are missing, CorruptError when
    one is damaged, NotFoundError, and LockedError when one changes while it is read.

    >>> part = restore("run@latest", ps_id=0, ps_num=2)
    >>> len(part.tables["user"].ids)
    5
    """
    server = Server(ps_id, ps_num)
    version = catalog.as_version(version)
    if mixture := mixed_runs(version):
        copy = command("copy", version.ref, "NEW_LOCATION", "--force")
        hint = f"latest() passes over it; if one run saved all its shards: {copy}, and restore the copy"
        raise RefusedError(mixture, path=version.ref, hint=hint)
    if version.seal_fault:
        reporter.warn(f"{version.ref}: it does not match its seal: {version.seal_fault}")
    if not all_shards and version.layout.placement is Placement.MOD:
        part = _from_own_shards(version, server, Restoring(out, workers, reporter))
        if part is not None:
            return part
    with open_checkpoint(version) as checkpoint:
        return checkpoint.restore(ps_id, ps_num, all_shards=True, out=out, workers=workers, reporter=reporter)


def _from_own_shards(version: Version, server: Server, how: Restoring) -> Part | None:
    """Return the part from the shards that can have it; None when that is all of them, or when they do not suffice."""
    own = tuple(file for file in version.shards if server.may_own(file.ps_id, file.ps_num))
    if version.state is not State.COMPLETE or len(own) == len(version.shards):
        return None
    try:
        opened = open_checkpoint(replace(version, shards=own), partial=True)
    except (NotFoundError, ReplacedError):
        return None  # opening all shards raises the right error
    with opened as checkpoint:
        # Some shards speak for all unless they show a reason to look at the others.
        others = any(s.version != version.version or s.generation not in _PLACED for s in checkpoint.shards)
        if others or checkpoint.lost or source_of(version).blocking(checkpoint.version, checkpoint.shards):
            return None
        untyped = [name for name in checkpoint.table_names if not _shows_dtype(checkpoint, name)]
        how = replace(how, dtypes=_dtypes_in_others(version, own, untyped))
        return Gathering(checkpoint, server, checkpoint.shards, how).part_unless_misplaced()


def _shows_dtype(checkpoint: Checkpoint, table: str) -> bool:
    """Say whether the shards that are open tell the dtype of a table: by rows, by an empty tensor, or by an info.

    Python's servers write no dtype where a table has no rows, and float32 into each info.
    """
    named = checkpoint.infos[table].named_dtype if table in checkpoint.infos else None
    entries = [entry for _, entry in checkpoint.entries(table)]
    return any(e.dtype or e.empty_dim for e in entries) or (named is not None and named.name != "float32")


def _dtypes_in_others(version: Version, own: Sequence[ShardFile], names: Collection[str]) -> Mapping[str, DType]:
    """Return the dtypes of tables that have no rows in some shards, as the headers of the other shards show them.

    A server saves a table without rows too, and its info says float32 of every table that Python's servers have. So
    what a job trains on must not depend on which shard has the first row. Few headers are read where a table has rows.
    """
    found: dict[str, DType] = {}
    others, count = [file for file in version.shards if file not in own], 1
    while others and len(found) < len(names):
        some = others[:count]
        others = others[count:]
        count = 2 * count
        with open_checkpoint(replace(version, shards=tuple(some)), partial=True) as checkpoint:
            for name in (name for name in names if checkpoint.has_table(name)):
                if (dtype := checkpoint.table_dtype(name)) is not None:
                    found.setdefault(name, dtype)
    return found


def restored_part(
    checkpoint: Checkpoint,
    ps_id: int,
    ps_num: int,
    *,
    all_shards: bool = False,
    out: PartLike | None = None,
    workers: int | None = None,
    reporter: Reporter = WARNINGS,
) -> Part:
    """Return the part of an opened version, as `Checkpoint.restore` does."""
    server, how = Server(ps_id, ps_num), Restoring(out, workers, reporter)
    all_shards = all_shards or checkpoint.version.layout.placement is not Placement.MOD
    missing = [i for i in checkpoint.version.missing if all_shards or server.may_own(i, checkpoint.version.ps_num or 1)]
    if missing:
        gaps = [range(i, i + 1) for i in missing]
        raise IncompleteError(missing_shards(gaps, checkpoint.version.ps_num), path=checkpoint.version.path)
    chosen = [shard for shard in checkpoint.shards if all_shards or server.may_own(shard.file.ps_id, shard.file.ps_num)]
    part = Gathering(checkpoint, server, chosen, how).part_unless_misplaced()
    return part or Gathering(checkpoint, server, checkpoint.shards, how).part()
