"""Faults in calls of the C library: a command with one call of it failing, and what must hold then.

`fault_sweep.py` lets calls of the kernel fail under strace. Here the library `fault_shim.c` stands before the C library
and knows the paths: so reads, stat, readdir, close, flock and mmap can fail, a read or a write can move half of its
bytes, a flush can fail once, and a rename can be made and report an error all the same, as on a file server. The sweep
runs in one process, started with that library and everything imported (`python -m shim_sweep`); each point is a fork of
it. A changing command is a row of `sweep_commands.COMMANDS`; a reading one is a row of `READING`.

Whatever call is disturbed: each item of the state is the old one or the new one, whole; the exit code is one that the
error has; there is no traceback. Success means the new state, or for a reading command the same output as ever. The
same command again brings the new state. `python -m shim_sweep --help` says how to run all points.
"""

from __future__ import annotations

import argparse
import ctypes
import difflib
import gc
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from errno import (
    EACCES,
    EDQUOT,
    EIO,
    EMFILE,
    ENODEV,
    ENOLCK,
    ENOMEM,
    ENOSPC,
    EOPNOTSUPP,
    EPERM,
    EROFS,
    ESTALE,
    EXDEV,
    errorcode,
)
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from edl_ckpt.cli import app
from edl_ckpt.core.storage.faults import Fault
from fault_sweep import Point, Trial, environment, judge_next, judge_state, prepare
from sweep_commands import COMMANDS, Command, prepare_run
from sweep_state import State, snapshot

Tried = TypeVar("Tried")
OFF, ERROR, DONE, SHORT, KILLED, STOPPED = range(6)
MODES = {ERROR: "", DONE: "done, ", SHORT: "short", KILLED: "killed", STOPPED: "stopped"}
FAULTS: Mapping[str, tuple[tuple[int, int], ...]] = {
    "open": ((ERROR, EIO), (ERROR, EACCES), (ERROR, ESTALE), (ERROR, EMFILE)),
    "create": ((ERROR, EIO), (ERROR, EROFS), (ERROR, ENOSPC)),
    "read": ((ERROR, EIO), (SHORT, 0)),
    "pread": ((ERROR, EIO), (ERROR, ESTALE), (SHORT, 0)),
    "write": ((ERROR, ENOSPC), (ERROR, EIO), (SHORT, 0)),
    "pwrite": ((ERROR, EDQUOT), (ERROR, EIO), (SHORT, 0)),
    "stat": ((ERROR, EIO), (ERROR, ESTALE), (ERROR, EACCES)),
    "lstat": ((ERROR, EIO), (ERROR, EACCES)),
    "fstat": ((ERROR, EIO), (ERROR, ESTALE)),
    "statvfs": ((ERROR, EIO),),
    "access": ((ERROR, EIO),),
    "opendir": ((ERROR, EIO), (ERROR, EACCES)),
    "readdir": ((ERROR, EIO), (ERROR, ESTALE)),
    "close": ((DONE, EIO),),
    "flock": ((ERROR, ENOLCK), (ERROR, EIO)),
    "mmap": ((ERROR, ENOMEM), (ERROR, ENODEV)),
    "fsync": ((ERROR, EIO), (DONE, EIO)),
    "fallocate": ((ERROR, ENOSPC), (ERROR, EOPNOTSUPP)),
    "ftruncate": ((ERROR, EIO),),
    "rename": ((ERROR, EIO), (DONE, EIO), (ERROR, EXDEV), (ERROR, EROFS)),
    "link": ((ERROR, EIO), (DONE, EIO)),
    "symlink": ((ERROR, EIO), (ERROR, EROFS)),
    "readlink": ((ERROR, EIO),),
    "utime": ((ERROR, EPERM),),
    "setxattr": ((ERROR, EOPNOTSUPP),),
    "unlink": ((ERROR, EIO), (DONE, EIO), (ERROR, EPERM)),
    "rmdir": ((ERROR, EIO), (DONE, EIO)),
    "mkdir": ((ERROR, EROFS), (DONE, EIO)),
    "chmod": ((ERROR, EPERM),),
    "chown": ((ERROR, EPERM),),
}
"""The faults of each call: how it ends, and its error."""
READING: Mapping[str, tuple[str, ...]] = {
    "list": ("list", "run", "--json"),
    "inspect --stats": ("inspect", "run@30", "--stats", "--json"),
    "verify": ("verify", "run@30", "--deep", "--workers", "1", "--json"),
    "verify --all": ("verify", "run", "--all", "--quick", "--workers", "1", "--json"),
    "get": ("get", "run@30", "--table", "t", "--id", "7", "--json"),
    "sample": ("sample", "run@30", "--table", "t", "--json"),
    "report": ("report", "run", "--json"),
    "diff": ("diff", "run@20", "run@30", "--workers", "1", "--json"),
    "metrics show": ("metrics", "show", "run", "--json"),
    "tag list": ("tag", "list", "run", "--json"),
    "policy show": ("policy", "show", "run", "--json"),
    "prune --dry-run": ("prune", "run", "--keep", "1", "--dry-run", "--json"),
}
"""Commands that change nothing, and print one document."""
FINDINGS = {"list", "report", "prune", "verify", "metrics", "tag"}
"""Commands that may end with 3: what could be read is shown."""
LOOKS = {"flock", "open", "opendir", "readdir", "lstat", "stat", "fstat", "close"}
"""Calls without which what is staged, or a lock's file, cannot be removed; the next command removes it then."""
SECONDS = 60


