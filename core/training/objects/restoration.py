"""One restore of a version into the objects of a program: what is restored at once, what waits, and what never came.

Its status says what matched and what did not, as in TensorFlow.

SavedValues wait until something of their name is created. While values wait, the version stays open, until they are all
restored or the next restore of the same checkpoint begins.

Source: `_CheckpointRestoreCoordinator`, `CheckpointLoadStatus` and `InitializationOnlyStatus` in
`tensorflow/python/checkpoint/checkpoint.py` of TensorFlow.
"""

from __future__ import annotations

import itertools
import logging
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, NoReturn, Self

from edl_ckpt.core import Checkpoint
from edl_ckpt.core.base.errors import MismatchError
from edl_ckpt.core.base.words import abridged, counted
from edl_ckpt.core.reading.aliases import Path, path_name
from edl_ckpt.core.training.objects.graph import leaves_of
from edl_ckpt.core.training.objects.matching import Match, Pair
from edl_ckpt.core.training.objects.program_values import shape_of, why_fixed
from edl_ckpt.core.training.objects.tracking import Binding, Child, Trackable, TrackedDict, TrackedList, is_leaf
from edl_ckpt.core.training.objects.values import SavedValues

SAVE_COUNTER = "save_counter"
"""The name of the counter of saves: it does not count as a match, and a version of others lacks it."""
LOG: Final = logging.getLogger("edl_ckpt")
_NAMED: Final = 20
_NUMBERS: Final = itertools.count(1)
_LATEST: Final[dict[int, tuple[Callable[[], Any], int]]] = {}
"""By id, each object that was restored, and the number of the last restore that gave it a value."""


class UnrestoredWarning(UserWarning):
    """SavedValues of a checkpoint were not restored: they never found an object, or one that came too late."""


class Usage:
    """What a restore has used. It refers to no object of the program, so that it outlives them."""

    def __init__(self, values: SavedValues) -> None:
        self.values = values
        self.used: set[Path] = set()
        self.expect_partial = False

    @property
    def unused(self) -> list[Path]:
        """Return the paths of the values that were not used, in order."""
        return sorted(self.values.names.paths - self.used)

    def end(self) -> None:
        """Close the version, and warn of what was not used."""
        self.values.checkpoint.close()
        unused = self.unused
        if not unused or self.expect_partial:
            return
        self.expect_partial = True
        text = (
            f"{self.values.checkpoint.version.ref}: {counted(len(unused), 'value')} of the checkpoint never"
            f" found an object: {abridged(map(path_name, unused), _NAMED)}; status.expect_partial() silences this"
        )
        try:
            warnings.warn(text, UnrestoredWarning, stacklevel=2)
        except UnrestoredWarning:  # where warnings are errors; no caller could catch one from a destructor
            LOG.warning(text)


class Restoration:
    """A version that is being restored below one root."""

    def __init__(self, checkpoint: Checkpoint, *, skip_mismatch: bool = False) -> None:
        self.values = SavedValues(checkpoint)
        self.ref = checkpoint.version.ref
        self.mismatches: dict[Path, str] = {}
        """SavedValues whose shape or dtype differs from that of the program, by the path in the program."""
        self.usage = Usage(self.values)
        self._skip_mismatch = skip_mismatch
        self._done: set[Path] = set()
        self._number = next(_NUMBERS)
        self.end = weakref.finalize(self, self.usage.end)
        """Ends it: what waits is given up."""

    @property
    def is_over(self) -> bool:
        """Say whether nothing waits any more."""
        return not self.end.alive

    def restore_now(self, match: Match) -> None:
        """Restore what an earlier match has not, and wait for additions to its nodes."""
        self._restore([pair for pair in match.pairs if pair.edge not in self._done])
        if len(self.usage.used) == len(self.values.names.paths):
            self.end()
            return
        for node, path in match.nodes:
            if isinstance(node, Trackable | TrackedDict | TrackedList):
                node.wait_for(Binding(self, path))

    def adopt(self, path: Path, name: str, value: Any) -> Any:
        """Restore into a value that is being added under a name to the node at a path; return the value to store."""
        if self.is_over:
            return value
        stored = [value]
        child, match = Child(name, value, lambda new: stored.__setitem__(0, new)), Match()
        below = self.values.names.look(child, path, match)
        if below is not None and not is_leaf(value):
            match = self.values.names.match(value, below)
        self.restore_now(match)
        return stored[0]

    def warn_of_missed(self, root: object) -> None:
        """Warn of values that came into plain objects since, and that did not get what waits for them."""
        if self.is_over or self.usage.expect_partial:
            return
        late = [p for p in self.values.names.match(root, ()).pairs if p.edge not in self._done | self.mismatches.keys()]
        missed = [path_name(pair.edge) for pair in late if not self.has_restored(pair.child.value)]
        if missed:
            text = (
                f"{counted(len(missed), 'value')} created after the restore of {self.ref} did not get saved values:"
                f" {abridged(missed, _NAMED)}; call initialize_or_restore() of its status once all objects are there"
            )
            warnings.warn(text, UnrestoredWarning, stacklevel=3)

    def has_restored(self, value: object) -> bool:
        """Say whether an object got its value from this restore, or from a later one, which is the one that counts."""
        found, number = _LATEST.get(id(value), (None, 0))
        return found is not None and found() is value and number >= self._number

    def _restore(self, pairs: Sequence[Pair]) -> None:
        good = self._compare(pairs)
        for pair in good:
            if not self.has_restored(pair.child.value):  # by another of its names, or later
                self._remember(self.values.read_into(pair.path, pair.child))
            self._done.add(pair.edge)
            self.usage.used |= self.values.names.taken_by(pair)
        if good:
            self.values.checkpoint.check_unchanged()

    def _compare(self, pairs: Iterable[Pair]) -> list[Pair]:
        """Return the pairs of equal shape and dtype; MismatchError, with every other pair, unless those are skipped."""
        good: list[Pair] = []
        found: dict[Path, str] = {}
        for pair in pairs:
            here, there = shape_of(pair.child.value, path_name(pair.edge)), self.values.shapes.get(pair.path)
            fault = why_fixed(pair.child)
            if self.has_restored(pair.child.value) or (here == there and not fault):
                good.append(pair)
            elif fault:
                found[pair.edge] = f"{path_name(pair.edge)}: {type(pair.child.value).__name__} {here}: {fault}"
            else:
                found[pair.edge] = f"{path_name(pair.edge)}: {here} in the program, {there} in the checkpoint"
        if found and not self._skip_mismatch:
            what = f"{counted(len(found), 'value')} cannot be restored; nothing was changed"
            raise _mismatch(what, found.values(), self.ref, "skip_mismatch=True restores the others")
        self.mismatches |= found
        return good

    def _remember(self, value: object) -> None:
        key = id(value)
        found: Callable[[], Any] = lambda: value  # noqa: E731 - a number of numpy: it stays as long as this restore
        try:
            found = weakref.ref(value, lambda _: _LATEST.pop(key, None))
        except TypeError:
            weakref.finalize(self, _LATEST.pop, key, None)
        _LATEST[key] = found, self._number


