"""Measure the figures of docs/benchmarks.md: `python tests/bench/run.py --work DIR` (half an hour, 20 GB of disk).

Every figure is a ratio to a reference that is run in turn with it (A B A B ...), whole processes with their start-up:
`cp -r` and `sync` for what writes to a disk, obstore for what moves objects of S3. Printed are the median ratio with
its spread, the seconds of both, the CPU seconds and the peak memory of ours, and on S3 the requests and bytes of ours.
Raw results go to a JSON file, group by group, each with the machine; `--page` writes the tables from that file, so
that groups may be measured one after the other.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import cluster_figures
import disk_figures
import library_figures
import peer_figures
import s3_figures
from disk_figures import Bench
from machine import machine
from measure import Figure, elsewhere, seconds

HEAD = ("work", "at most", "ratio (spread)", "ours", "reference", "peak memory")
TRAFFIC = ("requests and bytes", "in flight")
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
    "s3": {"transfer": s3_figures.transfer_figures, "versions": s3_figures.version_figures},
    "cluster": {"cluster": cluster_figures.cluster_figures},
    "library": {"restore": library_figures.restore_figures, "save": library_figures.save_figures},
    "peers": {
        "dcp": peer_figures.dcp_figures,
        "arrays": peer_figures.array_figures,
        "check": peer_figures.check_figures,
    },
}
SHORT = (
    ("reshard", "reshard 4 -> 8, dim 16"),
    ("copy", "verify --deep"),
    ("export", "export to safetensors,"),
    ("save", "save_checkpoint"),
    ("transfer", "copy of 8 shards"),
    ("transfer", "inspect of 200 shards"),
)
"""The figures of README's table: a group, and how the name of its figure begins."""
OPTIONAL = {"cluster", "peers"}
"""Sections that are measured only by name."""


def with_tables(page: str, found: Mapping[str, Any]) -> str:
    """Return a page with the figures of each section between its markers; a section without figures stays."""
    for section, groups in SECTIONS.items():
        begin, end = f"<!-- figures: {section} -->\n", f"<!-- end of figures: {section} -->"
        measured = {group: found[group] for group in groups if group in found}
        if not measured or begin not in page:
            continue
        before, _, rest = page.partition(begin)
        _, _, after = rest.partition(end)
        figures = [Figure.from_json(raw) for group in measured.values() for raw in group["figures"]]
        told = "\n".join(f"* `{name}`: measured on {group['machine']}." for name, group in measured.items())
        page = f"{before}{begin}{table(figures)}\n\n{told}\n{end}{after}"
    before, begin, rest = page.partition("<!-- figures: short -->\n")
    _, end, after = rest.partition("<!-- end of figures: short -->")
    return f"{before}{begin}{short_table(found)}\n{end}{after}" if begin else page


def short_table(found: Mapping[str, Any]) -> str:
    """Return README's table: some of the figures, each as time, ratio to its reference, and memory."""
    lines = ["| work | time | against | memory |", "|---|---|---|---|"]
    for group, begin in SHORT:
        for figure in [Figure.from_json(raw) for raw in found.get(group, {"figures": ()})["figures"]]:
            if figure.name.startswith(begin):
                against = f"{figure.median_ratio:.2f} x {figure.against}"
                lines.append(
                    f"| {figure.name} | {seconds(figure.median('wall'))} | {against} | {figure.peak_mib:.0f} MiB |"
                )
                break
    return "\n".join(lines)


def table(figures: list[Figure]) -> str:
    """Return figures as a table; those of a server with what it counted."""
    head = (*HEAD, *(TRAFFIC if any(figure.traffic for figure in figures) else ()))
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    return "\n".join(lines + [figure.line() for figure in figures])


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
        print(f"\n{name}: {told}\n| {' | '.join((*HEAD, *TRAFFIC))} |", flush=True)
        figures: list[Figure] = []
        for figure in measure(Bench(chosen.runs, chosen.scale, chosen.work, memory, chosen.large)):
            figures.append(figure)  # kept at once: a run may take an hour, and end early
            found[name] = {"machine": told, "figures": [each.to_json() for each in figures]}
            chosen.json.write_text(json.dumps(found, indent=1), encoding="utf-8")
            if figure.missed():
                print(f"missed: {figure.name}: {figure.missed()}, at most {figure.target}")
    for page in chosen.page:
        page.write_text(with_tables(page.read_text(encoding="utf-8"), found), encoding="utf-8")
    for place in filter(None, (chosen.work, memory)):
        shutil.rmtree(place, ignore_errors=True)


if __name__ == "__main__":
    main()
