"""Faults in system calls: a command under strace, one call of it failing or its last, and what must hold then.

A command is a row of `sweep_commands.COMMANDS`; a new command is a new row, nothing else. Its `State` before and after,
undisturbed, is compared: versions with their fingerprints, documents, exported files, the answer of ElasticDL's scan.
Whatever call was disturbed, each item of the state must be the old one or the new one, whole. The process must say so
by its exit code, and the same command again must bring the new state.

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

import io
import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import chdir, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from edl_ckpt.cli import app
from edl_ckpt.core.base.errors import EdlCkptError, NoSpaceError, NotFoundError, RefusedError, UsageError
from program import PROGRAM
from sweep_commands import EIO, ENOSPC, KILL, UNLINK, Command
from sweep_state import LOCATIONS, FoundVersion, State, described, is_for_prune, leftovers, snapshot

EINTR, EOPNOTSUPP, EINVAL = "error=EINTR", "error=EOPNOTSUPP", "error=EINVAL"

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
PARTLY = 3
"""The exit code of a command of several steps that did all but the one that failed."""
REMOVALS = {"unlink", "unlinkat", "rmdir", UNLINK}
OF_FILES = {"write", "pwrite64", "fallocate", "ftruncate", "fsync", "fdatasync"}
"""Calls that name their file by its number."""


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


# A command, here and under strace


def environment() -> dict[str, str]:
    """Return the environment of every command: nobody's settings, no caches written."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("EDL_CKPT_")}
    return {**own, "XDG_CONFIG_HOME": "/nowhere", "XDG_CACHE_HOME": "/proc/none", "PYTHONDONTWRITEBYTECODE": "1"}


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
    assert changed == dict(command.new), changed
    before, since = ({i.fingerprint for i in s.values() if isinstance(i, FoundVersion)} for s in (old, new))
    assert before >= since
    assert not any("not whole" in fingerprint for fingerprint in since)
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
        astray = bool(hit) and not fired
        problems = [*_judge_end(point, done, fired=fired, astray=astray, one_step=trial.command.one_step)]
        problems += judge_state(trial, point, done.returncode, work)
        problems += judge_next(trial, work)
        return Outcome(point, fired, tuple(problems))


def exit_codes() -> set[int]:
    """Return the documented exit codes of a failure that is not the user's: of our errors, but not of wrong usage."""

    def below(kind: type[EdlCkptError]) -> Iterator[int]:
        yield kind.exit_code
        for child in kind.__subclasses__():
            yield from below(child)

    return {*below(EdlCkptError)} - {UsageError.exit_code}


def _judge_end(
    point: Point, done: subprocess.CompletedProcess[str], *, fired: bool, astray: bool, one_step: bool
) -> Iterator[str]:
    """Yield what is wrong with how a process ended; a fault that went astray, into the interpreter, tells nothing."""
    code = -done.returncode if done.returncode < 0 else done.returncode
    if point.fault == KILL:
        wanted = {int(signal.SIGKILL)} if fired or astray else {0}
    else:
        wanted = ENDS.get(point.fault, {0, *exit_codes()}) | (set() if one_step else {PARTLY})
    if astray:
        return
    if code not in wanted:
        yield f"ended with {code}: {done.stderr[-2000:]}"
    elif any(word in done.stderr for word in ("Traceback", "Exception ignored")):
        yield f"a traceback: {done.stderr[-2000:]}"


def judge_state(trial: Trial, point: Point, code: int, work: Path) -> Iterator[str]:
    """Yield what is neither old nor new, what a success did not change, and what a full disk let through."""
    if (
        trial.command.gap == point.k
        and point.fault == KILL
        and {"rename", "renameat"}.issuperset(point.calls.replace("?", "").split(","))
    ):
        return
    found = snapshot(work)
    yield from _neither(trial, found, torn=trial.command.torn and code != 0)
    if code == 0 and found != trial.new:
        yield f"success, but {_difference(found, trial.new)}"
    if code == NoSpaceError.exit_code and trial.command.one_step and found != trial.old:
        yield f"no space, but {_difference(found, trial.old)}"
    rest = [name for name in leftovers(work) if not is_for_prune(work / name)] if code >= 0 else []
    if rest and point.calls not in REMOVALS:
        yield f"it ended by itself and left {', '.join(rest)}"


def _neither(trial: Trial, found: State, *, torn: bool = False) -> Iterator[str]:
    for name in sorted({*found, *trial.old, *trial.new}):
        item = found.get(name)
        if torn and ("not whole" in getattr(item, "fingerprint", "") or str(item).startswith("crash")):
            continue
        if found.get(name) not in (trial.old.get(name), trial.new.get(name)):
            yield f"{name} is {_shown(found.get(name))}: neither the old one nor the new"
    if trial.command.one_step and found not in (trial.old, trial.new):
        yield f"some of it is old and some new: {_difference(found, trial.new)}"


def judge_next(trial: Trial, work: Path) -> Iterator[str]:
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
    if isinstance(item, FoundVersion):
        return f"{item} ({item.fingerprint[:16]}, bytes {item.digest[:8]})"
    return f"file {item[:8]}" if described(item) == "file" else str(described(item))
