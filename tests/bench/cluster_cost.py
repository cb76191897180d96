"""When one machine is enough, and what a reshard of terabytes costs: arithmetic on measured figures.

    python tests/bench/cluster_cost.py --page docs/cluster.md
    python tests/bench/cluster_cost.py --price-hour 0.2 --price-get 0.0000004 --price-put 0.000005 --machines 32

Bytes and requests for each byte of the version come from the tables of docs/benchmarks.md. A time is the longer one of
moving all bytes over the given bandwidth, and of the CPU's work; nothing else is counted. `simulation.py` says how far
the scheduler and planning go.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

TOP = Path(__file__).parents[2]
CPU_SECONDS_A_GB = 2.4
"""Of a reshard that does not fit into memory: 24 s for 10 GB, by an older version; those that fit take 1.1."""
SPEED_UP = 5
"""Of 8 threads over one, by the section of docs/benchmarks.md on workers."""
SIZES_GB = (10, 100, 1_000, 10_000)
BANDWIDTHS_GB = (0.25, 1.25, 3.0)


@dataclass(frozen=True)
class Measured:
    """What a reshard takes for each GB of the version, on S3."""

    read_gb: float
    written_gb: float
    gets: float
    puts: float
    cpu_seconds: float

    @property
    def moved_gb(self) -> float:
        """Return the bytes that cross a disk or a network."""
        return self.read_gb + self.written_gb


def measured(page: str) -> Measured:
    """Read the row of a reshard on S3; ValueError where it is not there."""
    row = re.search(r"^\| reshard of 8 shards, ([\d,]+) MB, 8 -> 16 \|.*$", page, re.MULTILINE)
    if row is None:
        raise ValueError("no row of a reshard on S3, 8 -> 16")

    def number(pattern: str) -> float:
        found = re.search(pattern, row[0])
        if found is None:
            raise ValueError(f"{pattern!r} is not in {row[0]!r}")
        return float(found[1].replace(",", ""))

    gb = float(row[1].replace(",", "")) / 1000
    return Measured(
        number(r"([\d,]+) MB read") / 1000 / gb,
        number(r"([\d,]+) MB written") / 1000 / gb,
        number(r"([\d,]+) GET") / gb,
        number(r"([\d,]+) UploadPart") / gb,
        number(r"([\d.]+) s CPU") / gb,
    )


@dataclass(frozen=True)
class Machines:
    """Machines of 8 cores; bandwidths in GB/s."""

    count: int
    bandwidth: float
    volume: float

    def seconds(self, size_gb: float, moved_gb: float, cpu_seconds: float = CPU_SECONDS_A_GB) -> float:
        """Return how long a reshard of some GB takes."""
        moving = moved_gb * size_gb / min(self.count * self.bandwidth, self.volume)
        return max(moving, cpu_seconds * size_gb / (self.count * SPEED_UP))


def words(seconds: float) -> str:
    """Return a time in the unit that suits it.

    >>> words(42), words(600), words(9000)
    ('42 s', '10 min', '2.5 h')
    """
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def size(gb: int) -> str:
    """Return a size."""
    return f"{gb} GB" if gb < 1000 else f"{gb // 1000} TB"


def enough(figures: Measured, chosen: argparse.Namespace) -> Iterator[str]:
    """Yield the table of times: a row for each bandwidth of a machine."""
    yield f"| disk or network of a machine | machines | {' | '.join(map(size, SIZES_GB))} |"
    yield "|---" * (len(SIZES_GB) + 2) + "|"
    for bandwidth in BANDWIDTHS_GB:
        for count in (1, chosen.machines):
            some = Machines(count, bandwidth, chosen.volume)
            times = (words(some.seconds(gb, figures.moved_gb)) for gb in SIZES_GB)
            yield f"| {bandwidth:g} GB/s | {count} | {' | '.join(times)} |"


def cost(figures: Measured, chosen: argparse.Namespace) -> Iterator[str]:
    """Yield the table of costs on S3."""
    some = Machines(chosen.machines, chosen.bandwidth, chosen.volume)
    yield "| version | moved | CPU | time | hours of machines | GET | parts | machines cost | requests cost |"
    yield "|---|---|---|---|---|---|---|---|---|"
    for gb in (1_000, 10_000):
        seconds = some.seconds(gb, figures.moved_gb, figures.cpu_seconds)
        hours, gets, puts = chosen.machines * seconds / 3600, figures.gets * gb, figures.puts * gb
        money = hours * chosen.price_hour, gets * chosen.price_get + puts * chosen.price_put
        yield (
            f"| {size(gb)} | {figures.moved_gb * gb / 1000:.1f} TB | {figures.cpu_seconds * gb / 3600:.1f} h |"
            f" {words(seconds)} | {hours:.1f} | {gets:,.0f} | {puts:,.0f} | {money[0]:.2f} | {money[1]:.2f} |"
        )


def fill(page: str, name: str, lines: Iterator[str]) -> str:
    """Return a page with a table between its marks."""
    begin, end = f"<!-- figures: {name} -->\n", f"<!-- end of figures: {name} -->"
    head, mark, rest = page.partition(begin)
    _, last, tail = rest.partition(end)
    if not (mark and last):
        raise ValueError(f"no place for {name}")
    return head + begin + "\n".join(lines) + "\n" + end + tail


def main() -> None:
    """Print the tables, or write them into a page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--machines", type=int, default=16, help="machines of 8 cores (16)")
    parser.add_argument("--bandwidth", type=float, default=1.25, help="GB/s of one machine (1.25)")
    parser.add_argument("--volume", type=float, default=20.0, help="GB/s of the volume or bucket in all (20)")
    parser.add_argument("--price-hour", type=float, default=0.34, help="of a machine (0.34)")
    parser.add_argument("--price-get", type=float, default=0.4e-6, help="of a GET (0.0000004)")
    parser.add_argument("--price-put", type=float, default=5e-6, help="of a part of an upload (0.000005)")
    parser.add_argument("--page", type=Path, help="write the tables there")
    chosen = parser.parse_args()
    figures = measured((TOP / "docs/benchmarks.md").read_text(encoding="utf-8"))
    tables = {"enough": enough(figures, chosen), "cost": cost(figures, chosen)}
    page = "" if chosen.page is None else chosen.page.read_text(encoding="utf-8")
    for name, lines in tables.items():
        if chosen.page is None:
            print(*lines, "", sep="\n")
        else:
            page = fill(page, name, lines)
    if chosen.page is not None:
        chosen.page.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
