"""Objects that are tracked: the values in them, by the names that lead to them, and containers that notice additions.

A *leaf* is a value: an array, a variable or a table. A *node* leads to others by names: a dict by its keys, a list or
a tuple by positions, any other object by its attributes. Plain objects are looked at when something is saved or
restored. `Trackable` and its containers also notice each addition, so that a value that waits is restored into it.

numpy arrays, and what has a method `assign(value)`, are restored in place as they are. A Python number cannot be
changed in place, so a step counter is a `Variable`; an `EmbeddingTable` is a table that a restore changes.

Source: `tensorflow/python/trackable/data_structures.py` and `autotrackable.py` of TensorFlow.
"""

from __future__ import annotations

import functools
import logging
import threading
import types
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self, SupportsIndex

import numpy.typing as npt

from edl_ckpt.core import Table
from edl_ckpt.core.base.arrays import as_array, is_array, is_of
from edl_ckpt.core.base.errors import UsageError
from edl_ckpt.core.base.words import counted
from edl_ckpt.core.reading.aliases import Path

if TYPE_CHECKING:
    from edl_ckpt.core.training.objects.restoration import Restoration

_OPAQUE = (
    type,
    types.ModuleType,
    functools.partial,
    property,
    BaseException,
    logging.Logger,
    logging.Handler,
    threading.Thread,
    weakref.ReferenceType,
)
"""Objects whose attributes are no part of a model."""
_PRIVATE: Final = frozenset({"_bindings", "_own"})
"""The attributes of our own in an object that is tracked."""


class EmbeddingTable:
    """A table that is restored in place: int64 [n] ids, their [n, dim] vectors, and the name of an initializer.

    A `Table` is a value and never changes: in its place, a restore puts a new one.
    """

    def __init__(self, ids: object, vectors: object, initializer: str = "uniform") -> None:
        self.ids: npt.NDArray[Any] = as_array(ids, "the ids")
        self.vectors: npt.NDArray[Any] = as_array(vectors, "the vectors")
        self.initializer = initializer

    def assign(self, table: Table) -> EmbeddingTable:
        """Take the rows and the initializer of a table; return this one."""
        self.ids, self.vectors = as_array(table.ids, "the ids"), as_array(table.vectors, "the vectors")
        self.initializer = table.initializer
        return self

    def __len__(self) -> int:
        return len(self.ids)

    def __repr__(self) -> str:
        return (
            f"EmbeddingTable({counted(len(self.ids), 'row')}, dim {self.vectors.shape[-1]}, {self.vectors.dtype.name})"
        )


class Child(NamedTuple):
    """An edge: its name, which is no string for a key that cannot be saved, its object, and how to replace that."""

    name: Any
    value: Any
    put: Callable[[Any], None] | None


class Binding(NamedTuple):
    """A restore that waits for the objects below one node, and the path of the node in the checkpoint."""

    restoration: Restoration
    path: Path


def is_table(value: object) -> bool:
    """Say whether a value is a table of embeddings."""
    return isinstance(value, Table | EmbeddingTable)


def is_stateful(value: object) -> bool:
    """Say whether an object hands out its state and takes it back: an optimizer of PyTorch, an iterator, say."""
    methods = (getattr(value, "state_dict", None), getattr(value, "load_state_dict", None))
    return is_iterator(value) or (all(map(callable, methods)) and not isinstance(value, type) and not _is_module(value))


def is_iterator(value: object) -> bool:
    """Say whether a value is an iterator over a dataset of TensorFlow."""
    return hasattr(value, "__next__") and hasattr(value, "_serialize_to_tensors") and is_of(value, "tensorflow")


def _is_symbolic(value: object) -> bool:
    """Say whether a value only stands for tensors in a graph of Keras (`keras.KerasTensor`): it has no content."""
    return type(value).__name__ == "KerasTensor" and is_of(value, "keras", "tf_keras")


def is_leaf(value: object) -> bool:
    """Say whether a value is saved by itself: an array, a table, or the state of an object as a whole."""
    if _is_symbolic(value):
        return False
    return is_table(value) or is_stateful(value) or (is_array(value) and not isinstance(value, Trackable))


def _is_module(value: object) -> bool:
    """Say whether a value is a module of PyTorch, whose tensors are tracked one by one."""
    return is_of(value, "torch") and hasattr(value, "named_children")


