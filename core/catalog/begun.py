"""Where a browser begins: a reference leads to a listing to choose from, or to a checkpoint by itself."""

from __future__ import annotations

from contextlib import suppress

from edl_ckpt.core.base.errors import EdlCkptError, NotFoundError
from edl_ckpt.core.base.progress import WARNINGS, Reporter
from edl_ckpt.core.catalog.files import directory_alone, named_step
from edl_ckpt.core.catalog.listing import list_versions, pick, resolve, split_version_dir
from edl_ckpt.core.catalog.single_file import named_file
from edl_ckpt.core.model.listings import Listing
from edl_ckpt.core.model.versions import CheckpointRef, Version
from edl_ckpt.core.sources.registry import is_uuid


def versions_at(ref: CheckpointRef, *, reporter: Reporter = WARNINGS) -> tuple[Listing | None, Version | None]:
    """Return the listing that a reference leads to, and the version that it names.

    The listing is None for a checkpoint by itself, and the version is None where the reference names none: 'latest' is
    no choice. Raises the errors of `resolve`.
    """
    if alone := named_step(ref) or named_file(ref):
        return None, alone
    if ref.version == "latest" and (split_version_dir(ref.location) or is_uuid(ref.location.split()[1])):
        with suppress(EdlCkptError):  # a checkpoint_dir may have such a name, too
            version = resolve(ref, reporter=reporter)
            return list_versions(version.location), version
    listing = list_versions(ref.location)
    if not listing.versions and ref.version == "latest" and (alone := directory_alone(ref.location)):
        return None, alone
    return listing, None if ref.version == "latest" else pick(listing, ref.version)


def listed_again(version: Version) -> Version:
    """Return a version as it is listed now; NotFoundError when it is gone."""
    if version.is_alone:
        return resolve(CheckpointRef(version.location.with_url(version.path), "latest"))
    found = next((v for v in list_versions(version.location).versions if v.path == version.path), None)
    if found is None:
        raise NotFoundError("the version is gone", path=version.ref)
    return found
