"""Measure the figures of docs/benchmarks.md: `python tests/bench/run.py --work DIR` (some minutes, 8 GB of disk).

Every figure is a ratio to a reference that is run in turn with it (A B A B ...), whole processes with their start-up:
`cp -r` and `sync` for a reshard, `sha256sum` for verify, `python -c 'import typer'` for start-up. Printed is the median
ratio with its spread, the seconds of both, the CPU seconds and the peak memory of ours. Raw results go to a JSON file.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import shlex
import shutil
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path

import library
import numpy as np
from s3_server import Server

from edl_ckpt.core.format import bulk
from edl_ckpt.core.format.model import DTYPES, TableInfo
from edl_ckpt.core.format.names import ELASTICDL
from edl_ckpt.core.format.placement import variable_owner
from edl_ckpt.core.format.shard_layout import PlacedTable, PlacedVariable, lay_out_shard
from edl_ckpt.core.storage.files import PreallocatedFile

BEGIN, END = "<!-- figures -->", "<!-- end of figures -->"
HEAD = "| work | at most | ratio (spread) | ours | reference | peak memory |\n|---|---|---|---|---|---|"
EDL = [sys.executable, "-c", "from edl_ckpt.cli.app import main; main()"]
F32 = DTYPES["float32"]


@dataclass
class Run:
    """One process: wall and CPU seconds, peak memory, what it printed."""

    wall: float
    cpu: float
    peak_mib: float
    stdout: str = ""
    stderr: str = ""


@dataclass
class Figure:
    """A measured line: our runs and the reference's, in pairs."""

    name: str
    target: str
    ours: list[Run] = field(default_factory=list)
    reference: list[Run] = field(default_factory=list)
    note: str = ""

    @property
    def ratios(self) -> list[float]:
        """Return the ratio of each pair."""
        return [a.wall / b.wall for a, b in zip(self.ours, self.reference, strict=True)]

    def line(self) -> str:
        """Return the row of the table in docs/benchmarks.md."""
        ours = statistics.median(r.wall for r in self.ours)
        reference = statistics.median(r.wall for r in self.reference)
        cpu = statistics.median(r.cpu for r in self.ours)
        middle, least, most = (
            f"{ratio:.2f}" if ratio >= 0.1 else f"{ratio:.3f}"
            for ratio in (statistics.median(self.ratios), min(self.ratios), max(self.ratios))
        )
        ratio = f"{middle} ({least} to {most})"
        peak = max(r.peak_mib for r in self.ours)
        cells = (
            self.name,
            self.target,
            ratio,
            f"{ours:.2f} s, {cpu:.2f} s CPU" if ours >= 0.1 else f"{1000 * ours:.1f} ms, {1000 * cpu:.1f} ms CPU",
            f"{reference:.2f} s",
            f"{peak:.0f} MiB",
        )
        return f"| {' | '.join(cells)} |"


def run(command: list[str], work: Path) -> Run:
    """Run a command to its end and return what it took."""
    out, err = work / "stdout", work / "stderr"
    begin = time.perf_counter()
    with out.open("w") as stdout, err.open("w") as stderr:
        pid = os.posix_spawnp(
            command[0],
            command,
            os.environ,
            file_actions=[(os.POSIX_SPAWN_DUP2, stdout.fileno(), 1), (os.POSIX_SPAWN_DUP2, stderr.fileno(), 2)],
        )
        _, status, usage = os.wait4(pid, 0)
    wall = time.perf_counter() - begin
    done = Run(wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024, out.read_text(), err.read_text())
    if os.waitstatus_to_exitcode(status) not in {0, 3}:
        raise SystemExit(f"{shlex.join(command)} failed: {done.stderr[-400:]}")
    return done


def shell(script: str) -> list[str]:
    """Return the command that runs a script."""
    return ["sh", "-c", script]


def pairs(
    figure: Figure, runs: int, work: Path, ours: list[str], reference: list[str], clean: Callable[[], None]
) -> Figure:
    """Run both commands in turn, after one run of each that does not count."""
    for turn in range(runs + 1):
        clean()
        first = run(ours, work)
        clean()
        second = run(reference, work)
        if turn:
            figure.ours.append(first)
            figure.reference.append(second)
    clean()
    print(figure.line(), flush=True)
    return figure


@dataclass(frozen=True)
class Shape:
    """A checkpoint to be made: tables of (rows, dim), bits of its random ids, dense variables of 64 KiB."""

    ps_num: int
    tables: tuple[tuple[int, int], ...]
    id_bits: int
    variables: int = 0


