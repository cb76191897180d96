"""What a figure is, and how commands are measured: in turn with a reference, as whole processes with their start-up."""

from __future__ import annotations

import functools
import json
import os
import shlex
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

Result = TypeVar("Result")
EDL = [sys.executable, "-c", "from edl_ckpt.cli.app import main; main()"]


@dataclass
class Run:
    """One process: wall and CPU seconds, peak memory, what it printed."""

    wall: float
    cpu: float
    peak_mib: float
    stdout: str = ""
    stderr: str = ""


@dataclass(frozen=True, slots=True)
class Target:
    """The most that a figure may be: times the reference, seconds, seconds of CPU, MiB; None where nothing is asked."""

    ratio: float | None = None
    seconds: float | None = None
    mib: float | None = None
    cpu: float | None = None
    more_seconds: float | None = None

    def __str__(self) -> str:
        parts = [
            (self.ratio, "{:g} x"),
            (self.seconds, "{:g} s"),
            (self.cpu, "{:g} s CPU"),
            (self.more_seconds, "+{:g} s"),
            (self.mib, "{:g} MiB"),
        ]
        return ", ".join(text.format(value) for value, text in parts if value is not None) or "-"


@dataclass
class Figure:
    """A measured line: our runs and the reference's, in pairs; `traffic` is what a server counted in our last run."""

    name: str
    against: str
    target: Target = Target()
    ours: list[Run] = field(default_factory=list)
    reference: list[Run] = field(default_factory=list)
    note: str = ""
    traffic: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def from_json(cls, found: dict[str, Any]) -> Figure:
        """Return the figure that `asdict` made this of."""
        runs = {name: [Run(**run) for run in found[name]] for name in ("ours", "reference")}
        return cls(**{**found, **runs, "target": Target(**found["target"])})

    def to_json(self) -> dict[str, Any]:
        """Return the raw results."""
        return asdict(self)

    @property
    def ratios(self) -> list[float]:
        """Return the ratio of each pair."""
        return [a.wall / b.wall for a, b in zip(self.ours, self.reference, strict=True)]

    @property
    def median_ratio(self) -> float:
        """Return the median of the ratios."""
        return statistics.median(self.ratios)

    def median(self, what: str, *, reference: bool = False) -> float:
        """Return the median of one measure of our runs, or of the reference's."""
        return float(statistics.median(getattr(run, what) for run in (self.reference if reference else self.ours)))

    @property
    def peak_mib(self) -> float:
        """Return the greatest memory of our runs."""
        return max(run.peak_mib for run in self.ours)

    def missed(self) -> str:
        """Return which part of the target was missed, and by how much; '' when none was."""
        wall, reference = self.median("wall"), self.median("wall", reference=True)
        found = [
            (self.median_ratio, self.target.ratio, " x"),
            (wall, self.target.seconds, " s"),
            (self.median("cpu"), self.target.cpu, " s CPU"),
            (wall - reference, self.target.more_seconds, " s more"),
            (self.peak_mib, self.target.mib, " MiB"),
        ]
        return ", ".join(f"{value:.2f}{unit}" for value, most, unit in found if most is not None and value > most)

    def line(self, title: str = "") -> str:
        """Return the row of a table: work, our time, the reference with our target in brackets, memory.

        The work is named without the title of its table, and with the requests that a server counted.
        """
        against = self._against()
        requests = f"; {sum(self.traffic['requests'].values()):,} requests" if self.traffic else ""
        return (
            f"| {self.name.removeprefix(f'{title} ')}{requests} | {seconds(self.median('wall'))} |"
            f" {f'**{against}**' if self.missed() else against} | {self.peak_mib:.0f} MiB |"
        )

    def item(self) -> str:
        """Return the item of a list: work, our time, the reference with our target in brackets, memory."""
        return (
            f"* {self.name}: {seconds(self.median('wall'))}, {self._against()}, with {self.peak_mib:.0f} MiB of memory"
        )

    def _against(self) -> str:
        ratio = f"{self.median_ratio:.2f}" if self.median_ratio >= 0.1 else f"{self.median_ratio:.3f}"
        most = f" ({self.target})" if self.target != Target() else ""
        return f"{ratio} x {self.against}{most}"


