"""An import whose source is a checkpoint: a reshard to a version of another number, perhaps in another location."""

from __future__ import annotations

from dataclasses import fields

from edl_ckpt.core.base.errors import CorruptError
from edl_ckpt.core.base.progress import WARNINGS, Reporter
from edl_ckpt.core.catalog.files import named_file
from edl_ckpt.core.catalog.listing import (
    VersionLike,
    as_version,
    list_versions,
    parse_ref,
    resolve,
    split_version_dir,
)
from edl_ckpt.core.cluster.choice import ExecutorLike
from edl_ckpt.core.model.versions import Version
from edl_ckpt.core.moving.settings import ReshardSettings
from edl_ckpt.core.operations.importing.arrays import ARRAY_ENDINGS
from edl_ckpt.core.operations.importing.source import ImportResult
from edl_ckpt.core.operations.reshard.plan import ReshardPlan
from edl_ckpt.core.operations.reshard.prepare import prepare_reshard, reshard_version
from edl_ckpt.core.sources.elasticdl.target import DESIGN
from edl_ckpt.core.sources.registry import directory_named, is_uuid
from edl_ckpt.core.state.lock import LOCK_WAIT_SECONDS
from edl_ckpt.core.storage import LocationLike, open_objects
from edl_ckpt.core.storage.location import Location
from edl_ckpt.core.storage.regular import is_directory, is_file


def as_checkpoint(source: LocationLike, *, reporter: Reporter = WARNINGS) -> Version | None:
    """Return a source as a version: a reference, a checkpoint_dir or one file; None for files of other tools."""
    place = Location.of(source)
    path, ending = place.local_path, place.url.lower()
    if ending.endswith(ARRAY_ENDINGS) and (path is None or is_file(path)):
        return None
    ref = parse_ref(place.url, options=place.options)
    try:
        alone = named_file(ref)
    except CorruptError:
        if ending.endswith((".ckpt", ".chkpt")):
            raise
        return None  # perhaps arrays in a format that this module does not know
    if alone is not None:
        return alone
    by_name = "@" in place.url or split_version_dir(place) is not None or is_uuid(place.split()[1])
    if by_name or _is_checkpoint_dir(place):
        return resolve(ref, reporter=reporter)
    return None


def _is_checkpoint_dir(place: Location) -> bool:
    """Return True for a location with versions rather than files of another tool."""
    path = place.local_path
    if path is None:
        return any(directory_named(name) is not None or is_uuid(name) for name in open_objects(place).names(""))
    return is_directory(path) and bool(list_versions(place).versions)


def import_checkpoint(
    source: VersionLike,
    location: LocationLike,
    version: int,
    ps_num: int,
    *,
    layout: str | None = None,
    force: bool = False,
    executor: ExecutorLike | None = None,
    wait_seconds: float = LOCK_WAIT_SECONDS,
    reporter: Reporter = WARNINGS,
) -> ImportResult:
    """Write a source as version `version` of a location, for `ps_num` servers; `force` and errors as for a reshard."""
    where = Location.of(location)
    done = reshard_version(
        source,
        ps_num,
        output=where,
        layout=layout,
        empty=DESIGN,
        number=version,
        executor=executor,
        force=force,
        wait_seconds=wait_seconds,
        reporter=reporter,
    )
    values = {field.name: getattr(done, field.name) for field in fields(ImportResult)}
    return ImportResult(**values | {"ref": f"{where}@{version}"})


def plan_checkpoint(
    source: VersionLike,
    location: LocationLike,
    version: int,
    ps_num: int,
    *,
    layout: str | None = None,
    force: bool = False,
    executor: ExecutorLike | None = None,
    reporter: Reporter = WARNINGS,
) -> tuple[ReshardPlan, ReshardSettings]:
    """Return what `import_checkpoint` would do; nothing is written, and no lock is taken."""
    return prepare_reshard(
        as_version(source),
        ps_num,
        output=Location.of(location),
        layout=layout,
        empty=DESIGN,
        number=version,
        executor=executor,
        force=force,
        reporter=reporter,
    )
