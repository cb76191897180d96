"""Every name inside `.edl-ckpt-0/`, the one place beside checkpoints that ElasticDL's own scan tolerates.

The scan reads a number from each name in checkpoint_dir, and from the first name in each directory there. So each
immediate child of the state directory ends in -0; below those any name will do (`core/README.md`, section State).
"""

from __future__ import annotations

from typing import Final

STATE_DIR: Final = ".edl-ckpt-0"
STAGE_DIR: Final = f"{STATE_DIR}/stage-0"
"""One staging directory for each command that is writing."""
TRASH_DIR: Final = f"{STATE_DIR}/trash-0"
"""One directory for each deletion that can be undone, or is being carried out."""
META_DIR: Final = f"{STATE_DIR}/meta-0"
"""Metadata and seals of versions, and the metadata of the location."""
LOCK_FILE: Final = f"{STATE_DIR}/lock-0"
JOURNAL: Final = "journal.json"
"""In a staging directory: a commit of several steps, to be finished or rolled back by whoever takes the lock next."""
PROGRESS: Final = "progress.json"
"""In a staging directory: how far an interrupted copy came, so that the same copy resumes."""
LOCATION_FILE: Final = "location.json"


def version_file(version: int) -> str:
    """Return the path of a version's metadata below its location.

    >>> version_file(100)
    '.edl-ckpt-0/meta-0/100.json'
    """
    return f"{META_DIR}/{version}.json"


def seal_file(version: int) -> str:
    """Return the path of a version's seal below its location.

    >>> seal_file(100)
    '.edl-ckpt-0/meta-0/100.seal.json'
    """
    return f"{META_DIR}/{version}.seal.json"
