"""The figures on a disk: each command beside `cp -r` and `sync`, `sha256sum`, or the program that does the same."""

from __future__ import annotations

import importlib.util
import shlex
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from measure import EDL, Figure, Target, copying, elsewhere, nothing, pairs, remove, run, shell
from shapes import Shape, make, size_of, write_holes

CP = "cp, sync"
PARSING = """
import sys
from pathlib import Path
from edl_ckpt.proto.model_v4_pb2 import Model
for path in sorted(Path(sys.argv[1]).rglob("*.ckpt")):
    print(len(Model.FromString(path.read_bytes()).dense_parameters))
"""
"""Parse every shard with the protobuf library."""
PYARROW = """
import os, sys
import numpy, pyarrow, pyarrow.parquet
folder, out = sys.argv[1:]
ids = numpy.load(os.path.join(folder, "table_00.ids.npy"), mmap_mode="r")
rows = numpy.load(os.path.join(folder, "table_00.vectors.npy"), mmap_mode="r")
step, dim = (1 << 20) // rows.shape[1], rows.shape[1]
schema = pyarrow.schema([("id", pyarrow.int64()), ("vector", pyarrow.list_(pyarrow.float32(), dim))])
with pyarrow.parquet.ParquetWriter(out, schema, use_dictionary=False, write_statistics=["id"]) as writer:
    for at in range(0, len(ids), step):
        flat = pyarrow.array(rows[at : at + step].reshape(-1))
        columns = [pyarrow.array(ids[at : at + step]), pyarrow.FixedSizeListArray.from_arrays(flat, dim)]
        writer.write_table(pyarrow.Table.from_arrays(columns, schema=schema))
os.fsync(os.open(out, os.O_RDONLY))
"""
"""Write arrays that are in order already to Parquet as an export does, with pyarrow alone."""


@dataclass(frozen=True, slots=True)
class Bench:
    """How to measure: pairs that count, the scale of all sizes, directories on the disk and in memory."""

    runs: int
    scale: float
    work: Path
    memory: Path | None = None
    large: bool = False

    @property
    def few(self) -> int:
        """Return the pairs of a figure that takes long."""
        return min(self.runs, 2)

    def rows(self, count: int) -> int:
        """Return a number of rows at this scale."""
        return int(count * self.scale) + 10


def reshard_figures(bench: Bench) -> Iterator[Figure]:
    """Reshard beside `cp -r` and `sync`, on the disk and in memory."""
    one = ((bench.rows(16_000_000), 16),)
    mixed = tuple((bench.rows(400_000), dim) for dim in (1, 4, 8, 16, 32, 8, 16, 64) * 5)
    many = ((bench.rows(2000), 16),) * max(int(2000 * bench.scale), 8)
    cases = [
        ("4 -> 8, dim 16, 40-bit ids", Shape(4, one, 40), 8, Target(1.25), Target(1.5)),
        ("8 -> 7, dim 8, 62-bit ids", Shape(8, ((one[0][0], 8),), 62), 7, Target(2.0), Target(2.0)),
        ("4 -> 8, 40 tables, 500 variables", Shape(4, mixed, 40, 500), 8, Target(2.0), Target(2.0)),
        ("4 -> 1,000, dim 16, 40-bit ids", Shape(4, one, 40), 1000, Target(cpu=2.5), None),
        (
            f"4 -> 64, {len(many):,} tables of {many[0][0]:,} rows",
            Shape(4, many, 40),
            64,
            Target(seconds=5, mib=150),
            None,
        ),
    ]
    for place, kind in ((bench.work, "disk"), (bench.memory, "memory")):
        for name, shape, to_ps, on_disk, in_memory in cases if place else []:
            target = on_disk if kind == "disk" else in_memory
            if place is not None and target is not None:
                yield from reshard_figure(bench, place, kind, name, shape, to_ps, target)
    if bench.large:
        for rows, target in ((64_000_000, Target(1.1)), (143_000_000, Target(1.0))):
            shape = Shape(4, ((bench.rows(rows), 16),), 40)
            yield from reshard_figure(bench, bench.work, "disk", "4 -> 8, dim 16, 40-bit ids", shape, 8, target)


def reshard_figure(
    bench: Bench, place: Path, kind: str, name: str, shape: Shape, to_ps: int, target: Target
) -> Iterator[Figure]:
    """Reshard one checkpoint; in memory a table is measured with one worker too."""
    source, out, copy = make(place / "source", shape), place / "out", place / "copy"
    runs = bench.few if size_of(source) > 2e9 else bench.runs
    figure = Figure(f"reshard {name}, {size_of(source) / 1e9:.2f} GB, {kind}", CP, target)
    ours = [*EDL, "reshard", str(source), "--ps", str(to_ps), "--output", str(out), "--quiet"]
    yield pairs(figure, runs, bench.work, ours, copying(source, copy), remove(out, copy))
    if kind == "memory" and to_ps == 8 and len(shape.tables) == 1:
        one = Figure(f"the same with one worker, {kind}", "two workers")
        yield pairs(one, runs, bench.work, [*ours, "--workers", "1"], [*ours, "--workers", "2"], remove(out, copy))
    remove(source)()


