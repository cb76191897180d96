"""A pickle as a tree of plain records with places: what was stored, and at which bytes; nothing is made of it.

No name is looked up, and nothing is called: a name stays a `Global`, and a call of one is a `Made` with its arguments.
Dicts are lists of keys and values, so nothing of the file is hashed. Each opcode adds one record at most. So the memory
is some times the bytes of the pickle, whatever they are.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from edl_ckpt.core.base.errors import CorruptError, UnsupportedError

Value: TypeAlias = Any
"""A number, a text, bytes, None, or one of the records here."""
_BYTES: Final = struct.Struct(">d")


class EndsEarlyError(CorruptError):
    """The bytes end before the pickle does."""


@dataclass(frozen=True, slots=True)
class Global:
    """The name of a class or a function, as the pickle spells it."""

    name: str
    """The module, a point, and the name in it."""


@dataclass(slots=True, eq=False)
class Items:
    """A list, a tuple, a set or a dict, whose keys and values alternate; `starts` are the places of these.

    `start` is where its opcodes begin, `end` where the last one ends that put something into it.
    """

    kind: str
    values: list[Value]
    starts: array[int]
    start: int
    end: int
    state: Value = None
    """What an OrderedDict has besides its items, such as the `_metadata` of a state_dict."""
    by: Value = None
    """The name of a class that a call has made, such as an OrderedDict; None for what an opcode makes."""
    args: Value = None
    """The arguments of that call."""

    @property
    def pairs(self) -> Iterator[tuple[Value, int, Value, int]]:
        """Yield the key and its place, and the value and its place, of each item of a dict."""
        values, starts = self.values, self.starts
        for n in range(0, len(values) - 1, 2):
            yield values[n], starts[n], values[n + 1], starts[n + 1]


@dataclass(slots=True, eq=False)
class Made:
    """An object: what it is made by, with which arguments, what its state is, and what was put into it afterwards."""

    by: Value
    args: Value
    start: int
    end: int
    state: Value = None
    items: Items | None = None
    code: int = 0
    """The opcode that made it."""

    @property
    def name(self) -> str:
        """Return the name of its class or of its function; '' where that is no name."""
        return self.by.name if type(self.by) is Global else ""


@dataclass(slots=True, eq=False)
class Persistent:
    """What torch keeps outside of the pickle: its id says what it is, and where."""

    id: Value


_DICTS: Final = frozenset({"collections.OrderedDict", "collections.defaultdict", "builtins.dict", "__builtin__.dict"})
_SETS: Final = frozenset({"builtins.set", "builtins.frozenset", "__builtin__.set", "__builtin__.frozenset"})


@dataclass(slots=True)
class _Stack:
    """What the opcodes work on: values with their places, marks, and the memo."""

    data: bytes
    at: int
    values: list[Value] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    """The places of the values: of one that the memo gave, where it was first."""
    begins: list[int] = field(default_factory=list)
    """Where the opcodes of the values begin."""
    marks: list[tuple[int, int]] = field(default_factory=list)
    memo: dict[int, tuple[Value, int]] = field(default_factory=dict)
    begin: int = 0

    def take(self, count: int) -> bytes:
        """Return the next bytes of the pickle."""
        begin = self.at
        self.at = begin + count
        if self.at > len(self.data):
            raise EndsEarlyError("the pickle ends early", code="truncated", offset=len(self.data))
        return self.data[begin : self.at]

    def number(self, count: int) -> int:
        """Return the next bytes as a number that is not negative."""
        return int.from_bytes(self.take(count), "little")

    def line(self) -> str:
        """Return the text up to the end of a line."""
        end = self.data.find(b"\n", self.at, self.at + 1024)
        if end < 0:
            raise EndsEarlyError("the pickle ends early", code="truncated", offset=len(self.data))
        text = self.data[self.at : end]
        self.at = end + 1
        return text.decode()

    def push(self, value: Value, start: int | None = None, begin: int | None = None) -> None:
        """Put a value onto the stack; its place is that of this opcode, unless one is given."""
        self.values.append(value)
        self.starts.append(self.begin if start is None else start)
        self.begins.append(self.begin if begin is None else begin)

    def pop(self) -> Value:
        """Take the last value."""
        self.starts.pop()
        self.begins.pop()
        return self.values.pop()

    def since(self, count: int) -> tuple[list[Value], list[int]]:
        """Take all values but the first ones, with their places."""
        values, starts = self.values[count:], self.starts[count:]
        del self.values[count:], self.starts[count:], self.begins[count:]
        return values, starts

    def since_mark(self) -> tuple[list[Value], list[int]]:
        """Take the values since the last mark, with their places."""
        return self.since(self.marks.pop()[0])

    def drop(self) -> None:
        """Take the values since the last mark away."""
        self.since_mark()

    def sequence(self, kind: str, count: int | None) -> None:
        """Make the last values one."""
        if count is None:
            count, begin = self.marks.pop()
        else:
            count = len(self.values) - count
            if count < 0:
                raise IndexError
            begin = self.begins[count] if count < len(self.begins) else self.begin
        values, starts = self.since(count)
        self.push(Items(kind, values, array("Q", starts), begin, self.at), begin, begin)

    def put(self, values: list[Value], starts: list[int]) -> None:
        """Put values into the last one."""
        into = self.values[-1]
        if type(into) is Made:
            if into.items is None:
                into.items = Items("dict", [], array("Q"), into.start, self.at)
            into.end = self.at
            into = into.items
        if type(into) is not Items or into.kind == "tuple":
            raise TypeError
        into.values += values
        into.starts.extend(starts)
        into.end = self.at

    def make(self) -> None:
        """Call the value before the last one, with the last one as its arguments."""
        args = self.pop()
        start, by = self.begins[-1], self.pop()
        given = args.values if type(args) is Items else []
        name = by.name if type(by) is Global else ""
        made: Value = Made(by, args, start, self.at, code=self.data[self.begin])
        if name in _DICTS:
            made = _dict(given, start, self.at)
            made.by, made.args = by, args
        elif name in _SETS and len(given) == 1 and type(given[0]) is Items:
            made = Items("set", given[0].values, given[0].starts, start, self.at, by=by, args=args)
        self.push(made, start, start)

    def build(self) -> None:
        """Give the last value as state to the one before it."""
        state, into = self.pop(), self.values[-1]
        if type(into) in (Made, Items):
            into.state = state
            into.end = self.at
        elif type(into) is not Persistent:
            raise TypeError


def _dict(given: list[Value], start: int, end: int) -> Items:
    """Return a dict of pairs, as old releases of Python give them to an OrderedDict."""
    found = Items("dict", [], array("Q"), start, end)
    pairs = next((one for one in given if type(one) is Items), None)
    for pair in pairs.values if pairs is not None else ():
        if type(pair) is not Items or len(pair.values) != 2:
            raise TypeError
        found.values += pair.values
        found.starts.extend(pair.starts)
    return found


def _proto(stack: _Stack) -> None:
    if stack.take(1)[0] > 5:
        raise UnsupportedError("a pickle of a newer protocol than 5")


def _skip(stack: _Stack) -> None:
    stack.take(8)


def _mark(stack: _Stack) -> None:
    stack.marks.append((len(stack.values), stack.begin))


def _memoize(stack: _Stack, number: int) -> None:
    stack.memo[number] = stack.values[-1], stack.starts[-1]


def _get(stack: _Stack, number: int) -> None:
    value, start = stack.memo[number]
    stack.push(value, start)


def _append(stack: _Stack) -> None:
    start = stack.starts[-1]
    stack.put([stack.pop()], [start])


def _appends(stack: _Stack) -> None:
    stack.put(*stack.since_mark())


def _setitem(stack: _Stack) -> None:
    starts = stack.starts[-2:]
    value, key = stack.pop(), stack.pop()
    stack.put([key, value], starts)


def _setitems(stack: _Stack) -> None:
    values, starts = stack.since_mark()
    if len(values) % 2:
        raise TypeError
    stack.put(values, starts)


def _global(stack: _Stack) -> None:
    module = stack.line()
    stack.push(Global(f"{module}.{stack.line()}"))


def _stack_global(stack: _Stack) -> None:
    name, module = stack.pop(), stack.pop()
    if type(name) is not str or type(module) is not str:
        raise TypeError
    stack.push(Global(f"{module}.{name}"))


def _newobj_ex(stack: _Stack) -> None:
    stack.pop()
    stack.make()


def _persid(stack: _Stack) -> None:
    begin = stack.begins[-1]
    stack.push(Persistent(stack.pop()), begin, begin)


def _pop(stack: _Stack) -> None:
    if stack.marks and stack.marks[-1][0] == len(stack.values):
        stack.marks.pop()
    else:
        stack.pop()


def _signed(stack: _Stack, count: int) -> None:
    if count > 1 << 10:
        raise UnsupportedError("the pickle has a number of more digits than any checkpoint has")
    stack.push(int.from_bytes(stack.take(count), "little", signed=True))


def _text(stack: _Stack, width: int) -> None:
    stack.push(stack.take(stack.number(width)).decode("utf-8", "surrogatepass"))


def _raw(stack: _Stack, width: int) -> None:
    stack.push(stack.take(stack.number(width)))


def _old_text(stack: _Stack, width: int) -> None:
    """Push a text of Python 2, as torch does: by ASCII where that is possible, else as bytes."""
    raw = stack.take(stack.number(width))
    stack.push(raw.decode() if raw.isascii() else raw)


def _line_number(stack: _Stack) -> None:
    text = stack.line().rstrip("L")
    if len(text) > 100:
        raise UnsupportedError("the pickle has a number of more digits than any checkpoint has")
    stack.push({"00": False, "01": True}[text] if text in {"00", "01"} else int(text))


_ACTIONS: Final[dict[int, Callable[[_Stack], None]]] = {
    0x80: _proto,
    0x95: _skip,
    ord("("): _mark,
    ord("0"): _pop,
    ord("1"): lambda stack: stack.drop(),
    ord("q"): lambda stack: _memoize(stack, stack.number(1)),
    ord("r"): lambda stack: _memoize(stack, stack.number(4)),
    0x94: lambda stack: _memoize(stack, len(stack.memo)),
    ord("h"): lambda stack: _get(stack, stack.number(1)),
    ord("j"): lambda stack: _get(stack, stack.number(4)),
    ord("N"): lambda stack: stack.push(None),
    0x88: lambda stack: stack.push(True),
    0x89: lambda stack: stack.push(False),
    ord("K"): lambda stack: stack.push(stack.number(1)),
    ord("M"): lambda stack: stack.push(stack.number(2)),
    ord("J"): lambda stack: _signed(stack, 4),
    0x8A: lambda stack: _signed(stack, stack.number(1)),
    0x8B: lambda stack: _signed(stack, stack.number(4)),
    ord("I"): _line_number,
    ord("L"): _line_number,
    ord("G"): lambda stack: stack.push(_BYTES.unpack(stack.take(8))[0]),
    ord("X"): lambda stack: _text(stack, 4),
    0x8C: lambda stack: _text(stack, 1),
    0x8D: lambda stack: _text(stack, 8),
    ord("U"): lambda stack: _old_text(stack, 1),
    ord("T"): lambda stack: _old_text(stack, 4),
    ord("C"): lambda stack: _raw(stack, 1),
    ord("B"): lambda stack: _raw(stack, 4),
    0x8E: lambda stack: _raw(stack, 8),
    0x96: lambda stack: _raw(stack, 8),
    ord(")"): lambda stack: stack.sequence("tuple", 0),
    0x85: lambda stack: stack.sequence("tuple", 1),
    0x86: lambda stack: stack.sequence("tuple", 2),
    0x87: lambda stack: stack.sequence("tuple", 3),
    ord("t"): lambda stack: stack.sequence("tuple", None),
    ord("]"): lambda stack: stack.sequence("list", 0),
    ord("l"): lambda stack: stack.sequence("list", None),
    ord("}"): lambda stack: stack.sequence("dict", 0),
    ord("d"): lambda stack: stack.sequence("dict", None),
    0x8F: lambda stack: stack.sequence("set", 0),
    0x91: lambda stack: stack.sequence("set", None),
    ord("a"): _append,
    ord("e"): _appends,
    0x90: _appends,
    ord("s"): _setitem,
    ord("u"): _setitems,
    ord("c"): _global,
    0x93: _stack_global,
    ord("R"): lambda stack: stack.make(),
    0x81: lambda stack: stack.make(),
    0x92: _newobj_ex,
    ord("b"): lambda stack: stack.build(),
    ord("Q"): _persid,
}
"""What each opcode of torch's pickles does; all others are unknown here."""
_STOP: Final = ord(".")
_WRONG: Final = (ArithmeticError, AttributeError, IndexError, KeyError, TypeError, ValueError)


