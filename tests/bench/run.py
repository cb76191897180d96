"""Measure the figures of docs/benchmarks.md: `python tests/bench/run.py --work DIR` (half an hour, 20 GB of disk).

Every figure is a ratio to a reference that is run in turn with it (A B A B ...), whole processes with their start-up:
`cp -r` and `sync` for what writes to a disk, obstore for what moves objects of S3. Printed are the seconds of ours
and the median ratio, with the target, the peak memory, and on S3 the requests. The results have all runs.
Raw results go to a JSON file, group by group, each with the machine; `--page` writes the tables from that file, so
that groups may be measured one after the other.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import cluster_figures
import disk_figures
import library_figures
import listing_figures
import object_figures
import peer_figures
import s3_figures
import system_figures
from disk_figures import Bench
from machine import machine
from measure import Figure, elsewhere, fill

HEAD = ("| work | time | against | memory |", "|---|---|---|---|")
SECTIONS: Mapping[str, Mapping[str, Callable[[Bench], Iterator[Figure]]]] = {
    "disk": {
        "reshard": disk_figures.reshard_figures,
        "verify": disk_figures.verify_figures,
        "copy": disk_figures.copy_figures,
        "export": disk_figures.export_figures,
        "many": disk_figures.many_figures,
        "inspect": disk_figures.inspect_figures,
        "start": disk_figures.start_figures,
    },
    "systems": {"systems": system_figures.system_figures, "listings": listing_figures.listing_figures},
    "s3": {
        "transfer": s3_figures.transfer_figures,
        "versions": s3_figures.version_figures,
        "objects": object_figures.object_figures,
    },
    "cluster": {"cluster": cluster_figures.cluster_figures},
    "library": {"restore": library_figures.restore_figures, "save": library_figures.save_figures},
    "peers": {
        "dcp": peer_figures.dcp_figures,
        "arrays": peer_figures.array_figures,
        "check": peer_figures.check_figures,
    },
}
TABLES: Mapping[str, tuple[tuple[str, str], ...]] = {
    "reshard": (
        ("reshard", "reshard*disk,*"),
        ("reshard", "reshard 4 -> 8, dim 16*memory*"),
        ("transfer", "reshard*8 -> 16*"),
        ("cluster", "reshard*"),
        ("dcp", "reshard*"),
    ),
    "verify": (
        ("verify", "verify of*"),
        ("copy", "verify*"),
        ("transfer", "verify*"),
        ("check", "*restic*"),
    ),
    "copy": (("copy", "copy*B, sealed,*"), ("transfer", "copy*up*"), ("transfer", "copy of 8 *down*")),
    "export": (("export", "export to safetensors*"), ("transfer", "export*")),
    "import": (("export", "import*"),),
    "diff": (("export", "diff, equal*"), ("many", "diff*")),
    "list": (
        ("start", "list of*"),
        ("versions", "list*seals*"),
        ("versions", "prune*"),
        ("start", "edl-ckpt --*"),
    ),
    "inspect": (("inspect", "inspect*"), ("transfer", "inspect*")),
    "save_checkpoint": (("save", "save*"),),
    "restore": (("restore", "restore 4 -> 8, 1* rows*"), ("restore", "restore 8 -> 4*")),
    "short": (
        ("reshard", "reshard 4 -> 8, dim 16*1.12 GB, disk*"),
        ("copy", "verify*"),
        ("export", "export to safetensors,*"),
    ),
}
"""The tables of docs/benchmarks.md, one an operation, and README's list: groups, and patterns of figures' names."""
OPTIONAL = {"cluster", "peers"}
"""Sections that are measured only by name."""


def with_tables(page: str, found: Mapping[str, Any]) -> str:
    """Return a page with the tables for which it has a place, and the machines; a table without figures stays."""
    for title, chosen in TABLES.items():
        rows = [figure for group, pattern in chosen for figure in figures(found, group, pattern)]
        if rows and f"<!-- figures: {title} -->" in page:
            table = [*HEAD, *(figure.line(title) for figure in rows)]
            page = fill(page, title, [figure.item() for figure in rows] if title == "short" else table)
    if found and "<!-- figures: machines -->" in page:
        page = fill(page, "machines", machines(found))
    return page


def figures(found: Mapping[str, Any], group: str, pattern: str) -> list[Figure]:
    """Return the figures of a group whose names, with their references, match a pattern."""
    measured = [Figure.from_json(raw) for raw in found.get(group, {"figures": ()})["figures"]]
    return [figure for figure in measured if fnmatchcase(f"{figure.name}, {figure.against}", pattern)]


def machines(found: Mapping[str, Any]) -> list[str]:
    """Return a line for each machine: the processor and its memory, and the days on which it was measured."""
    days: dict[str, set[str]] = {}
    for group in found.values():
        processor, *_, day = group["machine"].split("; ")
        days.setdefault(processor, set()).add(day)
    return [f"* {processor}: {', '.join(sorted(measured))}" for processor, measured in days.items()]


def chosen_groups(only: list[str]) -> dict[str, Callable[[Bench], Iterator[Figure]]]:
    """Return the groups to measure, by name: those named or of a section that is named, else all that are usual."""
    return {
        name: measure
        for section, groups in SECTIONS.items()
        for name, measure in groups.items()
        if (only and (section in only or name in only)) or (not only and section not in OPTIONAL)
    }


def main() -> None:
    """Measure, print the table, keep the raw results."""
    names = list(dict.fromkeys(name for section, groups in SECTIONS.items() for name in (section, *groups)))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, default=Path("bench-work"), help="a directory on the disk to measure")
    parser.add_argument("--memory", type=Path, default=Path("/dev/shm/edl-ckpt-bench"), help="one on tmpfs")
    parser.add_argument("--runs", type=int, default=3, help="pairs that count; 2 where one takes long")
    parser.add_argument("--scale", type=float, default=1.0, help="of the sizes; 1 is that of docs/benchmarks.md")
    parser.add_argument(
        "--large", action="store_true", help="reshard 4.5 and 10 GB, and export 4.5 GB, too (35 GB of disk)"
    )
    parser.add_argument(
        "--page",
        type=Path,
        action="append",
        default=[],
        help="a page to write tables into: docs/benchmarks.md, README.md",
    )
    parser.add_argument("--only", action="append", choices=names, default=[], help="a section or a group; repeatable")
    parser.add_argument("--no-run", action="store_true", help="measure nothing: write pages from the results")
    parser.add_argument("--json", type=Path, default=Path("bench.json"), help="where raw results go, and stay")
    chosen = parser.parse_args()
    memory = chosen.memory if chosen.memory.parent.is_dir() else None
    found: dict[str, Any] = json.loads(chosen.json.read_text(encoding="utf-8")) if chosen.json.exists() else {}
    for name, measure in ({} if chosen.no_run else chosen_groups(chosen.only)).items():
        for place in filter(None, (chosen.work, memory)):
            shutil.rmtree(place, ignore_errors=True)
            place.mkdir(parents=True)
        told = elsewhere(machine)
        print(f"\n{name}: {told}\n{HEAD[0]}", flush=True)
        measured: list[Figure] = []
        for figure in measure(Bench(chosen.runs, chosen.scale, chosen.work, memory, chosen.large)):
            measured.append(figure)  # kept at once: a run may take an hour, and end early
            found[name] = {"machine": told, "figures": [figure.to_json() for figure in measured]}
            chosen.json.write_text(json.dumps(found, indent=1), encoding="utf-8")
            if figure.missed():
                print(f"missed: {figure.name}: {figure.missed()}, at most {figure.target}")
    for page in chosen.page:
        page.write_text(with_tables(page.read_text(encoding="utf-8"), found), encoding="utf-8")
    for place in filter(None, (chosen.work, memory)):
        shutil.rmtree(place, ignore_errors=True)


if __name__ == "__main__":
    main()