def verify_figures(bench: Bench) -> Iterator[Figure]:
    """Verify beside `sha256sum` of the same files."""
    source = make(bench.work / "source", Shape(4, ((bench.rows(30_000_000), 16),), 40))
    reference = shell(f"sha256sum {shlex.quote(str(source))}/*/*")
    for flags, most in (([], 0.6), (["--deep"], 1.0)):
        name = " ".join(["verify", *flags])
        figure = Figure(f"{name} of {size_of(source) / 1e9:.2f} GB", "sha256sum", Target(most))
        ours = [*EDL, "verify", str(source), "--quiet", *flags]
        yield pairs(figure, bench.runs, bench.work, ours, reference, nothing)
    remove(source)()


def copy_figures(bench: Bench) -> Iterator[Figure]:
    """Copy, unsealed and sealed, beside `cp -r` and `sync`; verify of what is sealed beside `sha256sum`."""
    source = make(bench.work / "source", Shape(4, ((bench.rows(16_000_000), 16),), 40))
    size = f"{size_of(source) / 1e9:.2f} GB"
    out, copy = bench.work / "out", bench.work / "copy"
    ours, reference = [*EDL, "copy", str(source), str(out), "--quiet"], copying(source, copy)
    clean = remove(out, copy)
    yield pairs(Figure(f"copy of {size}, not sealed", CP), bench.runs, bench.work, ours, reference, clean)
    seal(bench, source)
    yield pairs(Figure(f"copy of {size}, sealed", CP), bench.runs, bench.work, ours, reference, clean)
    figure = Figure(f"verify --deep of {size}, sealed", "sha256sum", Target(1.0))
    sums = shell(f"sha256sum {shlex.quote(str(source))}/version*/*")
    deep = [*EDL, "verify", str(source), "--deep", "--quiet"]
    yield pairs(figure, bench.runs, bench.work, deep, sums, nothing)
    remove(source)()


def seal(bench: Bench, source: Path) -> None:
    """Seal the version of a location."""
    run([*EDL, "verify", str(source), "--seal", "--quiet"], bench.work)


def export_figures(bench: Bench) -> Iterator[Figure]:
    """Export a checkpoint in each format, take it back, and compare both, beside a copy of the checkpoint."""
    for rows in (16_000_000, *((64_000_000,) if bench.large else ())):
        source = make(bench.work / "source", Shape(4, ((bench.rows(rows), 16),), 40))
        yield from format_figures(bench, source)
        yield from back_figures(bench, source)
        remove(source)()


def format_figures(bench: Bench, source: Path) -> Iterator[Figure]:
    """Export one checkpoint in each format; Parquet also beside pyarrow alone, which sorts and proves nothing."""
    work, size = bench.work, f"{size_of(source) / 1e9:.2f} GB"
    copy, out = work / "copy", work / "exported"
    formats = [
        ("safetensors", [], Target(4, mib=300)),
        ("safetensors", ["--order", "stored"], Target(1.5, mib=300)),
        ("npy", [], Target(4, mib=300)),
        ("npz", [], Target(4, mib=300)),
        ("parquet", [], Target(4, mib=300)),
    ]
    for form, words, target in formats:
        if form == "parquet" and importlib.util.find_spec("pyarrow") is None:
            print("export to parquet is left out: pyarrow is not installed", file=sys.stderr)
            continue
        ours = [*EDL, "export", str(source), str(out), "--format", form, *words, "--quiet"]
        figure = Figure(" ".join([f"export to {form}", *words]) + f", {size}", CP, target)
        yield pairs(figure, bench.few, work, ours, copying(source, copy), remove(copy, out), warm=False)
        if form == "parquet":
            arrays, alone = work / "arrays", work / "alone"
            run([*EDL, "export", str(source), str(arrays), "--format", "npy", "--quiet"], work)
            figure = Figure(f"export to parquet, beside its library, {size}", "pyarrow alone, of sorted arrays")
            reference = [sys.executable, "-c", PYARROW, str(arrays), str(alone)]
            yield pairs(figure, bench.few, work, ours, reference, remove(alone, out), warm=False)
            remove(arrays)()


