"""The user's own directory for what is remembered of locations, in which nothing of ours may be written.

The command line names it; a script that calls the library has none unless it names one. Everything in it may be deleted
at any time.
"""

from __future__ import annotations

import os

from edl_ckpt.core.storage.location import Location

_directory: list[str] = []


def remember_in(directory: str) -> None:
    """Remember things in files of a directory, which is made for the first of them; '' and by default: in none."""
    _directory[:] = [directory]


def cache_directory() -> str:
    """Return the directory; '' when nothing is remembered."""
    return _directory[0] if _directory else ""


def name_of(location: Location) -> str:
    """Return a name for what is remembered of a location: the same for all paths that lead there."""
    import hashlib  # only locations of which something is remembered need it

    path = location.local_path
    place = location.url if path is None else os.path.realpath(path)
    return hashlib.blake2b(place.encode("utf-8", "surrogatepass"), digest_size=12).hexdigest()
