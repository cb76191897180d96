"""Faults in system calls: a command under strace, one call of it failing or its last, and what must hold then.

A command is a row of `COMMANDS`. What there is before and after it, undisturbed, is a `State`: versions with their
fingerprints, documents, exported files, what ElasticDL's scan finds. Whatever call was disturbed, each item of the
state must be the old one or the new one, whole; the process must say so by its exit code; and the same command again
must bring the new state. A new command is a new row, nothing else.

What is injected at the k-th call of a name:

* SIGKILL: the process is gone, the call was not made.
* ENOSPC, EIO: the call fails once and was not made.
* EINTR (writes), EOPNOTSUPP (allocation), EINVAL (renames with flags): what a healthy file system may say too. The
  program repeats the call or does without it, so it must succeed.
* `retval=n`, in a write of a shard: strace does not make the call and says that n bytes, half of them, were written. No
  true short write, which strace cannot make, but a disk that lies: the bytes are lost, and only the proof by reading
  back can tell. So it is asked of shards alone; nothing proves other files.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import chdir, redirect_stderr, redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

import elasticdl_rules
from edl_ckpt.cli import app
from edl_ckpt.core import export_version, list_versions, parse_ref, resolve, save_checkpoint, verify_version
from edl_ckpt.core.commit.trash import list_trash
from edl_ckpt.core.errors import EdlCkptError, NoSpaceError, NotFoundError, RefusedError, UsageError
from edl_ckpt.core.format.model import Version
from edl_ckpt.core.operations.annotate import set_metrics
from edl_ckpt.core.operations.prune.execute import prune
from edl_ckpt.core.operations.prune.retention import Latest, Policy
from edl_ckpt.core.operations.save import Table
from edl_ckpt.core.state.paths import STATE_DIR
from program import PROGRAM

SWEEPS_LEFTOVERS = True
"""Whether a later command removes what a killed one left; a row of `COMMANDS` may say otherwise with `sweeps`."""

KILL = "signal=KILL"
ENOSPC, EIO = "error=ENOSPC", "error=EIO"
EINTR, EOPNOTSUPP, EINVAL = "error=EINTR", "error=EOPNOTSUPP", "error=EINVAL"

RENAME = "?rename,?renameat,?renameat2"
MKDIR = "?mkdir,mkdirat"
UNLINK = "?unlink,unlinkat,?rmdir"
"""Sets of calls, for samples: the machine decides which one of a set a program makes."""

FAULTS: Mapping[str, tuple[str, ...]] = {
    "write": (KILL, ENOSPC, EIO, EINTR),
    "pwrite64": (KILL, ENOSPC, EIO, EINTR),
    "fallocate": (KILL, ENOSPC, EIO, EINTR, EOPNOTSUPP),
    "ftruncate": (KILL, EIO),
    "fsync": (KILL, EIO),
    "fdatasync": (KILL, EIO),
    "openat": (KILL, ENOSPC),
    "mkdir": (KILL, ENOSPC),
    "mkdirat": (KILL, ENOSPC),
    "rename": (KILL, EIO),
    "renameat": (KILL, EIO),
    "renameat2": (KILL, EIO, EINVAL),
    "link": (KILL, EIO),
    "linkat": (KILL, EIO),
    "unlink": (KILL, EIO),
    "unlinkat": (KILL, EIO),
    "rmdir": (KILL, EIO),
}
"""What is tried at each call; `openat` only where it creates."""
ENDS: Mapping[str, set[int]] = {
    ENOSPC: {0, NoSpaceError.exit_code},
    EIO: {0, EdlCkptError.exit_code},
    EINTR: {0},
    EOPNOTSUPP: {0},
    EINVAL: {0},
}
"""The exit codes that a fault may lead to; 0 where it met what the result does not depend on."""
REMOVALS = {"unlink", "unlinkat", "rmdir", UNLINK}
OF_FILES = {"write", "pwrite64", "fallocate", "ftruncate", "fsync", "fdatasync"}
"""Calls that name their file by its number."""

LOCATIONS = ("run", "other")
EXPORTS = "out"
"""What a command works on, in a directory of its own that it is started in."""

State = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Held:
    """A version as it is found: in its place or in the trash, its shards and its content."""

    place: str
    ps_num: int | None
    fingerprint: str
    digest: str

    def __str__(self) -> str:
        return f"{self.ps_num} shards {self.place}"


@dataclass(frozen=True, slots=True)
class Command:
    """A command to be swept: what is there before it, its words, and what it changes.

    `new` has all items that are not what they were: a version as `Held` says it, a document without its schema, the
    word "file" of an exported file, None of what is gone. `sample` is what the ordinary suite tries, as (calls, k,
    fault). `always` is injected all the time: a file system that lacks something. `one_step` says that all of it
    changes at once. `then` is run after each fault; empty, it is the same command, which must bring the new state.
    """

    name: str
    prepare: Callable[[Path], None]
    argv: tuple[str, ...]
    new: Mapping[str, Any]
    sample: tuple[tuple[str, int, str], ...] = ((RENAME, 1, KILL), ("fsync", 1, EIO))
    always: str = ""
    gap: tuple[str, int, str] | None = None
    """A point between two steps, after which it is the next command that must bring the old state or the new."""
    late: tuple[str, ...] = ()
    """Items that come after the rest, and not again from a command that is refused because the rest is there."""
    one_step: bool = True
    then: tuple[str, ...] = ()
    sweeps: bool = SWEEPS_LEFTOVERS


@dataclass(frozen=True, slots=True)
class Point:
    """One fault: at the k-th call of a name, or of each name of a set; with `threads` the k-th of each thread.

    strace counts the calls of each thread and each name for itself. Without `threads` only the main thread is traced.
    """

    calls: str
    k: int
    fault: str
    threads: bool = False

    def __str__(self) -> str:
        return f"({self.calls}, {self.k}, {self.fault}{', any thread' if self.threads else ''})"


@dataclass(frozen=True, slots=True)
class Trial:
    """A command, the directory it is tried on copies of, and the states before and after it."""

    command: Command
    template: Path
    old: State
    new: State


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a point: whether the fault met a call that concerns the checkpoints, and what was wrong then."""

    point: Point
    fired: bool
    problems: tuple[str, ...]


