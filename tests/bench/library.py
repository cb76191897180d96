"""Measures functions of the library in one process, each beside its reference, in turn and without a start-up."""

from __future__ import annotations

import gc
import os
import shutil
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from edl_ckpt.core.base.memory import peak_memory_bytes

if TYPE_CHECKING:
    from edl_ckpt.core import Table

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))


class Timing(NamedTuple):
    """One call: seconds of the clock and of the CPU, and the most memory that it had beyond what was there before."""

    wall: float
    cpu: float
    peak_mib: float


def in_turn(
    ours: Callable[[], Any], reference: Callable[[], Any], runs: int, clean: Callable[[], None] = lambda: None
) -> list[tuple[Timing, Timing]]:
    """Return what both took, in pairs, after one call of each that does not count."""
    found = []
    for _ in range(runs + 1):
        clean()
        first = timed(ours)
        clean()
        found.append((first, timed(reference)))
    clean()
    return found[1:]


def timed(function: Callable[[], Any], given: int = 0) -> Timing:
    """Return what a call took; its result is freed outside of the time, and `given` bytes of memory are not counted."""
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the peak begins anew
    before = peak_memory_bytes()
    cpu, begin = time.process_time(), time.perf_counter()
    result = function()
    wall, cpu = time.perf_counter() - begin, time.process_time() - cpu
    beyond = max(peak_memory_bytes() - before - given, 0)
    del result
    return Timing(wall, cpu, beyond / 2**20)


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
    """Restore server 1 of so many, beside a plain read of the shards that it needs into fresh memory.

    The memory of ours is what it has beyond the arrays of the part.
    """
    from edl_ckpt.core import list_versions, restore

    (version,) = list_versions(source).versions
    step = np.gcd(version.ps_num or 1, ps_num)
    paths = [shard.path for shard in version.shards if shard.ps_id % step == 1 % ps_num % step]
    part = restore(version, 1 % ps_num, ps_num)
    given = sum(array.nbytes for array in part.variables.values())
    given += sum(array.nbytes for table in part.tables.values() for array in (table.ids, table.vectors))
    del part
    return [
        (
            timed(lambda: restore(version, 1 % ps_num, ps_num), given),
            timed(lambda: [np.fromfile(path, np.uint8) for path in paths]),
        )
        for _ in range(runs + 1)
    ][1:]


def made(rows: int) -> Table:
    """Return a table of dim 16 with ids of 40 bits in no order."""
    from edl_ckpt.core import Table

    random = np.random.default_rng(5)
    ids = np.unique(random.integers(0, 1 << 40, rows))
    random.shuffle(ids)
    return Table(ids, random.standard_normal((len(ids), 16), np.float32))


def save_beside(what: str, work: str, rows: int, runs: int) -> list[tuple[Timing, Timing]]:
    """Save arrays as a version of 4 shards, beside another way to write the same arrays, flushed to the disk."""
    from edl_ckpt.core import save_checkpoint

    table, place = made(rows), Path(work) / "run"
    other = Path(work) / "other"
    arrays = {"ids": table.ids, "vectors": table.vectors}

    def clean() -> None:
        shutil.rmtree(place, ignore_errors=True)
        other.unlink(missing_ok=True)
        os.sync()

    def theirs() -> None:
        _WRITERS[what](arrays, other)
        with other.open("rb+") as file:
            os.fsync(file.fileno())

    return in_turn(
        lambda: save_checkpoint(place, 1, 4, variables={}, tables={"t": table}, layout="elasticdl"), theirs, runs, clean
    )


def load_beside(what: str, work: str, rows: int, runs: int) -> list[tuple[Timing, Timing]]:
    """Restore the only server of a version, beside another way to read the same arrays."""
    from edl_ckpt.core import restore, save_checkpoint

    table, place, other = made(rows), Path(work) / "run", Path(work) / "other"
    save_checkpoint(place, 1, 1, variables={}, tables={"t": table}, layout="elasticdl")
    _WRITERS[what]({"ids": table.ids, "vectors": table.vectors}, other)
    del table
    found = in_turn(lambda: restore(f"{place}@1", 0, 1), lambda: _READERS[what](other), runs)
    shutil.rmtree(place)
    other.unlink()
    return found


def _tofile(arrays: Mapping[str, Any], path: Path) -> None:
    with path.open("wb") as file:
        for array in arrays.values():
            array.tofile(file)


def _safetensors(arrays: Mapping[str, Any], path: Path) -> None:
    from safetensors.numpy import save_file

    save_file(dict(arrays), path)


def _npy(arrays: Mapping[str, Any], path: Path) -> None:
    with path.open("wb") as file:
        for array in arrays.values():
            np.save(file, array)


def _load_safetensors(path: Path) -> Any:
    from safetensors.numpy import load_file

    return load_file(path)


def _load_npy(path: Path) -> Any:
    with path.open("rb") as file:
        return np.load(file), np.load(file)


_WRITERS = {"tofile": _tofile, "safetensors": _safetensors, "np.save": _npy}
_READERS = {"safetensors": _load_safetensors, "np.save": _load_npy}
