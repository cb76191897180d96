"""What the storage of a location can do, and what would be slower or weaker there."""

from __future__ import annotations

from dataclasses import dataclass

from edl_ckpt.core.base.errors import AuthError, EdlCkptError, NotFoundError
from edl_ckpt.core.base.words import counted, describe
from edl_ckpt.core.commit.repair.kinds import kind_of
from edl_ckpt.core.storage import Location, LocationLike, open_store
from edl_ckpt.core.storage.facts import Fact, Verdict


@dataclass(frozen=True, slots=True, repr=False)
class StorageReport:
    """The facts of a location's storage; `wrote` is False where nothing was tried by writing."""

    location: Location
    facts: tuple[Fact, ...]
    wrote: bool

    @property
    def is_sound(self) -> bool:
        """Say whether nothing is broken."""
        return not any(fact.verdict is Verdict.BROKEN for fact in self.facts)

    def __repr__(self) -> str:
        worse = sum(fact.verdict is not Verdict.FINE for fact in self.facts)
        return describe("StorageReport", self.location.url, counted(len(self.facts), "fact"), f"{worse} to look at")


def examine_storage(location: LocationLike, *, write: bool = True) -> StorageReport:
    """Return what the storage of a location can do.

    With `write`, small files are written below `.edl-ckpt-0`, where no reader and no scan of ElasticDL looks, and
    removed again; no lock is taken, and nothing else is touched. Without it, facts that need this are absent. Raises
    NotFoundError when there is no such location, and the error of looking at it. What cannot be written is a fact.
    """
    where = Location.of(location)
    store = open_store(where)
    facts = list(store.facts())
    readable_only = any(fact.name == "access" and fact.value == "read only" for fact in facts)
    if not write or readable_only:
        return StorageReport(where, tuple(facts), wrote=False)
    try:
        facts += kind_of(store).probe()
    except NotFoundError:
        raise
    except AuthError as error:
        facts.append(Fact("write", f"no: {error.message}", Verdict.WEAKER, "only commands that read will work"))
    except EdlCkptError as error:
        facts.append(Fact("write", f"no: {error.message}", Verdict.BROKEN, "only commands that read may work"))
    return StorageReport(where, tuple(facts), wrote=True)