def is_node(value: object) -> bool:
    """Say whether an object may lead to values."""
    if isinstance(value, Trackable | dict | list | tuple):
        return True
    if isinstance(value, _OPAQUE) or type(value).__module__ == "builtins":  # functions, generators, frames and the like
        return False
    if _is_symbolic(value):
        return False
    return hasattr(value, "__dict__") or any(_slots_of(type(value)))


def children_of(node: object) -> Iterator[Child]:
    """Yield what a node leads to, in order; what is neither a leaf nor a node is left out."""
    for child in _edges(node):
        if is_leaf(child.value) or is_node(child.value):
            yield child


def _edges(node: Any) -> Iterator[Child]:
    if isinstance(node, Trackable):
        return node.tracked()
    if isinstance(node, dict | list | tuple):
        return _items(node)
    if _is_module(node):
        own = (*node.named_parameters(recurse=False), *node.named_buffers(recurse=False), *node.named_children())
        return (Child(name, value, None) for name, value in own)
    return attributes_of(node)


def _items(node: Any) -> Iterator[Child]:
    """Yield the elements of a container as edges; those of a tuple cannot be replaced."""
    if isinstance(node, dict):
        for key, value in list(node.items()):
            yield Child(key, value, functools.partial(dict.__setitem__, node, key))
        return
    for index, value in enumerate(node):
        put = functools.partial(list.__setitem__, node, index) if isinstance(node, list) else None
        yield Child(str(index), value, put)


def attributes_of(node: Any) -> Iterator[Child]:
    """Yield the attributes of an object as edges, those in `__slots__` too."""
    names = [*getattr(node, "__dict__", ()), *(name for name in _slots_of(type(node)) if hasattr(node, name))]
    for name in dict.fromkeys(names):
        # without the notice of `Trackable`
        yield Child(name, getattr(node, name), functools.partial(object.__setattr__, node, name))


def _slots_of(kind: type) -> Iterator[str]:
    for base in kind.__mro__:
        slots = base.__dict__.get("__slots__", ()) if base.__module__ != "builtins" else ()
        for name in (slots,) if isinstance(slots, str) else slots:
            if not name.startswith("__") and isinstance(getattr(kind, name, None), types.MemberDescriptorType):
                yield name


class _Noticing:
    """What notices additions: it knows the restores that wait for them."""

    _bindings: list[Binding]

    def _adopted(self, name: Any, value: Any) -> Any:
        """Return a value as it is to be stored: containers that notice, and what waits for it restored into it."""
        try:
            value = wrapped(value)
        except RecursionError:
            raise UsageError(f"{name}: the {type(value).__name__} is nested too deeply, or contains itself") from None
        if self._bindings and isinstance(name, str) and (is_leaf(value) or is_node(value)):
            self._bindings[:] = [binding for binding in self._bindings if not binding.restoration.is_over]
            for binding in reversed(self._bindings):  # most often the latest restore first
                value = binding.restoration.adopt(binding.path, name, value)
        return value

    def wait_for(self, binding: Binding) -> None:
        """Tell a restore of each addition from now on."""
        if binding not in self._bindings:
            self._bindings.append(binding)


class Trackable(_Noticing):
    """An object whose attributes are tracked as they are set: a layer or a model derives from it.

    A list, a tuple or a dict that is set as an attribute becomes a container that notices additions, as in TensorFlow.
    """

    def __new__(cls, *_: Any, **__: Any) -> Self:
        """Make an object that notices additions even when a subclass does not call `__init__` of this class."""
        made = super().__new__(cls)
        object.__setattr__(made, "_bindings", [])
        return made

    def __setattr__(self, name: str, value: Any) -> None:
        if not isinstance(getattr(type(self), name, None), property):
            value = self._adopted(name, value)
        object.__setattr__(self, name, value)

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...

    def tracked(self) -> Iterator[Child]:
        """Yield the attributes."""
        return (child for child in attributes_of(self) if child.name not in _PRIVATE)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in _PRIVATE}  # a copy waits for nothing


def wrapped(value: Any) -> Any:
    """Return lists and dicts, also those in tuples, as containers that notice additions; other values as they are.

    As in TensorFlow, classes derived from list and dict are left alone.
    """
    if type(value) is dict:
        return TrackedDict(value)
    if type(value) is list:
        return TrackedList(value)
    if type(value) is tuple and any(type(each) in {dict, list, tuple} for each in value):
        return tuple(wrapped(each) for each in value)
    return value


