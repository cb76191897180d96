"""Peers: what other tools need for work of the same kind. Each is optional; the reason of one left out is printed.

They do not the same: DCP proves nothing, restic and borg keep copies, safetensors and np.save write one file without
checksums. The figure is our time against theirs, on the same bytes and disk.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import library
from disk_figures import Bench, seal
from measure import EDL, Figure, Run, in_one_process, nothing, pairs, remove, run
from shapes import Shape, make, size_of


def array_figures(bench: Bench) -> Iterator[Figure]:
    """Saving and loading arrays of a process, beside safetensors and np.save, both with fsync."""
    rows = bench.rows(16_000_000)
    what = f"{rows / 1e6:.1f} M rows of dim 16"
    for peer, module in (("safetensors", "safetensors"), ("np.save", "numpy")):
        if left_out(peer, importlib.util.find_spec(module) is None):
            continue
        figure = Figure(f"save_checkpoint, {what}", f"{peer}, fsync")
        yield in_one_process(figure, library.save_beside, peer, str(bench.work), rows, bench.few)
        figure = Figure(f"restore 1 -> 1, {what}", f"{peer}, loading")
        yield in_one_process(figure, library.load_beside, peer, str(bench.work), rows, bench.few)


def check_figures(bench: Bench) -> Iterator[Figure]:
    """A deep verification of a sealed version, beside the checks of restic and borg that read all data."""
    source = make(bench.work / "source", Shape(4, ((bench.rows(16_000_000), 16),), 40))
    seal(bench, source)
    ours = [*EDL, "verify", str(source), "--deep", "--quiet"]
    os.environ |= {"RESTIC_PASSWORD": "bench", "BORG_BASE_DIR": str(bench.work / "borg-home")}
    os.environ["BORG_UNKNOWN_UNENCRYPTED_REPO_ACCESS_IS_OK"] = "yes"
    kept = bench.work / "kept"
    restic = ["restic", "-q", "--no-cache", "-r", str(kept)]
    peers = [
        ("restic", [[*restic, "init"], [*restic, "backup", str(source)]], [*restic, "check", "--read-data"]),
        (
            "borg",
            [["borg", "init", "-e", "none", str(kept)], ["borg", "create", f"{kept}::a", str(source)]],
            ["borg", "check", "--verify-data", str(kept)],
        ),
    ]
    for peer, prepare, check in peers:
        if left_out(peer, shutil.which(peer) is None):
            continue
        for command in prepare:
            run(command, bench.work)
        figure = Figure(f"verify --deep of {size_of(source) / 1e9:.2f} GB, sealed", f"{peer} check, reading all data")
        yield pairs(figure, bench.few, bench.work, ours, check, nothing, warm=False)
        shutil.rmtree(kept)
    shutil.rmtree(bench.work / "borg-home", ignore_errors=True)
    remove(source)()


def dcp_figures(bench: Bench) -> Iterator[Figure]:
    """Reshard 4 -> 8, beside PyTorch's distributed checkpoint: 8 processes load what 4 have saved, and save it."""
    if left_out("PyTorch DCP", importlib.util.find_spec("torch") is None):
        return
    rows = bench.rows(16_000_000) // 8 * 8
    source, out, theirs = (
        make(bench.work / "source", Shape(4, ((rows, 16),), 40)),
        bench.work / "out",
        bench.work / "dcp",
    )
    figure = Figure(f"reshard 4 -> 8, {size_of(source) / 1e9:.2f} GB", "PyTorch DCP")
    ours = [*EDL, "reshard", str(source), "--ps", "8", "--output", str(out), "--quiet"]
    command = [sys.executable, str(Path(__file__).with_name("peer_dcp.py")), str(theirs), str(rows), "4", "8"]
    for _ in range(bench.few):
        remove(out, theirs)()
        figure.ours.append(run(ours, bench.work))
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"peer_dcp.py failed: {done.stderr[-2000:]}")
        figure.reference.append(Run(*json.loads(done.stdout.splitlines()[-1])))
    remove(out, theirs, source)()
    figure.note = f"DCP without the start of its processes: {figure.median('cpu', reference=True):.1f} s CPU, "
    figure.note += f"{figure.median('peak_mib', reference=True):,.0f} MiB in all of them"
    print(f"{figure.line()}\n  {figure.note}", flush=True)
    yield figure


def left_out(peer: str, missing: bool) -> bool:
    """Print the reason when a peer cannot be measured."""
    if missing:
        print(f"{peer} is left out: it is not installed", file=sys.stderr)
    return missing