# What there is before a command


def prepare_run(work: Path) -> None:
    """Make a location with three versions of two shards; the second and the third have metrics."""
    ids = np.array([0, 1, 2, 3, 300, 70_000, 2**40 + 1, 7], np.int64)
    for number in (10, 20, 30):
        chance = np.random.default_rng(number)
        variables: dict[str, np.ndarray[Any, Any]] = {
            "w": chance.standard_normal((3, 2)),
            "b": np.full(3, number, np.int8),
        }
        tables = {"t": Table(ids, chance.standard_normal((8, 2)).astype(np.float32))}
        save_checkpoint(str(work / "run"), number, 2, variables=variables, tables=tables, layout="elasticdl")
    for number in (20, 30):
        set_metrics(resolve(parse_ref(f"{work}/run@{number}")), {"loss": 0.25})
    (work / EXPORTS).mkdir()


def prepare_trash(work: Path) -> None:
    """Make the same, with two of the versions in the trash."""
    prepare_run(work)
    place = str(work / "run")
    prune([place], Policy((Latest(1),)), trash=True)


def prepare_target(work: Path) -> None:
    """Make the same, and a file where the export is to go."""
    prepare_run(work)
    (work / EXPORTS / "model.safetensors").write_bytes(b"older")


def prepare_arrays(work: Path) -> None:
    """Make the same, and a file of arrays to be imported."""
    prepare_run(work)
    export_version(resolve(parse_ref(f"{work}/run@30")), str(work / "arrays.safetensors"))


