"""A reshard of ten terabytes on a cluster that is not there: `python tests/bench/simulation.py`.

The command is the real one, and so are its plan, its tasks and its seal; only the values are holes (`scale_model`).
What a task costs a processor is measured with real tasks on a small version (`scale_costs`), what it costs a scheduler
with a real scheduler (`scale_scheduler`). From both, and from the bandwidths that are given, events tell where the time
goes (`scale_cluster`). `--plan` stops after the first, which needs 1 GB of disk and half a minute of CPU.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import tempfile
import threading
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from machine import machine
from measure import elsewhere
from scale_cluster import Machines, Outcome, Task, simulate
from scale_costs import Cost, measure_costs
from scale_model import Counting, Pass, Scale, holes_allowed, write_holes
from scale_scheduler import SchedulerCost, measure_scheduler

from edl_ckpt.core import execute_reshard, prepare_reshard
from edl_ckpt.core.cluster.worker import packed
from edl_ckpt.core.memory import peak_memory_bytes
from edl_ckpt.core.parallel import SMALL_READS

DIMS = (16, 24, 32, 48, 64)
NAMES = {
    "StretchWork": "survey: count ids",
    "UniqueWork": "survey: ids that occur twice",
    "MoveWork": "move",
    "CountWork": "proof: count rows",
    "ValuesWork": "proof: read back, sketch, checksums",
    "SmallWork": "survey: small tables",
}


def scale_of(terabytes: float, ps_num: int, tables: int) -> Scale:
    """Return a version of a size, with tables of dimensions 16 to 64 that all have the same bytes."""
    each = terabytes * 1e12 / tables
    return Scale(ps_num, tuple((int(each / (4 * DIMS[t % 5] + 5)), DIMS[t % 5]) for t in range(tables)))


def plan(location: Path, to_ps: int, workers: int, threads: int) -> dict[str, Any]:
    """Reshard a version of holes; return what the command did and had, and each pass."""
    reads, pread, main_thread = [0, 0], os.pread, threading.main_thread()

    def counted(*words: Any) -> bytes:
        reads[threading.current_thread() is not main_thread] += 1
        return pread(*words)

    os.pread = counted
    executor, begin = Counting(workers, threads), time.process_time()
    with holes_allowed():
        prepared, settings = prepare_reshard(f"{location}@1", to_ps, output=f"{location}-out", executor=executor)
        found: dict[str, Any] = {
            "stretches": len(prepared.survey.pieces),
            "plan_bytes": len(packed(prepared)),
            "plan_seconds": time.process_time() - begin - executor.own_seconds,
            "plan_mib": peak_memory_bytes() / 2**20,
        }
        execute_reshard(prepared, settings, executor=executor)
    found["seconds"] = time.process_time() - begin - executor.own_seconds
    found["reads"], found["reads_beside"] = reads
    found["peak_mib"] = peak_memory_bytes() / 2**20
    (seal,) = Path(f"{location}-out").glob(".edl-ckpt-0/meta-0/*.seal.json")
    found["seal_bytes"] = seal.stat().st_size
    found["passes"] = [asdict(each) for each in executor.passes]
    return found


def merged(found: dict[str, Any]) -> list[Pass]:
    """Return the passes, those over groups of shards as one."""
    passes: dict[str, Pass] = {}
    for one in (Pass(**each) for each in found["passes"]):
        if one.work in passes:
            passes[one.work].add(one)
        else:
            passes[one.work] = one
    return list(passes.values())


def tasks_of(one: Pass, costs: dict[str, Cost]) -> list[Task]:
    """Return the tasks of a pass with their costs: files are opened, flushed and closed, records made and removed."""
    cost = costs.get(one.work, Cost(0.0, 0.0))
    return [
        Task(read, written, 3 * opened + 4 * bool(opened), cost.task + cost.gigabyte * read / 1e9)
        for read, written, opened in zip(one.read, one.written, one.opened, strict=True)
    ]


def show(text: str = "") -> None:
    """Print a line at once."""
    print(text, flush=True)


def show_plan(scale: Scale, to_ps: int, found: dict[str, Any]) -> None:
    """Print what the command would send, and what it took."""
    passes = merged(found)
    tables = len(scale.tables)
    show(f"{scale.size_bytes / 1e12:.1f} TB, {scale.rows / 1e9:.1f} thousand million rows, {tables} tables")
    show(f"{scale.ps_num} -> {to_ps} servers")
    show("| pass | tasks | sent, largest | results, largest | shared by all tasks | read | written |")
    show("|---|---|---|---|---|---|---|")
    for one in passes:
        show(
            f"| {NAMES.get(one.work, one.work)} | {one.tasks:,} "
            f"| {one.task_bytes / 1e6:.0f} MB, {one.largest_task:,} B "
            f"| {one.result_bytes / 1e6:.0f} MB, {one.largest_result:,} B | {one.work_bytes / 1e6:.2f} MB "
            f"| {sum(one.read) / 1e9:,.0f} GB | {sum(one.written) / 1e9:,.0f} GB |"
        )
    show(f"tasks: {sum(one.tasks for one in passes):,}; all of them as bytes {_sent(passes) / 1e6:.0f} MB")
    show(f"plan: {found['stretches']:,} stretches, {found['plan_bytes'] / 1e6:.0f} MB as bytes")
    show(
        f"the command: {found['plan_mib']:.0f} MiB and {found['plan_seconds']:.0f} s of CPU when it has planned, "
        f"{found['peak_mib']:.0f} MiB and {found['seconds']:.0f} s in all; "
        f"{found['reads']:,} reads one after the other, "
        f"{found['reads_beside']:,} by {SMALL_READS} threads"
    )
    show(f"seal: {found['seal_bytes'] / 1e6:.0f} MB")
    show()


def _sent(passes: list[Pass]) -> int:
    return sum(one.task_bytes + one.work_bytes for one in passes)


def show_time(
    found: dict[str, Any], costs: dict[str, Cost], scheduler: SchedulerCost, machines: Machines, latency: float
) -> float:
    """Print where the time goes; return the seconds of all."""
    passes = [one for one in merged(found) if one.tasks]
    waits = found["reads"] + found["reads_beside"] / SMALL_READS
    between: float = found["seconds"] - sum(one.seconds for one in passes) + waits * latency
    show("| pass | seconds | busy most | processors | file server | scheduler | command |")
    show("|---|---|---|---|---|---|---|")
    total = between
    for one in passes:
        command = scheduler.command_ms / 1e3 + one.seconds / one.tasks
        done = simulate(tasks_of(one, costs), machines, command=command, scheduler=scheduler.scheduler_ms / 1e3)
        total += done.seconds
        show(f"| {NAMES.get(one.work, one.work)} | {_time_row(done)} |")
    show(f"| the command alone | {between:.0f} | headers, plan, seal | 0 % | 0 % | 0 % | 100 % |")
    show(f"| all | {total:,.0f} | | | | | |")
    show()
    return total


def _time_row(done: Outcome) -> str:
    some = ("the processors", "the bandwidth of the file server", "the scheduler", "the command")
    return f"{done.seconds:,.0f} | {done.bound} | " + " | ".join(f"{100 * done.busy[name]:.0f} %" for name in some)


def main() -> None:
    """Print everything."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--terabytes", type=float, default=10.0)
    parser.add_argument("--from", type=int, default=256, dest="from_ps")
    parser.add_argument("--to", type=int, default=400, dest="to_ps")
    parser.add_argument("--tables", type=int, default=100)
    parser.add_argument("--workers", type=int, default=64)
    parser.add_argument("--threads", type=int, default=16)
    parser.add_argument("--network", type=float, default=3.1, help="GB/s of each worker")
    parser.add_argument("--storage", type=float, default=40.0, help="GB/s of the file server")
    parser.add_argument("--latency", type=float, default=0.5, help="ms of a small read by the command")
    parser.add_argument("--scheduler-tasks", type=int, default=20_000, help="for the real scheduler; 0 to skip it")
    parser.add_argument("--plan", action="store_true", help="stop when the tasks are counted")
    parser.add_argument("--costs", type=Path, help="keep what was measured in a file, or take it from there")
    parser.add_argument("--json", type=Path, help="write what was counted to a file")
    parser.add_argument("--work", type=Path, help="a directory for files of holes")
    words = parser.parse_args()
    scale = scale_of(words.terabytes, words.from_ps, words.tables)
    work = Path(tempfile.mkdtemp(dir=words.work))
    try:
        elsewhere(write_holes, work / "model", scale)
        found = elsewhere(plan, work / "model", words.to_ps, words.workers, words.threads)
        show_plan(scale, words.to_ps, found)
        if words.json:
            words.json.write_text(json.dumps(found), encoding="utf-8")
        if not words.plan:
            costs, scheduler = _measured(words, work)
            machines = Machines(words.workers, words.threads, words.network * 1e9, words.storage * 1e9)
            _show_all(found, costs, scheduler, machines, words.latency / 1e3)
    finally:
        shutil.rmtree(work)


