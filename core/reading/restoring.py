"""A restore by one parameter server of a job of any size: it opens and reads only the shards that can have its rows."""

from __future__ import annotations

from dataclasses import replace

from edl_ckpt.core.base.errors import NotFoundError, RefusedError, ReplacedError
from edl_ckpt.core.base.progress import WARNINGS, Reporter
from edl_ckpt.core.base.words import command
from edl_ckpt.core.catalog.listing import VersionLike, as_version
from edl_ckpt.core.catalog.runs import mixed_runs
from edl_ckpt.core.model.layouts import Placement
from edl_ckpt.core.model.versions import State, Version
from edl_ckpt.core.reading.gather import Gathering, MisplacedError, Server
from edl_ckpt.core.reading.parts import Part, PartLike
from edl_ckpt.core.reading.reader import Checkpoint, open_checkpoint
from edl_ckpt.core.sources.registry import source_of

_PLACED: frozenset[str] = frozenset({"v3", "v4", ""})
"""The generations in which every server saved the rows that it owns, and one shard tells its own dtypes."""


def restore(
    version: VersionLike,
    ps_id: int,
    ps_num: int,
    *,
    out: PartLike | None = None,
    workers: int | None = None,
    all_shards: bool = False,
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
    """
    server = Server(ps_id, ps_num)
    version = as_version(version)
    if mixture := mixed_runs(version):
        copy = command("copy", version.ref, "NEW_LOCATION", "--force")
        hint = f"latest() passes over it; if one run saved all its shards: {copy}, and restore the copy"
        raise RefusedError(mixture, path=version.ref, hint=hint)
    if version.seal_fault:
        reporter.warn(f"{version.ref}: it does not match its seal: {version.seal_fault}")
    if not all_shards and version.layout.placement is Placement.MOD:
        part = _from_own_shards(version, server, out, workers, reporter)
        if part is not None:
            return part
    with open_checkpoint(version) as checkpoint:
        return checkpoint.restore(ps_id, ps_num, out=out, workers=workers, all_shards=True, reporter=reporter)


def _from_own_shards(
    version: Version, server: Server, out: PartLike | None, workers: int | None, reporter: Reporter
) -> Part | None:
    """Return the part from the shards that can have it; None when that is all of them, or when they do not suffice."""
    own = tuple(file for file in version.shards if server.may_own(file.ps_id, file.ps_num))
    if version.state is not State.COMPLETE or len(own) == len(version.shards):
        return None
    try:
        opened = open_checkpoint(replace(version, shards=own), partial=True)
    except (NotFoundError, ReplacedError):
        return None  # opening all shards raises the right error
    with opened as checkpoint:
        if not _speak_for_all(checkpoint):
            return None
        try:
            return Gathering(checkpoint, server, checkpoint.shards, workers, reporter).part(out)
        except MisplacedError as fault:
            reporter.warn(f"{fault}: all shards are read")
            return None


def _speak_for_all(checkpoint: Checkpoint) -> bool:
    """Say whether some shards of a version show no reason to look at the others before their values are relied on."""
    version, shards = checkpoint.version, checkpoint.shards
    if any(shard.version != version.version or shard.generation not in _PLACED for shard in shards):
        return False
    return not source_of(version).blocking(version, shards)