_RESHARD = ("reshard", "run@30", "--ps", "3", "--workers", "1")
_EXPORT = ("export", "run@30", "out/model.safetensors")
_TWO = "2 shards in place"
_THREE = "3 shards in place"
_TRASHED = "2 shards in the trash"
_LOSS = {"metrics": {"loss": 0.25}}
_BOTH = {"metrics": {"loss": 0.25, "auc": 0.5}}
_AWAY = {"place": "in the trash"}
_NO_EXCHANGE = "renameat2:error=EINVAL"

ROWS = (
    Command(
        "reshard in place",
        prepare_run,
        _RESHARD,
        {"run@30": _THREE},
        ((RENAME, 1, KILL), ("?rename,?renameat", 1, KILL), ("pwrite64", 2, "retval=20"), ("fallocate", 2, ENOSPC)),
    ),
    Command(
        "reshard in place, no exchange",
        prepare_run,
        _RESHARD,
        {"run@30": _THREE},
        (("?rename,?renameat", 1, EIO), ("?rename,?renameat", 2, EIO), ("?rename,?renameat", 4, KILL)),
        always=_NO_EXCHANGE,
        gap=("rename", 4, KILL),
    ),
    Command(
        "reshard --output",
        prepare_run,
        (*_RESHARD, "--output", "other"),
        {"other@30": _THREE, "other latest": "version-30", "other 30.json": _LOSS},
        ((RENAME, 1, KILL), ("pwrite64", 3, EIO)),
        late=("other 30.json",),
        one_step=False,
    ),
    Command(
        "prune",
        prepare_run,
        ("prune", "run", "--keep", "1", "--yes"),
        {"run@10": None, "run@20": None, "run 20.json": None},
        ((RENAME, 2, KILL), ("unlinkat", 3, EIO)),
        one_step=False,
    ),
    Command(
        "prune --trash",
        prepare_run,
        ("prune", "run", "--keep", "1", "--yes", "--trash"),
        {"run@10": _TRASHED, "run@20": _TRASHED, "run 20.json": _LOSS | _AWAY},
        ((RENAME, 2, EIO), ("fsync", 1, EIO)),
        one_step=False,
    ),
    Command(
        "undo",
        prepare_trash,
        ("undo", "run"),
        {"run@10": _TWO, "run@20": _TWO, "run 20.json": _LOSS},
        ((RENAME, 1, KILL), ("fsync", 1, EIO)),
        one_step=False,
    ),
    Command(
        "export",
        prepare_run,
        _EXPORT,
        {"out/model.safetensors": "file"},
        ((RENAME, 1, KILL), ("fsync", 1, EIO)),
    ),
    Command(
        "export --force",
        prepare_target,
        (*_EXPORT, "--force"),
        {"out/model.safetensors": "file"},
        ((RENAME, 1, KILL), (UNLINK, 1, KILL)),
    ),
    Command(
        "export --force, no exchange",
        prepare_target,
        (*_EXPORT, "--force"),
        {"out/model.safetensors": "file"},
        (("?rename,?renameat", 1, KILL), ("?rename,?renameat", 1, EIO)),
        always=_NO_EXCHANGE,
    ),
    Command(
        "import",
        prepare_arrays,
        ("import", "arrays.safetensors", "run@40", "--ps", "2", "--layout", "elasticdl"),
        {"run@40": _TWO, "run latest": "version-40"},
        ((RENAME, 1, KILL), ("pwrite64", 1, "retval=20")),
    ),
    Command(
        "copy",
        prepare_run,
        ("copy", "run@30", "other", "--workers", "1"),
        {"other@30": _TWO, "other latest": "version-30", "other 30.json": _LOSS},
        ((RENAME, 1, KILL), ("pwrite64", 2, "retval=20"), ("fsync", 2, EIO)),
        one_step=False,
    ),
    Command(
        "verify --seal",
        prepare_run,
        ("verify", "run@30", "--seal", "--force", "--workers", "1"),
        {},
        ((RENAME, 1, KILL), ("fsync", 1, EIO)),
    ),
    Command(
        "metrics set",
        prepare_run,
        ("metrics", "set", "run@30", "auc=0.5", "--mode", "max"),
        {"run 30.json": _BOTH, "run location.json": {"modes": {"auc": "max"}}},
        ((RENAME, 2, KILL), ("fallocate", 1, ENOSPC)),
        one_step=False,
    ),
    Command(
        "tag add",
        prepare_run,
        ("tag", "add", "run@30", "serving"),
        {"run 30.json": _LOSS | {"tags": ["serving"]}},
        ((RENAME, 1, KILL), (MKDIR, 1, ENOSPC)),
    ),
)

