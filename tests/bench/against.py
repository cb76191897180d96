"""Compare this checkout with another one, command by command: `against.py PYTHON --work DIR [--pairs 15] [NAME ...]`.

PYTHON is the interpreter of an environment in which the other checkout is installed. Both run in turn (A B A B ...), as
whole processes. Printed are the median of the ratios of the pairs, and an interval that has the true median with 95 %
by a bootstrap. A figure is worse where the median is beyond 1.03 and the interval excludes 1. With `EDL_CKPT_BENCH_S3`
(see `s3_server`) the commands on S3 are compared, too. The code is 1 when a figure is worse.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from uuid import uuid4

import numpy as np
from measure import EDL, nothing, remove, run
from s3_server import Server
from shapes import Shape, make

WORSE = 1.03
RESTORE = "import sys; from edl_ckpt.core import restore; restore(sys.argv[1] + '@1', 1, 3)"
SAVE = """
import sys
from edl_ckpt.core import restore, save_checkpoint
part = restore(sys.argv[1] + "@1", 0, 1)
save_checkpoint(sys.argv[2], 1, 4, variables=part.variables, tables=part.tables)
"""


@dataclass(frozen=True, slots=True)
class Case:
    """A command that both run, and what is cleaned up before each run."""

    name: str
    words: list[str]
    """Those of the program, or what Python itself takes: `-c` and a script of the library."""
    clean: Callable[[], None] = nothing

    def argv(self, python: str) -> list[str]:
        """Return the command by an interpreter; {} in it is another word each time."""
        words = self.words if self.words[0] == "-c" else [*EDL[1:], *self.words]
        return [python, *(word.replace("{}", uuid4().hex) for word in words)]


def disk_cases(work: Path, scale: float) -> Iterator[Case]:
    """Yield the commands on a disk; what they read is made when it is first needed."""
    out, rows = work / "out", int(16_000_000 * scale) + 10
    clean = remove(out)
    one = make(work / "one", Shape(4, ((rows, 16),), 40))
    mixed = tuple((rows // 40, dim) for dim in (1, 4, 8, 16, 32, 8, 16, 64) * 5)
    shapes = {
        "reshard 8 -> 7": (Shape(8, ((rows, 8),), 62), 7),
        "reshard of 40 tables": (Shape(4, mixed, 40, 500), 8),
        "reshard of 2,000 tables": (Shape(4, ((max(rows // 8000, 10), 16),) * 2000, 40), 64),
        "reshard of 4.5 GB": (Shape(4, ((4 * rows, 16),), 40), 8),
    }
    yield Case("reshard 4 -> 8", ["reshard", str(one), "--ps", "8", "--output", str(out)], clean)
    yield Case("verify", ["verify", str(one)])
    yield Case("verify --deep", ["verify", str(one), "--deep"])
    yield Case("export to safetensors", ["export", str(one), "--format", "safetensors", str(out)], clean)
    arrays = work / "one.safetensors"
    run([*EDL, "export", str(one), "--format", "safetensors", str(arrays)], work)
    yield Case("import of safetensors", ["import", str(arrays), f"{out}@1", "--ps", "8"], clean)
    yield Case("diff with itself", ["diff", str(one), str(one)])
    yield Case("inspect", ["inspect", str(one)])
    yield Case("list", ["list", str(one)])
    yield Case("restore of 1 of 3", ["-c", RESTORE, str(one)])
    yield Case("save", ["-c", SAVE, str(one), str(out)], clean)
    arrays.unlink()
    for name, (shape, ps_num) in shapes.items():
        source = make(work / "other", shape)
        yield Case(name, ["reshard", str(source), "--ps", str(ps_num), "--output", str(out)], clean)
        remove(source)()
    remove(one)()


def s3_cases(server: Server, work: Path, scale: float) -> Iterator[Case]:
    """Yield the commands on S3."""
    rows = int(16_000_000 * scale) + 10
    source = make(work / "big", Shape(8, ((rows, 16),), 40, 50))
    small = make(work / "small", Shape(200, ((rows // 32 + 400, 16),), 40, 50))
    for location, name in ((source, "big"), (small, "small")):
        run([*EDL, "copy", str(location), server.url(name)], work)
    yield Case("S3: copy", ["copy", str(source), server.url("copies/{}")])
    yield Case("S3: inspect of 200 shards", ["inspect", server.url("small")])
    yield Case("S3: verify --deep", ["verify", server.url("big"), "--deep"])
    yield Case("S3: reshard", ["reshard", server.url("big"), "--ps", "7", "--output", server.url("resharded/{}")])
    remove(source, small)()


def interval(ratios: list[float]) -> tuple[float, float]:
    """Return bounds of the median, each with 2.5 % beyond it, by resampling."""
    drawn = np.random.default_rng(0).choice(ratios, (10_000, len(ratios)))
    low, high = np.percentile(np.median(drawn, axis=1), [2.5, 97.5])
    return float(low), float(high)


def main() -> int:
    """Compare, print a line for each case, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("python")
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("names", nargs="*")
    asked = parser.parse_intermixed_args()
    asked.work.mkdir(parents=True, exist_ok=True)
    server, worse = Server.named(), 0
    is_far_only = asked.names and all(name.startswith("S3") for name in asked.names)
    cases = [] if is_far_only else [disk_cases(asked.work, asked.scale)]
    cases += [s3_cases(server, asked.work, asked.scale)] if server else []
    for case in chain(*cases):
        if not asked.names or any(name in case.name for name in asked.names):
            worse += compare(case, asked.python, asked.pairs, asked.work)
    return int(worse > 0)


def compare(case: Case, other: str, pairs: int, work: Path) -> bool:
    """Run a case by both in turn, print its line, and say whether this checkout is worse."""
    walls = []
    for _ in range(pairs + 1):
        for python in (sys.executable, other):
            case.clean()
            walls.append(run(case.argv(python), work).wall)
    case.clean()
    ours, others = walls[2::2], walls[3::2]  # the first pair warms the caches
    ratios = [mine / its for mine, its in zip(ours, others, strict=True)]
    middle, (low, high) = statistics.median(ratios), interval(ratios)
    is_worse = middle > WORSE and low > 1
    times = f"{statistics.median(ours):.2f} s, {statistics.median(others):.2f} s"
    print(f"{case.name:25} {middle:.3f} ({low:.3f} to {high:.3f})  {times}{'  WORSE' * is_worse}", flush=True)
    return is_worse


if __name__ == "__main__":
    sys.exit(main())
