"""The figures of the library's functions, called in one process without its start-up."""

from __future__ import annotations

from collections.abc import Iterator

import library
from disk_figures import Bench
from measure import Figure, Target, in_one_process, remove
from shapes import Shape, make


def restore_figures(bench: Bench) -> Iterator[Figure]:
    """Restore, beside ElasticDL's own restore of a million rows, and beside plain reads of 16 million."""
    rows, runs, work = bench.rows(1_000_000), bench.runs, bench.work
    cases = [
        ("4 -> 8", Shape(4, ((rows, 16),), 40), 8, Target(0.033)),
        ("4 -> 4", Shape(4, ((rows, 16),), 40), 4, Target(0.02)),
        ("8 -> 4", Shape(8, ((rows, 16),), 40), 4, Target(0.02)),
        ("4 -> 5, which needs all shards", Shape(4, ((rows, 16),), 40), 5, Target()),
        ("4 -> 8, 40 tables, 500 variables", Shape(4, ((rows // 40, 16),) * 40, 40, 500), 8, Target()),
    ]
    for name, shape, to_ps, target in cases:
        source = make(work / "source", shape)
        figure = Figure(f"restore {name}, {rows / 1e6:.1f} M rows of dim 16", "ElasticDL", target)
        yield in_one_process(figure, library.restore_beside_elasticdl, str(source), to_ps, runs)
        remove(source)()
    source = make(work / "source", Shape(4, ((16 * rows, 16),), 40))
    for to_ps, most in ((4, 0.5), (8, 0.4)):
        name = f"restore 4 -> {to_ps}, {16 * rows / 1e6:.1f} M rows of dim 16; memory beyond the part"
        figure = Figure(name, "reading a shard", Target(seconds=most, mib=64))
        yield in_one_process(figure, library.restore_beside_reads, str(source), to_ps, runs)
    remove(source)()


def save_figures(bench: Bench) -> Iterator[Figure]:
    """Save arrays of a process as a version, beside `tofile` and `fsync` of the same arrays."""
    rows = bench.rows(16_000_000)
    name = f"save_checkpoint, {rows / 1e6:.1f} M rows of dim 16; memory beyond the arrays"
    figure = Figure(name, "tofile, fsync", Target(1.5, mib=64))
    yield in_one_process(figure, library.save_beside, "tofile", str(bench.work), rows, bench.runs)
