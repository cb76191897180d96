"""Versions from a line of text each, for tests of retention: no files are made."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from edl_ckpt.core.model.versions import ShardFile, State, Version
from edl_ckpt.core.operations.prune.facts import Facts, Foreign
from edl_ckpt.core.operations.prune.guards import Guards
from edl_ckpt.core.sources.elasticdl.names import ELASTICDL
from edl_ckpt.core.storage import Location

NOW = 2_000_000_000.0
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


def version_of(line: str) -> tuple[Version, str | None]:
    """Return the version that a line describes, and why it cannot be read, None when it can.

    `[LOCATION/]NUMBER STATE [age=3d] [size=100] [tag:NAME] [METRIC=VALUE] [unreadable] [damaged]
    [suspect] [foreign:NAME] [named:POINTER]`; the default age
    is 30 days less the number in minutes, so that higher numbers are newer.
    """
    name, state, *words = line.split()
    location, _, number = name.rpartition("/")
    location = location or "run"
    values = dict(word.split("=") for word in words if "=" in word)
    age, size = values.pop("age", None), int(values.pop("size", "10"))
    seconds = 30 * 86_400.0 - 60 * int(number) if age is None else float(age[:-1]) * _UNITS[age[-1]]
    path = f"{location}/version-{number}"
    ps_num = None if state == "mixed" else 1 if state in {"complete", "invalid"} else 2
    version = Version(
        Location(location),
        int(number),
        path,
        ELASTICDL,
        State(state),
        ps_num,
        (ShardFile(0, ps_num or 2, f"{path}/variables-0-of-{ps_num or 2}.ckpt", size, NOW - seconds),),
        modified=NOW - seconds,
        metrics={k: float(v) for k, v in values.items()},
        tags=tuple(word[4:] for word in words if word.startswith("tag:")),
        metadata_fault="damaged: not JSON" if "damaged" in words else "",
        doubts=("it has no rows",) if "suspect" in words else (),
    )
    return version, "truncated" if "unreadable" in words else None


def versions_of(lines: Iterable[str]) -> tuple[list[Version], dict[str, str]]:
    """Return the versions of several lines, and why some cannot be read, by path."""
    read = [version_of(line) for line in lines]
    return [v for v, _ in read], {v.path: fault for v, fault in read if fault}


def facts_of(lines: Iterable[str]) -> Facts:
    """Return what is known of the versions of several lines beyond a listing."""
    read = [(*version_of(line), line.split()) for line in lines]
    unreadable = {version.path: fault for version, fault, _ in read if fault}
    foreign = {v.path: Foreign((w[8:],), 1, 7) for v, _, words in read for w in words if w.startswith("foreign:")}
    named = {v.path: [w[6:] for w in words if w.startswith("named:")] for v, _, words in read}
    return Facts(unreadable, foreign=foreign, named=named)


def guards_of(document: dict[str, Any]) -> Guards:
    """Return the exceptions from the guards in a case file."""
    values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in document.items()}
    return Guards(**values)