def make(location: Path, shape: Shape) -> Path:
    """Write a checkpoint in a process of its own: what is spawned here counts this process's memory as its peak."""
    maker = multiprocessing.get_context("spawn").Process(target=write, args=(location, shape))
    maker.start()
    maker.join()
    if maker.exitcode:
        raise SystemExit("the checkpoint to measure on could not be made")
    return location


def write(location: Path, shape: Shape) -> None:
    """Write a checkpoint of a shape quickly: random values, unique random ids, placed by their modulo."""
    directory = location / ELASTICDL.version_dir(1)
    directory.mkdir(parents=True)
    random = np.random.default_rng(5)
    infos = [TableInfo(f"table_{t:02}", dim, "uniform") for t, (_, dim) in enumerate(shape.tables)]
    names = [f"dense_{v}/kernel:0" for v in range(shape.variables)]
    for ps_id in range(shape.ps_num):
        ids = [_ids(random, rows // shape.ps_num, shape, ps_id) for rows, _ in shape.tables]
        parts = [
            PlacedTable(info.name, F32, info.dim, held[1], len(held[0])) for info, held in zip(infos, ids, strict=True)
        ]
        mine = [PlacedVariable(n, F32, (128, 128), 65_536) for n in names if variable_owner(n, shape.ps_num) == ps_id]
        layout = lay_out_shard(1, infos, mine, parts)
        file = PreallocatedFile(str(directory / ELASTICDL.shard_file(ps_id, shape.ps_num)), layout.size_bytes)
        for offset, data in layout.between:
            file.write(offset, data)
        for part, (varints, _) in zip(parts, ids, strict=True):
            file.write(layout.ids_at[part.name], varints.data)
            _fill(file, layout.values_at[part.name], part.rows * part.dim, random)
        for dense in mine:
            _fill(file, layout.dense_at[dense.name], 128 * 128, random)
        file.close()


def _ids(random: np.random.Generator, rows: int, shape: Shape, ps_id: int) -> tuple[bulk.U8, int]:
    """Return the varints of about `rows` unique ids of one shard, and how many they are."""
    drawn = np.unique(random.integers(0, 2**shape.id_bits // shape.ps_num, rows))
    random.shuffle(drawn)
    return bulk.encode_varints(drawn * shape.ps_num + ps_id), len(drawn)


def _fill(file: PreallocatedFile, offset: int, count: int, random: np.random.Generator) -> None:
    while count:
        values = random.standard_normal(min(count, 1 << 22), np.float32)
        file.write(offset, values.data.cast("B"))
        offset, count = offset + values.nbytes, count - len(values)


def remove(*paths: Path) -> Callable[[], None]:
    """Return a function that removes what runs leave, and settles the disk."""

    def clean() -> None:
        for path in paths:
            shutil.rmtree(path, ignore_errors=True)
        os.sync()

    return clean


def reshard_figures(runs: int, scale: float, work: Path, memory: Path | None) -> Iterator[Figure]:
    """Reshard beside `cp -r` and `sync`, on the disk and in memory."""
    rows = int(16_000_000 * scale)
    mixed = tuple((int(400_000 * scale) + 10, dim) for dim in (1, 4, 8, 16, 32, 8, 16, 64) * 5)
    cases = [
        ("4 -> 8, dim 16, 40-bit ids", Shape(4, ((rows, 16),), 40), 8, "1.0", "1.5"),
        ("8 -> 7, dim 8, 62-bit ids", Shape(8, ((rows, 8),), 62), 7, "2.0", "2.0"),
        ("4 -> 8, 40 tables, 500 variables", Shape(4, mixed, 40, 500), 8, "2.0", "2.0"),
    ]
    for place, kind in ((work, "disk"), (memory, "memory")):
        for name, shape, to_ps, on_disk, in_memory in cases if place else []:
            assert place is not None
            source = make(place / "source", shape)
            size = sum(p.stat().st_size for p in source.rglob("*.ckpt"))
            out, copy = place / "out", place / "copy"
            figure = Figure(f"reshard {name}, {size / 1e9:.2f} GB, {kind}", on_disk if kind == "disk" else in_memory)
            ours = [*EDL, "reshard", str(source), "--ps", str(to_ps), "--output", str(out), "--quiet"]
            reference = shell(f"cp -r {shlex.quote(str(source))} {shlex.quote(str(copy))} && sync")
            yield pairs(figure, runs, work, ours, reference, remove(out, copy))
            if kind == "memory" and to_ps == 8 and len(shape.tables) == 1:
                one = Figure(f"the same with one worker, against two, {kind}", "")
                yield pairs(one, runs, work, [*ours, "--workers", "1"], [*ours, "--workers", "2"], remove(out, copy))
            shutil.rmtree(source)


def verify_figures(runs: int, scale: float, work: Path) -> Iterator[Figure]:
    """Verify beside `sha256sum` of the same files."""
    source = make(work / "source", Shape(4, ((int(30_000_000 * scale), 16),), 40))
    size = sum(p.stat().st_size for p in source.rglob("*.ckpt"))
    reference = shell(f"sha256sum {shlex.quote(str(source))}/*/*")
    for flags, target in (([], "0.6"), (["--deep"], "1.0")):
        figure = Figure(f"verify {' '.join(flags)} of {size / 1e9:.2f} GB against sha256sum", target)
        ours = [*EDL, "verify", str(source), "--quiet", *flags]
        yield pairs(figure, runs, work, ours, reference, lambda: None)
    shutil.rmtree(source)


def copy_figures(runs: int, scale: float, work: Path) -> Iterator[Figure]:
    """Copy, unsealed and sealed, beside `cp -r` and `sync`; verify of what is sealed beside `sha256sum`."""
    source = make(work / "source", Shape(4, ((int(16_000_000 * scale), 16),), 40))
    size = sum(p.stat().st_size for p in source.rglob("*.ckpt"))
    out, copy = work / "out", work / "copy"
    ours = [*EDL, "copy", str(source), str(out), "--quiet"]
    reference = shell(f"cp -r {shlex.quote(str(source))} {shlex.quote(str(copy))} && sync")
    yield pairs(
        Figure(f"copy of {size / 1e9:.2f} GB, not sealed, disk", ""), runs, work, ours, reference, remove(out, copy)
    )
    run([*EDL, "verify", str(source), "--seal", "--quiet"], work)
    yield pairs(
        Figure(f"copy of {size / 1e9:.2f} GB, sealed, disk", ""), runs, work, ours, reference, remove(out, copy)
    )
    figure = Figure(f"verify --deep of {size / 1e9:.2f} GB, sealed, against sha256sum", "1.0")
    sums = shell(f"sha256sum {shlex.quote(str(source))}/version*/*")
    yield pairs(figure, runs, work, [*EDL, "verify", str(source), "--deep", "--quiet"], sums, lambda: None)
    shutil.rmtree(source)


def export_figures(runs: int, scale: float, work: Path) -> Iterator[Figure]:
    """Export a checkpoint of 4 GiB, take it back, and compare both, beside a copy of the checkpoint."""
    source = make(work / "source", Shape(4, ((int(64_000_000 * scale), 16),), 40))
    size = sum(p.stat().st_size for p in source.rglob("*.ckpt"))
    arrays, back, copy = work / "m.safetensors", work / "back", work / "copy"
    reference = shell(f"cp -r {shlex.quote(str(source))} {shlex.quote(str(copy))} && sync")
    both = ["--ps", "8", "--layout", "elasticdl", "--quiet"]
    steps = [
        ("export to safetensors", [*EDL, "export", str(source), str(arrays), "--force", "--quiet"], remove(copy)),
        ("import from safetensors", [*EDL, "import", str(arrays), f"{back}@1", *both], remove(copy, back)),
    ]
    for name, ours, clean in steps:
        figure = Figure(f"{name}, {size / 1e9:.2f} GB, disk", "512 MiB")
        yield pairs(figure, min(runs, 2), work, ours, reference, clean)
    run([*EDL, "import", str(arrays), f"{back}@1", *both], work)
    for name, other in (("equal", back), ("another table", make(work / "other", Shape(4, ((1000, 16),), 40)))):
        figure = Figure(f"diff, {name}, {size / 1e9:.2f} GB, disk", "512 MiB")
        yield pairs(figure, min(runs, 2), work, [*EDL, "diff", str(source), str(other), "-q"], reference, remove(copy))
    remove(source, back, work / "other")()
    arrays.unlink()


def large_shard_figures(runs: int, scale: float, work: Path) -> Iterator[Figure]:
    """Inspect a shard of 4 GiB, of holes: the reference is inspecting a shard of a few rows."""
    for name, rows in (("large", int(68_000_000 * scale)), ("small", 100)):
        directory = work / name / "version-1"
        directory.mkdir(parents=True)
        layout = lay_out_shard(1, [TableInfo("t", 16, "zeros")], [], [PlacedTable("t", F32, 16, rows, rows)])
        with (directory / "variables-0-of-1.ckpt").open("wb") as file:
            for offset, data in layout.between:
                file.seek(offset)
                file.write(data)
            file.truncate(layout.size_bytes)
    size = (work / "large/version-1/variables-0-of-1.ckpt").stat().st_size
    figure = Figure(f"inspect of a shard of {size / 2**30:.1f} GiB against one of 100 rows", "+0.3 s, 1 MiB read")
    ours, reference = ([*EDL, "inspect", str(work / n), "-v"] for n in ("large", "small"))
    done = pairs(figure, runs, work, ours, reference, lambda: None)
    done.note = f" {done.ours[-1].stderr.strip()}"
    print(done.note)
    yield done
    for name in ("large", "small"):
        shutil.rmtree(work / name)


def s3_figures(runs: int, scale: float, work: Path) -> Iterator[Figure]:
    """Copy, verify and inspect on an S3 server beside obstore's put and get there; nothing without a server."""
    server = Server.named()
    if server is None:
        return
    big = make(work / "big", Shape(8, ((int(16_000_000 * scale), 16),), 40, 50))
    small = make(work / "small", Shape(200, ((int(500_000 * scale) + 400, 16),), 40, 50))
    down = work / "down"
    down.mkdir()
    for source, name, shards in ((big, "big", 8), (small, "small", 200)):
        run([*EDL, "verify", str(source), "--seal", "--quiet"], work)
        size = sum(path.stat().st_size for path in source.rglob("variables-*"))
        what = f"{shards} shards, {size / 1e6:.0f} MB, S3"
        away, raw, here = server.url(name), f"raw-{name}", work / "here"
        put, get = server.obstore("put", raw, source), server.obstore("get", raw, down)
        steps = [
            (f"copy of {what}, up, against obstore's put", "1.5", ["copy", str(source), away], put),
            (f"inspect of {what}, against obstore's get", "", ["inspect", away], get),
            (f"verify --deep of {what}, against obstore's get", "1.5", ["verify", away, "--deep"], get),
            (f"copy of {what}, down, against obstore's get", "1.5", ["copy", away, str(here)], get),
        ]
        for number, (title, target, words, reference) in enumerate(steps):
            clean = remove(here) if number else partial(server.forget, name)
            yield _counted(server, Figure(title, target), runs, work, [*EDL, *words, "--quiet"], reference, clean)
        server.forget(name)
        server.forget(raw)
        remove(here)()
    remove(big, small, down)()


def _counted(
    server: Server,
    figure: Figure,
    runs: int,
    work: Path,
    ours: list[str],
    reference: list[str],
    clean: Callable[[], None],
) -> Figure:
    """Run both commands in turn, and note what the server counted in the last run of ours."""
    for turn in range(runs + 1):
        clean()
        server.reset()
        first = run(ours, work)
        figure.note = server.counters()
        second = run(reference, work)
        if turn:
            figure.ours.append(first)
            figure.reference.append(second)
    cpu = statistics.median(r.cpu for r in figure.reference)
    print(f"{figure.line()}\n  ours: {figure.note}; CPU of the reference {cpu:.2f} s", flush=True)
    return figure


def start_figures(runs: int, scale: float, work: Path) -> Iterator[Figure]:
    """Start-up against importing typer; a listing of many versions against one of none."""
    typer = [sys.executable, "-c", "import typer"]
    for flag, target in (("--version", "1.0"), ("--help", "2.0")):
        yield pairs(
            Figure(f"edl-ckpt {flag} against import typer", target), runs, work, [*EDL, flag], typer, lambda: None
        )
    versions = max(int(1000 * scale), 1)
    for number in range(versions):
        directory = work / "many" / f"version-{number}"
        directory.mkdir(parents=True)
        for ps_id in range(8):
            (directory / f"variables-{ps_id}-of-8.ckpt").write_bytes(b"\x08\x01")
    (work / "none").mkdir()
    for flags in ([], ["--json"]):
        figure = Figure(f"list {' '.join(flags)} of {versions} x 8 shards against an empty directory", "+0.3 s")
        ours, reference = ([*EDL, "list", str(work / n), *flags] for n in ("many", "none"))
        yield pairs(figure, runs, work, ours, reference, lambda: None)
    shutil.rmtree(work / "many")
    (work / "none").rmdir()


def library_figures(runs: int, scale: float, work: Path) -> Iterator[Figure]:
    """Functions of the library in one process, without its start-up."""
    rows = int(1_000_000 * scale)
    cases = [
        ("4 -> 8", Shape(4, ((rows, 16),), 40), 8, "0.033"),
        ("4 -> 4", Shape(4, ((rows, 16),), 40), 4, "0.02"),
        ("8 -> 4", Shape(8, ((rows, 16),), 40), 4, "0.02"),
        ("4 -> 5, which needs all shards", Shape(4, ((rows, 16),), 40), 5, ""),
        ("4 -> 8, 40 tables, 500 variables", Shape(4, ((rows // 40, 16),) * 40, 40, 500), 8, ""),
    ]
    for name, shape, to_ps, target in cases:
        source = make(work / "source", shape)
        figure = Figure(f"restore {name}, {rows / 1e6:.1f} M rows of dim 16, against ElasticDL's", target)
        yield in_one_process(figure, library.restore_beside_elasticdl, str(source), to_ps, runs)
        remove(source)()
    source = make(work / "source", Shape(4, ((16 * rows, 16),), 40))
    for to_ps, seconds in ((4, "0.5 s"), (8, "0.4 s")):
        figure = Figure(
            f"restore 4 -> {to_ps}, {16 * rows / 1e6:.1f} M rows of dim 16, against reading a shard", seconds
        )
        yield in_one_process(figure, library.restore_beside_reads, str(source), to_ps, runs)
    remove(source)()


def in_one_process(
    figure: Figure, measure: Callable[..., list[tuple[library.Timing, library.Timing]]], *arguments: object
) -> Figure:
    """Measure pairs of calls in a fresh process."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        for ours, reference in pool.submit(measure, *arguments).result():
            figure.ours.append(Run(*ours))
            figure.reference.append(Run(*reference))
    print(figure.line(), flush=True)
    return figure


def with_table(page: str, rows: Sequence[str]) -> str:
    """Return a page with these rows in the place of the table between its markers."""
    before, _, rest = page.partition(f"{BEGIN}\n")
    _, _, after = rest.partition(END)
    return "\n".join([before + BEGIN, HEAD, *rows, END + after])


def main() -> None:
    """Measure, print the table, keep the raw results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, default=Path("bench-work"), help="a directory on the disk to measure")
    parser.add_argument("--memory", type=Path, default=Path("/dev/shm/edl-ckpt-bench"), help="one on tmpfs")
    parser.add_argument("--runs", type=int, default=5, help="pairs that count")
    parser.add_argument("--scale", type=float, default=1.0, help="of the sizes; 1 is that of docs/benchmarks.md")
    parser.add_argument("--page", type=Path, help="a page to write the table into, such as docs/benchmarks.md")
    parser.add_argument(
        "--only", choices=["reshard", "verify", "copy", "export", "inspect", "start", "library", "s3"], help="one group"
    )
    parser.add_argument("--json", type=Path, default=Path("bench.json"), help="where raw results go")
    chosen = parser.parse_args()
    memory = chosen.memory if chosen.memory.parent.is_dir() else None
    for place in filter(None, (chosen.work, memory)):
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
    groups: dict[str, Callable[[], Iterator[Figure]]] = {
        "reshard": lambda: reshard_figures(chosen.runs, chosen.scale, chosen.work, memory),
        "verify": lambda: verify_figures(chosen.runs, chosen.scale, chosen.work),
        "copy": lambda: copy_figures(chosen.runs, chosen.scale, chosen.work),
        "export": lambda: export_figures(chosen.runs, chosen.scale, chosen.work),
        "inspect": lambda: large_shard_figures(chosen.runs, chosen.scale, chosen.work),
        "start": lambda: start_figures(chosen.runs, chosen.scale, chosen.work),
        "library": lambda: library_figures(chosen.runs, chosen.scale, chosen.work),
        "s3": lambda: s3_figures(chosen.runs, chosen.scale, chosen.work),
    }
    kernel = "compiled kernel" if bulk.kernel else "numpy"
    print(f"{os.cpu_count()} cores, {kernel}, medians of {chosen.runs} pairs\n")
    print(HEAD, flush=True)
    figures = [figure for name, group in groups.items() if chosen.only in {None, name} for figure in group()]
    chosen.json.write_text(json.dumps([asdict(figure) for figure in figures], indent=1))
    if chosen.page:
        text = chosen.page.read_text(encoding="utf-8")
        chosen.page.write_text(with_table(text, [figure.line() for figure in figures]), encoding="utf-8")
    for place in filter(None, (chosen.work, memory)):
        shutil.rmtree(place, ignore_errors=True)


if __name__ == "__main__":
    main()
