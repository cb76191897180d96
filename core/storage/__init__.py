"""Bytes: locations and the stores that open them. Knows no checkpoint, and not our state directory."""

from __future__ import annotations

from edl_ckpt.core.storage.interface import ObjectStore, Store
from edl_ckpt.core.storage.local import LocalStore
from edl_ckpt.core.storage.location import Location, LocationLike

__all__ = ["LocalStore", "Location", "LocationLike", "ObjectStore", "Store", "open_objects", "open_store"]


def open_store(place: LocationLike) -> LocalStore | ObjectStore:
    """Return the store of a location; its `properties` say what can be done there."""
    location = Location.of(place)
    path = location.local_path
    return open_objects(location) if path is None else LocalStore(location, path)


def open_objects(location: Location) -> ObjectStore:
    """Return the store of a location that is not on the local disk."""
    if location.scheme in {"s3", "s3a"}:
        from edl_ckpt.core.storage.s3.store import S3Store  # with email

        return S3Store(location)
    from edl_ckpt.core.storage.fsspec import FsspecStore  # most locations are on a disk or on S3

    return FsspecStore(location)
