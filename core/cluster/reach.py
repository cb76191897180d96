"""Whether a worker reaches the command's files: tokens in shared places, and room for what it writes."""

from __future__ import annotations

import os
import pickle
import sys
import tempfile
import uuid
from typing import NamedTuple

from edl_ckpt.core.base.errors import EdlCkptError
from edl_ckpt.core.base.parallel import Meeting


class Reached(NamedTuple):
    """What a worker could do in a directory."""

    name: str = ""
    """The file that it wrote there; '' when it could not."""
    free_bytes: int = 0
    """The room that it sees there, within its quota where the storage shows that."""
    fault: str = ""


def reach(place: bytes, token: str) -> Reached:
    """Read a token in a packed place, and write another one beside it."""
    meeting: Meeting = pickle.loads(place)  # noqa: S301 - as above
    try:
        name = f"{meeting.read(token).decode()}-{uuid.uuid4().hex}"
        meeting.write(name, name.encode())
        return Reached(name, free_bytes(meeting.path) if meeting.is_directory else sys.maxsize)
    except EdlCkptError as error:
        return Reached(fault=str(error))
    except OSError as error:
        return Reached(fault=f"{error.strerror}: {error.filename}" if error.strerror else str(error))


def spare() -> Reached:
    """Return where a worker keeps temporary files, and how much room there is."""
    directory = tempfile.gettempdir()
    return Reached(directory, free_bytes(directory))


def free_bytes(directory: str) -> int:
    """Return the room in a directory, in bytes, as this process sees it."""
    status = os.statvfs(directory)
    return status.f_bavail * status.f_frsize