@dataclass(frozen=True, slots=True)
class ShimPoint:
    """One fault: the k-th call of a name that concerns the directory, how it ends, and its error."""

    call: str
    k: int
    mode: int
    code: int
    always: bool = False
    """True when each later call of the name fails too."""

    def __str__(self) -> str:
        kind = f"{MODES[self.mode]}{errorcode.get(self.code, '')}"
        return f"({self.call}, {self.k}{' and later' if self.always else ''}, {kind})"


@dataclass(frozen=True, slots=True)
class Ended:
    """How a forked command ended; `counts` has its calls by name."""

    code: int
    fired: bool
    out: str
    err: str
    counts: Mapping[str, int]


# The library


def build(folder: Path) -> Path:
    """Compile the library into a folder and return its path; raises OSError or CalledProcessError where that fails."""
    made = folder / "fault_shim.so"
    source = Path(__file__).with_name("fault_shim.c")
    command = ["gcc", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-O1", "-o", str(made), str(source), "-ldl"]
    subprocess.run(command, check=True, capture_output=True, text=True)
    return made


def start(library: Path, *words: str, module: str = "shim_sweep") -> subprocess.CompletedProcess[str]:
    """Run this module, or another one, as a program with the library before the C library."""
    paths = os.pathsep.join(path for path in sys.path if path)
    env = {**environment(), "LD_PRELOAD": str(library), "PYTHONPATH": paths, "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, "-m", module, *words]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=3600, check=False)


def shim() -> ctypes.CDLL:
    """Return the library that this process was started with."""
    library = ctypes.CDLL(os.environ["LD_PRELOAD"])
    library.shim_arm.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_long, *[ctypes.c_int] * 3]
    library.shim_name.restype = ctypes.c_char_p
    library.shim_count.restype = ctypes.c_long
    return library


def forked(
    work: Path,
    argv: Sequence[str],
    point: ShimPoint,
    *,
    below: Path | None = None,
    has_exchange: bool = True,
    meanwhile: Callable[[], None] = lambda: None,
) -> Ended:
    """Run a command in a fork of this process, one call of it disturbed; the calls of others are counted.

    Calls count that concern a path `below` a directory, by default the one that it works in. What happens `meanwhile`
    happens while the command is stopped.
    """
    aside = work.with_name(f"{work.name}.ended")
    aside.mkdir()
    pid = os.fork()
    if pid == 0:
        try:
            gc.freeze()  # as in `fork`
            _child(work, argv, point, aside, below or work, has_exchange=has_exchange)
        finally:
            os._exit(99)
    status = os.waitpid(pid, os.WUNTRACED)[1]
    if os.WIFSTOPPED(status):
        try:
            meanwhile()
        finally:
            os.kill(pid, signal.SIGCONT)
            status = os.waitpid(pid, 0)[1]
    code = os.waitstatus_to_exitcode(status)
    facts: dict[str, Any] = {"fired": False, "counts": {}}
    if (aside / "facts").exists():
        facts = json.loads((aside / "facts").read_text())
    out, err = ((aside / name).read_text(errors="replace") for name in ("out", "err"))
    shutil.rmtree(aside)
    return Ended(code, facts["fired"], out, err, facts["counts"])


def _child(work: Path, argv: Sequence[str], point: ShimPoint, aside: Path, below: Path, *, has_exchange: bool) -> None:
    signal.alarm(SECONDS)
    library = shim()
    os.chdir(work)
    for number, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(aside / name, os.O_WRONLY | os.O_CREAT, 0o600), number)
    sys.stdout, sys.stderr = (open(n, "w", encoding="utf-8", closefd=False) for n in (1, 2))  # noqa: SIM115
    library.shim_without_exchange(not has_exchange)
    library.shim_arm(point.call.encode(), os.fsencode(below), point.k, point.code, point.mode, point.always)
    code = 0
    try:
        app.run(list(argv))
    except SystemExit as end:
        code = int(end.code or 0)
    except BaseException:  # noqa: BLE001 - what the program would show
        sys.excepthook(*sys.exc_info())
        code = 98
    gc.collect()  # what is closed late is closed now
    library.shim_disarm()
    sys.stdout.flush()
    sys.stderr.flush()
    counts: dict[str, int] = {}
    while name := library.shim_name(len(counts)):
        counts[name.decode()] = library.shim_count(len(counts))
    (aside / "facts").write_text(json.dumps({"fired": bool(library.shim_fired()), "counts": counts}))
    os._exit(code)


