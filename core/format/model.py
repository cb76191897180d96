"""The nouns: frozen dataclasses of plain values that every operation takes and returns.

A *location* (checkpoint_dir) has *versions*; a version has one *shard* file per parameter server; a shard
has *dense variables* and rows of *embedding tables*. Nothing here reads or writes.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice, pairwise
from typing import Any, Final

from edl_ckpt.core.errors import EdlCkptError, UnsupportedError
from edl_ckpt.core.format.names import ELASTICDL, FREE_FILE, Layout, elasticdl_version, scan_crashes
from edl_ckpt.core.notebook import Bytes, card, table
from edl_ckpt.core.storage.faults import Fault
from edl_ckpt.core.storage.location import Location
from edl_ckpt.core.words import counted, describe, escaped, missing_shards, size

MISSING_LISTED: Final = 1000
"""So many missing shards are listed one by one. A file's name may claim any number of shards; it is not a size."""


_METRICS: Final = 4
"""Metrics that a notebook shows of each version of a listing."""
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


@dataclass(frozen=True, slots=True)
class Version:
    """One version as a listing shows it. `ps_num` is None without shard files, or when they disagree."""

    location: Location
    version: int
    """Its number. In a directory named by a UUID, what Determined's metadata says, else UNNUMBERED."""
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
    replaced_by: str = ""
    """The process that is replacing it just now, so that its state is not what it will be; '' for none."""

    @property
    def ref(self) -> str:
        """Return the reference that names this version on the command line; the path of a file by itself."""
        return self.path if self.layout == FREE_FILE else f"{self.location}@{self.key}"

    @property
    def uuid(self) -> str:
        """Return the UUID that names the version's directory, as Determined's are; '' for any other."""
        return self.path.rpartition("/")[2] if self.layout.name == "uuid" else ""

    @property
    def number(self) -> int | None:
        """Return the version's number, None for a directory named by a UUID that does not say it."""
        return None if self.version == UNNUMBERED else self.version

    @property
    def key(self) -> int | str:
        """Return what tells the version from all others of its location: its UUID, or else its number."""
        return self.uuid or self.version

    @property
    def why_unreadable(self) -> str:
        """Return why the version is unreadable, in words; '' in every other state."""
        if self.fault is None:
            return "cannot be read now" if self.state is State.UNREADABLE else ""
        place = "" if self.fault.path == self.path else f"{self.fault.path}: "
        return f"cannot be read now: {place}{self.fault.message}"

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
    def size_bytes(self) -> int:
        """Return the bytes of all shard files."""
        return sum(shard.size_bytes for shard in self.shards)

    @property
    def own_bytes(self) -> int:
        """Return the bytes that lie at the location itself: deleting a link frees nothing."""
        return 0 if self.linked else sum(shard.size_bytes for shard in self.shards if not shard.linked)

    @property
    def files_digest(self) -> str:
        """Return a digest of the names, sizes and times of the shards: another one means that a file has changed."""
        import hashlib  # a listing does without it

        files = [(shard.path.rpartition("/")[2], shard.size_bytes, shard.modified) for shard in self.shards]
        return hashlib.blake2b(repr(files).encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()

    @property
    def names_inside(self) -> tuple[str, ...]:
        """Return the names in its directory: shards, and what is no shard."""
        return (*(shard.path.rpartition("/")[2] for shard in self.shards), *self.extra)

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
        if self.ps_num is None:
            return ()
        present = sorted({shard.ps_id for shard in self.shards})
        gaps = pairwise([-1, *present, self.ps_num])
        return tuple(range(before + 1, after) for before, after in gaps if after - before > 1)

    def __repr__(self) -> str:
        return describe(
            "Version",
            escaped(self.ref),
            self.state.value,
            counted(len(self.shards), "shard"),
            size(self.size_bytes),
            self.layout.name,
            f"tags {escaped(', '.join(self.tags))}" if self.tags else "",
        )

    def _repr_html_(self) -> str:
        facts = (self.state.value, counted(len(self.shards), "shard"), size(self.size_bytes), self.layout.name)
        sealed = "does not match" if self.seal_fault else "yes" if self.fingerprint else "no"
        rows = [
            ("path", self.path),
            ("missing", missing_shards(self.missing_ranges, self.ps_num) if self.missing_count else ""),
            ("fault", self.why_unreadable),
            ("sealed", sealed),
            ("tags", ", ".join(self.tags)),
            ("note", self.note),
            *((name, f"{value:.6g}") for name, value in self.metrics.items()),
        ]
        rows = [row for row in rows if row[1]]
        return card("Version", self.ref, facts, [table(("field", "value"), rows, len(rows), "metric")])


@dataclass(frozen=True, slots=True)
class ForeignEntry:
    """An entry of checkpoint_dir that is not a version, and the version that ElasticDL's scan takes it for."""

    name: str
    elasticdl_version: int | None
    """The version that ElasticDL takes it for; None where its scan raises an exception."""
    is_file: bool = False


@dataclass(frozen=True, slots=True)
class Listing:
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
    def scan_crashes(self) -> list[str]:
        """Return the names on which ElasticDL's scan for the latest version raises an exception, and DIRECTORY/NAME.

        Of directories that are no versions, what is in them is not known.
        """
        inside: dict[str, Sequence[str] | None] = {e.name: None if e.is_file else () for e in self.foreign}
        for version in self.versions:
            inside[version.path.rpartition("/")[2]] = version.names_inside
        return scan_crashes(inside, inside.__getitem__)

    @property
    def newest(self) -> Version | None:
        """Return what `@latest` is: the newest complete version whose shards are of one run; None without any."""
        return next((v for v in reversed(self.versions) if v.state is State.COMPLETE and not v.mixture), None)

    @property
    def mistaken(self) -> list[tuple[str, int]]:
        """Return the names that ElasticDL's scan takes for versions, and edl-ckpt does not, with their numbers.

        UUIDs count beside versions that ElasticDL reads: some end in digits alone.
        """
        found = [(entry.name, entry.elasticdl_version) for entry in self.foreign]
        if any(version.layout.prefix == ELASTICDL.prefix for version in self.versions):
            found += [(version.uuid, elasticdl_version(version.uuid)) for version in self.versions if version.uuid]
        return [(name, number) for name, number in found if number is not None]

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

    def _repr_html_(self) -> str:
        named = dict.fromkeys(name for version in reversed(self.versions) for name in version.metrics)
        metrics = list(named)[:_METRICS]
        rows = (
            (
                *(str(v.key), v.state.value, f"{len(v.shards)} of {v.ps_num}" if v.ps_num else str(len(v.shards))),
                *(Bytes(v.size_bytes), *(v.metrics.get(name) for name in metrics), ", ".join(v.tags)),
            )
            for v in reversed(self.versions)
        )
        columns = ("version", "state", "shards", "size", *metrics, "tags")
        facts = (counted(len(self.versions), "version"), size(sum(v.size_bytes for v in self.versions)))
        problems = ((problem,) for problem in self.problems)
        tables = (
            table(columns, rows, len(self.versions), "older version"),
            table(("problem",), problems, len(self.problems), "problem"),
        )
        return card("Listing", self.location.url, facts, tables)


@dataclass(frozen=True, slots=True)
class CheckpointRef:
    """A parsed reference: `version` is a number, 'latest', 'best', 'best:METRIC', a tag or (the start of) a UUID."""

    location: Location
    version: int | str


@dataclass(frozen=True, slots=True)
class Extent:
    """Bytes [start, end) of a file."""

    start: int
    end: int

    @property
    def size_bytes(self) -> int:
        """Return the number of bytes."""
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class IdRun:
    """Where ids lie: varints back to back; when `tagged` (unpacked), each behind its own tag byte."""

    start: int
    end: int
    tagged: bool = False


@dataclass(frozen=True, slots=True)
class DType:
    """An element type: our name (numpy's where numpy has it), its size, its number in tensorflow.DataType."""

    name: str
    itemsize: int
    tf_enum: int
    elasticdl: bool
    """True when ElasticDL's current readers can read it."""


_DTYPES = (
    DType("float32", 4, 1, elasticdl=True),
    DType("float64", 8, 2, elasticdl=True),
    DType("int32", 4, 3, elasticdl=True),
    DType("uint8", 1, 4, elasticdl=False),
    DType("int16", 2, 5, elasticdl=True),
    DType("int8", 1, 6, elasticdl=True),
    DType("int64", 8, 9, elasticdl=True),
    DType("bool", 1, 10, elasticdl=True),
    DType("bfloat16", 2, 14, elasticdl=False),
    DType("uint16", 2, 17, elasticdl=False),
    DType("float16", 2, 19, elasticdl=False),
    DType("uint32", 4, 22, elasticdl=False),
    DType("uint64", 8, 23, elasticdl=False),
)


DTYPES = {dtype.name: dtype for dtype in _DTYPES}


TF_DTYPES = {dtype.tf_enum: dtype for dtype in _DTYPES}


OLD_DTYPES = {
    number: DTYPES[name]
    for number, name in enumerate(("int8", "int16", "int32", "int64", "float16", "float32", "float64", "bool"), start=1)
}
"""ElasticDL's own TensorDtype, in use until 2020-02-14."""


@dataclass(frozen=True, slots=True)
class TableInfo:
    """A shard's description of a table, without its rows (EmbeddingTableInfo); `offset` is its place in the file."""

    name: str
    dim: int
    initializer: str
    offset: int = field(default=0, compare=False)
    dtype: int = field(default=0, compare=False)
    """The number in tensorflow.DataType that the file has, 0 for none.

    Python savers write FLOAT whatever dtype the rows have, so the dtype of rows always comes from their tensor.
    """

    @property
    def named_dtype(self) -> DType | None:
        """Return the dtype that it names; None for none, or for one that is unknown here."""
        return TF_DTYPES.get(self.dtype)


@dataclass(frozen=True, slots=True)
class DenseEntry:
    """A dense variable in a shard: its values are the bytes of `values`, C order, little-endian."""

    name: str
    dtype: DType
    shape: tuple[int, ...]
    values: Extent
    offset: int

    @property
    def size_bytes(self) -> int:
        """Return the bytes of its values."""
        return self.values.size_bytes

    @property
    def elements(self) -> int:
        """Return the number of elements."""
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class TableEntry:
    """Rows of an embedding table in a shard: row k is `values[k * row_bytes :][:row_bytes]`, its id the k-th.

    Without rows, `dtype` is None and `dim` is 0. Then `empty_dtype` and `empty_dim` are those of a tensor [0, dim] of
    generation v3 or v4, and None and 0 for any other.
    """

    name: str
    dtype: DType | None
    dim: int
    rows: int
    values: Extent
    ids: tuple[IdRun, ...]
    offset: int
    empty_dtype: DType | None = None
    empty_dim: int = 0

    @property
    def row_bytes(self) -> int:
        """Return the bytes of one row."""
        return self.dim * self.dtype.itemsize if self.dtype else 0

    @property
    def size_bytes(self) -> int:
        """Return the bytes of values and ids."""
        return self.values.size_bytes + sum(run.end - run.start for run in self.ids)


@dataclass(frozen=True, slots=True)
class Problem:
    """A fault in a shard that did not stop its indexing; `code` is the code of a finding of `verify`."""

    code: str
    subject: str
    offset: int
    message: str
    warning: bool = False
    """True when the finding is a warning, although its code is that of an error."""


@dataclass(frozen=True, slots=True)
class ShardIndex:
    """The contents of a shard and where they lie, from its tags alone: no value and no id was read for it."""

    file: ShardFile
    version: int
    generation: str
    """'v0', 'v1', 'v2', 'v3' or 'v4'; '' for a shard without variables, tables and infos."""
    infos: tuple[TableInfo, ...]
    variables: tuple[DenseEntry, ...]
    tables: tuple[TableEntry, ...]
    problems: tuple[Problem, ...] = ()
    unknown_fields: tuple[tuple[int, int], ...] = ()
    """(field number, byte offset) of top-level fields that no reader knows."""
    edges: tuple[int, ...] = field(default=(), repr=False, compare=False)
    """The offset of every top-level field, in order."""

    def __repr__(self) -> str:
        return describe(
            "ShardIndex",
            escaped(self.file.path),
            f"version {self.version}",
            self.generation,
            counted(len(self.variables), "variable"),
            counted(len(self.tables), "table"),
            counted(len(self.problems), "problem") if self.problems else "",
        )
