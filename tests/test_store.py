"""The store contract: the same answers from the local disk and through fsspec, with no more reads than needed."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest

from edl_ckpt.core import (
    execute_reshard,
    list_versions,
    open_checkpoint,
    parse_ref,
    plan_reshard,
    resolve,
    verify_version,
)
from edl_ckpt.core.errors import LockedError, NotFoundError
from edl_ckpt.core.store import open_store
from oracle import GOLDEN


class Contract:
    """What every store must do; subclasses say where the golden checkpoint is put."""

    location: str

    def test_listing(self) -> None:
        """Versions, shards, sizes and states are those of the directory."""
        versions = list_versions(self.location, grace_seconds=0).versions
        assert [(v.version, v.state.value, len(v.shards)) for v in versions] == [
            (9, "complete", 2),
            (20, "complete", 2),
            (100, "incomplete", 1),
        ]
        assert versions[1].size_bytes == 308
        assert versions[1].ref == f"{self.location}@20"

    def test_ranges(self) -> None:
        """A range is exactly what was asked for; one past the end is an error that says where."""
        store = open_store(self.location)
        path = list_versions(self.location).versions[0].shards[0].path
        with store.open(path) as reader:
            whole = reader.read(0, reader.size_bytes)
            assert len(whole) == 114
            assert reader.read(10, 5) == whole[10:15]
            assert reader.read(3, 0) == b""
            buffer = bytearray(20)
            reader.read_into(90, memoryview(buffer))
            assert bytes(buffer) == whole[90:110]
            assert reader.bytes_read == 114 + 5 + 20
            with pytest.raises(LockedError):
                reader.read(110, 10)
            reader.check_unchanged()

    def test_nothing_there(self) -> None:
        """A location or a file that is not there is NotFoundError, and so is a FileNotFoundError."""
        with pytest.raises(NotFoundError):
            list_versions(self.location + "-not")
        with pytest.raises(FileNotFoundError):
            open_store(self.location).open(f"{self.location}/version-9/none")

    def test_commands(self, tmp_path: Path) -> None:
        """A version is verified and resharded from here to the local disk, with one fingerprint."""
        version = resolve(parse_ref(self.location))
        found = verify_version(version, level="deep")
        assert found.ok
        result = execute_reshard(plan_reshard(version, 3, output=str(tmp_path / "out")))
        assert result.fingerprint == found.fingerprint


class TestLocal(Contract):
    """The local disk."""

    @pytest.fixture(autouse=True)
    def _place(self, tmp_path: Path) -> None:
        shutil.copytree(GOLDEN / "multi", tmp_path / "run")
        self.location = str(tmp_path / "run")


class TestFileUrl(Contract):
    """The local disk, named by a URL."""

    @pytest.fixture(autouse=True)
    def _place(self, tmp_path: Path) -> None:
        shutil.copytree(GOLDEN / "multi", tmp_path / "run")
        self.location = f"file://{tmp_path / 'run'}"


class TestMemory(Contract):
    """Any filesystem of fsspec, here the one in memory."""

    @pytest.fixture(autouse=True)
    def _place(self) -> Iterator[None]:
        memory = fsspec.filesystem("memory")
        memory.put(str(GOLDEN / "multi"), "/bucket/run", recursive=True)
        self.location = "memory://bucket/run"
        yield
        memory.rm("/bucket", recursive=True)


def test_listing_opens_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A listing opens no file, and lists each directory once."""
    opened: list[Any] = []
    listed: list[str] = []
    real = os.scandir
    monkeypatch.setattr(os, "open", lambda *a, **k: opened.append(a))

    def scandir(path: str) -> Any:
        listed.append(path)
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    list_versions(str(GOLDEN / "multi"))
    assert opened == []
    assert sorted(listed) == sorted([str(GOLDEN / "multi")] + [f"{GOLDEN}/multi/version-{v}" for v in (9, 20, 100)])


def test_index_skips_values(tmp_path: Path) -> None:
    """Opening a shard of holes of 3 GiB, for which no memory is, reads a few kilobytes."""
    from edl_ckpt.core.model import DTYPES, TableInfo
    from edl_ckpt.core.writer import DensePart, TablePart, lay_out_shard

    f32 = DTYPES["float32"]
    rows = 40_000_000
    dense = [DensePart(f"v{i}", f32, (1 << 20,), 4 << 20) for i in range(100)]
    layout = lay_out_shard(7, [TableInfo("t", 16, "zeros")], dense, [TablePart("t", f32, 16, rows, rows)])
    directory = tmp_path / "version_7"
    directory.mkdir()
    with (directory / "variables-0-of-1.chkpt").open("wb") as file:
        for offset, data in layout.between:
            file.seek(offset)
            file.write(data)
        file.truncate(layout.size_bytes)
    with open_checkpoint(str(tmp_path)) as checkpoint:
        assert checkpoint.shards[0].tables[0].rows == rows
        assert len(checkpoint.variable_names) == 100
        assert checkpoint.bytes_read < 1 << 20