# Trials


def points_of(trial: Trial, work: Path) -> list[ShimPoint]:
    """Count the calls of an undisturbed run, and return every fault at every call."""
    shutil.copytree(trial.template, work)
    ended = forked(work, trial.command.argv, ShimPoint("", 0, OFF, 0))
    assert ended.code in {0, 3}, ended.err
    shutil.rmtree(work)
    return [
        ShimPoint(call, k, mode, code)
        for call, count in sorted(ended.counts.items())
        for k in range(1, count + 1)
        for mode, code in FAULTS[call]
    ]


def disturb(trial: Trial, point: ShimPoint, usual: Ended | None) -> tuple[bool, list[str]]:
    """Try one fault on a fresh copy; return whether it was met, and what is not as it must be.

    `usual` is the end of a reading command that nothing disturbs, None for a changing command.
    """
    with tempfile.TemporaryDirectory(dir=trial.template.parent) as base:
        work = Path(base).resolve() / "work"
        shutil.copytree(trial.template, work, symlinks=True)
        ended = forked(work, trial.command.argv, point)
        problems = list(_judge_end(trial.command, point, ended, usual))
        if usual is None:
            alike = Point("unlink" if point.call in LOOKS else point.call, point.k, str(point))
            warned = "cannot be read" in ended.err  # prune keeps what it cannot read, and says so
            problems += judge_state(trial, alike, ended.code or int(warned), work)
            problems += judge_next(trial, work)
        else:
            texts = _timeless(ended.out), _timeless(usual.out)
            document = json.loads(ended.out) if ended.out else {}
            found_out = any(not opened["ok"] for opened in document.get("opened", ()))  # a report names what it finds
            warned = bool(document.get("warnings")) or found_out
            if ended.code == usual.code and texts[0] != texts[1] and not warned:
                problems.append(f"success, but it prints {_lines_of(*texts)}")
            found = snapshot(work)
            if found != trial.old:
                problems.append("a reading command has changed something")
        return ended.fired, problems


def _judge_end(command: Command, point: ShimPoint, ended: Ended, usual: Ended | None) -> Iterator[str]:
    wanted = {0}
    if point.mode != SHORT and ended.fired:
        wanted.add(Fault.of(OSError(point.code, os.strerror(point.code)), "x").kind.exit_code)
    if ended.fired and command.argv[0] in FINDINGS:
        wanted.add(3)
    if ended.fired and command.argv[0] == "prune":
        wanted.add(16)  # what cannot be read now is guarded, so a plan made a moment ago is stale
    if usual is not None:
        wanted = (wanted - {0}) | {usual.code}
    if ended.code not in wanted:
        yield f"ended with {ended.code}: {ended.err[-1500:]}"
    if any(word in ended.err for word in ("Traceback", "Exception ignored", "internal error")):
        yield f"a traceback: {ended.err[-1500:]}"


