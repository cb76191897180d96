"""Seals: the checksums of the bytes of a version, cut into chunks, and how its files differ from them."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import repeat
from typing import Final, NamedTuple, overload

from edl_ckpt.core.base.words import counted, describe
from edl_ckpt.core.model.versions import Version

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
