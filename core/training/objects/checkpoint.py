"""Checkpoints of objects: the values in an object and in all that it leads to, saved as one version.

`ObjectCheckpoint` is `tf.train.Checkpoint` over this engine: the same tracking, the same delayed restoration. Each
value is a dense variable of the version, or an embedding table, named by its path ('net/l1/kernel').

Source: https://www.tensorflow.org/guide/checkpoint and `tensorflow/python/checkpoint/checkpoint.py`.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import numpy.typing as npt

from edl_ckpt.core import (
    LOCK_WAIT_SECONDS,
    Checkpoint,
    CheckpointRef,
    Location,
    LocationLike,
    Table,
    Version,
    VersionLike,
    open_checkpoint,
    save_checkpoint,
)
from edl_ckpt.core.adapters.nest import array_of
from edl_ckpt.core.base.choices import LayoutName
from edl_ckpt.core.base.errors import NotFoundError, UsageError
from edl_ckpt.core.base.numbers import whole_number
from edl_ckpt.core.base.progress import WARNINGS, Reporter
from edl_ckpt.core.base.words import escaped
from edl_ckpt.core.reading.aliases import ALIASES, own_name, path_name
from edl_ckpt.core.training.objects.graph import alias_variable, walk
from edl_ckpt.core.training.objects.program_values import state_of
from edl_ckpt.core.training.objects.restoration import SAVE_COUNTER, LoadStatus, NothingRestored, Restoration
from edl_ckpt.core.training.objects.tracking import (
    Child,
    EmbeddingTable,
    Trackable,
    children_of,
    is_leaf,
    is_node,
    is_stateful,
)
from edl_ckpt.core.training.objects.variable import Variable


class VersionRef(str):
    """A reference such as 'run@5', as a text that also carries the storage options of its location."""

    __slots__ = ("location", "number")

    location: Location
    number: int

    @classmethod
    def of(cls, location: Location, number: int) -> VersionRef:
        """Return the reference to a version."""
        made = cls(f"{location}@{number}")
        made.location, made.number = location, number
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        return VersionRef.of, (self.location, self.number)


class _Own:
    """What an `ObjectCheckpoint` knows beside the objects that it tracks."""

    def __init__(self, root: object) -> None:
        self._root = root
        self.save_counter: Variable | None = None
        self.restoration: Restoration | None = None

    @property
    def root(self) -> object:
        """Return the root, None without one; UsageError when it was given as a weak reference and is gone."""
        if not isinstance(self._root, weakref.ref):
            return self._root
        root = self._root()
        if root is None:
            raise UsageError("the root of the checkpoint, a weak reference, is gone", hint="keep the object as well")
        return root


class ObjectCheckpoint(Trackable):
    """Objects that are saved and restored together, each under its keyword, as with `tf.train.Checkpoint`.

    Objects are arrays of any library, `Variable`, tables (`Table`, `EmbeddingTable`), dicts, lists and tuples, and
    objects whose attributes are tracked. With `root`, the attributes of that object are tracked as if they were those
    of the checkpoint; a weak reference to it does not keep it alive. Raises UsageError, which is a ValueError, for a
    value that cannot be tracked.
    """

    _own: _Own

    def __init__(self, root: object = None, /, **objects: Any) -> None:
        object.__setattr__(self, "_own", _Own(root))
        root = self._own.root
        if root is not None and not is_node(root):
            raise UsageError(f"the root has no attributes that could be tracked: {root!r}")
        taken = {child.name for child in children_of(root)} if root is not None else set()
        for name, value in sorted(objects.items()):  # as in TensorFlow
            if hasattr(type(self), name) or name in taken:
                raise UsageError(f"{name!r} is taken", hint="track the object under another name")
            if not is_leaf(value) and not is_node(value):
                is_number = isinstance(value, int | float)
                raise UsageError(
                    f"{name}: {type(value).__name__} cannot be tracked: it is no array, and leads to none",
                    hint=f"a number changes in place as a variable: {name}=Variable({value!r})" if is_number else None,
                )
            setattr(self, name, value)

    def __repr__(self) -> str:
        names: list[str] = []
        with suppress(UsageError):  # without its root
            names = [escaped(child.name, 40) for child in children_of(self)]
        more = f", and {len(names) - 8} more" if len(names) > 8 else ""
        return f"<ObjectCheckpoint of {', '.join(names[:8])}{more}>" if names else "<ObjectCheckpoint of nothing>"

    @property
    def save_counter(self) -> Variable:
        """Return the counter of saves, which numbers them; it is saved and restored like any other value."""
        if self._own.save_counter is None:
            self._own.save_counter = Variable(0, np.int64)
        return self._own.save_counter

    @property
    def status(self) -> LoadStatus:
        """Return the status of the last restore, also of one that a manager made."""
        restoration = self._own.restoration
        return NothingRestored() if restoration is None else LoadStatus(restoration, self)

    def not_restored(self) -> tuple[Version, list[str]] | None:
        """Return the version of the last restore, and the names of its values that no object has taken.

        None without a restore, where all were taken, and where the program expects that some are not.
        """
        restoration = self._own.restoration
        if restoration is None or restoration.is_over or restoration.usage.expect_partial:
            return None
        names = [path_name(path) for path in restoration.usage.unused]
        return (restoration.values.checkpoint.version, names) if names else None

    def tracked(self) -> Iterator[Child]:
        """Yield the counter, once it is in use, and the objects."""
        if self._own.save_counter is not None:
            yield Child(SAVE_COUNTER, self._own.save_counter, None)
        if (root := self._own.root) is not None:
            yield from children_of(root)
        yield from super().tracked()

    def __setstate__(self, state: dict[str, Any]) -> None:
        object.__setattr__(self, "_own", _Own(None))
        vars(self).update(state)

    def save(
        self,
        location: LocationLike,
        version: object = None,
        *,
        ps_num: int = 1,
        layout: LayoutName | None = None,
        wait_seconds: float = LOCK_WAIT_SECONDS,
        reporter: Reporter = WARNINGS,
    ) -> VersionRef:
        """Save all values as a version, and return its reference; its number is the save counter unless it is given.

        The counter goes up by one, and stays as it was when the save fails. See `save_checkpoint` for how a version is
        written, and for errors. Raises UsageError for values that have no name. Warns (UnrestoredWarning) of values
        that were created after a restore and did not get what it has for them.
        """
        if self._own.restoration is not None:
            self._own.restoration.warn_of_missed(self)
        self.save_counter.assign_add(1)
        try:
            number = int(self.save_counter) if version is None else whole_number("the number", version)
            leaves, aliases = walk(self)
            variables, tables = _sorted_out(leaves)
            if aliases:
                variables[ALIASES] = alias_variable(aliases)
            saved = save_checkpoint(
                location,
                number,
                ps_num,
                variables=variables,
                tables=tables,
                layout=layout,
                wait_seconds=wait_seconds,
                reporter=reporter,
            )
        except BaseException:
            self.save_counter.assign_sub(1)
            raise
        return VersionRef.of(saved.location, saved.version)

    def restore(self, ref: VersionLike | None, *, skip_mismatch: bool = False) -> LoadStatus:
        """Restore a version into the objects that are there, and later into those that are added; return the status.

        None restores nothing, so that the first start of a job needs no case of its own. Values that wait for an object
        wait until the next restore. A version without a save counter sets it to its own number. Raises MismatchError
        for values of another shape or dtype, with all of them, before anything is changed; `skip_mismatch` leaves those
        values alone. Raises the errors of `open_checkpoint`.
        """
        counter = self.save_counter
        if ref is None:
            return NothingRestored()
        checkpoint, restoration = open_ref(ref), None
        try:
            restoration = Restoration(checkpoint, skip_mismatch=skip_mismatch)
            match = restoration.values.names.match(self, ())
            match.nodes.append((self._own.root, ()))
            restoration.restore_now(match)
        except BaseException:
            if restoration is not None:
                restoration.usage.expect_partial = True
                restoration.end()
            checkpoint.close()
            raise
        if (SAVE_COUNTER,) not in restoration.values.names.paths:
            counter.assign(checkpoint.version.version)
        if self._own.restoration is not None:
            self._own.restoration.end()
        self._own.restoration = restoration
        return self.status


def _sorted_out(leaves: Any) -> tuple[dict[str, npt.NDArray[Any]], dict[str, Table]]:
    """Return the variables and the tables of a graph by their names in the checkpoint."""
    variables: dict[str, npt.NDArray[Any]] = {}
    tables: dict[str, Table] = {}
    for path, value in leaves.items():
        name = path_name(path)
        if isinstance(value, Table | EmbeddingTable):
            tables[name] = Table(value.ids, value.vectors, value.initializer)
        elif is_stateful(value):
            variables |= state_of(value, name)
        else:
            variables[name] = array_of(value, name)
    return variables, tables


def open_ref(ref: VersionLike) -> Checkpoint:
    """Open the version that a reference names."""
    return open_checkpoint(CheckpointRef(ref.location, ref.number) if isinstance(ref, VersionRef) else ref)


def list_variables(ref: VersionLike) -> list[tuple[str, list[int]]]:
    """Return the name and the shape of each dense variable of a version, by name, as `tf.train.list_variables`.

    No value is read. Raises the errors of `open_checkpoint`.
    """
    with open_ref(ref) as checkpoint:
        entries = {entry.name: list(entry.shape) for shard in checkpoint.shards for entry in shard.variables}
    return sorted((name, shape) for name, shape in entries.items() if name != ALIASES)


def load_variable(ref: VersionLike, name: str) -> npt.NDArray[Any]:
    """Return a dense variable of a version, as `tf.train.load_variable`; nothing else is read.

    `name` may also be another name under which objects led to it when it was saved. Raises NotFoundError.
    """
    with open_ref(ref) as checkpoint:
        name = own_name(checkpoint, name)
        if name in checkpoint.table_names and name not in checkpoint:
            raise NotFoundError(
                f"{name!r} is a table",
                path=checkpoint.version.ref,
                hint="read it with open_checkpoint(ref).table(name)",
            )
        return checkpoint.variable(name)