class LoadStatus:
    """The result of `restore`. Its assertions raise MismatchError, which is an AssertionError; they return itself."""

    def __init__(self, restoration: Restoration, root: Trackable) -> None:
        self._restoration = restoration
        self._root = root

    def __repr__(self) -> str:
        waiting = len(self._restoration.usage.unused)
        return f"RestoreStatus({self._restoration.ref}, {counted(waiting, 'value')} not restored)"

    def assert_consumed(self) -> Self:
        """Raise unless every value of the checkpoint was restored and every value of the program has one."""
        self._raise([*self._without_value(), *self._unused()])
        return self

    def assert_existing_objects_matched(self) -> Self:
        """Raise unless every value of the program was restored; the checkpoint may have more."""
        self._raise(list(self._without_value()))
        return self

    def assert_nontrivial_match(self) -> Self:
        """Raise when nothing was restored but the counter of saves.

        TensorFlow's passes already when only the counter matched.
        """
        names = [path for path, value in leaves_of(self._root) if self._restoration.has_restored(value)]
        if all(path == (SAVE_COUNTER,) for path in names):
            problems = [*self._without_value(), *self._unused()]
            self._raise(problems or ["nothing to restore: the program has no values yet"])
        return self

    def expect_partial(self) -> Self:
        """Give no warning when values of the checkpoint have not been used at the end."""
        self._restoration.usage.expect_partial = True
        return self

    def initialize_or_restore(self) -> None:
        """Restore into what came since into plain objects, which do not notice additions."""
        if not self._restoration.is_over:
            self._restoration.restore_now(self._restoration.values.names.match(self._root, ()))

    def _without_value(self) -> Iterator[str]:
        """Yield each value of the program that was not restored."""
        restoration = self._restoration
        match = restoration.values.names.match(self._root, ())
        waiting = {id(pair.child.value): pair.path for pair in match.pairs}
        for path, value in leaves_of(self._root):
            is_optional = path == (SAVE_COUNTER,) and path not in restoration.values.names.paths
            if restoration.has_restored(value) or is_optional:
                continue
            name = path_name(path)
            shape = shape_of(value, name) or "the state of an object"
            if path in restoration.mismatches:
                yield restoration.mismatches[path]
            elif id(value) in waiting:
                yield f"{name}: {shape} in the program, created after the restore"
            else:
                yield f"{name}: {shape} in the program, not in the checkpoint"

    def _unused(self) -> Iterator[str]:
        """Yield each value of the checkpoint that was not restored."""
        shapes = self._restoration.values.shapes
        for path in self._restoration.usage.unused:
            yield f"{path_name(path)}: {shapes[path]} in the checkpoint, not restored into the program"

    def _raise(self, problems: Sequence[str]) -> None:
        if problems:
            what = f"the checkpoint and the program differ in {counted(len(problems), 'value')}"
            raise _mismatch(what, problems, self._restoration.ref)


def _mismatch(what: str, problems: Iterable[str], ref: str, hint: str | None = None) -> MismatchError:
    return MismatchError("\n  ".join([what, *problems]), path=ref, hint=hint)


class NothingRestored(LoadStatus):
    """The status of `restore(None)`: there was no checkpoint, so every assertion fails."""

    def __init__(self) -> None:
        """Have neither a restoration nor a root: the values of the program are its initial ones."""

    def assert_consumed(self) -> NoReturn:
        """Raise MismatchError."""
        raise MismatchError("no checkpoint was given (None), so nothing was restored")

    assert_existing_objects_matched = assert_nontrivial_match = assert_consumed

    def expect_partial(self) -> Self:
        """Do nothing."""
        return self

    def initialize_or_restore(self) -> None:
        """Do nothing."""

    def __repr__(self) -> str:
        return "NothingRestored()"
