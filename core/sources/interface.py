"""What a source is: a checkpoint system whose files are read where they are.

Nouns have no file format: a source says which entries of a listing are its versions, and where in their files the
values and ids are. It reads headers only, and no table of names or tags leaves its folder. A shard may have several
files (`ShardFile.others`), and each extent names its own. Rows that a file has by columns, or in another order than
their ids, are `GatheredRows`: the rest of the engine reads them like rows of a file.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

from edl_ckpt.core.base.errors import CorruptError, EdlCkptError
from edl_ckpt.core.model.layouts import Layout, ShardName, VersionName
from edl_ckpt.core.model.versions import ShardFile, Version
from edl_ckpt.core.storage.interface import Entry, RangeReader
from edl_ckpt.core.storage.location import Location

_SKEW_SECONDS: Final = 3600.0
"""The clocks of machines that share a storage differ by less."""

if TYPE_CHECKING:  # a listing needs no index
    from edl_ckpt.core.model.tables import Problem, ShardIndex


class NotOfFormatError(CorruptError):
    """A file has the name of a format, and by its first or last bytes it is none of it: it tears nothing."""


class OtherFormatError(NotOfFormatError):
    """A file that is recognised as one of another format, which is not read: its message says of which one."""


Digest: TypeAlias = Callable[[RangeReader], Any]
"""Says of an open file what a listing needs of it, as a JSON value; a pure function of a module."""


class ReadSmall(Protocol):
    """Reads small files of a listing, at most so many bytes as no header exceeds."""

    def __call__(self, entry: Entry) -> bytes:
        """Return the bytes of a file; the errors of reading it."""

    def digests(self, wanted: Sequence[tuple[Entry, Digest]], *, again: bool = False) -> Sequence[Any]:
        """Return what functions return for files, or the EdlCkptError that one raises.

        Results are remembered as long as a file is the same; errors never are. `again` reads every file anew.
        """


OnFault: TypeAlias = Callable[[ShardFile, EdlCkptError], bool]
"""Takes a shard that cannot be indexed, and why; the others are indexed without it, or with what is whole in it if the
result is true."""


@dataclass(frozen=True, slots=True)
class FlatListing:
    """The entries of a location and of the directories in it that a source wants to know."""

    location: Location
    inside: Mapping[str, Sequence[Entry]] = field(repr=False)
    """The entries of each directory, by its path in the location; '' is the location itself."""
    fresh_after: float = 0.0
    """An incomplete version that changed after it, in seconds since the epoch, counts as being written."""
    has_state: bool = False
    """True where state of ours is: then the directory is a location, and no checkpoint by itself."""

    def is_fresh(self, modified: float) -> bool:
        """Say whether something that changed then may still be written; a time in the future is a wrong clock's."""
        return self.fresh_after <= modified <= time.time() + _SKEW_SECONDS


class Source(Protocol):
    """A checkpoint system: a module or an object with these functions."""

    @property
    def systems(self) -> tuple[str, ...]:
        """Return every `system` of its layouts."""

    def looks_into(self, directory: str) -> bool:
        """Say whether `claims` wants the entries of a directory of a location, whose path in it is given."""

    def version_named(self, name: str) -> VersionName | None:
        """Return what the name of an entry of a location says of a version; None for a name of another kind."""

    def shard_named(self, name: str) -> ShardName | None:
        """Return what the name of a file says of a shard; None for a name of another kind."""

    def version_names(self, number: int) -> Sequence[str]:
        """Return every name that a version of a number can have in a location."""

    def claims(self, listing: FlatListing, read_small: ReadSmall) -> Sequence[Version]:
        """Return the entries that are versions of this source, complete or not, without metadata and in any order."""

    def index(
        self, version: Version, readers: Mapping[str, RangeReader], *, workers: int = 1, on_fault: OnFault | None = None
    ) -> Sequence[ShardIndex]:
        """Return the contents of the shards whose files have readers, by their paths, from their headers alone.

        `readers` opens a file when it is asked for it. `workers` shards are opened and read at a time. Raises
        CorruptError for a damaged shard, unless `on_fault` takes it.
        """

    def check(self, version: Version, shards: Sequence[ShardIndex]) -> Sequence[tuple[ShardIndex | None, Problem]]:
        """Return what is wrong with the shards of a version together, each with its shard if it has one."""

    def blocking(self, version: Version, shards: Sequence[ShardIndex]) -> Sequence[tuple[ShardIndex, Problem]]:
        """Return the problems, of one shard or of all together, for which nothing may be made from the version."""


class FileSource(Source, Protocol):
    """A source that has checkpoints in single files of any name, which show what they are."""

    @property
    def alone(self) -> Layout:
        """Return the layout of such a version."""

    @property
    def endings(self) -> tuple[str, ...]:
        """Return how the names of such files end, where a look at them would take a request."""

    def number_in_file(self, reader: RangeReader, name: str) -> int:
        """Return the number of the version in a file; CorruptError for no checkpoint of this source."""
