"""The store contract: the same answers from the local disk, S3 and fsspec, with no more reads than needed."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest

from places import GOLDEN
from store_contract import Contract, RemoteContract


class TestLocal(Contract):
    """The local disk."""

    @pytest.fixture(autouse=True)
    def _place(self, tmp_path: Path) -> None:
        shutil.copytree(GOLDEN / "multi", tmp_path / "run")
        self.location = str(tmp_path / "run")

    def overwrite(self, path: str, data: bytes) -> None:
        """Put other bytes in a file's place."""
        Path(path).write_bytes(data)


class TestFileUrl(TestLocal):
    """The local disk, named by a URL."""

    @pytest.fixture(autouse=True)
    def _place(self, tmp_path: Path) -> None:
        shutil.copytree(GOLDEN / "multi", tmp_path / "run")
        self.location = f"file://{tmp_path / 'run'}"


class TestMemory(RemoteContract):
    """Any filesystem of fsspec, here the one in memory."""

    @pytest.fixture(autouse=True)
    def _place(self) -> Iterator[None]:
        memory = fsspec.filesystem("memory")
        memory.put(str(GOLDEN / "multi"), "/bucket/run", recursive=True)
        self.location = "memory://bucket/run"
        yield
        memory.rm("/bucket", recursive=True)

    def overwrite(self, path: str, data: bytes) -> None:
        """Put other bytes in a file's place."""
        fsspec.filesystem("memory").pipe_file(path.removeprefix("memory:/"), data)
