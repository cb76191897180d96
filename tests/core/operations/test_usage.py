"""What takes the space of a location: every byte of every file is counted once, at its place."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from checkpoints import save_small
from edl_ckpt.core import Latest, Policy, measure_usage, prune
from edl_ckpt.core.storage import LocalStore
from edl_ckpt.core.storage.interface import Entry
from program import document, edl


def test_every_byte_is_counted(tmp_path: Path) -> None:
    """Versions, trash, staging, state and all else add up to what `find` counts; a link takes nothing."""
    run = tmp_path / "run"
    save_small(run, 10, 20, 30)
    prune([run], Policy((Latest(2),)), trash=True)
    (run / "version-20/words").write_bytes(b"x" * 11)
    left = run / ".edl-ckpt-0/stage-0/left"
    left.mkdir(parents=True)
    (left / "file").write_bytes(b"x" * 100)
    (run / "logs").mkdir()
    (run / "logs/a").write_bytes(b"x" * 1000)
    (run / "logs/linked").symlink_to(run / "version-30/variables-0-of-2.ckpt")
    usage = measure_usage(run)
    files = [p for p in run.rglob("*") if p.is_file() and not p.is_symlink()]
    assert usage.size_bytes == sum(p.stat().st_size for p in files)
    assert usage.other_bytes == 1000
    assert [(d.name, d.size_bytes) for d in usage.staging] == [("left", 100)]
    assert len(usage.trash) == 1
    sizes = {version.version: size for version, size in usage.versions}
    assert sizes == {n: sum(p.stat().st_size for p in (run / f"version-{n}").iterdir()) for n in (20, 30)}
    listed = document("du", run)
    assert listed["size_bytes"] == usage.size_bytes
    rows = edl("du", run, "--csv").stdout.splitlines()[1:]
    assert sum(int(row.rpartition(",")[2]) for row in rows) == usage.size_bytes


def test_one_listing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The location is listed once, for its versions and for all bytes, unless it changed just now."""
    save_small(tmp_path / "run", 10, 20)
    os.utime(tmp_path / "run", (10**9, 10**9))
    scans: list[str] = []
    plain = LocalStore.entries

    def counted(self: LocalStore, inside: Callable[[str], bool]) -> list[Entry]:
        scans.append(self.root)
        return plain(self, inside)

    monkeypatch.setattr(LocalStore, "entries", counted)
    assert [version.version for version, _ in measure_usage(tmp_path / "run").versions] == [10, 20]
    assert len(scans) == 1


def test_tables_of_a_version(tmp_path: Path) -> None:
    """`du run@10` names tables and variables with their bytes, which are nearly all of the shards."""
    save_small(tmp_path / "run", 10)
    found = document("du", f"{tmp_path}/run@10")
    parts = sum(part["size_bytes"] for part in (*found["tables"], *found["variables"]))
    assert 0 < parts <= found["size_bytes"] < parts + 1000
    shutil.rmtree(tmp_path / "run/version-10")
    assert edl("du", f"{tmp_path}/run@10").returncode == 10
    shutil.rmtree(tmp_path / "run")
    assert edl("du", tmp_path / "run").returncode == 10
