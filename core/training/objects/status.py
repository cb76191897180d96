"""The status of a restore: what matched and what did not, as in TensorFlow.

Source: `CheckpointLoadStatus` and `InitializationOnlyStatus` in `tensorflow/python/checkpoint/checkpoint.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NoReturn, Self

from edl_ckpt.core.base.errors import MismatchError
from edl_ckpt.core.base.words import counted
from edl_ckpt.core.reading.aliases import Path, path_name
from edl_ckpt.core.training.objects.graph import leaves_of
from edl_ckpt.core.training.objects.restoration import Restoration
from edl_ckpt.core.training.objects.tracking import Trackable
from edl_ckpt.core.training.objects.values import shape_of

SAVE_COUNTER = "save_counter"
"""The name of the counter of saves: it does not count as a match, and a version of others lacks it."""


class LoadStatus:
    """The result of `restore`. Its assertions raise MismatchError, which is an AssertionError; they return itself."""

    def __init__(self, restoration: Restoration, root: Trackable) -> None:
        self._restoration = restoration
        self._root = root

    def __repr__(self) -> str:
        waiting = len(self._restoration.unused)
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
        self._restoration.expect_partial()
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
            if restoration.has_restored(value) or self._is_optional(path):
                continue
            name = path_name(path)
            shape = shape_of(value, name) or "the state of an object"
            if path in restoration.mismatches:
                yield restoration.mismatches[path]
            elif id(value) in waiting:
                yield f"{name}: {shape} in the program, created after the restore"
            else:
                yield f"{name}: {shape} in the program, not in the checkpoint"

    def _is_optional(self, path: Path) -> bool:
        return path == (SAVE_COUNTER,) and path not in self._restoration.values.names.paths

    def _unused(self) -> Iterator[str]:
        """Yield each value of the checkpoint that was not restored."""
        shapes = self._restoration.values.shapes
        for path in self._restoration.unused:
            yield f"{path_name(path)}: {shapes[path]} in the checkpoint, not restored into the program"

    def _raise(self, problems: Sequence[str]) -> None:
        if problems:
            raise MismatchError(
                f"the checkpoint and the program differ in {counted(len(problems), 'value')}"
                + "".join(f"\n  {text}" for text in problems),
                path=self._restoration.ref,
            )


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