COMMANDS = (
    *ROWS,
    *(
        replace(c, name=f"{c.name}, recover", then=("recover", "run"), sample=c.sample[:1])
        for c in ROWS
        if c.name.startswith("reshard in place")
    ),
)


# What is there


def snapshot(work: Path) -> State:
    """Return all items that are there: what is neither in its place nor, to stay, in the trash has none."""
    state: State = {}
    for location in LOCATIONS:
        place = work / location
        state[f"{location} latest"] = _latest(place)
        if not place.is_dir():
            continue
        kept = [Path(e.path) for e in list_trash(str(place)) if e.keep]
        for where, top, documents in (
            ("in place", place, place / STATE_DIR / "meta-0"),
            *(("in the trash", entry, entry / "meta") for entry in kept),
        ):
            for version in list_versions(str(top)).versions:
                state.setdefault(f"{location}@{version.version}", _held(version, where))
            for path in sorted(set(documents.glob("*.json")) - set(documents.glob("*.seal.json"))):
                state.setdefault(f"{location} {path.name}", (where, _document(path)))
    for path in sorted((work / EXPORTS).glob("[!.]*")):
        state[f"{EXPORTS}/{path.name}"] = _digest([path])
    return state


def _latest(place: Path) -> str:
    """Return what ElasticDL would restore, or how its scan fails."""
    try:
        first, second = elasticdl_rules.answer(place) if place.is_dir() else ("none", "none")
    except OSError as error:
        return f"crash {type(error).__name__}"
    return first if first == second else f"{first} or {second}"


def _held(version: Version, where: str) -> Held:
    result = verify_version(version, level="deep", workers=1)
    fingerprint = result.fingerprint or "none"
    if not result.ok:
        fingerprint = f"not whole: {', '.join(sorted({f.code for f in result.findings}))}"
    return Held(where, version.ps_num, fingerprint, _digest(Path(s.path) for s in version.shards))


