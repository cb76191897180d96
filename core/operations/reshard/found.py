"""A reshard that was made before: a job that starts again finds the shards that its first start has made.

The headers of all shards are read, so damage is not taken for work that is done.
"""

from __future__ import annotations

import time
from typing import Final

from edl_ckpt.core.base.choices import LayoutName
from edl_ckpt.core.base.errors import (
    NotFoundError,
)
from edl_ckpt.core.base.memory import peak_memory_bytes
from edl_ckpt.core.base.progress import WARNINGS, Reporter
from edl_ckpt.core.catalog.listing import VersionLike, as_version, resolve
from edl_ckpt.core.model.versions import CheckpointRef, Version
from edl_ckpt.core.moving.result import WriteResult
from edl_ckpt.core.proof.fingerprint import of_tables
from edl_ckpt.core.proof.trust import check_trust
from edl_ckpt.core.proof.values import fingerprint_checkpoint
from edl_ckpt.core.reading.part_records import records_of, without_variables
from edl_ckpt.core.reading.reader import Checkpoint, open_checkpoint
from edl_ckpt.core.sources.bundle.parts import OF_SYSTEM
from edl_ckpt.core.sources.elasticdl.target import check_ps_num
from edl_ckpt.core.storage import Location, LocationLike

_WRITTEN: Final = frozenset({"v4", ""})
"""The wire generations of shards that a reshard writes; '' is a shard of no bytes."""


def find_resharded(
    version: VersionLike,
    ps_num: int,
    *,
    output: LocationLike | None = None,
    layout: LayoutName | None = None,
    force: bool = False,
    reporter: Reporter = WARNINGS,
) -> WriteResult | None:
    """Return the result of a reshard that was made before, which is not `needed`; None when there is work to do.

    In place, the version itself has the shards. At an `output`, the version of its number has them and the same
    fingerprint; without a seal, all values are read for that. Shards of an old wire generation, or of another `layout`,
    are work to do. Raises what opening a version raises, and what `check_trust` raises unless `force` is set.
    """
    begin = time.perf_counter()
    version = as_version(version)
    check_ps_num(ps_num)
    made = version if output is None else _listed(Location.of(output), version, reporter)
    if made is None or made.ps_num != ps_num or made.missing_ranges or layout not in {None, made.layout.name}:
        return None
    forced = check_trust(made, force=force, reporter=reporter).forced
    with open_checkpoint(made) as checkpoint:
        if made.is_elasticdl and not _WRITTEN.issuperset(shard.generation for shard in checkpoint.shards):
            return None
        if made is not version and not _has_content_of(version, made, reporter):
            return None
        return _result(checkpoint, version, forced, time.perf_counter() - begin)


def _listed(location: Location, version: Version, reporter: Reporter) -> Version | None:
    """Return the version of this number at a location."""
    if version.number is None:
        return None
    try:
        return resolve(CheckpointRef(location, version.number), reporter=reporter)
    except NotFoundError:
        return None


def _has_content_of(version: Version, made: Version, reporter: Reporter) -> bool:
    """Say whether two versions have the same content; of two systems, the same tables and variables."""
    texts = [_fingerprint(each, reporter) for each in (version, made)]
    if version.layout.system != made.layout.system:  # an item stays behind
        texts = [of_tables(text) for text in texts]
    return texts[0] == texts[1]


def _fingerprint(version: Version, reporter: Reporter) -> str:
    """Return the fingerprint of a version without the records of its parts: in other parts there are others."""
    if version.fingerprint and version.layout.system != OF_SYSTEM:
        return version.fingerprint
    with open_checkpoint(version) as checkpoint:
        records = records_of(checkpoint)
        if version.fingerprint and not records:
            return version.fingerprint
        return fingerprint_checkpoint(without_variables(checkpoint, records), reporter=reporter).text


def _result(checkpoint: Checkpoint, source: Version, forced: str | None, seconds: float) -> WriteResult:
    version = checkpoint.version
    shards = tuple(shard.summary for shard in checkpoint.shards)
    return WriteResult(
        ref=version.ref,
        source=source.ref,
        output=version.location.url,
        from_ps=source.ps_num or 0,
        to_ps=version.ps_num or 0,
        version=version.version,
        size_bytes=version.size_bytes,
        bytes_read=checkpoint.bytes_read,
        bytes_written=0,
        rows=sum(shard.rows for shard in shards),
        seconds=seconds,
        peak_memory_bytes=peak_memory_bytes(),
        fingerprint=version.fingerprint,
        shards=shards,
        forced=forced,
        system=version.layout.system,
        needed=False,
    )
