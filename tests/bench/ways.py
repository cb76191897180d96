"""Count the ways of data through the modules of the engine: `python tests/bench/ways.py`.

An operation runs once to warm up, and once under a profiler in all of its threads. A way is the pairs of modules in
which one calls into the other, each pair once, in the order of its first call; calls into `base` do not count. *Stays*
are the pairs, *climbs* those into a room above, and *returns* those into a module that the way had left before.
"""

from __future__ import annotations

import sys
import tempfile
import threading
import tomllib
import warnings
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final

import numpy as np

import edl_ckpt.core
from edl_ckpt.core import Table, execute_copy, plan_copy, reshard_version, resolve, save_checkpoint, verify_version

_TOP: Final = str(Path(edl_ckpt.core.__file__).parent) + "/"
_CONTRACTS: Final = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))
ROOMS: Final = next(
    contract["layers"][::-1]
    for contract in _CONTRACTS["tool"]["importlinter"]["contracts"]
    if contract.get("containers") == ["edl_ckpt.core"]
)
"""The rooms from below, by the contract on imports."""
Pair = tuple[str, str]


def module_of(code: CodeType) -> str:
    """Return the module of the engine in which code is, '' for other code and for the base."""
    name = code.co_filename.removeprefix(_TOP).removesuffix(".py")
    return "" if name == code.co_filename.removesuffix(".py") or name.startswith("base/") else name


def way_of(function: Callable[[], object]) -> list[Pair]:
    """Return the pairs of modules between which a function calls, each once, as they come first."""
    pairs: dict[Pair, None] = {}

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and (entered := module_of(frame.f_code)):
            caller = frame.f_back
            while caller is not None and not module_of(caller.f_code):
                caller = caller.f_back
            left = module_of(caller.f_code) if caller is not None else ""
            if left != entered:
                pairs.setdefault((left, entered))

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        function()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return list(pairs)


def tally(way: list[Pair]) -> tuple[int, int, int]:
    """Return the stays, climbs and returns of a way.

    >>> tally([("", "moving/a"), ("moving/a", "state/b"), ("state/b", "moving/a")])
    (3, 1, 1)
    """
    levels = [tuple(ROOMS.index(name.partition("/")[0]) for name in pair if name) for pair in way]
    climbs = sum(len(pair) == 2 and pair[1] > pair[0] for pair in levels)
    returns, entered = 0, set[str]()
    for _, module in way:
        returns += module in entered
        entered.add(module)
    return len(way), climbs, returns


def operations(work: Path) -> dict[str, Callable[[], object]]:
    """Return the operations, each a function that does it to a small version."""
    random = np.random.default_rng(1)
    tables = {f"t{i}": Table(np.arange(5000) * 3 + i, random.random((5000, 8), np.float32)) for i in range(2)}
    variables = {f"v{i}": random.random(100, np.float32) for i in range(3)}
    version = save_checkpoint(work / "from", 10, 4, variables=variables, tables=tables)
    names = iter(range(100))

    def fresh() -> Path:
        return work / f"to-{next(names)}"

    return {
        "reshard_version": lambda: reshard_version(version, 3, output=fresh()),
        "execute_copy": lambda: execute_copy(plan_copy([resolve(f"{work}/from@10")], fresh())),
        "verify_version": lambda: verify_version(version, level="deep"),
        "save_checkpoint": lambda: save_checkpoint(fresh(), 10, 4, variables=variables, tables=tables),
    }


def main() -> None:
    """Print the ways of all operations."""
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as work:
        for name, operation in operations(Path(work)).items():
            operation()
            stays, climbs, returns = tally(way_of(operation))
            print(f"{name:18} {stays:4} stays {climbs:4} climbs {returns:4} returns")


if __name__ == "__main__":
    main()
