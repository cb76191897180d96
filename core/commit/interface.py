"""What every writer of a version sees: sinks for its shards, and one `publish`.

A writer holds the lock of the location for the whole time: `location_lock` gives it a `LockedLocation`, and only that
opens an output.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from edl_ckpt.core.base.errors import EdlCkptError
from edl_ckpt.core.base.progress import WARNINGS, Reporter
from edl_ckpt.core.base.words import base_name
from edl_ckpt.core.catalog.contents import Contents
from edl_ckpt.core.commit.journal import Journal, Note
from edl_ckpt.core.commit.progress import Progress
from edl_ckpt.core.commit.sent_parts import SharedUploads, TargetPart
from edl_ckpt.core.commit.writers import StagedTargets
from edl_ckpt.core.model.layouts import Layout
from edl_ckpt.core.model.seals import Seal
from edl_ckpt.core.model.versions import UNNUMBERED, ShardFile, State, Version
from edl_ckpt.core.state.annotate import Describe
from edl_ckpt.core.storage import LocalStore, Location, ObjectStore
from edl_ckpt.core.storage.interface import Sink

SharedTargets: TypeAlias = StagedTargets | SharedUploads
"""Shards that other processes write: files at any offset, uploads part by part."""
LOOK: Final = "its content is unknown: check the versions with `edl-ckpt verify --all`"


@dataclass(frozen=True, slots=True)
class LockedLocation:
    """A location whose lock this process holds."""

    store: LocalStore | ObjectStore
    is_exclusive: bool
    """False on storage without locks: there the user was warned, and other processes may be writing."""
    check: Callable[[], object] = field(repr=False, compare=False)
    """Raises LockedError when another process has taken the lock over; called before steps that cannot be undone."""


@dataclass(frozen=True, slots=True)
class Written:
    """A version whose shards are written, and that is to be proved before it is sealed."""

    version: Version
    staged: bool
    """True while the version is in our own staging directory, which no other process changes."""
    verified: bool = False
    """True when the storage has reported matching checksums of every byte of every shard, in this run."""


Prove = Callable[[Written], Seal]
"""Reads a written version back, raises an error unless it equals its source, and returns its seal."""


@dataclass(frozen=True, slots=True)
class Resume:
    """How a later run of the same work is recognised, so that it does not repeat the shards that are finished."""

    source: str
    """A digest of what the shards are made from: only a run with the same source resumes."""
    lengths: tuple[int, ...]
    """How many items the note of each shard has; a note of another length is damaged."""

    def accepts(self, shard: int, note: Note | None) -> bool:
        """Say whether the note of a finished shard can be used."""
        return note is not None and len(note) == self.lengths[shard]


@dataclass(frozen=True, slots=True)
class NewVersion:
    """A version to be written: its layout, its number, and how."""

    layout: Layout
    number: int
    purpose: str
    replaces: Version | None = None
    """The version whose place it takes."""
    copies: Version | None = None
    """A version of another system of which it is a copy, file by file."""
    contents: Contents | None = None
    """The directory of the version that it replaces, or that it copies, before anything of it was read."""
    carried: tuple[str, ...] = ()
    """The files and links in it that go along; the writer of the files writes those files too."""
    keep_old: bool = False
    """Move the replaced shards to the trash."""
    memory_bytes: int | None = None
    """The most that open parts of a remote version take, by default `PART_MEMORY_BYTES`; others wait on the disk."""
    resumes: Resume | None = None
    """Continue an interrupted run of the same work."""
    move_digest: str = ""
    """A digest of the move that writes the files, and of what it reads; '' for one that does not resume."""
    reporter: Reporter = WARNINGS
    """Is warned when a replaced version's owner, group or ACL cannot be kept."""

    @property
    def name(self) -> str:
        """Return the name of the version's directory."""
        existing = self.replaces or self.copies
        return base_name(existing.path) if existing else self.layout.version_dir(self.number)

    @property
    def key(self) -> int | str:
        """Return what tells it from others of its location: its number, or its name where it has none."""
        return self.name if self.number == UNNUMBERED else self.number

    @property
    def is_loose(self) -> bool:
        """Return True where its files lie in the location itself, side by side."""
        return self.copies is not None and self.copies.is_file

    @property
    def old_names(self) -> tuple[str, ...]:
        """Return the names in the directory of the version that it replaces, in order."""
        old = self.replaces
        names = {old.name_of(file.path).partition("/")[0] for file in old.files} if old else set[str]()
        if old and self.contents is not None:
            names |= {path.partition("/")[0] for path in self.contents.tree}
        return tuple(sorted(names))

    def names(self, ps_num: int) -> list[str]:
        """Return the names of its files, those of its shards unless it is a copy file by file.

        Then those follow that are carried, and that no listing of the version shows.
        """
        if self.copies is None:
            return [self.layout.shard_file(i, ps_num) for i in range(ps_num)]
        names, files = self.copies.sizes, self.contents.files if self.contents is not None else {}
        return [*names, *(name for name in self.carried if name in files and name not in names)]

    def written(self, location: Location, directory: str, sizes: Sequence[int]) -> Version:
        """Return it as a listing shows it, but for its times, once its files are in a directory."""
        if self.copies is not None:
            return self.copies.in_directory(location, directory)
        return written_version(location, directory, self.layout, self.number, sizes)


