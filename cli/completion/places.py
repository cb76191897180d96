"""The places that a word names: a directory on this machine, or a location on a network where the user asked for that.

Nothing here raises: a place that cannot be read has no names.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import TYPE_CHECKING, Final

from edl_ckpt.core.catalog import glance
from edl_ckpt.core.catalog.glance import Glimpse
from edl_ckpt.core.sources.elasticdl import peek
from edl_ckpt.core.sources.elasticdl.peek import Budget, Names

if TYPE_CHECKING:
    from edl_ckpt.core.model.listings import Listing
    from edl_ckpt.core.storage.location import Location

REMOTE: Final = "EDL_CKPT_COMPLETE_REMOTE"
"""The variable that lets completion ask storage on a network."""

_MOST_DELETED: Final = 500


class LocalPlace:
    """A directory, or the directory or file of a version."""

    def __init__(self, path: str, budget: Budget) -> None:
        self._path = expanded(path)
        self._budget = budget

    def versions(self) -> Iterator[tuple[str, str]]:
        """Return numbers, and then UUIDs."""
        return ((str(key), "version") for key in chain.from_iterable(glance.versions(self._path)))

    def trash(self) -> list[int]:
        """Return what can be read in time, at most as many as anybody reads."""
        return list(islice(chain.from_iterable(glance.in_trash(self._path, self._budget)), _MOST_DELETED))

    def glimpse(self) -> Glimpse:
        """Return what can be read in time."""
        return glance.glimpse(self._path, self._budget)

    def names(self, version: str, *, variables: bool) -> Names:
        """Return the names in a version, by default the newest."""
        key: int | str | None = int(version) if version.isascii() and version.isdigit() and len(version) < 19 else None
        if key is None and version:
            key = self.glimpse().tags.get(version)
        if key is None:
            key = next((key for found in glance.versions(self._path) for key in found), None)
        path = None if key is None else peek.find(self._path, key)
        found = peek.names_in(path or self._path, self._budget, variables=variables)
        if found.tables or found.variables or (path is not None and key is not None):
            return found
        return _names_by_engine(self._path, {}, key if key is not None and not version else version)


class RemotePlace:
    """A location on a network, read by the engine: it takes as long as the network does."""

    def __init__(self, url: str, options: Iterable[str]) -> None:
        self._url = url
        self._options = dict(word.partition("=")[::2] for word in options)

    def versions(self) -> Iterable[tuple[str, str]]:
        """Return the versions with their states."""
        return [(str(version.key), version.shown_state) for version in reversed(self._listing().versions)]

    def trash(self) -> tuple[int, ...]:
        """Return nothing: only local storage has a trash."""
        return ()

    def glimpse(self) -> Glimpse:
        """Return the names in the metadata."""
        seen = Glimpse()
        for version in reversed(self._listing().versions):
            seen.tags.update({tag: version.key for tag in version.tags if tag not in seen.tags})
            seen.metrics.update(dict.fromkeys(version.metrics))
        return seen

    def names(self, version: str, *, variables: bool) -> Names:  # noqa: ARG002 - headers have both
        """Return the names in the headers of a version."""
        return _names_by_engine(self._url, self._options, version)

    def _location(self) -> Location:
        from edl_ckpt.core.storage.location import Location

        return Location(self._url, self._options)

    def _listing(self) -> Listing:
        from edl_ckpt.core.catalog.listing import list_versions

        return list_versions(self._location())


def _names_by_engine(url: str, options: Mapping[str, str], version: int | str) -> Names:
    """Return the names in the headers of a version of any system, short where they are plain.

    The engine takes longer than a glance, and no longer than a shell waits: then it offers nothing.
    """
    from edl_ckpt.core.base.progress import SILENT
    from edl_ckpt.core.catalog.listing import resolve
    from edl_ckpt.core.model.versions import CheckpointRef
    from edl_ckpt.core.reading.names import short_names
    from edl_ckpt.core.reading.reader import open_checkpoint
    from edl_ckpt.core.storage.location import Location

    word = str(version)
    key = int(word) if word.isascii() and word.isdigit() else word or "latest"
    with open_checkpoint(resolve(CheckpointRef(Location(url, dict(options)), key), reporter=SILENT)) as checkpoint:
        tables = short_names(checkpoint.table_names, checkpoint.slots)
        return Names(dict.fromkeys(tables), dict.fromkeys(short_names(list(checkpoint))))


def place_of(url: str, options: Iterable[str], budget: Budget) -> LocalPlace | RemotePlace | None:
    """Return the place that a text names; None for one on a network, unless the user wants those too."""
    if "://" in url and not url.startswith(("file://", "local://")):
        return RemotePlace(url, options) if asks_remote() else None
    return LocalPlace(url.partition("://")[2] if "://" in url else url, budget)


def asks_remote() -> bool:
    """Say whether the user lets completion ask storage on a network."""
    return os.environ.get(REMOTE, "").lower() in {"1", "true", "t", "yes", "y", "on"}


def expanded(path: str) -> str:
    """Return a path as the shell will hand it over: with '~' and variables replaced."""
    return os.path.expanduser(os.path.expandvars(path)) if path.startswith(("~", "$")) else path


def config_path(named: Sequence[str]) -> str:
    """Return the configuration file that a command would read; `config.py` decides the same, and imports more."""
    folder = os.environ.get("XDG_CONFIG_HOME", "")
    if not os.path.isabs(folder):
        folder = os.path.expanduser("~/.config")
    own = os.path.join(folder, "edl-ckpt", "edl-ckpt.toml")
    return expanded(named[-1]) if named else os.environ.get("EDL_CKPT_CONFIG") or own
