"""A listing of a location: its versions, what else is there, and which version is the newest."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple, overload

from edl_ckpt.core.base.errors import EdlCkptError
from edl_ckpt.core.base.notebook import Shown
from edl_ckpt.core.base.words import abridged, command, counted, describe, escaped, size
from edl_ckpt.core.model.versions import State, Version
from edl_ckpt.core.storage.location import Location

_NAMES: Final = 4
"""So many names of a location without versions are in a message."""


class ForeignEntry(NamedTuple):
    """An entry of checkpoint_dir that is not a version, and the version that ElasticDL's scan takes it for."""

    name: str
    elasticdl_version: int | None
    """The version that ElasticDL takes it for; None where its scan raises an exception."""
    is_file: bool = False


class Record(NamedTuple):
    """What the system of some versions says itself of the newest one: its path, or why it is none of them."""

    system: str
    path: str = ""
    fault: str = ""
    decides: bool = True
    """False where the numbers decide when the version that it names is not good."""
    name: str = "checkpoint"
    """The name of the file or directory that says it."""


class InterruptedMove(NamedTuple):
    """A reshard, an edit or an import that was killed, and that the same command resumes."""

    version: int | str
    """The number of the version that it was about to write, or its name."""
    work: str
    size_bytes: int
    """The room that its files take."""

    def notice(self, location: Location) -> str:
        """Return what is to be said of it at its location, with both ways on."""
        what = f"{location}: an interrupted {self.work} of version {self.version} takes {size(self.size_bytes)}"
        drop = command("recover", "--drop-copies", str(location))
        return f"{what}: the same command resumes it; to discard it: {drop}"


@dataclass(frozen=True, slots=True)
class Listing(Shown):
    """All versions of one location in the order of their numbers, or of their system's record, and its other entries.

    Those without a number come first, by time.
    """

    location: Location
    versions: tuple[Version, ...]
    foreign: tuple[ForeignEntry, ...] = ()
    modes: Mapping[str, str] = field(default_factory=dict, hash=False)
    """The better end of each metric, 'max' or 'min', as a user declared it once."""
    problems: tuple[str, ...] = ()
    """Warnings about what cannot be read: versions, and files of our own."""
    interrupted_copies: tuple[int, ...] = ()
    """The versions of which an interrupted copy waits here; the same copy resumes it."""
    interrupted_moves: tuple[InterruptedMove, ...] = ()
    """The interrupted reshards, edits and imports that wait here; the same command resumes one."""
    modes_fault: EdlCkptError | None = field(default=None, compare=False)
    """Why the modes cannot be read, None when they can."""
    replacing: Mapping[int, str] = field(default_factory=dict, hash=False)
    """The versions that are still being replaced, by the process that does it; they may be missing just now."""
    record: Record | None = None
    """What TensorFlow's file `checkpoint`, or the like of another system, says of the versions."""
    bound: int = 0
    """So many names were looked at, without a version among them, and there are more; 0 where all were looked at."""

    def __iter__(self) -> Iterator[Version]:
        return iter(self.versions)

    def __len__(self) -> int:
        return len(self.versions)

    @overload
    def __getitem__(self, index: int) -> Version: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Version, ...]: ...
    def __getitem__(self, index: int | slice) -> Version | tuple[Version, ...]:
        return self.versions[index]

    def __bool__(self) -> bool:
        return True  # one without versions is a listing, too

    @property
    def none_here(self) -> str:
        """Return in words that no version was found, and how far the look went where it did not go to the end."""
        if not self.bound:
            return "no checkpoint here"
        return f"no checkpoint among the first {self.bound:,} names here; there are more, which were not looked at"

    @property
    def way_on(self) -> str:
        """Return what to do where the look did not go to the end; '' where it did."""
        place = f"{self.location.url.rstrip('/')}/NAME"
        return f"name the directory in which the versions are, such as {escaped(place)}" if self.bound else ""

    @property
    def entries(self) -> str:
        """Return in words which names are in a location without versions; it is empty, or perhaps the wrong one."""
        if self.bound:
            return ""
        names = (escaped(entry.name) for entry in self.foreign)
        return f"it contains {abridged(names, _NAMES)}" if self.foreign else "it is empty"

    @property
    def wrong_place_hint(self) -> str:
        """Return the hint of an error that found no version here: is this the right directory, with these names?"""
        return self.way_on or f"is this the right directory? {self.entries}"

    @property
    def unread(self) -> bool:
        """Return True when something that is there cannot be read now, so that the listing may lack something."""
        return self.modes_fault is not None or any(
            version.fault or (version.unread and not version.is_newer) for version in self.versions
        )

    @property
    def newest(self) -> Version | None:
        """Return what `@latest` is: the newest good version whose shards are of one run; None without any.

        Where no version is good, it is the newest complete one about which there are only doubts. Where the record of
        its system names the newest one, it is that one, or none.
        """
        whole = [v for v in reversed(self.versions) if v.state is State.COMPLETE and not (v.damage or v.mixture)]
        if self.is_recorded:
            return self.decided if self.decided in whole else None
        named = self.decided
        if named is not None and named in whole and named.is_good:
            return named
        return next((v for v in whole if v.is_good), whole[0] if whole else None)

    @property
    def is_recorded(self) -> bool:
        """Return True where a record decides which version is the newest: the last whole one is of its system."""
        last = next((v for v in reversed(self.versions) if v.state is State.COMPLETE), None)
        record = self.record
        return record is not None and record.decides and last is not None and last.layout.system == record.system

    @property
    def decided(self) -> Version | None:
        """Return the version that its system's record names as the newest; None where it names none of these."""
        path = self.record.path if self.record is not None else ""
        return next((version for version in self.versions if version.path == path), None)

    @property
    def layout(self) -> str | None:
        """Return the layout's name, 'mixed' when versions differ, None when there are none."""
        names = {version.layout.name for version in self.versions}
        if not names:
            return None
        return names.pop() if len(names) == 1 else "mixed"

    def __repr__(self) -> str:
        last = f"the last is {self.versions[-1].version}" if self.versions else ""
        others = ((self.foreign, "foreign entry"), (self.problems, "problem"))
        facts = (counted(len(listed), noun) if listed else "" for listed, noun in others)
        return describe("Listing", escaped(self.location.url), counted(len(self.versions), "version"), last, *facts)