class _Container(_Noticing):
    """A copy of a dict or a list, which must not change any more itself, because nothing would notice."""

    def _copy_of(self, original: dict[Any, Any] | list[Any]) -> None:
        self._bindings = []
        self._original, self._before = original, _identities(original)

    def check(self, name: str) -> None:
        """Raise UsageError when it cannot be saved so that a restore would find everything again."""
        if _identities(self._original) != self._before:
            kind = type(self._original).__name__
            raise UsageError(
                f"{name}: the {kind} that was set as an attribute was changed afterwards, and the checkpoint tracks a"
                " copy of it",
                hint="change it through the attribute",
            )


def _identities(container: dict[Any, Any] | list[Any]) -> list[tuple[Any, int]]:
    items: Iterable[tuple[Any, Any]] = container.items() if isinstance(container, dict) else enumerate(container)
    return [(key, id(value)) for key, value in items]


class TrackedDict(dict[Any, Any], _Container):
    """A dict that notices additions."""

    def __init__(self, original: dict[Any, Any]) -> None:
        self._copy_of(original)
        super().__init__({key: wrapped(value) for key, value in original.items()})

    def __setitem__(self, key: Any, value: Any) -> None:
        super().__setitem__(key, self._adopted(key, value))

    def setdefault(self, key: Any, default: Any = None) -> Any:
        """Set a key that is missing; return its value."""
        if key not in self:
            self[key] = default
        return self[key]

    def update(self, *args: Any, **kwargs: Any) -> None:
        """Set several keys."""
        for key, value in dict(*args, **kwargs).items():
            self[key] = value

    def __ior__(self, other: Any) -> Self:  # type: ignore[misc]
        self.update(other)
        return self

    def __reduce_ex__(self, _: SupportsIndex) -> tuple[Any, ...]:
        return dict, (dict(self),)  # a copy is a plain dict, which waits for nothing


def _moving(method: Callable[..., Any]) -> Any:
    """Return a method of lists that also notices that elements may move."""

    @functools.wraps(method)
    def marked(tracked: TrackedList, *args: Any, **options: Any) -> Any:
        tracked.mark_moved()
        return method(tracked, *args, **options)

    return marked


class TrackedList(list[Any], _Container):
    """A list that notices additions at its end.

    An element may be replaced. Once an element has been removed or moved, positions name other elements than they did,
    and the list can no longer be saved, as in TensorFlow.
    """

    def __init__(self, original: list[Any]) -> None:
        self._copy_of(original)
        self._moved = False
        super().__init__(wrapped(value) for value in original)

    def check(self, name: str) -> None:
        """Raise UsageError when it cannot be saved so that a restore would find everything again."""
        super().check(name)
        if self._moved:
            raise UsageError(
                f"{name}: an element of the list was removed or moved, so positions no longer name the same elements",
                hint="set the attribute to a new list",
            )

    def append(self, value: Any) -> None:
        """Add an element at the end."""
        super().append(self._adopted(str(len(self)), value))

    def extend(self, values: Iterable[Any]) -> None:
        """Add elements at the end."""
        for value in list(values):
            self.append(value)

    def insert(self, index: SupportsIndex, value: Any) -> None:
        """Insert an element; at the end it is an addition."""
        if index.__index__() >= len(self):
            return self.append(value)
        self.mark_moved()
        return super().insert(index, wrapped(value))

    def __setitem__(self, key: Any, value: Any) -> None:
        if isinstance(key, slice):
            before = list(self)
            super().__setitem__(key, [wrapped(each) for each in value])
            if len(self) < len(before) or any(a is not b for a, b in zip(before, self, strict=False)):
                self._moved = True
            for added in range(len(before), len(self)):
                super().__setitem__(added, self._adopted(str(added), self[added]))
            return
        index = range(len(self))[key]
        super().__setitem__(index, self._adopted(str(index), value))

    __delitem__, pop, remove, clear, sort, reverse = (
        _moving(getattr(list, name)) for name in ("__delitem__", "pop", "remove", "clear", "sort", "reverse")
    )

    def __iadd__(self, values: Iterable[Any]) -> Self:  # type: ignore[misc]
        self.extend(values)
        return self

    def __imul__(self, count: SupportsIndex) -> Self:
        if count.__index__() < 1:
            self.clear()
        self.extend(list(self) * (count.__index__() - 1))
        return self

    def mark_moved(self) -> None:
        """Note that positions may no longer name the same elements."""
        self._moved = self._moved or any(is_leaf(each) or is_node(each) for each in self)

    def __reduce_ex__(self, _: SupportsIndex) -> tuple[Any, ...]:
        return list, (list(self),)
