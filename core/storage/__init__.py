"""Bytes: opening the store of a location. Knows nothing of checkpoints or of our state directory."""

from __future__ import annotations

from collections.abc import Mapping

from edl_ckpt.core.storage.interface import ObjectStore, Store
from edl_ckpt.core.storage.local import LocalStore


def is_local(location: str) -> bool:
    """Return True for a plain path, and for file:// and local:// URLs.

    >>> is_local("/data/run"), is_local("file:///data/run"), is_local("s3://bucket/run")
    (True, True, False)
    """
    scheme = location.partition("://")[0] if "://" in location else ""
    return scheme in {"", "file", "local"}


def local_path(location: str) -> str:
    """Return the path of a local location.

    >>> local_path("file:///data/run")
    '/data/run'
    """
    return location.partition("://")[2] if "://" in location else location


def open_store(location: str, storage_options: Mapping[str, str] | None = None) -> Store:
    """Return the store of a location; `storage_options` go to S3 or fsspec, and mean nothing on a local path."""
    if is_local(location):
        return LocalStore(local_path(location))
    return open_remote(location, storage_options)


def open_remote(location: str, storage_options: Mapping[str, str] | None = None) -> ObjectStore:
    """Return the store of a location that is not local."""
    if location.startswith(("s3://", "s3a://")):
        from edl_ckpt.core.storage.s3.store import S3Store

        return S3Store(location, storage_options or {})
    from edl_ckpt.core.storage.fsspec import FsspecStore

    return FsspecStore(location, storage_options or {})
