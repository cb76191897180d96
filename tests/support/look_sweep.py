"""Errors of every look below a step: a directory that cannot be listed, a file that cannot be opened or looked at.

A location of each system has two steps, each with directories inside. A row of `COMMANDS` is a command; each call that
it makes below the newer step to open, list, look or read fails, once or from then on, with an error of a disk, of
permissions, of a file server, or because the name is gone at that moment.

* The exit code is that of the error, or says that something was found; never that the version is torn or damaged, and
  never that the program is.
* No step is deleted, or said to be torn; a step that is not complete is `unreadable`, with a reason.
* After it, without faults, the location is as it was: nothing of the error is remembered.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from errno import EACCES, EIO, ENOENT, ESTALE
from functools import partial
from pathlib import Path
from typing import Any, Final

from edl_ckpt.core import execute_copy, plan_copy
from edl_ckpt.core.storage.faults import Fault
from raw_trees import raw_tree
from shim_sweep import ERROR, OFF, Ended, ShimPoint, forked, print_sweep, try_points
from zoo import BASES, GUESTS, settle, step_of

OLDER, NEWER = 5, 6
LOOKS: Final[Mapping[str, tuple[int, ...]]] = {
    "opendir": (EIO, EACCES, ESTALE),
    "readdir": (EIO, ESTALE),
    "open": (EIO, EACCES, ESTALE, ENOENT),
    "stat": (EIO, EACCES, ESTALE, ENOENT),
    "lstat": (EIO, EACCES, ESTALE, ENOENT),
    "fstat": (EIO, ESTALE),
    "read": (EIO, ESTALE),
    "pread": (EIO, ESTALE),
    "readlink": (EIO, EACCES),
}
"""The errors of each call, in turn."""
COMMANDS: Final[Mapping[str, tuple[str, ...]]] = {
    "list": ("list", "run", "--json"),
    "inspect": ("inspect", f"run@{NEWER}", "--json"),
    "verify": ("verify", "run", "--all", "--json"),
    "verify --deep": ("verify", f"run@{NEWER}", "--deep", "--workers", "1", "--json"),
    "prune": ("prune", "run", "--keep", "1", "--incomplete", "--grace", "0s", "--yes", "--json"),
    "copy": ("copy", "run", "other", "--all", "--workers", "1", "--json"),
    "reshard": ("reshard", f"run@{NEWER}", "--ranks", "3", "--workers", "1", "--json"),
    "repair": ("repair", f"run@{NEWER}", "--from", "whole", "--mix", "--workers", "1", "--json"),
    "wait": ("wait", "run", "--version-ge", str(NEWER), "--timeout", "0", "--json"),
}
CHANGING: Final = frozenset({"prune", "copy", "reshard", "repair"})
SPLIT: Final = {"safetensors": ("--max-shard-size", "1KiB")}
TORN: Final = frozenset({4, 5, 70, 98, 99})
"""Codes that say that a version is torn or damaged, or that the program has a bug: no error of a disk says so."""
GOOD: Final = frozenset({"complete", "unreadable", "suspect"})


@dataclass(frozen=True, slots=True)
class Look:
    """A command at a location of a system, what there is before it, and how it ends undisturbed."""

    name: str
    template: Path
    argv: tuple[str, ...]
    usual: Ended


def names() -> list[str]:
    """Return all commands at all systems."""
    return [f"{command}, {system}" for system in BASES for command in COMMANDS]


def prepared(name: str, base: Path) -> Look:
    """Make a location with two steps of a system, and find out how a command ends there."""
    command, _, system = name.partition(", ")
    template = base.resolve() / "template"
    place = template / "run"
    for number in (OLDER, NEWER):
        step = step_of(system, place, number)
        GUESTS["hydra"](step)
        if system in {"dcp", "safetensors"}:  # the others have directories of their own, or none
            step.rename(place / "moved")
            step.mkdir()
            (place / "moved").rename(step / "model")
    settle(place)
    if command == "repair":
        execute_copy(plan_copy([f"{place}@{NEWER}"], f"{template}/whole"))
    argv = COMMANDS[command]
    if command == "reshard" and system in SPLIT:
        argv = (*argv[:2], *SPLIT[system], *argv[4:])
    after = _copied(template, base.resolve() / "after")
    usual = forked(after, argv, ShimPoint("", 0, OFF, 0), below=after / f"run/step_{NEWER}")
    assert usual.code in {0, 3}, usual.err
    shutil.rmtree(after)
    return Look(name, template, argv, usual)


def _copied(source: Path, target: Path) -> Path:
    return Path(shutil.copytree(source, target, symlinks=True))


def points_of(look: Look) -> list[ShimPoint]:
    """Return two faults for each look of an undisturbed run: one that passes, and one that stays."""
    points: list[ShimPoint] = []
    for call, count in sorted(look.usual.counts.items()):
        errors = LOOKS.get(call, ())
        for k in range(1, count + 1 if errors else 0):
            points += [
                ShimPoint(call, k, ERROR, errors[(k + always) % len(errors)], always) for always in (False, True)
            ]
    return points


def disturb(look: Look, point: ShimPoint) -> tuple[bool, list[str]]:
    """Try one fault on a fresh copy; return whether it was met, and what is not as it must be."""
    with tempfile.TemporaryDirectory(dir=look.template.parent) as base:
        work = _copied(look.template, Path(base).resolve() / "work")
        os.environ["XDG_CACHE_HOME"] = f"{base}/cache"
        try:
            step = work / f"run/step_{NEWER}"
            before = raw_tree(work / "run")
            ended = forked(work, look.argv, point, below=step)
            problems = [*_judge_end(look, point, ended)]
            problems += _judge_place(look, point, ended, work, before)
            problems += _judge_later(look, work)
        finally:
            del os.environ["XDG_CACHE_HOME"]
        return ended.fired, problems


def _judge_end(look: Look, point: ShimPoint, ended: Ended) -> Iterator[str]:
    fault = Fault.of(OSError(point.code, os.strerror(point.code)), "x").kind.exit_code
    wanted = {look.usual.code, fault, 3, 10, 11, 16}
    if ended.code in TORN or ended.code not in wanted:
        yield f"ended with {ended.code}: {ended.err[-800:]}"
    if any(word in ended.err for word in ("Traceback", "Exception ignored", "internal error")):
        yield f"a traceback: {ended.err[-1500:]}"
    said = (ended.out + ended.err).replace('"torn": ', "")
    gone = point.code == ENOENT and point.always
    if not gone and ended.fired and any(word in said for word in ("missing or truncated", "damaged", "ends at byte")):
        at = next(said.find(word) for word in ("missing or truncated", "damaged", "ends at byte") if word in said)
        yield f"it says {said[max(at - 200, 0) : at + 200]}"
    if look.name.startswith("list,") and ended.out:
        yield from _judge_list(point, json.loads(ended.out))


def _judge_list(point: ShimPoint, document: Mapping[str, Any]) -> Iterator[str]:
    versions = {v["version"]: v for place in document["locations"] for v in place["versions"]}
    if versions.get(OLDER, {}).get("state") not in GOOD:
        yield f"the older step is {versions.get(OLDER)}"
    newer = versions.get(NEWER)
    if point.code == ENOENT and point.always:
        return
    if newer is None or newer["state"] not in GOOD:
        yield f"the newer step is {newer}"
    elif newer["state"] == "unreadable" and not newer.get("fault"):
        yield "it is unreadable, without a reason"


def _judge_place(look: Look, point: ShimPoint, ended: Ended, work: Path, before: Mapping[str, object]) -> Iterator[str]:
    command = look.name.partition(",")[0]
    after = raw_tree(work / "run")
    if command not in {"prune", "reshard"} and after != before:
        odd = [name for name in sorted({*before, *after}) if before.get(name) != after.get(name)]
        yield f"{command} has changed {odd[:3]}"
    if f"step_{NEWER}" not in after:
        yield "the newer step is gone"
    if command == "prune" and f"step_{OLDER}" not in after and ended.code not in {0, 3}:
        yield f"the older step is gone, and it ended with {ended.code}"
    is_unlisted = point.always and point.k == 1 and point.call in {"opendir", "readdir"}
    if command == "prune" and is_unlisted and f"step_{OLDER}" not in after:
        yield "the older step is gone, although the newer one could not be listed"


def _judge_later(look: Look, work: Path) -> Iterator[str]:
    """Yield what a listing without faults says, other than that both steps are whole."""
    ended = forked(work, COMMANDS["list"], ShimPoint("", 0, OFF, 0))
    if ended.code:
        yield f"later, list ends with {ended.code}: {ended.err[-300:]}"
    found = {v["version"]: v for place in json.loads(ended.out)["locations"] for v in place["versions"]}
    for number, version in found.items():
        if version["state"] not in {"complete", "suspect"} or version.get("damage"):
            yield f"later, step {number} is {version['state']}: {version.get('fault') or version.get('damage')}"
    if NEWER not in found:
        yield "later, the newer step is not there"


def sweep(chosen: Sequence[str], sample: int, part: tuple[int, int]) -> Iterator[dict[str, Any]]:
    """Yield how many points of each command were tried, by call, and what was wrong; `sample` 0 tries all."""
    with tempfile.TemporaryDirectory() as base:
        for number, name in enumerate(chosen or names()):
            look = prepared(name, Path(base) / str(number))
            points = points_of(look)[part[0] :: part[1]]
            yield try_points(name, points, sample, partial(disturb, look), lambda point: point.call)


if __name__ == "__main__":
    print_sweep("Errors of looks below a step.", sweep)
