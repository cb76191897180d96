"""The bytes that a location takes, by what they belong to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from edl_ckpt.core.base.words import counted, describe, escaped, size
from edl_ckpt.core.catalog.listing import list_everything
from edl_ckpt.core.model.versions import Version
from edl_ckpt.core.state.paths import STAGE_DIR, STATE_DIR, TRASH_DIR
from edl_ckpt.core.storage import Location, LocationLike


@dataclass(frozen=True, slots=True)
class DirectoryUsage:
    """The bytes below a directory of our state."""

    name: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class LocationUsage:
    """The bytes of all files at a location. A symbolic link takes none: it leads to what lies elsewhere."""

    location: Location
    versions: tuple[tuple[Version, int], ...]
    """Each version with the bytes in its directory, its shards and all else."""
    trash: tuple[DirectoryUsage, ...]
    """Deletions that can be undone; `prune --purge` frees them."""
    staging: tuple[DirectoryUsage, ...]
    """What commands are writing, or left when they were killed; `recover` frees the latter.

    What can resume stays, unless copies are dropped.
    """
    state_bytes: int
    """Metadata, seals, notes of servers and locks."""
    other_bytes: int
    """What does not belong to edl-ckpt."""
    problems: tuple[str, ...] = ()
    """What could not be looked into, so that its bytes are missing."""

    @property
    def size_bytes(self) -> int:
        """Return the bytes of everything."""
        ours = sum(used for _, used in self.versions) + sum(d.size_bytes for d in (*self.trash, *self.staging))
        return ours + self.state_bytes + self.other_bytes

    def __repr__(self) -> str:
        return describe(
            "LocationUsage",
            escaped(self.location.url),
            size(self.size_bytes),
            counted(len(self.versions), "version"),
            f"{size(sum(d.size_bytes for d in self.trash))} in the trash" if self.trash else "",
        )


def measure_usage(location: LocationLike) -> LocationUsage:
    """Return what takes the space of a location, from one listing of everything below it.

    Raises NotFoundError when there is no such location, and the error of listing it.
    """
    where = Location.of(location)
    listing, entries = list_everything(where)
    used: Counter[tuple[str, str]] = Counter()
    problems: list[str] = []
    tops = {version.path.rpartition("/")[2]: version.path for version in listing.versions}
    tops |= {version.name_of(file.path): version.path for version in listing.versions for file in version.files}
    for entry in entries:
        if entry.fault is not None:
            problems.append(f"{entry.path}: {entry.fault.message}")
        if not entry.is_dir and not entry.linked:
            used[_place(entry.relative, tops)] += entry.size_bytes
    return LocationUsage(
        location=where,
        versions=tuple((version, used["version", version.path]) for version in listing.versions),
        trash=_directories(used, TRASH_DIR),
        staging=_directories(used, STAGE_DIR),
        state_bytes=used[STATE_DIR, ""],
        other_bytes=used["", ""],
        problems=tuple(problems),
    )


def _place(relative: str, tops: Mapping[str, str]) -> tuple[str, str]:
    """Return what a file counts for, and its name there; `tops` has the paths of versions by entries of the location.

    >>> _place("step_3/a", {"step_3": "run/step_3"}), _place("notes.txt", {})
    (('version', 'run/step_3'), ('', ''))
    """
    top, *rest = relative.split("/")
    if top in tops:
        return "version", tops[top]
    for room in (TRASH_DIR, STAGE_DIR):
        if relative.startswith(f"{room}/"):
            return room, relative.removeprefix(f"{room}/").partition("/")[0]
    return (STATE_DIR, "") if top == STATE_DIR and rest else ("", "")


def _directories(used: Counter[tuple[str, str]], room: str) -> tuple[DirectoryUsage, ...]:
    return tuple(DirectoryUsage(name, used[key, name]) for key, name in sorted(used) if key == room)
