"""Versions as a listing of a location shows them: where each one is, its shards, and its state; nothing is opened."""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice, pairwise
from typing import Any, Final

from edl_ckpt.core.base.errors import UnsupportedError
from edl_ckpt.core.base.names import name_bytes
from edl_ckpt.core.base.notebook import Shown
from edl_ckpt.core.base.words import abridged, counted, describe, escaped, missing_shards, size
from edl_ckpt.core.model.layouts import Layout
from edl_ckpt.core.model.verdicts import Verdict
from edl_ckpt.core.storage.faults import Fault
from edl_ckpt.core.storage.location import Location

MISSING_LISTED: Final = 1000
"""So many missing shards are listed one by one. A file's name may claim any number of shards; it is not a size."""
_LACKS: Final = 3
_LACK: Final = 160
"""So much of what a version lacks is said, and so many characters of each."""
_REFERABLE: Final = re.compile(r"(?!(?:latest|verified|best|best:.*)\Z)[^@/]+", re.DOTALL).fullmatch
"""Names that a reference can have behind '@' without meaning something else."""
UNNUMBERED: Final = -1
"""The number of a version that has none: it sorts before all others."""


class State(enum.StrEnum):
    """The state of a version, decided from a listing alone: no file is opened."""

    COMPLETE = "complete"
    INCOMPLETE = "incomplete"
    WRITING = "writing"
    """Incomplete, and touched within the grace period: a job may still be saving it."""
    MIXED = "mixed"
    """Files of several ps_num, or of several suffixes, in one directory."""
    INVALID = "invalid"
    """All shards are there, and so are other entries, which make ElasticDL refuse the version."""
    UNREADABLE = "unreadable"
    """The directory or a file in it is there and cannot be looked at now, so no other state can be told."""


SUSPECT: Final = "suspect"
"""What is shown as the state of a version that has all its files by their names, and may not be whole all the same."""
BEING_WRITTEN: Final = "a job may still be writing it: nothing says that its save has ended"
"""The doubt about a version that changed within the grace period: it is shown as `writing`."""
DAMAGED: Final = "damaged"
"""What is shown as the state of a complete version in whose very files verify found errors: no listing tells it."""


@dataclass(frozen=True, slots=True)
class ShardFile:
    """One shard as a listing shows it; `modified` in seconds since the epoch, 0.0 where unknown."""

    ps_id: int
    ps_num: int
    path: str
    size_bytes: int
    modified: float
    linked: bool = False
    """True for a symbolic link, whose bytes lie elsewhere."""
    others: tuple[ShardFile, ...] = ()
    """Further files of the shard, where its source saves several."""
    mark: str = field(default="", compare=False, repr=False)
    """What tells its content from any other, as `Entry.mark`: an ETag, or inode, size and time; '' where unknown."""
    changed_ns: int = field(default=0, compare=False, repr=False)
    """When the file on a disk last changed, its name and its times too, in nanoseconds; 0 on other storage."""

    @property
    def files(self) -> tuple[ShardFile, ...]:
        """Return all files of the shard."""
        return (self, *self.others)

    @property
    def all_bytes(self) -> int:
        """Return the bytes of all files of the shard."""
        return sum(file.size_bytes for file in self.files)


def shown_state(state: State, *, is_damaged: bool, doubts: Sequence[str]) -> str:
    """Return the one word for a version that every output has: that of its state, or damaged, writing or suspect.

    `is_damaged` says that an error in its files is known, `doubts` why it may not be whole.

    >>> shown_state(State.COMPLETE, is_damaged=False, doubts=["it lacks a table"])
    'suspect'
    """
    if state is not State.COMPLETE:
        return state.value
    if is_damaged:
        return DAMAGED
    if BEING_WRITTEN in doubts:
        return State.WRITING.value
    return SUSPECT if doubts else state.value


