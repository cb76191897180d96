"""Executing a plan: take the locks of all locations, look again, refuse a stale plan, delete.

`execute_prune` takes the locks itself. `prune` plans and executes; without a question in between, it takes the locks
before it plans, so that no other command of ours comes between plan and execution.

`remove_own_shard` has no plan: it is keep_checkpoint_max as one parameter server applies it, made safe.

A plan as a file: `--plan-out` writes it, `--apply` executes it later.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, TypeAlias, get_type_hints

from edl_ckpt.core.base.errors import EdlCkptError, RefusedError, UsageError
from edl_ckpt.core.base.progress import WARNINGS, Reporter
from edl_ckpt.core.base.several import several
from edl_ckpt.core.base.words import counted, describe, size
from edl_ckpt.core.catalog.listing import list_versions
from edl_ckpt.core.catalog.pointers import Pointers, pointers_at
from edl_ckpt.core.catalog.swaps import GRACE_SECONDS
from edl_ckpt.core.commit.deletion.holdings import Holdings, holdings
from edl_ckpt.core.commit.deletion.removal import Removal
from edl_ckpt.core.commit.repair.recovery import forget_gone, kind_of, location_lock
from edl_ckpt.core.model.versions import DAMAGED, SUSPECT, State, Version
from edl_ckpt.core.operations.prune.facts import Facts, Survey
from edl_ckpt.core.operations.prune.plan import Action, PruneEntry, PrunePlan, plan_prune
from edl_ckpt.core.operations.prune.retention import (
    NO_EXCEPTIONS,
    Guards,
    Policy,
    Why,
    find_unreadable,
    guard_reasons,
    guarded,
    is_good,
    looked_at,
    prunable,
)
from edl_ckpt.core.state.document import MAX_SUMS_BYTES, parse_document
from edl_ckpt.core.state.index import Known
from edl_ckpt.core.state.lock import LOCK_WAIT_SECONDS
from edl_ckpt.core.state.lock_proof import prove_lock
from edl_ckpt.core.state.paths import seal_file
from edl_ckpt.core.state.shard_note import forget_notes, remove_notes
from edl_ckpt.core.state.verdicts import forget_verdicts
from edl_ckpt.core.storage import LocalStore, Location, LocationLike, ObjectStore, open_store
from edl_ckpt.core.storage.faults import storage_errors
from edl_ckpt.core.storage.location import as_url
from edl_ckpt.core.storage.mounts import mount_points
from edl_ckpt.core.storage.tree import Tree
from edl_ckpt.core.storage.user_files import check_target, open_input

PLAN_SCHEMA: Final = "edl-ckpt/prune-plan/1"
_STORED: Final[Mapping[Any, type]] = {Location: str, Action: str, tuple[str, ...]: list}
"""What the fields of these types are in a file."""
_ENTRY: Final[Mapping[str, type]] = {name: _STORED.get(kind, kind) for name, kind in get_type_hints(PruneEntry).items()}
_MOST: Final = 1 << 63
"""No number in a plan is as large: a version has at most 18 digits."""
_WORDS: Final[Mapping[type, str]] = {
    str: "a text",
    int: "a whole number",
    float: "a number",
    list: "a list",
    dict: "an object",
}


def write_plan(path: str | os.PathLike[str], plan: PrunePlan) -> None:
    """Write a plan to a local file; RefusedError for one that `read_plan` would not read.

    The file has local locations by their absolute paths, and no storage options. It does not say whether to empty the
    trash: only the command line may ask for that. Its guards are for the reader.
    """
    path = as_url(path)
    check_target(path)
    entries = [
        {name: getattr(entry, name) for name in PruneEntry.__slots__}
        | {
            "location": entry.location.absolute,
            "path": entry.location.with_url(entry.path).absolute,
            "reasons": list(entry.reasons),
        }
        for entry in plan.entries
    ]
    guards = {name: getattr(plan.guards, name) for name in Guards.__slots__}
    document = {"schema": PLAN_SCHEMA, "policy": list(plan.policy), "guards": guards, "entries": entries}
    data = json.dumps(document, indent=1).encode()
    if len(data) > MAX_SUMS_BYTES:
        raise RefusedError(
            f"the plan has {size(len(data))}, and one of more than {size(MAX_SUMS_BYTES)} cannot be applied",
            path=path,
            hint=f"plan fewer than {counted(len(plan.entries), 'version')} at a time",
        )
    with storage_errors(path), open(path, "wb") as file:
        file.write(data)


def read_plan(path: str | os.PathLike[str], guards: Guards = NO_EXCEPTIONS) -> PrunePlan:
    """Return the plan in a local file, its locations without storage options; UsageError when the file has no plan.

    The file lifts no guard: `guards` has the exceptions for the execution, and those of the plan are not read.
    """
    path = as_url(path)
    with storage_errors(path), open_input(path, "rb") as file:
        data = file.read(MAX_SUMS_BYTES + 1)
    try:
        document = parse_document(data, path, limit=MAX_SUMS_BYTES)
        if document.get("schema") != PLAN_SCHEMA:
            raise UsageError(f"expected a document with the schema {PLAN_SCHEMA!r}")
        entries = tuple(map(_entry, _list(document.get("entries"), dict)))
        if len({e.path for e in entries}) < len(entries):
            raise UsageError("expected a plan of a prune: it has a version twice")
        locations = tuple(dict.fromkeys(e.location for e in entries))
        return PrunePlan(locations, entries, tuple(_list(document.get("policy"), str)), guards).say_first()
    except ValueError as error:
        raise UsageError(f"not a plan that prune can apply: {getattr(error, 'message', error)}", path=path) from None


def _entry(document: dict[str, Any]) -> PruneEntry:
    """Return the entry in an object that has exactly its keys, with values of their types; UsageError for any other."""
    if document.keys() != _ENTRY.keys():
        raise UsageError(f"expected a plan of a prune: an object with {', '.join(_ENTRY)}")
    for key, kind in _ENTRY.items():
        if not _is(document[key], kind):
            raise UsageError(f"expected a plan of a prune: {key} must be {_WORDS[kind]}, got {document[key]!r:.60}")
    location = Location(document["location"])
    if location.absolute != location.url or b"\0" in os.fsencode(location.url):
        raise UsageError(f"expected a plan of a prune: {location.url!r:.60} is no absolute path, and no URL")
    return PruneEntry(
        **document
        | {
            "location": location,
            "state": _state(document["state"]),
            "action": Action(document["action"]),
            "reasons": tuple(_list(document["reasons"], str)),
        }
    )


def _state(text: str) -> str:
    """Return the state that a version is shown with; ValueError for any other text."""
    return text if text in {DAMAGED, SUSPECT} else State(text).value


def _list(values: Any, kind: type) -> list[Any]:
    if not isinstance(values, list) or not all(_is(value, kind) for value in values):
        raise UsageError(f"expected a plan of a prune: a list, each of it {_WORDS[kind]}")
    return values


def _is(value: Any, kind: type) -> bool:
    """Say whether a value has a type and a sane size; a whole number is a number too, and `true` is none."""
    if isinstance(value, bool) or kind not in {int, float}:
        return type(value) is kind
    return isinstance(value, (int, kind)) and (0 if kind is int else -_MOST) <= value < _MOST


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
    going = {e.path for e in plan.deletions}
    look, look_after = _recheck(plan, now, known, facts), _compare_moved(plan, facts)
    reporter.start("deleting", plan.deleted_bytes)
    removals: list[Removal] = []
    problems: list[EdlCkptError] = []
    for location, versions in present.items():
        doomed = [_with_everything(v, facts) for v in versions if v.path in going]
        store = stores[location]
        deletion = kind_of(store).trash
        problems += deletion.sweep()
        removal = deletion.delete(doomed, keep=trash, look=look, look_after=look_after, known=known[location])
        gone = {v.path for v in removal.deleted}
        present_now = {v.version for v in versions if v.path not in gone}  # of two spellings of a number, one may stay
        problems += forget_gone(store, present_now)
        problems += forget_notes(store, {v.version for v in removal.deleted} - present_now)
        if removal.deleted and not trash and forget_verdicts(store):
            problems += deletion.sweep()  # nothing of ours may be left now
        problems += removal.problems
        removals.append(removal)
        reporter.advance(sum(v.own_bytes for v in removal.deleted))
    purge: Removal | None = None
    if plan.purge_older_than_seconds is not None:
        age = plan.purge_older_than_seconds
        purged = [kind_of(stores[at]).trash.empty(now=now, older_than_seconds=age) for at in plan.locations]
        left = tuple(problem for each in purged for problem in each.problems)
        purge = Removal(problems=left, freed_bytes=sum(each.freed_bytes for each in purged))
    return PruneResult(
        plan=plan,
        deleted=tuple(version.ref for removal in removals for version in removal.deleted),
        freed_bytes=sum(removal.freed_bytes for removal in removals),
        trashed=trash,
        failed=tuple((version.ref, error) for removal in removals for version, error in removal.failed),
        problems=tuple(problems),
        purge=purge,
    )


def _with_everything(version: Version, facts: Facts) -> Version:
    """Return a version with all that goes with it among its extra names, where it is removed file by file."""
    content = facts.held.get(version.path)
    if content is None:
        return version
    version = replace(version, held_bytes=content.size_bytes)
    if version.is_file:
        return version
    own = {version.name_of(file.path) for file in version.files}
    extra = tuple(name for name in content.names if name not in own)
    return replace(version, extra=extra, empty_folders=tuple(content.empty_folders))


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
            if (now_there.digest, now_there.mounts) != (facts.held[version.path].digest, ()):
                raise _stale(next(e for e in plan.entries if e.path == version.path), "this version has changed")

    return look


def _compare_moved(plan: PrunePlan, facts: Facts) -> Callable[[Version, Tree], None]:
    """Return what compares a directory that was moved into the trash with what was seen of it in its place."""

    def look(version: Version, tree: Tree) -> None:
        """Raise RefusedError for a directory into which something came between the last look and the move."""
        seen = facts.held.get(version.path)
        if seen is not None and Holdings(tree).digest != seen.digest:
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


def remove_own_shard(
    location: LocationLike,
    ps_id: int,
    ps_num: int,
    keep_checkpoint_max: int,
    *,
    leftovers: bool = False,
    wait_seconds: float = LOCK_WAIT_SECONDS,
    reporter: Reporter = WARNINGS,
) -> tuple[str, ...]:
    """Apply keep_checkpoint_max as one parameter server does after saving; return the paths that were removed.

    Source: the checkpoint design of ElasticDL. While more than so many versions have this server's shard, the server
    removes its own shard of the smallest, then the directory if it is empty. Made safe: the newest complete version
    that can be read keeps its shard, and so does a tagged one. So do later versions, which slower servers may still
    complete: else a server that is far ahead would leave none. 0 removes nothing. With `leftovers`, versions that this
    server has no shard of lose those of other servers too, by the same rule: a server that was ahead at its last save
    cannot come back for them. The seal of a version goes
    before its first shard, and empty directories that a killed server left go too. Takes the lock of the location only
    when there is something to remove. Raises LockedError when it is not free in time; the next call catches up.
    """
    if keep_checkpoint_max <= 0:
        return ()
    if not 0 <= ps_id < ps_num:
        raise UsageError(f"ps_id must be 0 to {ps_num - 1}, got {ps_id}")
    where = Location.of(location)
    doomed = partial(doomed_shards, ps_id=ps_id, ps_num=ps_num, keep=keep_checkpoint_max, leftovers=leftovers)
    if not any(doomed(list_versions(where).versions)):
        return ()
    with location_lock(where, "keep_checkpoint_max", wait_seconds=wait_seconds, reporter=reporter) as locked:
        # Once more: now no other command of ours changes them, and what has tags is read from its own files.
        versions = list_versions(where, known=Known()).versions
        removed: list[str] = []
        for version, path in list(doomed(versions)):
            prove_lock(version.location)
            if path is not None:
                locked.store.remove(seal_file(version.version))
                remove_notes(locked.store, version.version)
            # Neither it nor its directory need exist.
            removed += kind_of(locked.store).trash.remove_shard(version, path)
        if removed:
            present = {version.version for version in list_versions(where).versions if not version.uuid}
            for error in forget_gone(locked.store, present):
                reporter.warn(str(error))
    return tuple(removed)


def doomed_shards(
    versions: Sequence[Version], ps_id: int, ps_num: int, keep: int, *, leftovers: bool = False
) -> Iterator[tuple[Version, str | None]]:
    """Yield the versions that lose a shard, with its path; None stands for one that is an empty directory."""
    versions = [version for version in prunable(versions) if version.is_elasticdl]
    shards: dict[int, list[tuple[Version, str]]] = {ps_id: []}
    for version in versions:
        if version.state not in {State.MIXED, State.UNREADABLE} and not version.linked:
            for shard in version.shards:
                if shard.ps_num == ps_num and (leftovers or shard.ps_id == ps_id):
                    shards.setdefault(shard.ps_id, []).append((version, shard.path))
    long_ago = time.time() - GRACE_SECONDS
    empty = (v for v in versions if not (v.shards or v.extra or v.fault or v.linked))
    yield from ((v, None) for v in empty if v.modified < long_ago)
    if all(len(some) <= keep for some in shards.values()):
        return
    unreadable = find_unreadable(versions)
    newest = max((v.version for v in versions if is_good(v, unreadable)), default=-1)
    kept = set[str]()
    for some in shards.values():  # the own ones first: a version that keeps its own shard keeps all
        for place, (version, path) in enumerate(some):
            is_old = place < len(some) - keep and version.version < newest
            if is_old and not version.tags and not version.metadata_fault and version.path not in kept:
                yield version, path
            elif some is shards[ps_id]:
                kept.add(version.path)