def _document(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except ValueError:
        return {"damaged": path.name}


def _digest(paths: Iterable[Path]) -> str:
    return hashlib.sha256(b"".join(path.read_bytes() for path in sorted(paths))).hexdigest()


def described(item: Any) -> Any:
    """Return an item as the rows of `COMMANDS` say it."""
    if isinstance(item, tuple):
        where, document = item
        away = {} if where == "in place" else {"place": where}
        return {key: value for key, value in document.items() if key not in {"schema", "version"}} | away
    if isinstance(item, Held):
        return str(item)
    return "file" if re.fullmatch("[0-9a-f]{64}", str(item)) else item


def leftovers(work: Path) -> list[str]:
    """Return what is there and that no command is documented to keep; of a directory only its name."""
    found = [*(work / EXPORTS).glob(".*")]
    for location in LOCATIONS:
        top = work / location / STATE_DIR
        kept = {
            Path(e.path)
            for e in list_trash(str(work / location))
            if e.keep and _record(Path(e.path)) and _holds(Path(e.path))
        }
        found += [
            path
            for room in (top.iterdir() if top.is_dir() else ())
            for path in (_inside(room) if room.name in {"stage-0", "trash-0", "meta-0"} else [room])
            if path not in kept and not (room.name == "meta-0" and path.suffix == ".json")
        ]
        found += [top] if top.is_dir() and not any(top.iterdir()) else []
    return sorted(str(path.relative_to(work)) for path in found)


def _inside(room: Path) -> list[Path]:
    return [*room.iterdir()] or [room]


def _record(entry: Path) -> dict[str, Any]:
    path = entry / "record.json"
    return dict(_document(path)) if path.is_file() else {}


def _holds(entry: Path) -> bool:
    """Say whether anything of value is in an entry of the trash."""
    return any(path.is_file() and path.name != "record.json" for path in entry.rglob("*"))


def _is_for_prune(path: Path) -> bool:
    """Say whether a leftover is what the next prune is documented to finish: of a deletion for good, or empty."""
    if path.name.startswith("copy-"):  # and what is whole of an interrupted copy waits for the same copy to go on
        return (path / "journal.json").is_file()
    if "trash-0" not in {path.name, path.parent.name} or not path.is_dir():
        return False
    return path.name.startswith("drop-") or not _holds(path) or _record(path).get("keep") is False


# A command, here and under strace


def environment() -> dict[str, str]:
    """Return the environment of every command: nobody's settings, no caches written."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("EDL_CKPT_")}
    return {**own, "XDG_CONFIG_HOME": "/nowhere", "PYTHONDONTWRITEBYTECODE": "1"}


def run_here(work: Path, argv: tuple[str, ...]) -> tuple[int, str]:
    """Run a command in this process, which is faster, and return its exit code and what it said on stderr."""
    told = io.StringIO()
    with (
        chdir(work),
        mock.patch.dict(os.environ, environment(), clear=True),
        redirect_stdout(io.StringIO()),
        redirect_stderr(told),
    ):
        try:
            app.run(list(argv))
        except SystemExit as end:
            return int(end.code or 0), told.getvalue()


def trace(work: Path, argv: tuple[str, ...], *options: str) -> tuple[subprocess.CompletedProcess[str], str]:
    """Run a command under strace; return how it ended, and strace's log of what it was told to trace."""
    log = work.with_name(f"{work.name}.log")
    done = subprocess.run(
        ["strace", "-qq", "-y", "-o", str(log), *options, *PROGRAM, *argv],
        cwd=work,
        env=environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return done, log.read_text(encoding="utf-8", errors="replace")


def why_not() -> str:
    """Return why nothing can be injected here, '' when it can."""
    if shutil.which("strace") is None:
        return "strace is not installed"
    probe = ["strace", "-f", "--seccomp-bpf", "-qq", "-e", "trace=fsync", "-e", "inject=fsync:error=EIO:when=1", "true"]
    done = subprocess.run(probe, capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 and not done.stderr else f"strace cannot trace here: {done.stderr.strip()}"


@dataclass(frozen=True, slots=True)
class Call:
    """A line of strace's log: the k-th call of its name in its thread, the paths it names, its other words."""

    thread: str
    name: str
    k: int
    paths: tuple[str, ...]
    words: str

    def concerns(self, work: Path) -> bool:
        """Say whether it changes something in a directory."""
        if self.name == "openat" and "O_CREAT" not in self.words:
            return False
        return any(Path(path).is_relative_to(work) for path in self.paths)


_LINE = re.compile(r"(?:(?P<thread>\d+) +)?(?P<name>\w+)\((?P<words>.*)")
_PATH = re.compile(r'<(?P<fd>[^>]*)>|"(?P<name>(?:[^"\\]|\\.)*)"')
_SIZE = re.compile(r", (\d+), \d+(?:\) += | <unfinished)")


def parse(log: str, work: Path) -> list[Call]:
    """Return the calls of a log in their order."""
    seen: Counter[tuple[str, str]] = Counter()
    calls: list[Call] = []
    for line in log.splitlines():
        match = _LINE.match(line)
        if match is None:
            continue
        thread, name, words = match["thread"] or "", match["name"], match["words"]
        seen[thread, name] += 1
        calls.append(Call(thread, name, seen[thread, name], tuple(_paths(name, words, work)), words))
    return calls


def _paths(name: str, words: str, work: Path) -> Iterator[str]:
    """Yield the paths of a call, each below the directory that was named before it, else below the working one."""
    base = str(work)
    for match in _PATH.finditer(words):
        if match["fd"] is None:
            yield os.path.join(base, match["name"])
        else:
            base = match["fd"]
            if name in OF_FILES:
                yield base
                return


# Trials


def prepare(command: Command, base: Path) -> Trial:
    """Make what a command is tried on, and find out what it does when nothing disturbs it."""
    template = base.resolve() / "template"
    template.mkdir(parents=True)
    command.prepare(template)
    after = template.with_name("after")
    shutil.copytree(template, after)
    old = snapshot(template)
    code, told = run_here(after, command.argv)
    assert code == 0, told
    new = snapshot(after)
    changed = {name: described(new.get(name)) for name in {*old, *new} if old.get(name) != new.get(name)}
    assert changed == dict(command.new)
    contents = {item.fingerprint for item in old.values() if isinstance(item, Held)}
    assert contents >= {item.fingerprint for item in new.values() if isinstance(item, Held)}
    assert not any("not whole" in fingerprint for fingerprint in contents)
    assert leftovers(after) == []
    shutil.rmtree(after)
    return Trial(command, template, old, new)


def find_points(trial: Trial, work: Path) -> list[Point]:
    """Count the calls of an undisturbed run, and return every fault at every call that concerns the directory."""
    shutil.copytree(trial.template, work)
    names = ",".join(name if name in OF_FILES else f"?{name}" for name in FAULTS)
    always = trial.command.always
    done, log = trace(work, trial.command.argv, "-f", "-e", f"trace={names}", *_inject(always))
    assert done.returncode == 0, done.stderr
    calls = parse(log, work)
    shutil.rmtree(work)
    points: dict[Point, None] = {}
    for call in calls:
        if call.concerns(work) and call.name != always.partition(":")[0]:
            for fault in (*FAULTS[call.name], *_lie(call)):
                points[Point(call.name, call.k, fault, threads=call.thread != calls[0].thread)] = None
    return list(points)


def _inject(expression: str) -> tuple[str, ...]:
    return ("-e", f"inject={expression}") if expression else ()


def _lie(call: Call) -> Iterator[str]:
    """Yield the fault that loses half of what a call writes into a shard; see above."""
    size = _SIZE.search(call.words)
    if call.name == "pwrite64" and size and "/stage-0/" in call.paths[0] and "variables-" in call.paths[0]:
        yield f"retval={max(int(size[1]) // 2, 1)}"


def disturb(trial: Trial, point: Point) -> Outcome:
    """Try one fault on a fresh copy, run the command again, and return what is not as it must be."""
    with tempfile.TemporaryDirectory(dir=trial.template.parent) as base:
        work = Path(base) / "work"
        shutil.copytree(trial.template, work)
        done, log = trace(
            work,
            trial.command.argv,
            *(("-f",) if point.threads else ()),
            # Faster: only what is traced stops. But a signal is lost at a stop of this kind.
            *(("--seccomp-bpf",) if point.threads and point.fault != KILL else ()),
            "-e",
            f"trace={point.calls},{trial.command.always.partition(':')[0]}".rstrip(","),
            *_inject(trial.command.always),
            *_inject(f"{point.calls}:{point.fault}:when={point.k}"),
        )
        names = point.calls.replace("?", "").split(",")
        hit = [call for call in parse(log, work) if call.k == point.k and call.name in names]
        fired = any(call.concerns(work) for call in hit)
        problems = [*_judge_end(point, done, fired=fired, astray=bool(hit) and not fired)]
        problems += _judge_state(trial, point, done.returncode, work)
        problems += _judge_next(trial, work)
        return Outcome(point, fired, tuple(problems))


def exit_codes() -> set[int]:
    """Return the documented exit codes of a failure that is not the user's: of our errors, but not of wrong usage."""

    def below(kind: type[EdlCkptError]) -> Iterator[int]:
        yield kind.exit_code
        for child in kind.__subclasses__():
            yield from below(child)

    return {*below(EdlCkptError)} - {UsageError.exit_code}


def _judge_end(point: Point, done: subprocess.CompletedProcess[str], *, fired: bool, astray: bool) -> Iterator[str]:
    """Yield what is wrong with how a process ended; a fault that went astray, into the interpreter, tells nothing."""
    code = -done.returncode if done.returncode < 0 else done.returncode
    if point.fault == KILL:
        wanted = {int(signal.SIGKILL)} if fired or astray else {0}
    else:
        wanted = ENDS.get(point.fault, {0, *exit_codes()})
    if astray:
        return
    if code not in wanted:
        yield f"ended with {code}: {done.stderr[-2000:]}"
    elif any(word in done.stderr for word in ("Traceback", "Exception ignored")):
        yield f"a traceback: {done.stderr[-2000:]}"


def _judge_state(trial: Trial, point: Point, code: int, work: Path) -> Iterator[str]:
    """Yield what is neither old nor new, what a success did not change, and what a full disk let through."""
    if (
        trial.command.gap is not None
        and (point.calls.replace("?", "").split(",")[0], point.k, point.fault) == trial.command.gap
    ):
        return
    found = snapshot(work)
    yield from _neither(trial, found)
    if code == 0 and found != trial.new:
        yield f"success, but {_difference(found, trial.new)}"
    if code == NoSpaceError.exit_code and trial.command.one_step and found != trial.old:
        yield f"no space, but {_difference(found, trial.old)}"
    rest = [name for name in leftovers(work) if not _is_for_prune(work / name)] if code >= 0 else []
    if rest and point.calls not in REMOVALS:
        yield f"it ended by itself and left {', '.join(rest)}"


def _neither(trial: Trial, found: State) -> Iterator[str]:
    for name in sorted({*found, *trial.old, *trial.new}):
        if found.get(name) not in (trial.old.get(name), trial.new.get(name)):
            yield f"{name} is {_shown(found.get(name))}: neither the old one nor the new"
    if trial.command.one_step and found not in (trial.old, trial.new):
        yield f"some of it is old and some new: {_difference(found, trial.new)}"


def _judge_next(trial: Trial, work: Path) -> Iterator[str]:
    """Yield what is wrong when the next command is run, and another one that takes the lock."""
    command = trial.command
    code, told = run_here(work, command.then or command.argv)
    if code not in {0, RefusedError.exit_code, NotFoundError.exit_code} or "Traceback" in told:
        yield f"the next command ended with {code}: {told[-2000:]}"
    found = snapshot(work)
    if command.then:
        yield from (f"after the next command {problem}" for problem in _neither(trial, found))
    elif code == RefusedError.exit_code:
        found |= _of(trial.new, command.late)
    if not command.then and found != trial.new:
        yield f"the same again ended with {code}, and {_difference(found, trial.new)}"
    for location in LOCATIONS:
        if f"{location}@30" in found:
            code, told = run_here(work, ("tag", "add", f"{location}@30", "later"))
            if code:
                yield f"tag add {location}@30 ended with {code}: {told[-2000:]}"
    if command.sweeps and leftovers(work):
        yield f"left after the next command: {', '.join(leftovers(work))}"


def _of(state: State, names: Iterable[str]) -> State:
    return {name: state[name] for name in names}


def _difference(found: State, wanted: State) -> str:
    names = sorted(name for name in {*found, *wanted} if found.get(name) != wanted.get(name))
    return "; ".join(f"{n} is {_shown(found.get(n))}, not {_shown(wanted.get(n))}" for n in names)


def _shown(item: Any) -> str:
    """Return an item in words that tell it from others of its kind."""
    if isinstance(item, Held):
        return f"{item} ({item.fingerprint[:16]}, bytes {item.digest[:8]})"
    return f"file {item[:8]}" if described(item) == "file" else str(described(item))
