"""What a checkpoint system says of itself: its name, the words of its users, and what may be asked of its versions."""

from __future__ import annotations

from dataclasses import dataclass

from edl_ckpt.core.base.words import counted, describe


@dataclass(frozen=True, slots=True)
class System:
    """A checkpoint system: its name for `--system`, its title, and the programs that judge what is read of it."""

    name: str
    title: str
    shard: str = "shard"
    """What its users call a shard."""
    reads: bool = True
    writes: bool = False
    judged_with: tuple[str, ...] = ()
    known_by_names: bool = False
    """True where no content of a file says that it is one of this system's: names and sizes alone do."""
    names_layouts: bool = False
    """True where its versions have one of several layouts, which users choose by name."""
    has_initializers: bool = False
    """True where a table keeps how the rows of new ids are made."""
    scans_locations: bool = False
    """True where its jobs look at all names of a location for the highest number, and stop at some names of others."""
    restores_one_row: bool = False
    """True where its jobs restore one row of each id, and place it by the rest of a division, which wants no sign."""

    def __repr__(self) -> str:
        return describe("System", self.name, self.title, "reads" * self.reads, "writes" * self.writes)

    def shards(self, count: int) -> str:
        """Return a number of shards, as its users say it; an abbreviation has no plural.

        >>> System("elasticdl", "ElasticDL", "PS").shards(3), System("dcp", "torch DCP", "rank").shards(8)
        ('3 PS', '8 ranks')
        """
        return f"{count} {self.shard}" if self.shard.isupper() else counted(count, self.shard)
