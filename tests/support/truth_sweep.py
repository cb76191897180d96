"""A disk that is full, or fails, at each call of a writing command: its words and its exit code are always true.

Each point is a call of the C library that fails with one error: once, or from then on, as on a disk that stays full
(`shim_sweep.py` has the faults). The files are compared byte by byte with those before and after an undisturbed run.

* With 0, all of the new state is there.
* With another code, the old state is there, and no words say that a result is in place; or the words say that it is.
* After `recover`, each version is the old one or the new one with its metadata, its tags and its seal; it is the new
  one if the words said so. The same command again brings all of the new state, and leaves nothing.
* ElasticDL's scan finds the old version or the new one, before `recover` too.

`python -m truth_sweep --help` says how to run all points.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from errno import EDQUOT, EIO, EMFILE, ENOSPC, EROFS, ESTALE
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import elasticdl_rules
from edl_ckpt.core import execute_copy, plan_copy
from edl_ckpt.core.base.errors import RefusedError
from edl_ckpt.core.operations.annotate import add_tag, set_metadata, set_metrics
from edl_ckpt.core.state.paths import is_verdicts
from edl_ckpt.core.storage.faults import Fault
from fault_sweep import run_here
from shim_sweep import DONE, ERROR, OFF, Ended, ShimPoint, forked, print_sweep, try_points
from sweep_commands import prepare_arrays, prepare_run
from sweep_state import EXPORTS, LOCATIONS, snapshot

ERRORS = (ENOSPC, EDQUOT, EROFS, EIO, ESTALE, EMFILE)
OF_READING = (EIO, ESTALE, EMFILE)
"""The errors of an `open` that creates nothing."""
CALLS = frozenset({
    "open", "create", "mkdir", "write", "pwrite", "fallocate", "ftruncate", "fsync", "rename", "link", "unlink",
    "rmdir", "close",
})  # fmt: skip
SURELY = r"(is|are) in place|is complete|has the tag"
SOME = "earlier changes of this command are in place"
"""What is said of a result of two files of which one cannot be removed again; the next command refuses it by name."""
PLACED = re.compile(rf"{SURELY}|its commit had begun")
NOTHING = re.compile(r"nothing (further )?was (changed|written)|nothing half-done|no half-written")
Tree = Mapping[str, str]
_ANY_VERSION = {(f"version-{number}", f"version-{number}") for number in (10, 20)}


@dataclass(frozen=True, slots=True)
class Row:
    """A command, and what is there before it; with `many`, each version is a step of its own."""

    name: str
    prepare: Callable[[Path], None]
    argv: tuple[str, ...]
    many: bool = False
    apart: bool = False
    """True for a command whose libraries do not work in a fork of a process that has used them."""

    def run(self, work: Path) -> tuple[int, str]:
        """Run the command undisturbed; return its exit code, and what it said on stderr."""
        if not self.apart:
            return run_here(work, self.argv)
        ended = forked(work, self.argv, ShimPoint("", 0, OFF, 0))
        return ended.code, ended.err


def prepare_tags(work: Path) -> None:
    """Make three versions with metrics, metadata and a tag; a copy of one elsewhere, with a tag that moved since."""
    prepare_run(work)
    run = f"{work}/run"
    add_tag(f"{run}@10", "serving")
    execute_copy(plan_copy([f"{run}@10"], f"{work}/other"))
    add_tag(f"{run}@30", "serving")
    set_metrics(f"{run}@30", {"f1": 0.5}, mode="max")
    set_metadata(f"{run}@30", {"owner": "ads"})


def _rows() -> Iterator[Row]:
    yield Row("import", prepare_arrays, ("import", "arrays.safetensors", "run@40", "--ps", "2"))
    yield Row("import of a checkpoint", prepare_tags, ("import", "run@30", "other@30", "--ps", "3"))
    yield Row("reshard in place", prepare_tags, ("reshard", "run@30", "--ps", "3", "--workers", "1"))
    yield Row(
        "reshard --output", prepare_tags, ("reshard", "run@30", "--ps", "3", "--workers", "1", "--output", "other")
    )
    yield Row("copy", prepare_tags, ("copy", "run@30", "other", "--workers", "1"))
    yield Row("copy --all", prepare_tags, ("copy", "run", "away", "--all", "--workers", "1"), many=True)
    endings = [".ckpt", ".safetensors", ".npz", ".csv", ".jsonl"]
    for ending in [*endings, ".parquet"] if find_spec("pyarrow") else endings:
        table = ("--table", "t") if ending in {".csv", ".jsonl"} else ()
        yield Row(f"export {ending}", prepare_run, ("export", "run@30", f"out/made{ending}", *table))
    for kind in ("npy", "word2vec", "projector"):
        table = () if kind == "npy" else ("--table", "t")
        yield Row(f"export of {kind}", prepare_run, ("export", "run@30", "out/made", "--format", kind, *table))
    yield Row("export --force", _prepare_older, ("export", "run@30", "out/made.npz", "--force"))
    if find_spec("jinja2") and find_spec("vl_convert"):
        yield Row("report", prepare_run, ("report", "run", "--output", "out/made.html"), apart=True)
    yield Row("metadata set", prepare_tags, ("metadata", "set", "run@30", "owner=search"))
    yield Row("policy set", prepare_run, ("policy", "set", "run", "--keep", "3"))
    yield Row("tag add", prepare_run, ("tag", "add", "run@30", "best-so-far"))


def _prepare_older(work: Path) -> None:
    prepare_run(work)
    (work / EXPORTS / "made.npz").write_bytes(b"older")


ROWS = {row.name: row for row in _rows()}


# What is there


def tree(work: Path) -> Tree:
    """Return a digest of each file but of those that are staged, and the directories of exports."""
    folders = (path.relative_to(work) for path in (work / EXPORTS).rglob("[!.]*") if path.is_dir())
    found = {f"{name}/": "a directory" for name in folders if not any(part.startswith(".") for part in name.parts)}
    for path in sorted(p for p in work.rglob("*") if p.is_file()):
        name = str(path.relative_to(work))
        staged = "/.edl-ckpt-0/stage-0/" in name or name.endswith("/.edl-ckpt-0/lock-0")
        if is_verdicts(path.name):  # each look at the state with `snapshot` may leave them
            continue
        if not staged and not any(part.startswith(".") and part != ".edl-ckpt-0" for part in Path(name).parts):
            found[name] = hashlib.sha256(_timeless(path)).hexdigest()
    return found


def _timeless(path: Path) -> bytes:
    """Return the bytes of a file without the time at which it was made."""
    data = path.read_bytes()
    if path.name.endswith(".seal.json"):
        seal = json.loads(data)
        return json.dumps({key: seal[key] for key in seal if key not in {"sealed", "digest"}}).encode()
    if path.suffix == ".html":
        return data[-8:]  # it names what could not be read
    return data


def _leftovers(work: Path) -> list[str]:
    """Return what is staged."""
    return sorted(
        str(path.relative_to(work))
        for path in work.rglob("*")
        if "/.edl-ckpt-0/stage-0/" in str(path) or (path.name.startswith(".") and path.name != ".edl-ckpt-0")
    )


def _units(row: Row, names: set[str], *, apart: bool = False) -> Iterator[set[str]]:
    """Yield the files that change together."""
    if not row.many:
        yield from [{name} for name in names] if apart else [names]
        return
    groups: dict[str, set[str]] = {}
    for name in names:
        number = re.search(r"(?:version[-_]|meta-0/)(\w+)", name)
        groups.setdefault(number[1] if number else name, set()).add(name)
    yield from groups.values()


def _part(found: Tree, names: set[str]) -> Tree:
    return {name: found[name] for name in names & found.keys()}


# Trials


@dataclass(frozen=True, slots=True)
class Prepared:
    """A command with what is there before it and after it."""

    row: Row
    template: Path
    old: Tree
    new: Tree
    scans: frozenset[Any]


def prepared(row: Row, base: Path) -> Prepared:
    """Make what a command is tried on, and find out what it does; both states are verified."""
    template = base.resolve() / "template"
    template.mkdir(parents=True)
    row.prepare(template)
    after = base / "after"
    shutil.copytree(template, after)
    code, told = row.run(after)
    assert code == 0, told
    for place in (template, after):
        assert "not whole" not in str([getattr(item, "fingerprint", "") for item in snapshot(place).values()])
    old, new = tree(template), tree(after)
    assert old != new
    assert _leftovers(after) == []
    return Prepared(row, template, old, new, frozenset({*_scans(template), *_scans(after)}))


def _scans(work: Path) -> Iterator[tuple[str, Any]]:
    for name in (*LOCATIONS, "away"):
        yield name, elasticdl_rules.answer(work / name) if (work / name).is_dir() else ("none", "none")


def points_of(trial: Prepared, work: Path) -> list[ShimPoint]:
    """Return each error at each call that an undisturbed run makes, once and from then on."""
    shutil.copytree(trial.template, work)
    ended = forked(work, trial.row.argv, ShimPoint("", 0, OFF, 0))
    assert ended.code == 0, ended.err
    shutil.rmtree(work)
    return [
        ShimPoint(call, k, DONE if call == "close" else ERROR, code, always)
        for call, count in sorted(ended.counts.items())
        if call in CALLS
        for k in range(1, count + 1)
        for code in (OF_READING if call == "open" else ERRORS)
        for always in (False, True)
    ]


def disturb(trial: Prepared, point: ShimPoint) -> tuple[bool, list[str]]:
    """Try one fault on a fresh copy; return whether it was met, and what was not true."""
    with tempfile.TemporaryDirectory(dir=trial.template.parent) as base:
        work = Path(base).resolve() / "work"
        shutil.copytree(trial.template, work)
        ended = forked(work, trial.row.argv, point)
        problems = [*_judge_words(trial, point, ended, tree(work)), *_judge_scan(trial, work)]
        problems += _judge_recovered(trial, ended, work)
        problems += _judge_again(trial, ended, work)
        return ended.fired, problems


def _judge_words(trial: Prepared, point: ShimPoint, ended: Ended, found: Tree) -> Iterator[str]:
    wanted = {3} if trial.row.apart and found == trial.new else set()  # a report of what could not all be read
    wanted |= {0, Fault.of(OSError(point.code, os.strerror(point.code)), "x").kind.exit_code}
    if ended.code not in wanted:
        yield f"ended with {ended.code}: {ended.err[-1500:]}"
    if any(word in ended.err for word in ("Traceback", "Exception ignored", "internal error")):
        yield f"a traceback: {ended.err[-1500:]}"
    placed, nothing = PLACED.search(ended.err), NOTHING.search(ended.err)
    if ended.code == 0 and found != trial.new:
        yield f"success, but {_difference(found, trial.new)}"
    if ended.code and found == trial.old and re.search(SURELY, ended.err):
        yield f"nothing has changed, but it says {ended.err[-600:]}"
    if ended.code and nothing and found != trial.old and not trial.row.many:
        yield f"{_difference(found, trial.old)}, but it says {ended.err[-600:]}"
    if ended.code and found != trial.old and not placed:
        for names in _units(trial.row, {*found, *trial.old, *trial.new}):
            part = _part(found, names)
            if part != _part(trial.old, names) and (not trial.row.many or part != _part(trial.new, names)):
                yield f"{_difference(found, trial.old)}, but it only says {ended.err[-600:]}"


def _judge_scan(trial: Prepared, work: Path) -> Iterator[str]:
    for answer in _scans(work):
        if answer not in trial.scans and not (trial.row.many and answer[1] in _ANY_VERSION):
            yield f"ElasticDL's scan answers {answer}"


def _judge_recovered(trial: Prepared, ended: Ended, work: Path) -> Iterator[str]:
    for place in (*LOCATIONS, "away"):
        if (work / place).is_dir():
            code, told = run_here(work, ("recover", place))
            if code not in {0, 10} or "Traceback" in told:
                yield f"recover {place} ended with {code}: {told[-800:]}"
    found = tree(work)
    some = SOME in ended.err and EXPORTS in trial.row.argv[2]
    for names in _units(trial.row, {*found, *trial.old, *trial.new}, apart=some):
        part = _part(found, names)
        allowed = [_part(trial.new, names)]
        if trial.row.many or some or (ended.code and not re.search(SURELY, ended.err)):
            allowed.append(_part(trial.old, names))
        if part not in allowed:
            yield f"after recover {_difference(found, trial.new)}"


def _judge_again(trial: Prepared, ended: Ended, work: Path) -> Iterator[str]:
    code, told = trial.row.run(work)
    if code not in {0, 16} or "Traceback" in told:
        yield f"the same again ended with {code}: {told[-800:]}"
    found = tree(work)
    if found != trial.new and not (SOME in ended.err and code == RefusedError.exit_code and EXPORTS in told):
        yield f"the same again ended with {code}, and {_difference(found, trial.new)}"
    if rest := _leftovers(work):
        yield f"left at the end: {', '.join(rest)}"


def _difference(found: Tree, wanted: Tree) -> str:
    words = {
        name: "is missing" if name not in found else "is too many" if name not in wanted else "differs"
        for name in sorted({*found, *wanted})
        if found.get(name) != wanted.get(name)
    }
    return "; ".join(f"{name} {how}" for name, how in words.items())


def sweep(names: Sequence[str], sample: int, part: tuple[int, int]) -> Iterator[dict[str, Any]]:
    """Yield how many points of each command were tried, by call, and what was not true; `sample` 0 tries all."""
    with tempfile.TemporaryDirectory() as base:
        for number, name in enumerate(names or ROWS):
            trial = prepared(ROWS[name], Path(base) / str(number))
            points = points_of(trial, Path(base) / str(number) / "count")[part[0] :: part[1]]
            yield try_points(name, points, sample, partial(disturb, trial), lambda point: point.call)


if __name__ == "__main__":
    print_sweep("A disk that is full, at each call of a command.", sweep)
