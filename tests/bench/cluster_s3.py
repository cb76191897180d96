"""What the workers of a cluster take to and from S3, with one, two and four of them.

    EDL_CKPT_BENCH_S3=http://127.0.0.1:9000/bench python tests/bench/cluster_s3.py --work DIR

The server is one that delays requests and limits connections, as `s3_server.py` wants it. Scheduler and workers are
processes of this machine that run before the first command, and each worker has one thread. A figure is the least
of the seconds of whole commands, with their start-up. Results go to a JSON file, where further runs are added: so
`--workers` and `--only` measure some of them, one after the other. What they read stays in DIR and in the bucket, until
`--remove`.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from cluster_figures import started
from machine import machine
from measure import EDL, elsewhere, fill, remove, run
from s3_server import VARIABLE, Server
from shapes import Shape, make, size_of

_WORKERS: Final = (1, 2, 4)
_ARRAYS: Final = "m.safetensors"


@dataclass(frozen=True)
class Case:
    """A command, and where its output is removed: on the disk or in the bucket."""

    name: str
    words: tuple[str, ...]
    is_far: bool


def cases(work: Path, server: Server) -> Iterator[Case]:
    """Yield all commands: each to S3, and those that differ there also from it."""
    here, out, far = str(work / "source"), str(work / "out"), server.url("out")
    yield Case("`reshard`, 4 to 8 servers, to S3", ("reshard", here, "--ps", "8", "--output", far), is_far=True)
    yield Case("`copy` to S3", ("copy", here, far), is_far=True)
    forms = [("safetensors", "safetensors")]
    forms += [("Parquet", "parquet")] if importlib.util.find_spec("pyarrow") else []
    for title, form in forms:
        yield Case(f"`export` to {title} on S3", ("export", here, f"{far}/m", "--format", form), is_far=True)
        back = ("export", server.url("source"), f"{out}/m", "--format", form)
        yield Case(f"`export` from S3 to {title} on the disk", back, is_far=False)
    for title, source, target in (
        ("from the disk to S3", str(work / _ARRAYS), far),
        ("from S3 to the disk", server.url(_ARRAYS), out),
    ):
        yield Case(f"`import` of safetensors {title}", ("import", source, f"{target}@5", "--ps", "8"), target == far)


def prepared(work: Path, server: Server, rows: int) -> None:
    """Make a version of 4 servers and its arrays, on the disk and in the bucket, unless they are there."""
    source, arrays = work / "source", work / _ARRAYS
    if arrays.exists():
        return
    remove(source)()
    server.forget("source")
    make(source, Shape(4, ((rows, 16),), 40, 50))
    for words in (
        ["copy", str(source), server.url("source")],
        ["export", str(source), server.url(_ARRAYS), "--force"],
        ["export", str(source), str(arrays)],
    ):
        run([*EDL, *words, "--quiet"], work)


def measure(case: Case, address: Path, work: Path, server: Server, runs: int) -> dict[str, Any]:
    """Run a command some times; return the seconds, and what the server counted in the last run."""
    clean = partial(server.forget, "out") if case.is_far else remove(work / "out")
    counted, walls = dict[str, Any](), list[float]()
    for _ in range(runs):
        clean()
        if not case.is_far:
            (work / "out").mkdir()
        server.reset()
        walls.append(run([*EDL, *case.words, "--quiet", "--cluster", str(address)], work).wall)
        counted = server.counters()
    clean()
    return {"seconds": walls, "traffic": counted}


def table(found: Mapping[str, Mapping[str, Any]], head: str) -> Iterator[str]:
    """Yield the lines of the table: the seconds by workers, and what the last run with most of them moved."""
    yield f"| {head} | {' | '.join(map(str, _WORKERS))} | requests | read, written |"
    yield "|---" * (len(_WORKERS) + 3) + "|"
    for name, by_workers in found.items():
        cells = [by_workers.get(str(number)) for number in _WORKERS]
        times = [f"{min(each['seconds']):.1f} s" if each else "" for each in cells]
        last: dict[str, Any] = next((each["traffic"] for each in reversed(cells) if each), {})
        requests = f"{sum(last['requests'].values()):,}" if last else ""
        moved = f"{last['bytes_out'] / 1e6:,.0f} MB, {last['bytes_in'] / 1e6:,.0f} MB" if last else ""
        yield f"| {name} | {' | '.join(times)} | {requests} | {moved} |"


def main() -> None:
    """Measure, print the table, keep the raw results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, default=Path("bench-work"), help="a directory on the disk to measure")
    parser.add_argument("--rows", type=int, default=4_500_000, help="of 16 floats; 4,500,000 are 0.3 GB")
    parser.add_argument("--runs", type=int, default=3, help="of each command; the fastest counts")
    parser.add_argument("--workers", type=int, action="append", choices=_WORKERS, default=[], help="repeatable")
    parser.add_argument("--only", default="", help="commands whose row contains this")
    parser.add_argument("--json", type=Path, default=Path("cluster-s3.json"), help="where raw results go, and stay")
    parser.add_argument("--page", type=Path, help="write the table there")
    parser.add_argument("--no-run", action="store_true", help="measure nothing: write the page from the results")
    parser.add_argument("--remove", action="store_true", help="remove at the end what the commands read")
    chosen = parser.parse_args()
    kept = json.loads(chosen.json.read_text(encoding="utf-8")) if chosen.json.exists() else {"rows": {}}
    if not chosen.no_run:
        url = os.environ.get(VARIABLE)
        server = Server.at(url) if url else parser.error(f"{VARIABLE} names no server")
        chosen.work.mkdir(parents=True, exist_ok=True)
        prepared(chosen.work, server, chosen.rows)
        kept |= {"machine": elsewhere(machine), "bytes": size_of(chosen.work / "source")}
        for number in chosen.workers or _WORKERS:
            with started(chosen.work / "dask", number) as (address, _):
                for case in cases(chosen.work, server):
                    if chosen.only in case.name:
                        row = kept["rows"].setdefault(case.name, {})
                        found = measure(case, address, chosen.work, server, chosen.runs)
                        found["seconds"] += row.get(str(number), {"seconds": ()})["seconds"]
                        row[str(number)] = found
                        print(f"{number} workers, {case.name}: {row[str(number)]}", flush=True)
                        chosen.json.write_text(json.dumps(kept, indent=1), encoding="utf-8")
        if chosen.remove:
            server.forget("")
            remove(chosen.work)()
    lines = list(table(kept["rows"], f"{kept.get('bytes', 0) / 1e6:,.0f} MB, workers of one thread"))
    print(*lines, sep="\n")
    if chosen.page is not None:
        page = fill(chosen.page.read_text(encoding="utf-8"), "to S3", lines)
        chosen.page.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
