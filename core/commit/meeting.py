"""Places that all processes of a cluster must reach: each reads a token there, and writes one of its own."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from typing import ClassVar, Final

from edl_ckpt.core.base.errors import NotFoundError
from edl_ckpt.core.base.parallel import Meeting
from edl_ckpt.core.storage import Location, ObjectStore, open_objects
from edl_ckpt.core.storage.faults import storage_errors

TOKEN: Final = "token-"  # noqa: S105 - no secret
"""How the names of tokens begin."""
_TOKEN_BYTES: Final = 1 << 10


@dataclass(frozen=True, slots=True)
class SharedDirectory(Meeting):
    """A directory of a file system, by its absolute path."""

    path: str
    is_directory: ClassVar[bool] = True
    hint: ClassVar[str] = "mount the volume at the same path on every worker, for a user who may write there"

    def read(self, name: str) -> bytes:
        """Return a token; OSError when this process sees none."""
        with open(os.path.join(self.path, name), "rb") as file:
            return file.read(_TOKEN_BYTES)

    def write(self, name: str, data: bytes) -> None:
        """Write a token."""
        path = os.path.join(self.path, name)
        with storage_errors(path), open(path, "xb") as file:
            file.write(data)

    def remove(self, name: str) -> None:
        """Remove a token; a missing one is no error."""
        with suppress(FileNotFoundError):
            os.unlink(os.path.join(self.path, name))


@dataclass(frozen=True, slots=True)
class SharedPrefix(Meeting):
    """A prefix below a location on storage without directories."""

    location: Location
    relative: str
    is_directory: ClassVar[bool] = False
    hint: ClassVar[str] = "workers take credentials from their own environment, as AWS_PROFILE or AWS_ACCESS_KEY_ID"

    @property
    def _store(self) -> ObjectStore:
        return open_objects(self.location)

    @property
    def path(self) -> str:
        """Return its full URL."""
        return self._store.path(self.relative)

    def read(self, name: str) -> bytes:
        """Return a token; NotFoundError when this process sees none."""
        data = self._store.read_small(f"{self.relative}/{name}")
        if data is None:
            raise NotFoundError("no such object", path=f"{self.path}/{name}")
        return data

    def write(self, name: str, data: bytes) -> None:
        """Write a token."""
        self._store.write_small(f"{self.relative}/{name}", data)

    def remove(self, name: str) -> None:
        """Remove a token; a missing one is no error."""
        self._store.remove(f"{self.relative}/{name}")