class VersionOutput(ExitStack[None]):
    """A version being written; a context manager that leaves nothing of what was not published.

    The exception is a resumable output: it keeps what is finished when its run is interrupted.
    """

    def __init__(self, place: LockedLocation, new: NewVersion) -> None:
        super().__init__()
        self._place = place
        self._new = new
        self._name = new.name
        self._lock = threading.Lock()
        self.resumed: dict[int, Note] = {}
        """The notes of the shards that an interrupted run had finished: they are not written again."""
        self.progress: Progress | None = None
        """Where a move notes what it has done, and finds what an interrupted one had done; None where none resumes."""

    def create(self, sizes: Sequence[int]) -> Sequence[Sink]:
        """Begin all shards, of these sizes; NoSpaceError when there is no room for them.

        A shard in `resumed` gets a sink that must not be written to.
        """
        raise NotImplementedError

    def finish(self, shard: int, note: Note) -> None:
        """Make a shard of a resumable output safe, and remember it with a note."""
        raise NotImplementedError

    def share(self, *, apart: bool = False) -> SharedTargets:
        """Return the shards as a value, for other processes that write them; UnsupportedError where none can.

        `apart` is for tasks that write one shard each: `finish` ends the sharing of that shard alone.
        """
        raise NotImplementedError

    def take(self, parts: Iterable[TargetPart]) -> None:
        """Take the parts of uploads that other processes have sent; nothing where they write files in place."""

    def publish(self, prove: Prove, describe: Describe | None = None) -> Seal:
        """Make what was written visible, once it is proved, with its seal and its metadata; return the seal.

        An error after the step that makes it visible has a hint that says so.
        """
        raise NotImplementedError


class FinishedSink(Sink):
    """Stands for a shard that an interrupted run had finished."""

    def __init__(self, path: str) -> None:
        self.path = path

    def write(self, offset: int, data: memoryview | bytes) -> None:
        """Raise EdlCkptError: the bytes are there already."""
        raise EdlCkptError(f"{len(data)} bytes for a shard that is finished", path=self.path, offset=offset)


def written_version(location: Location, directory: str, layout: Layout, number: int, sizes: Sequence[int]) -> Version:
    """Return a version that this process wrote, as a listing shows it but for its times."""
    shards = tuple(
        ShardFile(i, len(sizes), f"{directory}/{layout.shard_file(i, len(sizes))}", size, 0.0)
        for i, size in enumerate(sizes)
    )
    return Version(location, number, directory, layout, State.COMPLETE, len(sizes), shards)


@dataclass(slots=True)
class Settled:
    """What became of all journals of a location, in words, and by which terms they are settled."""

    exclusive: bool
    """No other process can be at work there."""
    drop_copies: bool = False
    """Interrupted copies and moves are discarded."""
    done: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)

    def keeps(self, journal: Journal) -> bool:
        """Say whether a journal stays, because an interrupted copy or move can go on."""
        stays = bool(journal.source) and not self.drop_copies
        if stays:
            again = "command" if journal.work else "copy"
            self.kept.append(f"{journal.in_words()} resumes when the same {again} is run again")
        return stays

    def leave(self, error: EdlCkptError) -> None:
        """Note what cannot be settled, and what a person can do about it."""
        self.left.append(f"{error}; {error.hint}" if error.hint else str(error))
