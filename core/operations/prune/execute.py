"""Executing a plan: take the locks of all locations, look again, refuse a stale plan, delete.

`execute_prune` takes the locks itself. `prune` plans and executes; without a question in between, it takes the locks
before it plans, so that no other command of ours comes between plan and execution.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from edl_ckpt.core.base.errors import EdlCkptError, RefusedError
from edl_ckpt.core.base.progress import WARNINGS, Reporter
from edl_ckpt.core.base.several import several
from edl_ckpt.core.base.words import counted, describe, size
from edl_ckpt.core.catalog.listing import list_versions
from edl_ckpt.core.catalog.pointers import Pointers, pointers_at
from edl_ckpt.core.commit.deletion.holdings import Holdings, holdings
from edl_ckpt.core.commit.deletion.removal import Removal
from edl_ckpt.core.commit.repair.kinds import kind_of
from edl_ckpt.core.commit.repair.recovery import forget_gone, location_lock
from edl_ckpt.core.model.versions import Version
from edl_ckpt.core.operations.prune.facts import Facts, Survey
from edl_ckpt.core.operations.prune.guards import NO_EXCEPTIONS, Guards, Why, guard_reasons, guarded
from edl_ckpt.core.operations.prune.plan import Action, PruneEntry, PrunePlan, plan_prune
from edl_ckpt.core.operations.prune.readable import looked_at
from edl_ckpt.core.operations.prune.retention import Policy
from edl_ckpt.core.state.index import Known
from edl_ckpt.core.state.lock import LOCK_WAIT_SECONDS
from edl_ckpt.core.state.lock_proof import prove_lock
from edl_ckpt.core.state.shard_note import forget_notes
from edl_ckpt.core.state.verdicts import forget_verdicts
from edl_ckpt.core.storage import LocalStore, Location, LocationLike, ObjectStore, open_store
from edl_ckpt.core.storage.mounts import mount_points
from edl_ckpt.core.storage.tree import Tree

Stores: TypeAlias = dict[Location, LocalStore | ObjectStore]
"""The opened stores of locations whose locks are held."""
LOOK_AGAIN_SECONDS: Final = 5.0
"""A prune that takes longer than this lists the locations again before it deletes the next version."""


@dataclass(frozen=True, slots=True)
class PruneResult:
    """The result of a prune: the references of deleted versions, the bytes that this freed, and what failed."""

    plan: PrunePlan
    deleted: tuple[str, ...]
    freed_bytes: int
    trashed: bool
    failed: tuple[tuple[str, EdlCkptError], ...] = ()
    """The versions that could not be deleted, by reference; the others were."""
    problems: tuple[EdlCkptError, ...] = ()
    """Why files of deleted versions could not be removed."""
    purge: Removal | None = None
    """The result of emptying the trash, None when the plan does not ask for it."""

    @property
    def errors(self) -> tuple[EdlCkptError, ...]:
        """Return all that could not be deleted."""
        purged = self.purge.problems if self.purge else ()
        return (*(error for _, error in self.failed), *self.problems, *purged)

    def __repr__(self) -> str:
        return describe(
            "PruneResult",
            "",
            f"{counted(len(self.deleted), 'version')} {'in the trash' if self.trashed else 'deleted'}",
            f"{size(self.freed_bytes)} freed",
            f"{len(self.failed)} failed" if self.failed else "",
            counted(len(self.problems), "problem") if self.problems else "",
        )


def prune(
    locations: Sequence[LocationLike],
    policy: Policy,
    *,
    guards: Guards = NO_EXCEPTIONS,
    trash: bool = False,
    purge_older_than_seconds: float | None = None,
    max_delete: int | None = None,
    review: Callable[[PrunePlan], None] | None = None,
    confirm: Callable[[PrunePlan], bool] | None = None,
    wait_seconds: float = LOCK_WAIT_SECONDS,
    now: float | None = None,
    reporter: Reporter = WARNINGS,
) -> PruneResult:
    """Delete the versions that no rule keeps, or with `trash` move them to the trash.

    `review` gets the plan before anything is deleted; an error that it raises ends the prune. Without `confirm`, the
    locks of all locations are held from before the plan to the end. With `confirm`, they are taken after its answer,
    and a plan that is stale by then is refused: nobody is locked out while a person thinks.

    A plan after which no complete version remains is executed like any other: `guards.everything` asked for it, and
    `plan.emptied` says so to `review` and `confirm`.

    Raises RefusedError when `confirm` returns False, or when the plan deletes more than `max_delete` versions; the
    errors of `plan_prune` and `execute_prune`; LockedError when a lock is not free within `wait_seconds`.

    >>> from edl_ckpt import Latest, Policy
    >>> prune(["run"], Policy((Latest(1),)), trash=True).deleted
    ('run@100',)
    """
    places = tuple(dict.fromkeys(map(Location.of, several(locations, "locations"))))
    moment = time.time() if now is None else now
    known = {place: Known() for place in places}

    def plan() -> PrunePlan:
        made = plan_prune(
            places, policy, guards=guards, purge_older_than_seconds=purge_older_than_seconds, now=moment, known=known
        )
        made.check_amount(max_delete)
        if review is not None:
            review(made)
        return made

    if confirm is None:
        with _locked(places, wait_seconds, reporter) as stores:
            return _execute(plan(), stores, moment, known, trash=trash, reporter=reporter)
    return execute_prune(
        plan(), trash=trash, confirm=confirm, wait_seconds=wait_seconds, now=now, known=known, reporter=reporter
    )


def execute_prune(
    plan: PrunePlan,
    *,
    trash: bool = False,
    confirm: Callable[[PrunePlan], bool] | None = None,
    wait_seconds: float = LOCK_WAIT_SECONDS,
    now: float | None = None,
    known: Mapping[Location, Known] | None = None,
    reporter: Reporter = WARNINGS,
) -> PruneResult:
    """Delete the versions that a plan deletes, or with `trash` move them to the trash; takes the locks itself.

    A version that is gone already is no error. Raises RefusedError, before anything is deleted, when `confirm` returns
    False, when a version that the plan deletes has changed or has become guarded, or when one that it keeps has
    changed. Raises LockedError when a lock is not free within `wait_seconds`. `now` is in seconds since the epoch, the
    current time when None. `known` is that of `plan_prune`.
    """
    if confirm is not None and not confirm(plan):
        raise RefusedError("not confirmed; nothing was deleted")
    known = known or {location: Known() for location in plan.locations}
    with _locked(plan.locations, wait_seconds, reporter) as stores:
        return _execute(plan, stores, time.time() if now is None else now, known, trash=trash, reporter=reporter)


@contextmanager
def _locked(locations: Iterable[Location], wait_seconds: float, reporter: Reporter) -> Iterator[Stores]:
    """Hold the locks of several locations, taken in the order of their names: two prunes cannot deadlock."""
    with ExitStack() as stack:
        stores: Stores = {}
        for location in sorted(set(locations), key=str):
            lock = location_lock(
                location, "prune", may_be_empty=True, frees_space=True, wait_seconds=wait_seconds, reporter=reporter
            )
            stores[location] = stack.enter_context(lock).store
        yield stores


def _execute(
    plan: PrunePlan, stores: Stores, now: float, known: Mapping[Location, Known], *, trash: bool, reporter: Reporter
) -> PruneResult:
    """Execute a plan; the caller holds the locks of all its locations. `known` is what is known of their metadata."""
    present, facts = _look_again(plan, now, known)
    going = {entry.path for entry in plan.deletions}
    look = _recheck(plan, now, known, facts)
    look_after = _compare_moved(plan, facts)
    reporter.start("deleting", plan.deleted_bytes)
    removals: list[Removal] = []
    problems: list[EdlCkptError] = []
    for location, versions in present.items():
        doomed = [_with_everything(version, facts) for version in versions if version.path in going]
        store = stores[location]
        deletion = kind_of(store).trash
        problems += deletion.sweep()
        removal = deletion.delete(doomed, keep=trash, look=look, look_after=look_after, known=known[location])
        problems += _forget(store, versions, removal)
        if removal.deleted and not trash and forget_verdicts(store):
            problems += deletion.sweep()  # nothing of ours may be left now
        problems += removal.problems
        removals.append(removal)
        reporter.advance(sum(version.own_bytes for version in removal.deleted))
    purge: Removal | None = None
    if plan.purge_older_than_seconds is not None:
        purge = _purge(plan.locations, stores, now, plan.purge_older_than_seconds)
    deleted: list[str] = []
    failed: list[tuple[str, EdlCkptError]] = []
    for removal in removals:
        deleted += (version.ref for version in removal.deleted)
        failed += ((version.ref, error) for version, error in removal.failed)
    return PruneResult(
        plan=plan,
        deleted=tuple(deleted),
        freed_bytes=sum(removal.freed_bytes for removal in removals),
        trashed=trash,
        failed=tuple(failed),
        problems=tuple(problems),
        purge=purge,
    )


def _forget(store: LocalStore | ObjectStore, versions: Iterable[Version], removal: Removal) -> list[EdlCkptError]:
    """Forget the state of versions that were deleted; of two spellings of a number, one may stay."""
    deleted_paths = {version.path for version in removal.deleted}
    remaining = {version.version for version in versions if version.path not in deleted_paths}
    deleted = {version.version for version in removal.deleted}
    return [*forget_gone(store, remaining), *forget_notes(store, deleted - remaining)]


def _purge(locations: Iterable[Location], stores: Stores, now: float, older_than_seconds: float) -> Removal:
    """Delete what is older in the trash of each location."""
    problems: list[EdlCkptError] = []
    freed_bytes = 0
    for location in locations:
        emptied = kind_of(stores[location]).trash.empty(now=now, older_than_seconds=older_than_seconds)
        problems += emptied.problems
        freed_bytes += emptied.freed_bytes
    return Removal(problems=tuple(problems), freed_bytes=freed_bytes)


def _with_everything(version: Version, facts: Facts) -> Version:
    """Return a version with all that goes with it among its extra names, where it is removed file by file."""
    content = facts.held.get(version.path)
    if content is None:
        return version
    if version.is_file:
        return replace(version, held_bytes=content.size_bytes)
    own = {version.name_of(file.path) for file in version.files}
    extra = tuple(name for name in content.names if name not in own)
    empty = tuple(content.empty_folders)
    return replace(version, held_bytes=content.size_bytes, extra=extra, empty_folders=empty)


def _recheck(plan: PrunePlan, now: float, known: Mapping[Location, Known], facts: Facts) -> Callable[[Version], None]:
    """Return what looks again at all that a plan relies on before a deletion, when the last look was some time ago.

    A process may be stopped between a look and the deletion. The kernel's boot clock goes on meanwhile. On a disk each
    directory is looked into right before it goes: what came into it meanwhile is not deleted.
    """
    began = looked = time.clock_gettime(time.CLOCK_BOOTTIME)

    def look(version: Version) -> None:
        """Raise RefusedError when the plan is stale by now."""
        nonlocal looked
        moment = time.clock_gettime(time.CLOCK_BOOTTIME)
        if moment - looked > LOOK_AGAIN_SECONDS:
            prove_lock(version.location)
            _look_again(plan, now + moment - began, known)
            looked = moment
        if version.location.local_path is not None and version.path in facts.held:
            now_there = holdings(open_store(version.location), version, mount_points())
            if now_there.mounts or not now_there.is_like(facts.held[version.path]):
                raise _stale(next(e for e in plan.entries if e.path == version.path), "this version has changed")

    return look


def _compare_moved(plan: PrunePlan, facts: Facts) -> Callable[[Version, Tree], None]:
    """Return what compares a directory that was moved into the trash with what was seen of it in its place."""

    def look(version: Version, tree: Tree) -> None:
        """Raise RefusedError for a directory into which something came between the last look and the move."""
        seen = facts.held.get(version.path)
        if seen is not None and not Holdings(tree).is_like(seen):
            raise _stale(next(e for e in plan.entries if e.path == version.path), "this version has changed")

    return look


def _look_again(
    plan: PrunePlan, now: float, known: Mapping[Location, Known]
) -> tuple[dict[Location, tuple[Version, ...]], Facts]:
    """Return the versions of all locations of a plan, and facts; RefusedError when something it relies on changed."""
    places, grace = plan.locations if plan.entries else (), plan.guards.grace_seconds
    present: dict[Location, tuple[Version, ...]] = {}
    reasons: dict[str, Why] = {}
    everything: list[Version] = []
    pointers: list[Pointers] = []
    faults: dict[str, str] = {}
    for place in places:
        listing = list_versions(place, grace_seconds=grace, now=now, known=known[place])
        pointers.append(pointers_at(listing))
        everything += listing.versions
        versions, unreadable = looked_at(listing.versions)
        present[place] = tuple(versions)
        reasons |= guard_reasons(versions, plan.guards, unreadable, now=now)
        faults |= unreadable
    by_path = {v.path: v for versions in present.values() for v in versions}
    survey, going = Survey(Facts(faults).with_pointers(pointers)), [entry.path for entry in plan.deletions]
    survey.look(everything, going)
    for path in by_path.keys() & set(going):
        if why := survey.facts.why(by_path[path], plan.guards):
            reasons[path] = {**reasons.get(path, {}), **why}
    _check_fresh(plan, by_path, reasons, survey.facts)
    return present, survey.facts


def _check_fresh(plan: PrunePlan, present: Mapping[str, Version], reasons: Mapping[str, Why], facts: Facts) -> None:
    """Raise RefusedError when something that the plan relies on has changed; `present` has today's versions by path."""
    blocked: dict[PruneEntry, Why] = {}
    for entry in plan.entries:
        version, why = present.get(entry.path), reasons.get(entry.path, {})
        goes = entry.action is Action.DELETE
        if (goes and version is None) or not (goes or entry.identity):
            continue
        if version is None:
            raise _stale(entry, "the plan keeps this version, but it is gone")
        if not entry.is_about(version, facts):
            raise _stale(entry, next(iter(why), "this version has changed") if goes else "this version has changed")
        if goes and why:
            blocked[entry] = why
    if blocked:
        entry = next(iter(blocked))
        error = guarded(entry.ref, *blocked.values())
        raise error if error.hint else _stale(entry, next(iter(blocked[entry])))


def _stale(entry: PruneEntry, why: str) -> RefusedError:
    return RefusedError(
        f"the plan is stale: {why}", path=entry.ref, hint="this version was not deleted; make a new plan and try again"
    )