@dataclass(frozen=True, slots=True)
class Version(Shown):
    """One version as a listing shows it. `ps_num` is None without shard files, or when they disagree."""

    location: Location
    version: int
    """Its number; UNNUMBERED where no spelling of its name has one, and no metadata of Determined's."""
    path: str
    """The version's directory; the file itself in the single-file layout."""
    layout: Layout
    state: State
    ps_num: int | None
    shards: tuple[ShardFile, ...]
    extra: tuple[str, ...] = ()
    """Names in the version's directory that are not its shards."""
    modified: float = 0.0
    metrics: Mapping[str, float] = field(default_factory=dict, hash=False)
    tags: tuple[str, ...] = ()
    note: str = ""
    metadata: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """What users recorded by keys of their own: JSON values."""
    metadata_fault: str = ""
    """Why the version's metadata (metrics, tags, note, keys) cannot be read; '' when it can."""
    fingerprint: str = ""
    """The fingerprint in its seal; '' without a seal that matches these files."""
    fault: Fault | None = None
    """Why the version is unreadable, if that is known; None in every other state."""
    linked: bool = False
    """True when its path is a symbolic link: deleting the version removes the link, and frees nothing."""
    unread: Fault | None = None
    """Why its metadata or its seal, which is there, cannot be read: what is known of it may lack something.

    UnsupportedError when a newer edl-ckpt wrote it.
    """
    seal_fault: str = ""
    """Why its seal does not match these files; '' when it does, or when there is no seal."""
    mixture: str = ""
    """Why its shards are not of one run of a job, as `mixed_runs` says; '' when they are, as far as is known."""
    lacks: tuple[str, ...] = ()
    """What a version of another system than ElasticDL lacks, in words: files, ranks, or the ends of files."""
    whole_part: str = ""
    """The system whose part is whole in a version that lacks something, where only names of files say that it does."""
    shapes: Mapping[str, tuple[int, int]] = field(default_factory=dict, hash=False)
    """The rows and the elements of a row of its tables, where names and sizes of files say them."""
    doubts: tuple[str, ...] = ()
    """Why a complete version may not be whole, in words: its system does not say when a save has ended."""
    unclaimed: tuple[str, ...] = ()
    """The files in its directory that no format reads, by their names there: they lie with the first shard."""
    held_bytes: int | None = None
    """The bytes of everything in its directory, where somebody has looked into it; a listing does not."""
    empty_folders: tuple[str, ...] = ()
    """The directories in it without an entry, where somebody has looked into it."""
    by_name: bool = False
    """True where another version of its location has its number, with the metadata of that number."""
    replaced_by: str = ""
    """The process that is replacing it just now, so that its state is not what it will be; '' for none."""
    verdict: Verdict | None = field(default=None, compare=False)
    """What verify found for these very files, as far as it is remembered; None for a version that is not complete."""

    @property
    def ref(self) -> str:
        """Return the reference that names this version on the command line; the path of a file by itself."""
        if self.is_alone:
            return self.path
        return f"{self.location}@{self.key}" if not self.is_named or _REFERABLE(self.name) else self.path

    @property
    def is_alone(self) -> bool:
        """Return True for a file by itself, which belongs to no location."""
        return not self.layout.in_location

    @property
    def has_only_shards(self) -> bool:
        """Return True where it is its shards and nothing else: no index, and no other files belong to it."""
        return self.layout.has_only_shards

    @property
    def is_elasticdl(self) -> bool:
        """Return True for ElasticDL's own files, and False for those of any other system."""
        return self.layout.system == "elasticdl"

    @property
    def is_file(self) -> bool:
        """Return True for a version whose files lie in a location by the side of directories."""
        return self.layout.in_location and self.layout.loose

    @property
    def has_loose_files(self) -> bool:
        """Return True where its files lie side by side in the directory that its path is in: a file, or a prefix."""
        if self.is_alone:
            return any(not file.path.startswith(f"{self.path}/") for file in self.files)
        return self.is_file

    @property
    def uuid(self) -> str:
        """Return the UUID that names the version's directory, as Determined's are; '' for any other."""
        return self.path.rpartition("/")[2] if self.layout.name == "uuid" else ""

    @property
    def number(self) -> int | None:
        """Return the version's number, None where its name has none that is known."""
        return None if self.version == UNNUMBERED else self.version

    @property
    def key(self) -> int | str:
        """Return what tells the version from all others of its location: its number, or else its name."""
        return self.name if self.is_named else self.version

    @property
    def name(self) -> str:
        """Return the name of its directory, of its file, or what its files begin with."""
        return self.path.rpartition("/")[2]

    @property
    def is_named(self) -> bool:
        """Return True where its name, and no number, tells it from others: what is kept by a number is not its own."""
        return not self.is_alone and (bool(self.uuid) or self.by_name or self.version == UNNUMBERED)

    @property
    def key_of_copies(self) -> int | str:
        """Return the key that a copy has in another location, where no neighbour has its number."""
        return self.name if self.version == UNNUMBERED and not self.is_alone else self.version

    @property
    def has_place_for_seal(self) -> bool:
        """Return True where a seal of it can lie in its location: not of a file by itself, nor of Determined's."""
        return not (self.is_alone or self.uuid)

    @property
    def damage(self) -> str:
        """Return which errors verify found in these files, in words; '' when none are known."""
        return self.verdict.words if self.verdict is not None and not self.verdict.ok else ""

    @property
    def is_good(self) -> bool:
        """Return True for a complete version without damage or doubts: one that a rule or a reader counts on."""
        return self.state is State.COMPLETE and not self.why_not_good

    @property
    def why_not_good(self) -> str:
        """Return why a version that has all its files does not count, in words; '' for a good one."""
        return self.damage or "; ".join(self.doubts)

    @property
    def is_verified(self) -> bool:
        """Return True when every value of these files was read, and no error was found, as far as is remembered."""
        return self.is_good and self.verdict is not None and self.verdict.level == "deep"

    @property
    def shown_state(self) -> str:
        """Return its state, or that it is damaged or suspect, as people and programs are told."""
        return shown_state(self.state, is_damaged=bool(self.damage), doubts=self.doubts)

    @property
    def why_unreadable(self) -> str:
        """Return why the version is unreadable, in words; '' in every other state."""
        if self.fault is None:
            return "cannot be read now" if self.state is State.UNREADABLE else ""
        place = "" if self.fault.path == self.path else f"{self.fault.path}: "
        when = "" if self.fault.kind is UnsupportedError else " now"  # what is not supported stays so
        return f"cannot be read{when}: {place}{self.fault.message}"

    @property
    def is_newer(self) -> bool:
        """Return True when a newer edl-ckpt wrote its metadata or its seal."""
        return self.unread is not None and self.unread.kind is UnsupportedError

    @property
    def seal_warning(self) -> str:
        """Return what is wrong with its seal, in words; '' for nothing."""
        if not self.seal_fault:
            return ""
        return f"{'its seal' if self.unread else 'does not match its seal'}: {self.seal_fault}"

    @property
    def files(self) -> tuple[ShardFile, ...]:
        """Return the files of all shards."""
        every: list[ShardFile] = []
        for shard in self.shards:
            every.append(shard)
            if shard.others:
                every.extend(shard.others)
        return tuple(every)

    @property
    def sizes(self) -> dict[str, int]:
        """Return the size of each file by its name."""
        return {self.name_of(file.path): file.size_bytes for file in self.files}

    @property
    def size_bytes(self) -> int:
        """Return the bytes of all shard files."""
        return sum(file.size_bytes for file in self.files)

    @property
    def own_bytes(self) -> int:
        """Return the bytes that lie at the location itself: deleting a link frees nothing."""
        if self.held_bytes is not None:
            return self.held_bytes
        return 0 if self.linked else sum(file.size_bytes for file in self.files if not file.linked)

    @property
    def files_digest(self) -> str:
        """Return a digest of the names, sizes and times of the shards: another one means that a file has changed."""
        import hashlib  # a listing does without it

        files = [(self.name_of(file.path), file.size_bytes, file.modified) for file in self.files]
        return hashlib.blake2b(name_bytes(repr(files)), digest_size=16).hexdigest()

    @property
    def files_identity(self) -> str:
        """Return a digest of what tells the files of the version from any others, whatever they contain.

        Names, sizes, times, inodes, or ETags: when one of them differs, a verdict about the files counts no more.
        """
        import hashlib  # a listing without verdicts does without it

        facts = sorted((self.name_of(f.path), f.size_bytes, f.mark or f.modified, f.changed_ns) for f in self.files)
        text = repr((facts, self.extra)).encode("utf-8", "surrogatepass")
        return hashlib.blake2b(text, digest_size=16).hexdigest()

    def name_of(self, path: str) -> str:
        """Return the name of one of its files: its path inside the version's directory, or else the last part."""
        inside = path.removeprefix(f"{self.path}/")
        return inside if inside != path else path.rpartition("/")[2]

    def path_of(self, name: str) -> str:
        """Return the path of one of its files; `name_of` is the inverse."""
        if not self.has_loose_files:
            return f"{self.path}/{name}"
        # Somebody may call ./model.safetensors by its name alone.
        folder, slash, _ = (self.shards[0].path if self.shards else self.path).rpartition("/")
        return f"{folder}{slash}{name}"

    def in_directory(self, location: Location, directory: str) -> Version:
        """Return the version with all its files in another directory; loose files lie in it side by side."""
        path = f"{directory}/{self.path.rpartition('/')[2]}" if self.is_file else directory

        def moved(file: ShardFile) -> ShardFile:
            others = tuple(map(moved, file.others))
            return replace(file, path=f"{directory}/{self.name_of(file.path)}", others=others)

        return replace(self, location=location, path=path, shards=tuple(map(moved, self.shards)))

    @property
    def names_outside(self) -> tuple[str, ...]:
        """Return its names in its location: that of its directory, or those of its files."""
        return self.names_inside if self.is_file else (self.path.rpartition("/")[2],)

    @property
    def names_inside(self) -> tuple[str, ...]:
        """Return the names in its directory: shards and all others."""
        return (*(self.name_of(file.path) for file in self.files), *self.extra)

    @property
    def absent(self) -> str:
        """Return what is missing of it, in words; '' for nothing."""
        if self.lacks:
            return f"missing or truncated: {abridged((escaped(part, _LACK) for part in self.lacks), _LACKS)}"
        return missing_shards(self.missing_ranges, self.ps_num) if self.missing_count else ""

    @property
    def missing(self) -> tuple[int, ...]:
        """Return the first ps_ids without a file, at most MISSING_LISTED; empty when ps_num is unknown."""
        return tuple(islice(chain.from_iterable(self.missing_ranges), MISSING_LISTED))

    @property
    def missing_count(self) -> int:
        """Return how many ps_ids have no file."""
        return sum(gap.stop - gap.start for gap in self.missing_ranges)  # `len` of a range fails beyond 64 bits

    @property
    def missing_ranges(self) -> tuple[range, ...]:
        """Return the ps_ids without a file as gaps between those that have one: at most one gap more than files."""
        if self.ps_num is None or self.state is State.COMPLETE:  # ranks that had nothing to save leave no file
            return ()
        present = sorted({shard.ps_id for shard in self.shards})
        gaps = pairwise([-1, *present, self.ps_num])
        return tuple(range(before + 1, after) for before, after in gaps if after - before > 1)

    def __repr__(self) -> str:
        tags = f"tags {escaped(', '.join(self.tags))}" if self.tags else ""
        content = counted(len(self.shards), "shard"), size(self.size_bytes)
        return describe("Version", escaped(self.ref), self.state.value, *content, self.layout.name, tags)


@dataclass(frozen=True, slots=True)
class CheckpointRef:
    """A parsed reference: `version` is a number, 'latest', 'best', 'best:METRIC', a tag or (the start of) a UUID."""

    location: Location
    version: int | str