def _measured(words: argparse.Namespace, work: Path) -> tuple[dict[str, Cost], SchedulerCost]:
    """Return what tasks cost, measured now or earlier."""
    if words.costs and words.costs.exists():
        kept = json.loads(words.costs.read_text(encoding="utf-8"))
        return {name: Cost(**cost) for name, cost in kept["costs"].items()}, SchedulerCost(**kept["scheduler"])
    costs = elsewhere(measure_costs, work, 800)
    scheduler = elsewhere(measure_scheduler, words.scheduler_tasks, words.workers, words.threads)
    if words.costs:
        kept = {"costs": {name: asdict(cost) for name, cost in costs.items()}, "scheduler": asdict(scheduler)}
        words.costs.write_text(json.dumps(kept), encoding="utf-8")
    return costs, scheduler


def _show_all(
    found: dict[str, Any], costs: dict[str, Cost], scheduler: SchedulerCost, machines: Machines, latency: float
) -> None:
    """Print the costs, the time on these machines, and how it changes with them."""
    show(f"measured on {machine()}")
    for name, cost in costs.items():
        show(f"{NAMES.get(name, name)}: {1e3 * cost.task:.1f} ms a task, {cost.gigabyte:.2f} s of CPU a GB")
    show(
        f"a scheduler with {scheduler.workers} workers of {scheduler.threads} threads, {scheduler.tasks:,} tasks: "
        f"{scheduler.scheduler_ms:.2f} ms of CPU a task, the command {scheduler.command_ms:.2f} ms; "
        f"{scheduler.scheduler_mib:.0f} MiB at most"
    )
    show()
    show_time(found, costs, scheduler, machines, latency)
    for words, other in {
        "a quarter of the workers": replace(machines, workers=machines.workers // 4),
        "four times the workers": replace(machines, workers=4 * machines.workers),
        "a file server of a quarter": replace(machines, storage=machines.storage / 4),
        "a file server without limits": replace(machines, storage=1e15, operations=1e15),
    }.items():
        show(f"with {words}:")
        show_time(found, costs, scheduler, other, latency)


if __name__ == "__main__":
    main()
