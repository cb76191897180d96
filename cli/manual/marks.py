"""What a command says of itself: examples, and the exit codes with which it can end.

The topic `exit-codes` says what each code means.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final, TypeVar

ALWAYS: Final = frozenset({0, 1, 2, 14, 70, 129, 130, 141, 143})
"""Every command can end so: 14 when stdout is a file on a full disk."""
LISTS: Final = frozenset({10, 11, 12, 13, 15})
"""Of a command that lists a location."""
READS: Final = LISTS | {4, 5}
"""Of a command that opens shards."""
NOTES: Final = LISTS | {4, 5, 16}
"""Of a command that writes beside a version, under the lock."""
WRITES: Final = READS | {16}
"""Of a command that writes versions."""

Command = TypeVar("Command", bound=Callable[..., None])


def declared(
    *examples: str, exits: Iterable[int] = (), rows: bool = False, **meanings: str
) -> Callable[[Command], Command]:
    """Declare a command: the examples that end its help, each without the program's name, and its exit codes.

    Its codes are `exits` beside `ALWAYS`; `c3="..."` is one with a meaning of its own here. With `rows`, it has the
    options --csv and --jsonl.
    """
    own = {int(name.removeprefix("c")): meaning for name, meaning in meanings.items()}

    def mark(function: Command) -> Command:
        function.examples, function.prints_rows = examples, rows  # type: ignore[attr-defined]
        function.exits = {code: own.get(code, "") for code in sorted({*ALWAYS, *exits, *own})}  # type: ignore[attr-defined]
        return function

    return mark


def exits_of(function: Callable[..., None]) -> Mapping[int, str]:
    """Return the codes of a command, each with its meaning there, '' for the usual one."""
    found: Mapping[int, str] = function.exits  # type: ignore[attr-defined]
    return found