def back_figures(bench: Bench, source: Path) -> Iterator[Figure]:
    """Take an export of a checkpoint back, and compare the checkpoint with that and with another one."""
    work, size = bench.work, f"{size_of(source) / 1e9:.2f} GB"
    arrays, back, copy = work / "m.safetensors", work / "back", work / "copy"
    reference = copying(source, copy)
    run([*EDL, "export", str(source), str(arrays), "--quiet"], work)
    both = [*EDL, "import", str(arrays), f"{back}@1", "--ps", "8", "--layout", "elasticdl", "--quiet"]
    figure = Figure(f"import from safetensors, {size}", CP, Target(2, mib=300))
    yield pairs(figure, bench.few, work, both, reference, remove(copy, back), warm=False)
    run(both, work)
    other = make(work / "other", Shape(4, ((1000, 16),), 40))
    for name, beside in (("equal", back), ("another table", other)):
        figure = Figure(f"diff, {name}, {size}", CP, Target(3))
        ours = [*EDL, "diff", str(source), str(beside), "--quiet"]
        yield pairs(figure, bench.few, work, ours, reference, remove(copy), warm=False)
    remove(back, other, arrays)()


def many_figures(bench: Bench) -> Iterator[Figure]:
    """Work that grows with names: 100,000 dense variables, and two versions of 2,000 tables."""
    work = bench.work
    count = max(int(100_000 * bench.scale), 50)
    source, copy, out = work / "source", work / "copy", work / "m.safetensors"
    make(source, Shape(4, ((1000, 16),), 40, count, 16))
    figure = Figure(f"export of {count:,} variables to safetensors", CP, Target(seconds=3))
    ours = [*EDL, "export", str(source), str(out), "--quiet"]
    yield pairs(figure, bench.few, work, ours, copying(source, copy), remove(copy, out))
    figure = Figure(f"inspect of {count:,} variables, as a table", "protobuf parses", Target(seconds=3))
    parsing = [sys.executable, "-c", PARSING, str(source)]
    yield pairs(figure, bench.few, work, [*EDL, "inspect", str(source)], parsing, nothing)
    remove(source)()
    tables = ((bench.rows(2000), 16),) * max(int(2000 * bench.scale), 8)
    for ps_num, name in ((4, "source"), (5, "other")):
        make(work / name, Shape(ps_num, tables, 40))
    figure = Figure(f"diff of {len(tables):,} tables of {tables[0][0]:,} other rows", CP, Target(seconds=2))
    ours = [*EDL, "diff", str(source), str(work / "other"), "--quiet"]
    yield pairs(figure, bench.few, work, ours, copying(source, copy), remove(copy))
    remove(source, work / "other")()


def inspect_figures(bench: Bench) -> Iterator[Figure]:
    """Inspect a shard of 4 GiB, of holes: the reference is inspecting a shard of a few rows."""
    for name, rows in (("large", bench.rows(68_000_000)), ("small", 100)):
        elsewhere(write_holes, bench.work / name, rows)
    size = size_of(bench.work / "large") / 2**30
    figure = Figure(f"inspect of a shard of {size:.1f} GiB", "the same of 100 rows", Target(more_seconds=0.3))
    ours, reference = ([*EDL, "inspect", str(bench.work / n), "-v"] for n in ("large", "small"))
    done = pairs(figure, bench.runs, bench.work, ours, reference, nothing)
    done.note = done.ours[-1].stderr.strip()
    print(f"  {done.note}")
    yield done
    remove(bench.work / "large", bench.work / "small")()


def start_figures(bench: Bench) -> Iterator[Figure]:
    """Start-up against importing typer; a listing of many versions against one of none."""
    typer = [sys.executable, "-c", "import typer"]
    for flag, most in (("--version", 1.0), ("--help", 1.0)):
        figure = Figure(f"edl-ckpt {flag}", "import typer", Target(most))
        yield pairs(figure, bench.runs, bench.work, [*EDL, flag], typer, nothing)
    versions = max(int(1000 * bench.scale), 1)
    for number in range(versions):
        directory = bench.work / "many" / f"version-{number}"
        directory.mkdir(parents=True)
        for ps_id in range(8):
            (directory / f"variables-{ps_id}-of-8.ckpt").write_bytes(b"\x08\x01")
    (bench.work / "none").mkdir()
    for flags in ([], ["--json"]):
        name = " ".join(["list", *flags])
        figure = Figure(f"{name} of {versions:,} x 8 shards", "an empty directory", Target(more_seconds=0.3))
        ours, reference = ([*EDL, "list", str(bench.work / n), *flags] for n in ("many", "none"))
        yield pairs(figure, bench.runs, bench.work, ours, reference, nothing)
    shutil.rmtree(bench.work / "many")
    (bench.work / "none").rmdir()
