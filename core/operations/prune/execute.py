"""Carrying out a plan: the locations are looked at again, and a stale plan is refused."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from edl_ckpt.core.checkpoint.catalog import list_versions
from edl_ckpt.core.commit.recovery import location_lock
from edl_ckpt.core.commit.trash import delete_versions, forget_gone, sweep
from edl_ckpt.core.errors import RefusedError
from edl_ckpt.core.format.model import Version
from edl_ckpt.core.operations.prune.plan import Action, PruneEntry, PrunePlan, find_unreadable, guard, identify
from edl_ckpt.core.progress import SILENT, Reporter
from edl_ckpt.core.state.lock import LOCK_WAIT_SECONDS
from edl_ckpt.core.storage import Location, LocationLike, open_store


@dataclass(frozen=True, slots=True)
class PruneResult:
    """What a prune did: the references it deleted, the bytes that are free now, and what could not be removed."""

    deleted: tuple[str, ...]
    freed_bytes: int
    trashed: bool
    problems: tuple[str, ...] = ()


def execute_prune(
    plan: PrunePlan,
    now: float,
    *,
    trash: bool = False,
    reporter: Reporter = SILENT,
) -> PruneResult:
    """Delete what a plan deletes, or with `trash` move it to the trash; the caller holds the locks of all locations.

    What is gone already is no error. Raises RefusedError, before anything is deleted, when a version that the plan
    deletes has changed or is guarded by now, or when one that it keeps is no longer what it was.
    """
    locations = plan.locations
    listings = {loc: list_versions(loc).versions for loc in locations}
    found = {v.path: v for versions in listings.values() for v in versions}
    unreadable = find_unreadable(found.values())
    held = {p: w for trial in listings.values() for p, w in guard(trial, now, plan.guards, unreadable).items()}
    check_fresh(plan, found, held)
    reporter.start("deleting", plan.deleted_bytes)
    gone: list[Version] = []
    problems: list[str] = []
    for location in locations:
        doomed = [found[e.path] for e in plan.deletions if e.location == location and e.path in found]
        problems += sweep(open_store(location))
        removal = delete_versions(location, doomed, keep=trash)
        left = {v.version for v in listings[location]} - {v.version for v in removal.deleted}
        forget_gone(location, left)
        gone += removal.deleted
        problems += removal.problems
        reporter.advance(sum(v.size_bytes for v in removal.deleted))
    freed = 0 if trash else sum(v.size_bytes for v in gone)
    return PruneResult(tuple(v.ref for v in gone), freed, trash, tuple(problems))


@contextmanager
def locked(
    locations: Iterable[LocationLike],
    *,
    wait_seconds: float = LOCK_WAIT_SECONDS,
    reporter: Reporter = SILENT,
) -> Iterator[None]:
    """StageLock the locks of several locations, taken in the order of their names: two prunes cannot meet halfway."""
    with ExitStack() as stack:
        for location in sorted(set(map(Location.of, locations)), key=str):
            stack.enter_context(location_lock(location, "prune", wait_seconds=wait_seconds, reporter=reporter))
        yield


def check_fresh(plan: PrunePlan, found: Mapping[str, Version], guarded: Mapping[str, Sequence[str]]) -> None:
    """Raise RefusedError when what a plan relied on is no longer so; `found` is what is there now, by path."""
    for entry in plan.entries:
        version = found.get(entry.path)
        if entry.action is Action.DELETE:
            if version is None:
                continue
            if entry.path in guarded:
                raise _stale(entry, guarded[entry.path][0])
        elif not entry.identity:
            continue
        if version is None:
            raise _stale(entry, "the plan counts on it, and it is gone")
        if identify(version) != entry.identity:
            raise _stale(entry, "it has changed")


def _stale(entry: PruneEntry, why: str) -> RefusedError:
    return RefusedError(
        f"the plan is stale: {why}", path=entry.ref, hint="nothing was deleted; make a new plan and try again"
    )
