"""A shard that Python's protobuf cannot parse: every command in bounded memory. Run with `pytest -m hours`."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from places import BENCH

LIMIT_MIB = 512


def bench() -> ModuleType:
    """Return the benchmark's module, which makes large checkpoints and measures processes."""
    spec = importlib.util.spec_from_file_location("bench_run", BENCH / "run.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["bench_run"] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.hours
def test_three_gibibytes(tmp_path: Path) -> None:
    """A shard of 3 GiB is listed, inspected, verified, resharded, and its parts verified, each below 512 MiB."""
    run = bench()
    # In a process of its own: what is spawned here would count this process's memory as its peak.
    make = f"import sys; sys.path.insert(0, {str(BENCH)!r}); from pathlib import Path; import run\n"
    make += f"run.write(Path({str(tmp_path / 'a')!r}), run.Shape(1, ((47_000_000, 16),), 40))"
    subprocess.run([sys.executable, "-c", make], check=True, timeout=600)
    (shard,) = (tmp_path / "a").rglob("*.ckpt")
    assert shard.stat().st_size > 3 << 30
    a, b = str(tmp_path / "a"), str(tmp_path / "b")
    fingerprints = []
    for arguments in (
        ["list", a],
        ["inspect", a],
        ["verify", a],
        ["verify", a, "--deep"],
        ["reshard", a, "--ps", "7", "--output", b],
        ["verify", b, "--deep"],
    ):
        done = run.run([*run.EDL, *arguments, "--json"], tmp_path)
        print(f"{' '.join(arguments[:1] + arguments[2:])}: {done.wall:.2f} s, peak {done.peak_mib:.0f} MiB")
        assert done.peak_mib < LIMIT_MIB
        held = json.loads(done.stdout)
        if held.get("fingerprint"):
            fingerprints.append(held["fingerprint"])
        if "ok" in held:
            assert held["ok"]
    assert len(fingerprints) == 3
    assert len(set(fingerprints)) == 1
    os.remove(shard)
