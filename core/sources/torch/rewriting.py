"""The pickle of a file of torch.save written anew: other tensors in it, all else as it was.

What was read is a tree of records, and a tree is written again opcode by opcode, as Python's pickler writes it. So
numbers, texts, lists and objects of any class go along without being made. What was written is read again, and must be
the same tree: a pickle that fails that is refused, and so is one with opcodes whose meaning the tree does not keep.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from edl_ckpt.core.base.errors import UnsupportedError
from edl_ckpt.core.base.names import name_bytes
from edl_ckpt.core.sources.torch.machine import Global, Items, Made, Persistent, Value, is_scalar, read

_BATCH: Final = 1000
"""So many items Python's pickler puts into a list or a dict at a time."""
_CALL, _NEW = ord("R"), ord("\x81")
_LOST: Final = "its pickle has {}, which cannot be written again as it was"
_KINDS: Final = {"list": b"]", "dict": b"}"}
_ENDS: Final = {"list": (b"a", b"e"), "dict": (b"s", b"u")}


def tuple_of(*values: Value) -> Items:
    """Return a tuple."""
    return Items("tuple", list(values), array("Q", bytes(8 * len(values))), 0, 0)


def call(name: str, *args: Value) -> Made:
    """Return what a pickle says of a call."""
    return Made(Global(name), tuple_of(*args), 0, 0, code=_CALL)


def written(root: Value, protocol: int, carry: Callable[[str], str]) -> bytes:
    """Return the pickle of a tree, of which storages keep all but their keys: `carry` returns the new ones.

    Raises UnsupportedError for what cannot be written as it was.
    """
    writer = _Writer(bytearray((0x80, protocol)), carry)
    writer.put(root)
    writer.out += b"."
    data = bytes(writer.out)
    again, _, _ = read(data)
    if not _same(root, again, writer.keys):
        raise UnsupportedError(_LOST.format("something"))
    return data


@dataclass(slots=True)
class _Writer:
    out: bytearray
    carry: Callable[[str], str]
    memo: dict[int, int] = field(default_factory=dict)
    keys: dict[str, str] = field(default_factory=dict)
    kept: list[Value] = field(default_factory=list)
    """What was made on the way: its identity must stay its own."""

    def put(self, value: Value) -> None:
        """Write a value, or that it is one of those before."""
        number = self.memo.get(id(value)) if type(value) in {str, Items, Made, Global} else None
        if number is not None:
            self.out += b"h" + bytes((number,)) if number < 256 else b"j" + struct.pack("<I", number)
        elif type(value) is Items:
            self._items(value)
        elif type(value) is Made:
            self._made(value)
        elif type(value) is Persistent:
            self._storage(value)
        elif type(value) is Global:
            module, _, name = value.name.rpartition(".")
            self.out += b"c" + name_bytes(f"{module}\n{name}\n")
            self._remember(value)
        else:
            self._scalar(value)

    def _remember(self, value: Value) -> None:
        number = self.memo[id(value)] = len(self.memo)
        self.kept.append(value)
        self.out += b"q" + bytes((number,)) if number < 256 else b"r" + struct.pack("<I", number)

    def _scalar(self, value: Value) -> None:
        if value is None or type(value) is bool:
            self.out += {None: b"N", True: b"\x88", False: b"\x89"}[value]
        elif type(value) is int:
            self.out += _number(value)
        elif type(value) is float:
            self.out += b"G" + struct.pack(">d", value)
        elif type(value) is str:
            data = value.encode("utf-8", "surrogatepass")
            self.out += b"X" + struct.pack("<I", len(data)) + data
            self._remember(value)
        else:
            raise UnsupportedError(_LOST.format("bytes"))

    def _items(self, items: Items) -> None:
        if items.kind == "tuple":
            self._tuple(items)
            return
        if items.by is not None:
            self.put(items.by)
            self.put(self._arguments(items))
            self.out += b"R"
        elif items.kind in _KINDS:
            self.out += _KINDS[items.kind]
        else:
            raise UnsupportedError(_LOST.format(f"a {items.kind}"))
        self._remember(items)
        if items.kind in _ENDS:
            self._fill(items)
        if items.state is not None:
            self.put(items.state)
            self.out += b"b"

    def _arguments(self, items: Items) -> Value:
        """Return the arguments of the call of a class: without the pairs of a dict, which are put into it."""
        given = items.args.values if type(items.args) is Items else []
        if items.kind == "dict" and any(type(one) is Items for one in given):
            empty = tuple_of()
            self.kept.append(empty)
            return empty
        return items.args

    def _fill(self, items: Items) -> None:
        width = 2 if items.kind == "dict" else 1
        one, several = _ENDS[items.kind]
        if len(items.values) == width:
            for value in items.values:
                self.put(value)
            self.out += one
            return
        for start in range(0, len(items.values), width * _BATCH):
            self.out += b"("
            for value in items.values[start : start + width * _BATCH]:
                self.put(value)
            self.out += several

    def _tuple(self, items: Items) -> None:
        count = len(items.values)
        if not count:
            self.out += b")"
            return
        if count > 3:
            self.out += b"("
        for value in items.values:
            self.put(value)
        self.out += (b"\x85", b"\x86", b"\x87", b"t")[min(count, 4) - 1]
        self._remember(items)

    def _made(self, made: Made) -> None:
        if made.items is not None or made.code not in {_CALL, _NEW}:
            raise UnsupportedError(_LOST.format(f"an object of {made.name or 'a class'} with items"))
        self.put(made.by)
        self.put(made.args)
        self.out.append(made.code)
        self._remember(made)
        if made.state is not None:
            self.put(made.state)
            self.out += b"b"

    def _storage(self, value: Persistent) -> None:
        stored = value.id
        if type(stored) is not Items or len(stored.values) < 5:
            raise UnsupportedError(_LOST.format("a storage of another kind"))
        key = str(stored.values[2])
        self.keys[key] = self.carry(key)
        new = replace(stored, values=[*stored.values[:2], self.keys[key], *stored.values[3:]])
        self.kept.append(new)
        self.put(new)
        self.out += b"Q"


def _number(value: int) -> bytes:
    """Return the opcode of a number, as Python's pickler chooses it."""
    if 0 <= value < 1 << 8:
        return b"K" + bytes((value,))
    if 0 <= value < 1 << 16:
        return b"M" + struct.pack("<H", value)
    if -(1 << 31) <= value < 1 << 31:
        return b"J" + struct.pack("<i", value)
    data = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
    if value < 0 and data[-1] == 0xFF and data[-2] & 0x80:
        data = data[:-1]
    return b"\x8a" + bytes((len(data),)) + data


def _same(one: Value, other: Value, keys: Mapping[str, str]) -> bool:
    """Say whether two trees are the same, but for the keys of storages."""
    pairs, seen = [(one, other)], set[tuple[int, int]]()
    while pairs:
        left, right = pairs.pop()
        if type(left) is not type(right):
            return False
        if is_scalar(left) or type(left) is Global:
            if repr(left) != repr(right):
                return False
            continue
        if (id(left), id(right)) in seen:
            continue
        seen.add((id(left), id(right)))
        if type(left) is Persistent:
            values = [*left.id.values]
            values[2] = keys[str(values[2])]
            pairs.extend(zip(values, right.id.values, strict=True))
            continue
        if len(_parts(left)) != len(_parts(right)):
            return False
        pairs.extend(zip(_parts(left), _parts(right), strict=True))
    return True


def _parts(value: Items | Made) -> Sequence[Value]:
    if isinstance(value, Made):
        return value.by, value.args, value.state, value.code
    return value.kind, value.by, value.state, *value.values
