"""What the command and the workers of a cluster send each other: small values, without credentials."""

from __future__ import annotations

import io
import pickle
import uuid
import zlib
from collections.abc import Sequence
from typing import Any, NamedTuple

from edl_ckpt.core.base import version
from edl_ckpt.core.base.parallel import Work
from edl_ckpt.core.storage import Location
from edl_ckpt.core.storage.location import OPEN_OPTIONS

VERSION: str = version.VERSION


class _Packer(pickle.Pickler):
    """Packs values for other processes, and no credentials."""

    def reducer_override(self, value: Any) -> Any:
        """Take the credentials out of every location."""
        if isinstance(value, Location) and not value.options.keys() <= OPEN_OPTIONS:
            return Location, (value.url, value.without_credentials().options)
        return NotImplemented


def packed(value: object) -> bytes:
    """Return a value for another process, without any credentials in it."""
    stream = io.BytesIO()
    _Packer(stream).dump(value)
    return stream.getvalue()


class Published(NamedTuple):
    """A work for all tasks, as the scheduler keeps it: whoever needs it gets it from another worker, or from there."""

    token: str
    version: str
    data: bytes
    shown: bytes
    """What each worker was shown before any work; one that came later looks at it before its first task."""

    @classmethod
    def of(cls, work: Work[Any, Any, Any], shown: Sequence[SharedFile] = ()) -> Published:
        """Return a work under a new name."""
        return cls(uuid.uuid4().hex, VERSION, zlib.compress(packed(work), 1), packed(tuple(shown)))


class Done(NamedTuple):
    """A finished task: its result, and what the command counts and shows."""

    result: Any
    done_bytes: int
    seconds: float
    process: str
    read_bytes: int
    """What the process has read for this work so far."""


class Seen(NamedTuple):
    """What a process says of itself."""

    version: str
    has_kernel: bool
    address: str = ""
    """That of a worker; another process may answer at the address of one that is gone."""
    memory_bytes: int = 0
    """What a worker has in memory before any work."""
    usable_bytes: int = 0
    """The memory above which Dask gives a worker no more tasks; 0 without a limit."""
    has_dashboard: bool = False
    """The pages of a scheduler are there: they need a library of their own, and its address does not say."""


class Sight(NamedTuple):
    """A file as a process sees it, or the reason why it does not."""

    size_bytes: int = -1
    generation: str = ""
    fault: str = ""


class SharedFile(NamedTuple):
    """A file that every worker must see as the command does."""

    location: Location
    path: str
    sight: Sight
