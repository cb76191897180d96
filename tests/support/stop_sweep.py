"""A command that is stopped between its look and its act: what comes into the directory meanwhile stays.

At each call that changes something, and at some of those that look, the command stops (SIGSTOP), a job writes into the
directory that the command is about to replace, change or delete, and the command goes on. What the job wrote must be
there at the end, at its place, or in the trash with a warning; also after `recover` and the same command again.

`python -m stop_sweep --help` says how to run all points.
"""

from __future__ import annotations

import signal
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from fault_sweep import run_here
from raw_trees import raw_tree
from shim_sweep import OFF, STOPPED, Ended, ShimPoint, forked, print_sweep, try_points
from sweep_state import EXPORTS
from writer_rows import NEWER, ROWS, STEP, Writer
from writer_sweep import Trial, copy_of, prepared

STOPS: Final[Mapping[str, int]] = {
    "rename": 1, "unlink": 1, "rmdir": 1, "mkdir": 2, "fsync": 1, "symlink": 1, "chmod": 3, "utime": 3, "create": 2,
    "opendir": 3, "readdir": 9, "lstat": 9, "flock": 1,
}  # fmt: skip
"""The calls that a command is stopped before, and each how many of them."""
NAMES: Final = tuple(
    name
    for name in ROWS
    if name.split(",")[0].removesuffix(" without exchange")
    in {"reshard in place", "strip", "repair", "prune", "export --force"}
)
CHANGES: Final = ("a new file", "a directory", "a file again")
"""What the job does: it adds a file, saves one of the checkpoint's again, or adds a directory with a file."""
_SAVED: Final = b"a save that came while the command was stopped"


def target_of(row: Writer, work: Path) -> Path:
    """Return the directory that a command replaces, changes or deletes."""
    return work / EXPORTS / "made" if row.name.startswith("export") else work / f"run/step_{STEP}"


def write(target: Path, change: str) -> Path:
    """Write as a job does, into the directory that has the name at this moment; return what was written."""
    if change == "a file again":
        files = sorted(path for path in target.rglob("*") if path.is_file() and not path.is_symlink())
        path = files[len(files) // 2] if files else target / "late.bin"
    else:
        path = target / ("late/late.bin" if change == "a directory" else "late.bin")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(_SAVED)
    return path


def points_of(trial: Trial, work: Path) -> list[tuple[ShimPoint, str]]:
    """Return each call that a command is stopped before, with what a job does then, in turn."""
    copy_of(trial.template, work)
    ended = forked(work, trial.row.argv, ShimPoint("", 0, OFF, 0), has_exchange=trial.row.has_exchange)
    assert ended.code == trial.row.usual, ended.err
    points = [
        ShimPoint(call, k, STOPPED, 0)
        for call, count in sorted(ended.counts.items())
        for k in range(1, count + 1, STOPS.get(call, count + 1))
        if call in STOPS
    ]
    # An export replaces the files of an earlier one, whenever they were written.
    changes = CHANGES[:2] if trial.row.name.startswith("export") else CHANGES
    return [(point, changes[number % len(changes)]) for number, point in enumerate(points)]


def disturb(trial: Trial, point: ShimPoint, change: str) -> tuple[bool, list[str]]:
    """Try one stop on a fresh copy; return whether it was met, and what is not as it must be."""
    row = trial.row
    with tempfile.TemporaryDirectory(dir=trial.template.parent) as base:
        work = copy_of(trial.template, Path(base).resolve() / "work")
        written: list[Path] = []
        ended = forked(
            work,
            row.argv,
            point,
            has_exchange=row.has_exchange,
            meanwhile=lambda: written.append(write(target_of(row, work), change)),
        )
        problems = [*_judge_end(ended)]
        for path in written:
            problems += _judge_saved(path, work, ended, "")
            for place in ("run", "other"):
                if (work / place).is_dir():
                    run_here(work, ("recover", place, "--yes"))
            problems += _judge_saved(path, work, ended, "after recover, ")
        newer = raw_tree(work / f"run/step_{NEWER}")
        wanted = raw_tree(trial.template / f"run/step_{NEWER}")
        if newer != wanted and not row.name.startswith("strip"):
            problems.append("the other step has changed")
        return ended.fired and bool(written), problems


def _judge_end(ended: Ended) -> Iterator[str]:
    if ended.code not in {0, 3, 5, 10, 11, 16} or ended.code == -signal.SIGKILL:
        yield f"ended with {ended.code}: {ended.err[-1200:]}"
    if any(word in ended.err for word in ("Traceback", "Exception ignored", "internal error")):
        yield f"a traceback: {ended.err[-1500:]}"


def _judge_saved(path: Path, work: Path, ended: Ended, when: str) -> Iterator[str]:
    """Yield that what a job wrote is gone; in the trash it counts where the command said so, or keeps all there."""
    if path.is_file() and path.read_bytes() == _SAVED:
        return
    kept = [one for one in (work / "run").glob(".edl-ckpt-0/trash-0/*/**/*") if one.name == path.name]
    if any(one.is_file() and one.read_bytes() == _SAVED for one in kept):
        return
    yield f"{when}{path.relative_to(work)} is gone; it ended with {ended.code}: {ended.err[-300:]}"


def _disturbed(trial: Trial, point: tuple[ShimPoint, str]) -> tuple[bool, list[str]]:
    return disturb(trial, *point)


def _shown(tried: tuple[ShimPoint, str]) -> str:
    return f"{tried[0]} {tried[1]}"


def sweep(names: Sequence[str], sample: int, part: tuple[int, int]) -> Iterator[dict[str, Any]]:
    """Yield how many points of each command were tried, by call, and what was wrong; `sample` 0 tries all."""
    with tempfile.TemporaryDirectory() as base:
        for number, name in enumerate(names or NAMES):
            trial = prepared(ROWS[name], Path(base) / str(number))
            points = points_of(trial, Path(base).resolve() / str(number) / "count")[part[0] :: part[1]]
            yield try_points(name, points, sample, partial(_disturbed, trial), lambda tried: tried[0].call, _shown)


if __name__ == "__main__":
    print_sweep("A command that is stopped while a job writes.", sweep)
