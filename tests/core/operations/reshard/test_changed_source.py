"""A source that changes while a reshard is proved."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from checkpoints import save_small
from edl_ckpt.core import LockedError, reshard_version
from edl_ckpt.core.moving import write
from edl_ckpt.core.proof.proving import prove


def test_a_source_that_changes_during_the_proof(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was read may be of two states: the command ends, and nothing is published."""
    save_small(tmp_path / "run", 20)

    def changed(*arguments: Any) -> Any:
        shard = next((tmp_path / "run").rglob("variables-*"))
        shard.write_bytes(shard.read_bytes())
        os.utime(shard, ns=(1, 1))
        return prove(*arguments)

    monkeypatch.setattr(write, "prove", changed)
    with pytest.raises(LockedError, match="changed"):
        reshard_version(f"{tmp_path / 'run'}@20", 3, output=str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()