def _timeless(out: str) -> str:
    """Return a document without what differs from run to run."""

    def without(value: Any) -> Any:
        if isinstance(value, dict):
            return {
                k: without(v) for k, v in value.items() if k not in {"seconds", "peak_memory_bytes", "modified", "made"}
            }
        return [without(v) for v in value] if isinstance(value, list) else value

    return json.dumps(without(json.loads(out))) if out else ""


def _lines_of(found: str, usual: str) -> str:
    """Return the lines of a document that differ from the usual ones."""
    texts = [json.dumps(json.loads(text), indent=0).splitlines() for text in (usual, found)]
    lines = difflib.unified_diff(texts[0], texts[1], n=0, lineterm="")
    return "; ".join(line for line in lines if line[1:2] not in "-+@")[:1000]


def _trials(names: Sequence[str], base: Path) -> Iterator[tuple[Trial, Ended | None]]:
    """Yield each command with its template; a reading one with its usual output."""
    for command in COMMANDS:
        if (not names or command.name in names) and not command.always and not command.then:
            yield prepare(command, base / str(len(list(base.iterdir())))), None
    for name, argv in READING.items():
        if not names or name in names:
            template = base.resolve() / str(len(list(base.iterdir()))) / "template"
            template.mkdir(parents=True)
            prepare_run(template)
            state: State = snapshot(template)
            trial = Trial(Command(name, prepare_run, argv, {}), template, state, state)
            _warm(trial)
            ended = forked(template, argv, ShimPoint("", 0, OFF, 0))
            assert ended.code in {0, 3}, ended.err
            yield trial, ended


def _warm(trial: Trial) -> None:
    """Run a command once in this process, so that a fork has everything imported."""
    from fault_sweep import run_here

    run_here(trial.template, trial.command.argv)


def sweep(names: Sequence[str], sample: int, part: tuple[int, int]) -> Iterator[dict[str, Any]]:
    """Yield for each command how many points were tried, by call, and what was wrong; `sample` 0 tries all points."""
    with tempfile.TemporaryDirectory() as base:
        for trial, usual in _trials(names, Path(base)):
            points = points_of(trial, trial.template.with_name("count"))[part[0] :: part[1]]
            yield try_points(
                trial.command.name, points, sample, partial(_disturbed, trial, usual), lambda point: point.call
            )


def _call(point: ShimPoint) -> str:
    return point.call


def _disturbed(trial: Trial, usual: Ended | None, point: ShimPoint) -> tuple[bool, list[str]]:
    return disturb(trial, point, usual)


def try_points(
    name: str,
    points: Sequence[Tried],
    sample: int,
    disturb: Callable[[Tried], tuple[bool, list[str]]],
    call: Callable[[Tried], str],
    shown: Callable[[Tried], str] = str,
) -> dict[str, Any]:
    """Try the points of a command, `sample` of them or all with 0; return counts by call, and what was wrong."""
    chosen = random.Random(name).sample(points, min(sample, len(points))) if sample else points
    wrong: dict[str, list[str]] = {}
    met = 0
    for point in chosen:
        fired, problems = disturb(point)
        met += fired
        if problems:
            wrong[shown(point)] = problems
    return {"command": name, "points": len(chosen), "met": met, "calls": Counter(map(call, chosen)), "wrong": wrong}


def print_sweep(description: str, sweep: Callable[[Sequence[str], int, tuple[int, int]], Iterator[object]]) -> None:
    """Run the sweep that the command line describes, and print one document a command."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("commands", nargs="*", help="commands by name; all without one")
    parser.add_argument("--sample", type=int, default=0, help="points of each command; 0 for all")
    parser.add_argument("--part", default="0/1", help="I/N: only every N-th point, from the I-th on")
    chosen = parser.parse_args()
    first, _, step = chosen.part.partition("/")
    for outcome in sweep(chosen.commands, chosen.sample, (int(first), int(step))):
        print(json.dumps(outcome), flush=True)


if __name__ == "__main__":
    print_sweep("Faults in calls of the C library.", sweep)