def fill(page: str, name: str, lines: Iterable[str]) -> str:
    """Return a page with lines between the marks of this name; ValueError where there are none."""
    begin, end = f"<!-- figures: {name} -->\n", "<!-- end -->"
    head, mark, rest = page.partition(begin)
    _, last, tail = rest.partition(end)
    if not (mark and last):
        raise ValueError(f"no place for {name}")
    return head + begin + "".join(f"{line}\n" for line in lines) + end + tail


def seconds(value: float) -> str:
    """Return a time in seconds, or in milliseconds when it is short."""
    return f"{value:.2f} s" if value >= 0.1 else f"{1000 * value:.1f} ms"


def run(command: list[str], work: Path) -> Run:
    """Run a command to its end and return what it took."""
    out, err = work / "stdout", work / "stderr"
    runner = _runner()
    assert runner.stdin is not None
    assert runner.stdout is not None
    # An installed program has its bytecode; the run that does not count writes it here.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    print(json.dumps([command, str(out), str(err), environment]), file=runner.stdin, flush=True)
    code, wall, cpu, peak_mib = json.loads(runner.stdout.readline())
    with out.open() as stdout, err.open() as stderr:  # a table of 100,000 rows is not kept
        done = Run(wall, cpu, peak_mib, stdout.read(4000), stderr.read(4000))
    if code not in {0, 3}:
        raise SystemExit(f"{shlex.join(command)} failed: {done.stderr}")
    return done


@functools.cache
def _runner() -> subprocess.Popen[str]:
    """Start the small process that runs the commands: the kernel counts the memory of what starts a process as its."""
    command = [sys.executable, "-S", __file__]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def _serve() -> None:
    """Run the command of each line of stdin, and print its exit code and what it took."""
    for line in sys.stdin:
        command, out, err, environment = json.loads(line)
        begin = time.perf_counter()
        with open(out, "w", encoding="utf-8") as stdout, open(err, "w", encoding="utf-8") as stderr:
            pid = os.posix_spawnp(
                command[0],
                command,
                environment,
                file_actions=[(os.POSIX_SPAWN_DUP2, stdout.fileno(), 1), (os.POSIX_SPAWN_DUP2, stderr.fileno(), 2)],
            )
            _, status, usage = os.wait4(pid, 0)
        wall = time.perf_counter() - begin
        code = os.waitstatus_to_exitcode(status)
        print(json.dumps([code, wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024]), flush=True)


def shell(script: str) -> list[str]:
    """Return the command that runs a script."""
    return ["sh", "-c", script]


def copying(source: Path, target: Path) -> list[str]:
    """Return the reference of what writes: `cp -r` and `sync`."""
    return shell(f"cp -r {shlex.quote(str(source))} {shlex.quote(str(target))} && sync")


def pairs(
    figure: Figure,
    runs: int,
    work: Path,
    ours: list[str],
    reference: list[str],
    clean: Callable[[], None],
    *,
    warm: bool = True,
) -> Figure:
    """Run both commands in turn, after one run of each that does not count."""
    for turn in range(runs + warm):
        clean()
        first = run(ours, work)
        clean()
        second = run(reference, work)
        if turn >= warm:
            figure.ours.append(first)
            figure.reference.append(second)
    clean()
    print(figure.line(), flush=True)
    return figure


def in_one_process(figure: Figure, measure: Callable[..., Sequence[tuple[Any, Any]]], *arguments: object) -> Figure:
    """Measure pairs of calls in a fresh process."""
    for ours, reference in elsewhere(measure, *arguments):
        figure.ours.append(Run(*ours))
        figure.reference.append(Run(*reference))
    print(figure.line(), flush=True)
    return figure


def elsewhere(function: Callable[..., Result], *arguments: Any) -> Result:
    """Return what a function returns in a process of its own."""
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import get_context

    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


def remove(*paths: Path) -> Callable[[], None]:
    """Return a function that removes what runs leave, and settles the disk."""

    def clean() -> None:
        for path in paths:
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        os.sync()

    return clean


def nothing() -> None:
    """Leave everything as it is between two runs."""


if __name__ == "__main__":
    _serve()
