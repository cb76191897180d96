"""A manager of the versions of a location: it saves, keeps the last few, and finds the one to restore.

`CheckpointManager` is `tf.train.CheckpointManager` over this engine. What managers saved is remembered at the location,
so a manager goes on where the last one ended. Deleting goes through the guards of a prune.

Source: `tensorflow/python/checkpoint/checkpoint_management.py`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, Final

from edl_ckpt.core import (
    GRACE_SECONDS,
    LOCK_WAIT_SECONDS,
    Guards,
    Latest,
    Location,
    LocationLike,
    Policy,
    State,
    Version,
    list_versions,
    location_lock,
    prune,
    undeletable,
)
from edl_ckpt.core.base.choices import LayoutName
from edl_ckpt.core.base.errors import EdlCkptError, LockedError, NotFoundError, RefusedError, ReplacedError, UsageError
from edl_ckpt.core.base.numbers import whole_number
from edl_ckpt.core.base.progress import WARNINGS, Reporter
from edl_ckpt.core.base.words import abridged, counted
from edl_ckpt.core.reading.newest import PASSED_OVER, newest_readable, none_readable
from edl_ckpt.core.sources.elasticdl.target import check_version
from edl_ckpt.core.state.managed import Managed, read_managed, write_managed
from edl_ckpt.core.storage import open_store
from edl_ckpt.core.training.objects.checkpoint import ObjectCheckpoint, VersionRef

_NAMED: Final = 3
"""So many values are named of those that were not restored."""
_LOOKS: Final = 3
"""How often a location is looked at whose versions are replaced meanwhile."""


def sweep_saved(managed: Managed, max_to_keep: int | None, every_seconds: float | None) -> tuple[Managed, list[int]]:
    """Return what managers go on with, and the versions to delete, the oldest first, until `max_to_keep` remain.

    One that is at least `every_seconds` younger than the last that was preserved is preserved itself: it is forgotten,
    and no manager ever deletes it. Source: `CheckpointManager._sweep`.

    >>> sweep_saved(Managed({1: 0.0, 2: 10.0, 3: 20.0}, 3, -5.0), 1, 12.0)
    (Managed(saved={3: 20.0}, latest=3, last_preserved=10.0), [1])
    """
    saved, last = dict(managed.saved), managed.last_preserved
    doomed: list[int] = []
    while max_to_keep is not None and len(saved) > max_to_keep:
        number = next(iter(saved))
        moment = saved.pop(number)
        if every_seconds and moment - every_seconds >= last:
            last = moment
        else:
            doomed.append(number)
    return Managed(saved, managed.latest, last), doomed


@dataclass(eq=False, repr=False)
class CheckpointManager:
    """Saves versions of a checkpoint at a location, and keeps `max_to_keep` of them; None keeps all.

    When a version falls out of these, it is kept for ever if it was saved at least `keep_checkpoint_every_n_hours`
    after the last one that was. With `checkpoint_interval`, `save` does nothing until `step_counter` has gone that far
    since the last save or restore; before the first of these it counts from `last_checkpoint_step`, if that is given.
    `init_fn` is called when there is nothing to restore. `ps_num`, `layout` and `wait_seconds` are those of
    `save_checkpoint`. `reporter` gets warnings; without one they are Python's (`EdlCkptWarning`).

    Versions that no manager saved are never deleted; nor are tagged ones, nor the newest complete version. Several
    managers may work at one location. Raises UsageError, which is a ValueError, for numbers that make no sense.
    """

    checkpoint: ObjectCheckpoint
    directory: LocationLike
    max_to_keep: int | None
    _: KW_ONLY
    keep_checkpoint_every_n_hours: float | None = None
    step_counter: Any = None
    checkpoint_interval: int | None = None
    init_fn: Callable[[], object] | None = None
    last_checkpoint_step: int | None = None
    ps_num: int = 1
    layout: LayoutName | None = None
    wait_seconds: float = LOCK_WAIT_SECONDS
    reporter: Reporter = WARNINGS

    def __post_init__(self) -> None:
        if self.max_to_keep is not None and whole_number("max_to_keep", self.max_to_keep) <= 0:
            raise UsageError(f"max_to_keep must be a positive number or None, got {self.max_to_keep}")
        if self.checkpoint_interval is not None and self.step_counter is None:
            raise UsageError("checkpoint_interval needs a step_counter")
        self._location = Location.of(self.directory).pinned()
        self.directory = self._location.url
        self._born = time.time() - 1.0  # as in TensorFlow: before the first save of a manager made right after

    def __repr__(self) -> str:
        return f"CheckpointManager({str(self._location)!r}, max_to_keep={self.max_to_keep})"

    @property
    def latest_checkpoint(self) -> VersionRef | None:
        """Return the version that was saved last, None without one; it can be passed to `restore`.

        A version that another writer saved since under a higher number counts as well. The location is listed.
        """
        versions, managed = self._look()
        complete = [v for v in in_order(versions, managed) if v.state is State.COMPLETE]
        return VersionRef.of(self._location, complete[-1].version) if complete else None

    @property
    def checkpoints(self) -> list[VersionRef]:
        """Return the versions that managers saved and may delete, oldest first; the location is listed."""
        versions, managed = self._look()
        there = {version.version for version in versions}
        return [VersionRef.of(self._location, number) for number in managed.saved if number in there]

    def save(self, checkpoint_number: object = None, check_interval: bool = True) -> VersionRef | None:  # noqa: FBT001, FBT002 - as in TensorFlow
        """Save a version and delete what is too old; return its reference, None when it is too early for one.

        The number is the save counter, which goes up by one, unless it is given. A version of the same number that a
        manager saved is replaced. With `check_interval` False, only a second save of the same step is left out. Raises
        RefusedError for the number of a version of others, or of the newest complete one.
        """
        step, last = None, self.last_checkpoint_step
        if self.checkpoint_interval is not None:
            step = whole_number("the step counter", self.step_counter)
            if last is not None and (step == last or (check_interval and step < last + self.checkpoint_interval)):
                return None
        counter = self.checkpoint.save_counter
        number = int(counter) + 1 if checkpoint_number is None else whole_number("checkpoint_number", checkpoint_number)
        check_version(number)  # before it is noted
        self._make_room(number)
        self._keep_restored()
        self._note(lambda managed: _with(managed, number))  # first, or a job that dies now would never delete it
        try:
            ref = self.checkpoint.save(
                self._location,
                number,
                ps_num=self.ps_num,
                layout=self.layout,
                wait_seconds=self.wait_seconds,
                reporter=self.reporter,
            )
        except BaseException:
            with suppress(EdlCkptError):
                self._note(lambda managed: _without(managed, {number}))
            raise
        self.last_checkpoint_step = step
        self._delete_old(number)
        return ref

    def _keep_restored(self) -> None:
        """Keep for ever a version of which a restore left values without an object: what is saved now lacks them.

        A framework that makes its variables at the first step has new ones by then, and would train from them while
        this manager deletes the trained ones.
        """
        left = self.checkpoint.not_restored()
        if left is None or not left[0].location.is_same_place(self._location):
            return
        version, names = left
        if version.version not in self._remembered().saved:
            return
        self._note(lambda managed: _without(managed, {version.version}))
        self.reporter.warn(
            f"{version.ref} is kept for ever, because {counted(len(names), 'value')} of it found no object:"
            f" {abridged(names, _NAMED)}. Build the model and the optimizer first, then restore"
        )

    def restore_or_initialize(self) -> VersionRef | None:
        """Restore the version that was saved last, and return its reference; call `init_fn` when there is none.

        A version that cannot be read is passed over for the one before it, with a warning. Raises IncompleteError when
        there are versions and none can be read: to begin anew over them would hide the damage.
        """
        for _ in range(_LOOKS - 1):
            with suppress(ReplacedError):
                return self._restore_last()
        return self._restore_last()

    def _restore_last(self) -> VersionRef | None:
        """Do the work of `restore_or_initialize`; ReplacedError when versions change while it looks at them."""
        ordered = in_order(*self._look())
        faults: dict[str, str] = {}
        while ordered:
            errors: list[EdlCkptError] = []
            version, found = newest_readable(ordered, errors)
            replaced = next((error for error in errors if isinstance(error, ReplacedError)), None)
            if replaced is not None:
                raise replaced
            faults |= {each.ref: found[each.path] for each in reversed(ordered) if each.path in found}
            if version is None:
                break
            try:
                self.checkpoint.restore(version)
            except PASSED_OVER as error:
                faults[version.ref] = str(error)
                ordered = ordered[: ordered.index(version)]
                continue
            for ref, fault in faults.items():
                self.reporter.warn(f"{ref} is passed over for version {version.version}: {fault}")
            if self.checkpoint_interval is not None:
                self.last_checkpoint_step = whole_number("the step counter", self.step_counter)
            return VersionRef.of(self._location, version.version)
        if faults:
            raise none_readable((f"{ref}: {fault}" for ref, fault in faults.items()), self._location.url)
        if self.init_fn is not None:
            self.init_fn()
        return None

    def _look(self) -> tuple[Sequence[Version], Managed]:
        """Return the versions at the location, and what managers remember of it."""
        try:
            return list_versions(self._location).versions, self._remembered()
        except NotFoundError:
            return (), self._remembered()

    def _remembered(self) -> Managed:
        now = time.time()
        try:
            managed = read_managed(open_store(self._location))
        except UsageError as error:
            self.reporter.warn(f"{self._location}: {error}; what managers saved before is not known, and stays")
            managed = None
        if managed is None:
            return Managed({}, None, self._born)
        if now < managed.last_preserved:  # the clock went back: later versions are to be preserved, too
            behind = f"{managed.last_preserved - now:.0f} s behind the last version that was preserved"
            self.reporter.warn(f"{self._location}: the clock is {behind}")
            managed = replace(managed, last_preserved=now)
        return replace(managed, saved={n: min(moment, now) for n, moment in managed.saved.items()})

    def _make_room(self, number: int) -> None:
        """Delete the version of a number if a manager saved it: the next one takes its place; refuse to otherwise."""
        versions, managed = self._look()
        old = [version for version in versions if version.version == number]
        if old and number not in managed.saved:
            raise self._taken(number, "no manager saved it", "nothing was changed; restore it to continue from it")
        if old:
            try:
                self._prune([number])
            except RefusedError as error:
                raise self._taken(number, error.message, "continue from it with restore_or_initialize()") from None
            self.reporter.warn(f"{old[0].ref}: was there already, and is replaced")

    def _taken(self, number: int, why: str, hint: str) -> RefusedError:
        hint = f"{hint}, or give another checkpoint_number"
        return RefusedError(f"version {number} is there already, and {why}", path=self._location.url, hint=hint)

    def _note(self, change: Callable[[Managed], Managed]) -> None:
        """Change what managers remember, under the lock."""
        with location_lock(
            self._location,
            "save",
            create=True,
            wait_seconds=self.wait_seconds,
            reporter=self.reporter,
        ) as locked:
            write_managed(locked.store, change(self._remembered()))

    def _delete_old(self, number: int) -> None:
        """Delete the versions that are too old after a save, as far as guards allow it, and record what remains."""
        moment = time.time()
        listing = list_versions(self._location)
        versions = listing.versions
        there = {version.version for version in versions}
        managed = _with(self._remembered(), number, moment)
        present = replace(managed, saved={n: at for n, at in managed.saved.items() if n in there})
        every = None if self.keep_checkpoint_every_n_hours is None else self.keep_checkpoint_every_n_hours * 3600.0
        swept, doomed = sweep_saved(present, self.max_to_keep, every)
        guarded = undeletable(listing, doomed)
        deleted = [n for n in doomed if n not in guarded]
        try:
            if deleted:
                self._prune(deleted)
        except (RefusedError, LockedError, NotFoundError) as error:  # or another manager deleted one
            self.reporter.warn(f"{self._location}: old versions were not deleted: {error}")
            deleted = []
        preserved = present.saved.keys() - swept.saved.keys() - set(doomed)
        # Another manager may still be writing a version that is recorded and not there.
        lost = {n for n, at in managed.saved.items() if n not in there and at < moment - GRACE_SECONDS}
        gone, last = preserved | lost | set(deleted), swept.last_preserved

        def change(now: Managed) -> Managed:
            kept = _without(_with(now, number, moment), gone)
            return Managed(kept.saved, number, max(kept.last_preserved, last))

        self._note(change)

    def _prune(self, numbers: Sequence[int]) -> None:
        """Delete versions by their numbers; RefusedError when one is guarded."""
        result = prune(
            [self._location],
            Policy((Latest(0),)),
            guards=Guards(delete=tuple(numbers)),
            wait_seconds=self.wait_seconds,
            reporter=self.reporter,
        )
        for error in result.errors:
            self.reporter.warn(str(error))


def _with(managed: Managed, number: int, moment: float | None = None) -> Managed:
    """Return what managers remember with one more version, the newest, saved at a moment, now when None."""
    others = _without(managed, {number}).saved
    return replace(managed, saved={**others, number: time.time() if moment is None else moment})


def _without(managed: Managed, numbers: set[int]) -> Managed:
    """Return what managers remember without some versions."""
    return replace(managed, saved={n: moment for n, moment in managed.saved.items() if n not in numbers})


def in_order(versions: Sequence[Version], managed: Managed) -> list[Version]:
    """Return versions in the order in which they were saved, as far as it is known.

    First those of others by number, then those of managers in the order of their saves, then those of others that have
    a higher number and were written later: another job may have gone on here.
    """
    by_number = {version.version: version for version in versions}
    own = [by_number[number] for number in managed.saved if number in by_number]
    if managed.latest in by_number and by_number[managed.latest] not in own:
        own.append(by_number[managed.latest])
    others = sorted((v for v in versions if v not in own), key=lambda v: v.version)
    if not own:
        return others
    top, moment = max(v.version for v in own), own[-1].modified
    later = [v for v in others if v.version > top and v.modified > moment]
    return [v for v in others if v not in later] + own + later
