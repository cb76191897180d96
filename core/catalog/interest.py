"""The directories of a location that a listing looks into: those that are, or seem to be, versions, and our state.

A name that a system uses for steps is reason enough. A bare number, and a name of unknown spelling, may be anything: of
these a look at names decides, and nothing is opened. So a listing of `/proc` or of a home directory ends at once.
"""

from __future__ import annotations

import os
from typing import Final

from edl_ckpt.core.base.errors import EdlCkptError
from edl_ckpt.core.sources import registry
from edl_ckpt.core.state.paths import META_DIR, NOTES_DIR, STAGE_DIR, STATE_DIR
from edl_ckpt.core.storage.interface import Store

_MOST_PEEKS: Final = 1000
"""So many directories of unknown names are looked at; a location of steps has not so many others."""
_MOST_INNER: Final = 64
"""So many names of a directory are taken for directories of a step's parts."""


def is_of_interest(directory: str) -> bool:
    """Say whether a listing of a location looks into a directory for its name: versions, metadata, and journals."""
    if directory.partition("/")[0] == STATE_DIR:
        return directory in {STATE_DIR, META_DIR, NOTES_DIR, STAGE_DIR} or os.path.dirname(directory) == STAGE_DIR
    return registry.looked_into(directory)


class Interest:
    """Says of each directory of a store whether a listing looks into it; made for one listing."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._is_near = not store.properties.round_trips
        self._seen: dict[str, bool] = {}
        self._peeks = 0

    def __call__(self, directory: str) -> bool:
        """Return True for a directory of interest; the answer for a name of unknown spelling is remembered."""
        first = directory.partition("/")[0]
        if first == STATE_DIR:
            return is_of_interest(directory)
        if registry.is_step_name(first):
            return first == directory or registry.looked_into(directory)
        if first.startswith(".") or not registry.is_within_step(directory):
            return False
        if not self._is_near:  # everything is listed already
            return True
        if first not in self._seen:
            self._seen[first] = (first.isdigit() or self._may_peek()) and self._has_parts(first)
        return self._seen[first]

    def _may_peek(self) -> bool:
        self._peeks += 1
        return self._peeks <= _MOST_PEEKS

    def _has_parts(self, directory: str) -> bool:
        """Say whether the names in a directory, or in those in it that may be parts of a step, are of a format."""
        names = self._names(directory)
        if names is None or registry.has_format(names):
            return True
        inner = [n for n in names if registry.is_part(n) or (directory.isdigit() and "." not in n)]
        found = (self._names(f"{directory}/{name}") for name in inner[:_MOST_INNER])
        return any(within is not None and registry.has_format(within) for within in found)

    def _names(self, directory: str) -> list[str] | None:
        """Return the names in a directory, None when it cannot be listed: then the listing says why.

        A link below a directory is not followed, as by a listing.
        """
        if "/" in directory and os.path.islink(self._store.path(directory)):
            return []
        try:
            return [*self._store.names(directory)]
        except EdlCkptError:
            return None
