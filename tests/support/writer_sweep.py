"""Faults in every writer at steps of other systems, which have guests: raw trees before and after, and nothing else.

A row of `writer_rows.ROWS` is a command. Its trees before and after an undisturbed run are known. At each call that the
command makes below its directory one thing happens, in turn, so that the whole set has each of them often: an error
of the system, an error of a call that was made, half of a write, a signal that interrupts, or the end of the process.
Some rows have a file system that cannot exchange two names.

* Each version is the old one or the new one, whole, with owners, modes and links; guests are as they were, times too.
* The exit code is one that the error has, and there is no traceback. Success means the new tree.
* `recover` ends with 0, 3 or 10, and the same command again brings the new tree; nothing is left that was staged.
* Each version verifies then; what is remembered of a verification is never wrong.

`python -m writer_sweep --help` says how to run all points.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from errno import EACCES, EINTR, EIO, ENOSPC, ESTALE, EXDEV
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias

from edl_ckpt.core import list_versions, verify_version
from edl_ckpt.core.base.errors import EdlCkptError
from edl_ckpt.core.state.paths import is_verdicts
from edl_ckpt.core.storage.faults import Fault
from fault_sweep import run_here
from raw_trees import RawEntry, raw_tree
from shim_sweep import DONE, ERROR, KILLED, OFF, SHORT, Ended, ShimPoint, forked, print_sweep, try_points
from sweep_state import leftovers
from writer_rows import PLACES, ROWS, Writer

FAULTS: Final[Mapping[str, tuple[tuple[int, int], ...]]] = {
    "open": ((ERROR, EIO), (ERROR, EACCES), (ERROR, ESTALE), (ERROR, EINTR)),
    "create": ((KILLED, 0), (ERROR, ENOSPC), (ERROR, EACCES), (ERROR, EINTR)),
    "read": ((ERROR, EIO), (SHORT, 0), (ERROR, EINTR)),
    "pread": ((ERROR, EIO), (SHORT, 0), (ERROR, ESTALE), (ERROR, EINTR)),
    "write": ((KILLED, 0), (ERROR, ENOSPC), (SHORT, 0), (ERROR, EIO), (ERROR, EINTR)),
    "pwrite": ((ERROR, ENOSPC), (SHORT, 0), (KILLED, 0), (ERROR, EINTR), (ERROR, EIO)),
    "stat": ((ERROR, EIO), (ERROR, EACCES), (ERROR, ESTALE)),
    "lstat": ((ERROR, EIO), (ERROR, EACCES)),
    "fstat": ((ERROR, EIO), (ERROR, ESTALE)),
    "opendir": ((ERROR, EIO), (ERROR, EACCES)),
    "readdir": ((ERROR, EIO), (ERROR, ESTALE)),
    "readlink": ((ERROR, EIO), (ERROR, EACCES)),
    "close": ((DONE, EIO),),
    "flock": ((ERROR, EIO), (KILLED, 0)),
    "fsync": ((ERROR, EIO), (KILLED, 0), (DONE, EIO), (ERROR, ENOSPC)),
    "fallocate": ((ERROR, ENOSPC), (ERROR, EINTR), (KILLED, 0)),
    "ftruncate": ((ERROR, EIO), (KILLED, 0)),
    "rename": ((KILLED, 0), (ERROR, EIO), (DONE, EIO), (ERROR, EACCES), (ERROR, EXDEV)),
    "link": ((ERROR, EIO), (DONE, EIO), (KILLED, 0)),
    "symlink": ((ERROR, ENOSPC), (KILLED, 0), (ERROR, EIO)),
    "unlink": ((KILLED, 0), (ERROR, EIO), (DONE, EIO), (ERROR, EACCES)),
    "rmdir": ((ERROR, EIO), (KILLED, 0), (DONE, EIO)),
    "mkdir": ((KILLED, 0), (ERROR, ENOSPC), (DONE, EIO)),
    "chmod": ((ERROR, EIO), (KILLED, 0)),
    "chown": ((ERROR, EIO), (KILLED, 0)),
    "utime": ((ERROR, EIO), (KILLED, 0)),
    "setxattr": ((ERROR, EIO), (ERROR, ENOSPC)),
}
"""What happens at each call, in turn: how it ends, and its error."""
LOOKS: Final = frozenset({"open", "stat", "lstat", "fstat", "opendir", "readdir", "readlink", "read", "pread", "close"})
"""Calls that change nothing: a command makes thousands of them, and each seventh is tried."""
STRIDE: Final = 7
GAPS: Final = frozenset({"rename", "fsync"})
"""Calls between the two renames of a file system without exchange: a process that is killed there leaves no version."""
HARMLESS: Final = frozenset({"utime", "chmod", "chown", "setxattr", "close"})
SETTLED: Final = frozenset({0, 3, 10})
"""How `recover` may end: all is settled, something is left to a person, or there is no location yet."""
AGAIN: Final = frozenset({0, 3, 10, 16})
"""How the same command may end at last: it has nothing to do any more, and says so."""

Unit: TypeAlias = Mapping[str, tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class Found:
    """What is in the places of a command: versions and files by their names, guests with times, documents of ours."""

    units: Mapping[str, Unit]
    entries: Mapping[str, RawEntry]
    documents: Mapping[str, Any]


def found(work: Path, *, each: bool) -> Found:
    """Return what is there; with `each`, every entry is a unit of its own."""
    units: dict[str, dict[str, tuple[Any, ...]]] = {}
    entries: dict[str, RawEntry] = {}
    documents: dict[str, Any] = {}
    for place in PLACES:
        if not (work / place).is_dir():
            continue
        for path, entry in raw_tree(work / place).items():
            top = path.partition("/")[0]
            if top.startswith("."):
                continue
            name = f"{place}/{path}"
            entries[name] = entry
            units.setdefault(name if each else f"{place}/{top}", {})[path] = tuple(entry[:5])
        for document in (work / place / ".edl-ckpt-0/meta-0").glob("*.json"):
            if not is_verdicts(document.name):
                documents[f"{place} {document.name}"] = _timeless(document)
    return Found(units, entries, documents)


def _timeless(path: Path) -> Any:
    try:
        document = json.loads(path.read_bytes())
    except ValueError:
        return f"damaged: {path.name}"
    return {key: value for key, value in document.items() if key not in {"sealed", "digest", "deleted", "history"}}


@dataclass(frozen=True, slots=True)
class Trial:
    """A command, the directory that it is tried on copies of, and what is there before and after it."""

    row: Writer
    template: Path
    old: Found
    new: Found
    guests: Mapping[str, RawEntry]
    """Entries that are alike before and after, with their times: they change at no time."""


def prepared(row: Writer, base: Path) -> Trial:
    """Make what a command is tried on, and find out what it does when nothing disturbs it."""
    template = base.resolve() / "template"
    template.mkdir(parents=True)
    row.prepare(template)
    after = copy_of(template, base.resolve() / "after")
    ended = _run(row, after, ShimPoint("", 0, OFF, 0))
    assert ended.code == row.usual, (row.name, ended.code, ended.err)
    old, new = found(template, each=row.each), found(after, each=row.each)
    guests = {name: entry for name, entry in old.entries.items() if _is_file(entry) and new.entries.get(name) == entry}
    assert leftovers(after) == [], leftovers(after)
    shutil.rmtree(after)
    return Trial(row, template, old, new, guests)


def _is_file(entry: RawEntry) -> bool:
    return entry.kind != 0o040000


def copy_of(source: Path, target: Path) -> Path:
    """Copy a directory with owners, links and times; of two hard links each becomes a file."""
    shutil.copytree(source, target, symlinks=True, copy_function=shutil.copy2)
    for top, folders, files in os.walk(source, topdown=False):
        there = target / os.path.relpath(top, source)
        for name in (*folders, *files):
            state = os.lstat(os.path.join(top, name))
            if os.geteuid() == 0:
                os.chown(there / name, state.st_uid, state.st_gid, follow_symlinks=False)
            times = (state.st_atime_ns, state.st_mtime_ns)
            os.utime(there / name, ns=times, follow_symlinks=False)
    return target


def _run(row: Writer, work: Path, point: ShimPoint) -> Ended:
    return forked(work, row.argv, point, has_exchange=row.has_exchange)


def points_of(trial: Trial, work: Path, turn: int = 0) -> list[ShimPoint]:
    """Return a fault for each call that an undisturbed run makes; another `turn` brings another one."""
    copy_of(trial.template, work)
    ended = _run(trial.row, work, ShimPoint("", 0, OFF, 0))
    assert ended.code == trial.row.usual, ended.err
    shutil.rmtree(work)
    points: list[ShimPoint] = []
    for call, count in sorted(ended.counts.items()):
        kinds = FAULTS.get(call, ())
        step = STRIDE if call in LOOKS else 1
        for number, k in enumerate(range(1, count + 1, step)):
            if turn < len(kinds):
                points.append(ShimPoint(call, k, *kinds[(number + turn) % len(kinds)]))
    return points


def disturb(trial: Trial, point: ShimPoint) -> tuple[bool, list[str]]:
    """Try one fault on a fresh copy; return whether it was met, and what is not as it must be."""
    row = trial.row
    with tempfile.TemporaryDirectory(dir=trial.template.parent) as base:
        work = copy_of(trial.template, Path(base).resolve() / "work")
        ended = _run(row, work, point)
        fired = ended.fired or ended.code == -signal.SIGKILL
        problems = [*_judge_end(row, point, ended)]
        now = found(work, each=row.each)
        is_gap = not row.has_exchange and point.mode == KILLED and point.call in GAPS
        problems += _judge_trees(trial, now, may_lack=is_gap)
        said = ended.out + ended.err
        is_warned = row.argv[0] == "prune" and any(word in said for word in ("not stripped: ", "cannot be "))
        if ended.code == 0 and now.units != trial.new.units and not is_warned:
            problems.append(f"success, but {_difference(trial.new, now)}")
        problems += _judge_memory(row, work)
        problems += _judge_recovered(trial, work)
        problems += _judge_again(trial, work)
        return fired, problems


def _judge_end(row: Writer, point: ShimPoint, ended: Ended) -> Iterator[str]:
    wanted = {row.usual}
    if point.mode == KILLED:
        wanted.add(-signal.SIGKILL)
    elif point.mode != SHORT and point.code != EINTR and ended.fired:
        wanted.add(Fault.of(OSError(point.code, os.strerror(point.code)), "x").kind.exit_code)
        if row.argv[0] in {"prune", "verify", "undo"}:
            wanted |= {3, 16}  # what cannot be read now is guarded, and each version has an end of its own
        if point.call in {"lstat", "stat", "open", "readdir", "readlink", "fstat"}:
            wanted |= {10, 11}  # it says that a file is not as it was
    if ended.code not in wanted:
        yield f"ended with {ended.code}: {ended.err[-1200:]}"
    if any(word in ended.err for word in ("Traceback", "Exception ignored", "internal error")):
        yield f"a traceback: {ended.err[-1500:]}"


def _judge_trees(trial: Trial, now: Found, *, may_lack: bool = False) -> Iterator[str]:
    """Yield what is neither old nor new, and guests that have changed."""
    for name in sorted({*now.units, *trial.old.units, *trial.new.units}):
        unit = now.units.get(name)
        if unit in (trial.old.units.get(name), trial.new.units.get(name)) or (may_lack and unit is None):
            continue
        old, new = trial.old.units.get(name, {}), trial.new.units.get(name, {})
        odd = [path for path in {**(unit or {}), **old} if (unit or {}).get(path) not in (old.get(path), new.get(path))]
        yield f"{name} is neither the old one nor the new: {odd[:3] or 'some of each'}"
    for name, entry in trial.guests.items():
        if name in now.entries and now.entries[name] != entry:
            yield f"{name} is {now.entries[name][2:]}, and was {entry[2:]}"
    for name, document in now.documents.items():
        if document not in (trial.old.documents.get(name), trial.new.documents.get(name)):
            yield f"the document {name} is neither the old one nor the new: {str(document)[:300]}"


def _judge_memory(row: Writer, work: Path) -> Iterator[str]:
    """Yield what is remembered of a verification, and is wrong."""
    for place in PLACES:
        for version in list_versions(work / place).versions if (work / place).is_dir() else ():
            is_damaged = version.version in row.damaged
            if version.damage and not is_damaged:
                yield f"{version.ref} counts as damaged: {version.damage}"
            if version.is_verified and is_damaged:
                yield f"{version.ref} counts as verified"


def _judge_recovered(trial: Trial, work: Path) -> Iterator[str]:
    for place in PLACES[:2]:
        if (work / place).is_dir():
            code, told = run_here(work, ("recover", place, "--yes"))
            if code not in SETTLED or "Traceback" in told:
                yield f"recover {place} ended with {code}: {told[-800:]}"
    now = found(work, each=trial.row.each)
    yield from (f"after recover, {problem}" for problem in _judge_trees(trial, now))
    yield from (f"after recover, {problem}" for problem in _judge_memory(trial.row, work))


def _judge_again(trial: Trial, work: Path) -> Iterator[str]:
    code, told = run_here(work, trial.row.argv)
    if code not in AGAIN or "Traceback" in told:
        yield f"the same again ended with {code}: {told[-800:]}"
    now = found(work, each=trial.row.each)
    if now.units != trial.new.units:
        yield f"the same again ended with {code}, and {_difference(trial.new, now)}"
    wanted = trial.new.documents
    odd = [name for name in {*now.documents, *wanted} if now.documents.get(name) != wanted.get(name)]
    if trial.row.each:  # a repair that finds all files right has nothing to seal
        odd = [name for name in odd if name in now.documents]
    if odd:
        yield f"the same again ended with {code}, and other documents: {odd}"
    if rest := leftovers(work):
        yield f"left at the end: {', '.join(rest)}"
    yield from _judge_versions(trial.row, work)


def _judge_versions(row: Writer, work: Path) -> Iterator[str]:
    """Yield why versions do not verify; those that were damaged before are not asked."""
    for place in PLACES:
        for version in list_versions(work / place).versions if (work / place).is_dir() else ():
            if version.version in row.damaged:
                continue
            try:
                errors = [f for f in verify_version(version, level="deep", workers=1).findings if f.severity == "error"]
            except EdlCkptError as error:
                yield f"{version.ref} does not verify: {error}"
            else:
                yield from (f"{version.ref} does not verify: {finding.message}" for finding in errors)


def _difference(wanted: Found, now: Found) -> str:
    names = [n for n in sorted({*wanted.units, *now.units}) if wanted.units.get(n) != now.units.get(n)]
    words = {
        n: "is missing" if n not in now.units else "is too many" if n not in wanted.units else "differs" for n in names
    }
    return "; ".join(f"{name} {how}" for name, how in words.items())


def sweep(names: Sequence[str], sample: int, part: tuple[int, int]) -> Iterator[dict[str, Any]]:
    """Yield how many points of each command were tried, by call, and what was wrong; `sample` 0 tries all."""
    with tempfile.TemporaryDirectory() as base:
        for number, name in enumerate(names or ROWS):
            trial = prepared(ROWS[name], Path(base) / str(number))
            points = points_of(trial, Path(base).resolve() / str(number) / "count")[part[0] :: part[1]]
            yield try_points(name, points, sample, partial(disturb, trial), lambda point: point.call)


if __name__ == "__main__":
    print_sweep("Faults in the writers at steps of other systems.", sweep)
