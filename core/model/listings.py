"""All versions of one location."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from edl_ckpt.core.base.errors import EdlCkptError
from edl_ckpt.core.base.notebook import Shown
from edl_ckpt.core.base.words import counted, describe, escaped
from edl_ckpt.core.model.versions import State, Version
from edl_ckpt.core.storage.location import Location


@dataclass(frozen=True, slots=True)
class ForeignEntry:
    """An entry of checkpoint_dir that is not a version, and the version that ElasticDL's scan takes it for."""

    name: str
    elasticdl_version: int | None
    """The version that ElasticDL takes it for; None where its scan raises an exception."""
    is_file: bool = False


@dataclass(frozen=True, slots=True)
class Listing(Shown):
    """All versions of one location in the order of their numbers, and its other entries."""

    location: Location
    versions: tuple[Version, ...]
    foreign: tuple[ForeignEntry, ...] = ()
    modes: Mapping[str, str] = field(default_factory=dict, hash=False)
    """The better end of each metric, 'max' or 'min', as a user declared it once."""
    problems: tuple[str, ...] = ()
    """Warnings about what cannot be read: versions, and files of our own."""
    interrupted_copies: tuple[int, ...] = ()
    """The versions of which an interrupted copy waits here; the same copy resumes it."""
    modes_fault: EdlCkptError | None = field(default=None, compare=False)
    """Why the modes cannot be read, None when they can."""
    replacing: Mapping[int, str] = field(default_factory=dict, hash=False)
    """The versions that are still being replaced, by the process that does it; they may be missing just now."""

    @property
    def unread(self) -> bool:
        """Return True when something that is there cannot be read now, so that the listing may lack something."""
        return self.modes_fault is not None or any(
            version.fault or (version.unread and not version.is_newer) for version in self.versions
        )

    @property
    def newest(self) -> Version | None:
        """Return what `@latest` is: the newest complete version whose shards are of one run; None without any."""
        return next((v for v in reversed(self.versions) if v.state is State.COMPLETE and not v.mixture), None)

    @property
    def layout(self) -> str | None:
        """Return the layout's name, 'mixed' when versions differ, None when there are none."""
        names = {version.layout.name for version in self.versions}
        return names.pop() if len(names) == 1 else "mixed" if names else None

    def __repr__(self) -> str:
        return describe(
            "Listing",
            escaped(self.location.url),
            counted(len(self.versions), "version"),
            f"the last is {self.versions[-1].version}" if self.versions else "",
            counted(len(self.foreign), "foreign entry") if self.foreign else "",
            counted(len(self.problems), "problem") if self.problems else "",
        )