def read(data: bytes, at: int = 0) -> tuple[Value, int, int]:
    """Return what a pickle has from a byte on, the place of that, and where the pickle ends.

    Raises EndsEarlyError where the bytes end before it, CorruptError for damage, and UnsupportedError for an opcode
    that no pickle of torch has.
    """
    stack = _Stack(data, at)
    actions = _ACTIONS
    try:
        while True:
            begin = stack.begin = stack.at
            code = data[begin]
            stack.at = begin + 1
            if code == _STOP:
                return stack.values[-1], stack.starts[-1], stack.at
            actions[code](stack)
    except _WRONG as error:
        if stack.begin >= len(data):
            raise EndsEarlyError("the pickle ends early", code="truncated", offset=len(data)) from None
        if isinstance(error, KeyError) and data[stack.begin] not in actions:
            raise UnsupportedError(f"the pickle has an opcode that is not read: {data[stack.begin]:#04x}") from None
        raise CorruptError("the pickle is damaged", offset=stack.begin) from None


_PLAIN: Final = (int, float, str, bytes, bool, type(None))


def is_scalar(value: Value) -> bool:
    """Say whether a value is a number, a text, bytes or None."""
    return type(value) in _PLAIN


def opcode_end(data: bytes, start: int) -> int:
    """Return where the opcode of a scalar ends that begins at a byte."""
    stack = _Stack(data, start + 1)
    try:
        _ACTIONS[data[start]](stack)
    except (*_WRONG, UnsupportedError):
        raise CorruptError("the pickle is damaged", offset=start) from None
    return stack.at
