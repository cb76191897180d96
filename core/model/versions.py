"""Versions as a listing of a location shows them: where each one is, its shards, and its state; nothing is opened.

A seal has the checksums of the bytes of a version, cut into chunks.
"""

from __future__ import annotations

import enum
import re
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import chain, islice, pairwise, repeat
from typing import Any, Final, NamedTuple, overload

from edl_ckpt.core.base.errors import EdlCkptError, UnsupportedError
from edl_ckpt.core.base.names import name_bytes
from edl_ckpt.core.base.notebook import Shown
from edl_ckpt.core.base.words import abridged, command, counted, describe, escaped, missing_shards, size
from edl_ckpt.core.model.layouts import Layout
from edl_ckpt.core.model.verdicts import Verdict
from edl_ckpt.core.storage.faults import Fault
from edl_ckpt.core.storage.location import Location

_SUM_DIGITS: Final = 32
"""The digits of a checksum in hex."""


class Chunk(NamedTuple):
    """Bytes [start, end) of a shard, the tensor they belong to, and their checksum in hex; '' until it is known."""

    kind: str
    """'variable', 'table', 'info' (the description of a table) or '' for other bytes."""
    name: str
    number: int
    """The place among the chunks of the same kind and name, from 0."""
    start: int
    end: int
    sum: str = ""


class PackedChunks(Sequence[Chunk]):
    """The chunks of a shard in a fifth of their memory, as columns; each is made when it is asked for."""

    __slots__ = ("_numbers", "_sums", "ends", "kinds", "names", "starts")

    def __init__(self, chunks: Iterable[Chunk], sums: Iterable[str] | None = None) -> None:
        """Take chunks with their checksums, or with these ones; with an empty `sums` they have none."""
        columns = list(zip(*chunks, strict=True)) or [()] * len(Chunk._fields)
        kinds, names, numbers, starts, ends, own_sums = columns
        self._fill(kinds, names, array("q", numbers), array("q", starts), array("q", ends))
        self._sums = bytes.fromhex("".join(own_sums if sums is None else sums))

    @classmethod
    def of_columns(
        cls, kinds: Sequence[str], names: Sequence[str], starts: array[int], ends: array[int]
    ) -> PackedChunks:
        """Return chunks without checksums, each the only one of its kind and name, from columns of one length."""
        made = cls(())
        made._fill(kinds, names, array("q", bytes(starts.itemsize * len(starts))), starts, ends)
        return made

    def _fill(
        self, kinds: Sequence[str], names: Sequence[str], numbers: array[int], starts: array[int], ends: array[int]
    ) -> None:
        self.kinds, self.names, self._numbers, self.starts, self.ends = kinds, names, numbers, starts, ends

    def with_sums(self, sums: Iterable[str]) -> PackedChunks:
        """Return the same chunks with these checksums."""
        made = PackedChunks(())
        made._fill(self.kinds, self.names, self._numbers, self.starts, self.ends)
        made._sums = bytes.fromhex("".join(sums))
        return made

    def rows(self) -> Iterator[tuple[str, str, int, int, str]]:
        """Yield (kind, name, start, end, sum) of each chunk, as documents have them."""
        return zip(self.kinds, self.names, self.starts, self.ends, self._hex(), strict=True)

    def _hex(self) -> Iterator[str]:
        """Yield the checksum of each chunk in hex, '' where they have none."""
        sums = self._sums.hex()
        if not sums:
            return repeat("", len(self))
        return (sums[at : at + _SUM_DIGITS] for at in range(0, len(sums), _SUM_DIGITS))

    def __repr__(self) -> str:
        return describe("PackedChunks", "", counted(len(self), "chunk"))

    def __len__(self) -> int:
        return len(self.names)

    def __iter__(self) -> Iterator[Chunk]:
        columns = self.kinds, self.names, self._numbers, self.starts, self.ends, self._hex()
        return map(Chunk._make, zip(*columns, strict=True))

    @overload
    def __getitem__(self, index: int) -> Chunk: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Chunk]: ...
    def __getitem__(self, index: int | slice) -> Chunk | Sequence[Chunk]:
        if isinstance(index, slice):
            return tuple(self[k] for k in range(len(self))[index])
        k = range(len(self))[index]
        numbers = self._numbers[k], self.starts[k], self.ends[k]
        size = _SUM_DIGITS // 2
        return Chunk(self.kinds[k], self.names[k], *numbers, self._sums[size * k : size * (k + 1)].hex())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    def __hash__(self) -> int:
        return hash(tuple(self))


@dataclass(frozen=True, slots=True)
class SealedShard:
    """A shard's file name, its size, and its chunks from the first byte to the last."""

    name: str
    size_bytes: int
    chunks: Sequence[Chunk]


class Override(NamedTuple):
    """A decision to go on with `--force` although a version did not match its seal: when, who, which command, why."""

    when: str
    who: str
    command: str
    why: str


@dataclass(frozen=True, slots=True)
class Seal:
    """The checksums of a version, and the time when they were made (ISO 8601)."""

    version: int | str
    """Its number, or its name where it has none (`Version.key`)."""
    fingerprint: str
    shards: tuple[SealedShard, ...]
    sealed: str
    origin: str = ""
    """Of a copy: the digest of the files that it was copied from (`Version.files_digest`)."""
    history: tuple[Override, ...] = ()
    """The decisions, the oldest first, that replaced seals of this content which did not match."""
    has_digest: bool = field(default=True, compare=False)
    """False for a seal of the first schema, which does not cover itself."""
    run: str = ""
    """Of a version that servers saved, each its own shard: the name of their run, '' when they gave none."""

    @property
    def sizes(self) -> dict[str, int]:
        """Return the size of each shard by its file name."""
        return {shard.name: shard.size_bytes for shard in self.shards}


def now_text() -> str:
    """Return the time now as ISO 8601."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def describe_change(seal: Seal, version: Version) -> str:
    """Return how a version's files differ from its seal, in one sentence; '' when names and sizes match."""
    faults = differing_sizes(seal, version)
    if not faults:
        return ""
    more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
    newest = max((shard.modified for shard in version.shards), default=0.0)
    changed = datetime.fromtimestamp(newest, UTC).isoformat(timespec="seconds")
    return f"{faults[0]}{more}; it was sealed at {seal.sealed}, and its shards were last changed at {changed}"


def differing_sizes(seal: Seal, version: Version) -> list[str]:
    """Return how the names and sizes of a version's shards differ from its seal; nothing when they match."""
    present = version.sizes
    sealed = seal.sizes
    faults = [f"{name} is not in the seal" for name in sorted(present.keys() - sealed.keys())]
    faults += [f"{name} is in the seal, but missing" for name in sorted(sealed.keys() - present.keys())]
    faults += [
        f"{name} has {present[name]} bytes; it had {sealed[name]} when it was sealed"
        for name in sorted(present.keys() & sealed.keys())
        if present[name] != sealed[name]
    ]
    return faults


MISSING_LISTED: Final = 1000
"""So many missing shards are listed one by one. A file's name may claim any number of shards; it is not a size."""
_LACKS: Final = 3
_LACK: Final = 160
_NAMES: Final = 4
"""So many names of a location without versions are in a message."""
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
