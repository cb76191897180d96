"""Old versions without what only a resumed training needs: optimizer slots, frequencies and the like are left out."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final, Unpack

from edl_ckpt.core.base.errors import RefusedError, UsageError
from edl_ckpt.core.base.job import WARNINGS
from edl_ckpt.core.catalog.listing import list_versions
from edl_ckpt.core.converting.changes import Changes
from edl_ckpt.core.model.versions import State
from edl_ckpt.core.operations.convert import ConvertResult, convert_version
from edl_ckpt.core.operations.prune.guards import looked_at
from edl_ckpt.core.reading.reader import open_checkpoint
from edl_ckpt.core.state.lock import Locking
from edl_ckpt.core.storage import Location, LocationLike

_BARE: Final = Changes(drop_companions=True)


def strip_versions(
    locations: Sequence[LocationLike],
    after: int,
    *,
    spared: Collection[str] = (),
    dry_run: bool = False,
    **locking: Unpack[Locking],
) -> tuple[ConvertResult, ...]:
    """Rewrite in place, without the companions of tables, the versions older than the newest `after` whole ones.

    Only complete versions that can be read are counted and rewritten; each is proved, and sealed anew. Tagged ones stay
    as they are, and those whose paths are `spared`; so do those without companions, which no result is of. One that
    cannot be replaced in its place is left with a warning. Takes the lock of a location for one version at a time.
    Raises UsageError for `after` below 1, since the newest whole version keeps everything, and else as
    `convert_version`.
    """
    if after < 1:
        raise UsageError("the newest whole version is never stripped: 1 is the least")
    done: list[ConvertResult] = []
    for where in dict.fromkeys(map(Location.of, locations)):
        versions, unreadable = looked_at(list_versions(where).versions)
        whole = [v for v in versions if v.state is State.COMPLETE and v.path not in unreadable]
        for version in sorted(whole, key=lambda v: v.version)[:-after]:
            if version.tags or version.metadata_fault or version.path in spared:
                continue
            with open_checkpoint(
                version
            ) as checkpoint:  # headers tell: no id is read of a version that is bare already
                if not any(info.companion_of for info in checkpoint.infos.values()):
                    continue
            try:
                done.append(convert_version(version, changes=_BARE, dry_run=dry_run, purpose="prune", **locking))
            except RefusedError as error:
                locking.get("reporter", WARNINGS).warn(f"not stripped: {error}")
    return tuple(done)
