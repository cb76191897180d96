"""Measures functions of the library in one process, each beside its reference, in turn and without a start-up."""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))


class Timing(NamedTuple):
    """One call: seconds of the clock and of the CPU, and the most memory that the process has had since its start."""

    wall: float
    cpu: float
    peak_mib: float


def in_turn(ours: Callable[[], Any], reference: Callable[[], Any], runs: int) -> list[tuple[Timing, Timing]]:
    """Return what both took, in pairs, after one call of each that does not count."""
    return [(timed(ours), timed(reference)) for _ in range(runs + 1)][1:]


def timed(function: Callable[[], Any]) -> Timing:
    """Return what a call took; its result is freed outside of the time."""
    cpu, begin = time.process_time(), time.perf_counter()
    result = function()
    wall, cpu = time.perf_counter() - begin, time.process_time() - cpu
    del result
    return Timing(wall, cpu, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


def restore_beside_elasticdl(source: str, ps_num: int, runs: int) -> list[tuple[Timing, Timing]]:
    """Restore server 1 of so many, beside ElasticDL's restore."""
    from edl_ckpt.core import restore
    from elasticdl_restore import restore_params

    directory = next(path for path in Path(source).iterdir() if path.name.startswith("version"))
    return in_turn(
        lambda: restore(f"{source}@1", 1 % ps_num, ps_num),
        lambda: restore_params(directory, 1 % ps_num, ps_num),
        runs,
    )


def restore_beside_reads(source: str, ps_num: int, runs: int) -> list[tuple[Timing, Timing]]:
    """Restore server 1 of so many, beside a plain read of the shards that it needs into fresh memory."""
    from edl_ckpt.core import list_versions, restore

    (version,) = list_versions(source).versions
    step = np.gcd(version.ps_num or 1, ps_num)
    paths = [shard.path for shard in version.shards if shard.ps_id % step == 1 % ps_num % step]
    return in_turn(
        lambda: restore(version, 1 % ps_num, ps_num), lambda: [np.fromfile(path, np.uint8) for path in paths], runs
    )
