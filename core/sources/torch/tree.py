"""The content of a pickle of torch by paths: tensors with their storages and parts, and other values with their bytes.

Paths are the keys of dicts and the numbers in lists, joined by points, as torch.distributed.checkpoint flattens them.
An object of a class that is not known is one value, and its class is named; tensors in it are still found.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from edl_ckpt.core.base.errors import CorruptError, UnsupportedError
from edl_ckpt.core.model.dtypes import TENSOR_DTYPES
from edl_ckpt.core.sources.torch.machine import Global, Items, Made, Persistent, Value, is_scalar, opcode_end
from edl_ckpt.core.sources.torch.sharding import (
    Share,
    check_share,
    dtensor_share,
    is_distributed,
    is_distributed_name,
    items_of,
    name_of,
    plain,
    sharded_parts,
    state_of,
)
from edl_ckpt.core.sources.torch.tensors import UNTYPED, StoredTensor, stored_tensor

_DEEPEST: Final = 200
_SHORT: Final = 16
"""A list of more scalars than these, and of nothing else, is one value."""
_LEAST_VALUES: Final = 1 << 10
_PARTS_OF_MODULES: Final = ("_parameters", "_buffers", "_modules")
_STORAGES: Final = {
    "FloatStorage": "float32",
    "DoubleStorage": "float64",
    "HalfStorage": "float16",
    "BFloat16Storage": "bfloat16",
    "CharStorage": "int8",
    "ShortStorage": "int16",
    "IntStorage": "int32",
    "LongStorage": "int64",
    "ByteStorage": "uint8",
    "BoolStorage": "bool",
    "ComplexFloatStorage": "complex64",
    "ComplexDoubleStorage": "complex128",
    "QInt8Storage": "qint8",
    "QUInt8Storage": "quint8",
    "QInt32Storage": "qint32",
    "QUInt4x2Storage": "quint4x2",
    "QUInt2x4Storage": "quint2x4",
    "UntypedStorage": UNTYPED,
}
REBUILT: Final = frozenset(f"torch._utils._rebuild_tensor{ending}" for ending in ("", "_v2", "_v3"))
WRAPPED: Final = frozenset({
    "torch._utils._rebuild_parameter",
    "torch._utils._rebuild_parameter_with_state",
    "torch._utils._rebuild_device_tensor_from_cpu_tensor",
    "torch.nn.parameter.Parameter",
})  # fmt: skip
"""Their first argument is the tensor."""
OF_TYPE: Final = frozenset({"torch._tensor._rebuild_from_type_v2", "torch.tensor._rebuild_from_type"})
WRAPPER: Final = "torch._utils._rebuild_wrapper_subclass"
_UNREAD_KINDS: Final = {
    "torch._utils._rebuild_qtensor": "a quantized tensor",
    "torch._utils._rebuild_sparse_tensor": "a sparse tensor",
    "torch._utils._rebuild_sparse_csr_tensor": "a sparse tensor",
    "torch._utils._rebuild_nested_tensor": "a nested tensor",
    "torch._utils._rebuild_meta_tensor_no_storage": "a meta tensor, which has no values",
    "torch._utils._rebuild_device_tensor_from_numpy": "a tensor of another device",
    "torch._utils._rebuild_xla_tensor": "a tensor of another device",
}
_KNOWN: Final = ("torch.Size", "torch.device", "torch.serialization._get_layout", "numpy.", "_codecs.", "pathlib.")
_KNOWN_MODULES: Final = (*_KNOWN, "datetime.", "builtins.", "__builtin__.", "collections.", "torch._C.", "uuid.")


@dataclass(frozen=True, slots=True)
class FoundTensor:
    """A tensor by its path; `share` says which part of a whole one it is, None for a whole one."""

    path: tuple[str, ...]
    tensor: StoredTensor
    share: Share | None = None


class FoundValue(NamedTuple):
    """A value that is no tensor: the bytes [start, end) of the pickle that it is made of."""

    path: tuple[str, ...]
    start: int
    end: int
    scalars: int | None = None
    """How many scalars a list of them has; None for one value."""


class Unread(NamedTuple):
    """Something whose values are not read, and why."""

    path: tuple[str, ...]
    error: CorruptError | UnsupportedError
    start: int


@dataclass(slots=True)
class Tree:
    """What a pickle contains."""

    tensors: list[FoundTensor] = field(default_factory=list)
    values: list[FoundValue] = field(default_factory=list)
    unread: list[Unread] = field(default_factory=list)
    classes: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """The classes that are not known, each with the path of the first object of it."""


def contents(root: Value, start: int, data: bytes) -> Tree:
    """Return what a pickle contains: the value at its root, the place of it, and the bytes.

    Raises UnsupportedError for a pickle that repeats its parts more often than its bytes can say.
    """
    walk = _Walk(data)
    walk.visit((), root, start)
    return walk.tree


class _Walk:
    """A walk through a tree of values; each is visited once on each path, and no more often than there are bytes."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._left = len(data) + _LEAST_VALUES
        self._above: list[int] = []
        self._storages: dict[int, tuple[Value, ...]] = {}
        self.tree = Tree()

    def visit(self, path: tuple[str, ...], value: Value, start: int, *, is_inside: bool = False) -> None:
        """Add what a value contains; `is_inside` an object of which only the tensors count."""
        self._left -= 1
        if self._left < 0:
            raise UnsupportedError("its pickle has more values than bytes: it repeats itself")
        if is_scalar(value) or type(value) is Global:
            if not is_inside:
                self.tree.values.append(FoundValue(path, start, self._end_of(value, start)))
            return
        if id(value) in self._above:
            return  # it contains itself, and is there already
        if len(self._above) >= _DEEPEST:
            raise UnsupportedError(f"its pickle is more than {_DEEPEST} levels deep")
        self._above.append(id(value))
        try:
            if type(value) is Items:
                self._visit_items(path, value, is_inside=is_inside)
            elif type(value) is Made:
                self._visit_made(path, value, is_inside=is_inside)
            else:
                self._add_storage(path, value, start)
        finally:
            self._above.pop()

    def _end_of(self, value: Value, start: int) -> int:
        if type(value) is Global and self._data[start] != ord("c"):
            return start + 1
        return opcode_end(self._data, start)

    def _visit_items(self, path: tuple[str, ...], items: Items, *, is_inside: bool) -> None:
        if items.kind == "dict":
            for key, _, value, place in items.pairs:
                self.visit((*path, text_of(key)), value, place, is_inside=is_inside)
        elif len(items.values) > _SHORT and all(map(is_scalar, items.values)):
            if not is_inside:
                self.tree.values.append(FoundValue(path, items.start, items.end, len(items.values)))
        else:
            for number, value in enumerate(items.values):
                self.visit((*path, str(number)), value, items.starts[number], is_inside=is_inside)
        if not items.values and not is_inside:
            self.tree.values.append(FoundValue(path, items.start, items.end, 0))

    def _visit_made(self, path: tuple[str, ...], made: Made, *, is_inside: bool) -> None:
        name, args = made.name, plain(made.args)
        given: Sequence[Value] = args if type(args) is tuple else ()
        if name in REBUILT:
            self._add(path, given, None, made.start)
        elif name in WRAPPED and given:
            self.visit(path, given[0], made.start, is_inside=is_inside)
        elif name in OF_TYPE and len(given) > 3:
            self._visit_typed(path, given, made, is_inside=is_inside)
        elif is_distributed(made, "ShardedTensor"):
            self._visit_sharded(path, made)
        elif name in _UNREAD_KINDS:
            error = UnsupportedError(f"it is {_UNREAD_KINDS[name]}, which is not read")
            self.tree.unread.append(Unread(path, error, made.start))
        else:
            self._visit_object(path, made, is_inside=is_inside)

    def _visit_typed(self, path: tuple[str, ...], given: Sequence[Value], made: Made, *, is_inside: bool) -> None:
        """Add a tensor of a class of its own: `_rebuild_from_type_v2(function, class, arguments, state)`."""
        inner = Made(given[0], given[2], made.start, made.end, given[3])
        if name_of(given[0]) != WRAPPER:
            self.visit(path, inner, made.start, is_inside=is_inside)
        elif is_distributed_name(name_of(given[1]), "ShardedTensor"):
            self._visit_sharded(path, inner)
        elif is_distributed_name(name_of(given[1]), "DTensor"):
            try:
                state = state_of(inner)
                share = dtensor_share(items_of(given[2]), state)
                local = self._local(state.get("_local_tensor"))
                self._add(path, local, share, made.start)
            except (CorruptError, UnsupportedError) as error:
                self.tree.unread.append(Unread(path, error, made.start))
        else:
            self._visit_object(path, Made(given[1], given[2], made.start, made.end, given[3]), is_inside=is_inside)

    def _local(self, value: Value) -> Sequence[Value]:
        """Return the arguments of a tensor that lies in another one; CorruptError where there is none."""
        for _ in range(4):
            if type(value) is not Made:
                break
            args = plain(value.args)
            given: Sequence[Value] = args if type(args) is tuple else ()
            if value.name in REBUILT:
                return given
            if value.name in WRAPPED and given:
                value = given[0]
            elif value.name in OF_TYPE and len(given) > 3 and name_of(given[0]) in REBUILT:
                value = Made(given[0], given[2], value.start, value.end)
            else:
                break
        raise UnsupportedError("the part of its rank is no plain tensor")

    def _visit_sharded(self, path: tuple[str, ...], made: Made) -> None:
        try:
            for value, share in sharded_parts(made.state):
                self._add(path, self._local(value), share, made.start)
        except (CorruptError, UnsupportedError) as error:
            self.tree.unread.append(Unread(path, error, made.start))

    def _visit_object(self, path: tuple[str, ...], made: Made, *, is_inside: bool) -> None:
        """Add an object as one value, with its class where that is unknown, and the tensors in it."""
        name = made.name
        if name and not is_inside and not name.startswith(_KNOWN_MODULES):
            self.tree.classes.setdefault(name, path)
        if not is_inside:
            self.tree.values.append(FoundValue(path, made.start, made.end))
        self._look_into(path, made)

    def _look_into(self, path: tuple[str, ...], made: Made) -> None:
        """Find the tensors in an object; those of a module have the names of its state_dict."""
        for part in (made.args, made.items):
            if type(part) is Items:
                self.visit(path, part, part.start, is_inside=True)
        states = state_of(made)
        is_module = all(type(states.get(part)) is Items for part in _PARTS_OF_MODULES)
        for key, value in states.items():
            if is_scalar(value):
                continue
            here = path if is_module and key in _PARTS_OF_MODULES else (*path, key)
            self.visit(here, value, made.start, is_inside=True)
        if not states and type(made.state) in {Items, Made}:
            self.visit(path, made.state, made.start, is_inside=True)

    def _add_storage(self, path: tuple[str, ...], value: Persistent, start: int) -> None:
        """Add a storage that stands by itself: all of its elements in one dimension."""
        try:
            storage = self._storage_of(value)
            is_bytes = storage[1] == UNTYPED
            given = [0, (storage[4],), (1,), False, None, *(["uint8"] if is_bytes else [])]
            self.tree.tensors.append(FoundTensor(path, stored_tensor(storage, given)))
        except (CorruptError, UnsupportedError) as error:
            self.tree.unread.append(Unread(path, error, start))

    def _add(self, path: tuple[str, ...], args: Sequence[Value], share: Share | None, start: int) -> None:
        """Add a tensor by its arguments, or what is wrong with it."""
        try:
            tensor = self._tensor_of(args)
            if share is not None:
                check_share(share, tensor.values.shape)
            self.tree.tensors.append(FoundTensor(path, tensor, share))
        except (CorruptError, UnsupportedError) as error:
            self.tree.unread.append(Unread(path, error, start))

    def _tensor_of(self, args: Sequence[Value]) -> StoredTensor:
        """Return the tensor that arguments say; errors as `stored_tensor`."""
        if len(args) < 4 or type(args[0]) is not Persistent:
            raise CorruptError("its pickle is no tensor")
        given = [args[1], plain(args[2]), plain(args[3]), *args[4:5], None, *_rest(args)]
        return stored_tensor(self._storage_of(args[0]), given)

    def _storage_of(self, value: Persistent) -> tuple[Value, ...]:
        """Return ('storage', dtype, key, place, elements)."""
        known = self._storages.get(id(value))
        if known is None:
            pid = plain(value.id)
            if type(pid) is not tuple or len(pid) < 5 or pid[0] not in {"storage", b"storage"}:
                raise CorruptError("its pickle is no tensor")
            if len(pid) > 5 and pid[5] is not None:
                raise UnsupportedError("its storage is a view of another one, as torch 0.1 saved it")
            module, _, name = name_of(pid[1]).rpartition(".")
            kind = _STORAGES.get(name) if module.startswith("torch") else None
            if kind != UNTYPED and kind not in TENSOR_DTYPES:
                raise UnsupportedError(f"its storage is of a kind that is not read: {name_of(pid[1])!r}")
            key = str(pid[2]) if type(pid[2]) in {str, int} else pid[2]
            known = self._storages[id(value)] = (pid[0], kind, key, pid[3], pid[4])
        return known


def _rest(args: Sequence[Value]) -> list[Value]:
    """Return the dtype of a tensor, where its arguments have it, and what its values still need: () for nothing."""
    rest: list[Value] = []
    for one in args[6:]:
        if type(one) is Global:
            rest.append(one.name.removeprefix("torch."))
        elif type(one) is Items:
            rest.append(tuple(value for value in one.values[1::2] if value))
        else:
            rest.append(one)
    return rest


def text_of(key: Value) -> str:
    """Return a key of a dict as a part of a path."""
    if type(key) is str:
        return key
    if type(key) is bytes:
        return key.decode(errors="replace")
    if is_scalar(key):
        return str(key)
    if type(key) is Global:
        return key.name
    if type(key) is Items:
        return f"({', '.join(str(one) if is_scalar(one) else '...' for one in key.values[:_SHORT])})"
    return key.name if type(key) is Made and key.name else "..."
