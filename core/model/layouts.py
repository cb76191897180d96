"""Layouts: how a source spells versions, and what names say. It imports little, for a shell that completes a word."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import NamedTuple


class Placement(enum.StrEnum):
    """The rule by which ids belong to shards; `kernel/placement.py` computes it."""

    MOD = "mod"
    """The id modulo the number of shards, never negative."""
    UNSIGNED_MOD = "unsigned mod"
    """The same of the id as an uint64."""
    FMIX64_MOD = "fmix64 mod"
    """The same of the id as an uint64 after the finalizer of MurmurHash3."""
    MASK31_MOD = "mask31 mod"
    """The same of the lowest 31 bits of the id."""
    MOD_1000_MOD = "mod 1000 mod"
    """The id modulo 1000, and that modulo the number of shards; neither is negative."""
    RANGES = "row ranges"
    """Each shard has the row numbers that its extents say: blocks of a table, or ranges of any length."""
    WHOLE_TABLE = "whole table"
    """All rows of a table are in one shard."""
    NONE = "none"
    """A row may be in any shard."""

    @property
    def says_shard(self) -> bool:
        """Return True when an id alone says its shard."""
        return self not in {Placement.RANGES, Placement.WHOLE_TABLE, Placement.NONE}


@dataclass(frozen=True, slots=True)
class Layout:
    """One way in which a source spells versions; it is one of its source's, and compared as a value."""

    system: str
    """The name of the source."""
    name: str
    prefix: str
    """The begin of a directory's name, before the number."""
    suffix: str
    shard: str = ""
    """The name of a shard's file without its suffix, with two places for numbers."""
    needs_shards: bool = False
    """True where others use such names too: a directory is a version only with shards in it."""
    placement: Placement = Placement.NONE
    in_location: bool = True
    """False for files by themselves, which belong to no location: they are read, never replaced."""
    has_only_shards: bool = False
    """True where a version is its shards and nothing else: each is one file, which describes all that it has."""
    loose: bool = False
    """True where a version is no directory, but one file or several that lie in the location itself."""

    @property
    def is_numbered(self) -> bool:
        """Return True where directories are named by the numbers of versions."""
        return bool(self.prefix)

    def version_dir(self, version: int) -> str:
        """Return the directory name of a version.

        >>> Layout("any", "steps", "step-", ".bin").version_dir(30)
        'step-30'
        """
        return f"{self.prefix}{version}"

    def shard_file(self, ps_id: int, ps_num: int) -> str:
        """Return the file name of a shard.

        >>> Layout("any", "steps", "step-", ".bin", "rank{}of{}").shard_file(0, 2)
        'rank0of2.bin'
        """
        return self.shard.format(ps_id, ps_num) + self.suffix


class VersionName(NamedTuple):
    """What the name of an entry of a location says of a version."""

    number: int | None
    """None for a directory named by a UUID."""
    layout: Layout
    """The layout in which a new version next to it is written."""
    is_file: bool = False


class ShardName(NamedTuple):
    """What the name of a file says of a shard."""

    ps_id: int
    ps_num: int
    suffix: str
