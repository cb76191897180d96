"""What a listing says of a step of torch: which ranks saved it, and what it lacks."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from edl_ckpt.core import list_versions, open_checkpoint
from edl_ckpt.core.base.errors import UnsupportedError
from edl_ckpt.core.model.versions import State, Version
from edl_ckpt.core.sources.dcp import format as dcp
from edl_ckpt.core.storage.interface import BytesReader
from torch_checkpoints import SAVED

LONG_AGO = 1_000_000_000


@pytest.fixture
def step(tmp_path: Path) -> Path:
    """A copy of a checkpoint of two ranks."""
    return Path(shutil.copytree(SAVED / "torchrec/step_2", tmp_path / "step_2"))


def listed(step: Path) -> Version:
    """Return a step as a listing shows it, whose files are all old."""
    for path in [step, *step.rglob("*")]:
        os.utime(path, (LONG_AGO, LONG_AGO))
    (version,) = list_versions(str(step.parent)).versions
    return version


def test_each_rank_is_a_shard(step: Path) -> None:
    """A step of two ranks is complete; the index belongs to the first shard, which lists its own file first."""
    version = listed(step)
    assert (version.state, version.ps_num, version.lacks) == (State.COMPLETE, 2, ())
    assert version.layout.system == "dcp"
    names = [[version.name_of(file.path) for file in shard.files] for shard in version.shards]
    assert names == [["__0_0.distcp", ".metadata"], ["__1_0.distcp"]]


def test_without_an_index_a_step_is_torn(step: Path) -> None:
    """`.metadata` is written last: without it, a step lacks it."""
    (step / ".metadata").unlink()
    version = listed(step)
    assert (version.state, version.lacks) == (State.INCOMPLETE, (".metadata",))


def test_a_missing_rank_is_named(step: Path) -> None:
    """A file that the index names and that is not there is lacking."""
    (step / "__1_0.distcp").unlink()
    version = listed(step)
    assert (version.state, version.ps_num, version.lacks) == (State.INCOMPLETE, 2, ("__1_0.distcp",))


def test_an_item_that_ends_early_is_named(step: Path) -> None:
    """A file that is shorter than its items is torn, and says at which bytes."""
    path = step / "__0_0.distcp"
    os.truncate(path, 50_000)
    assert listed(step).lacks == ("__0_0.distcp ends at byte 50,000 of 84,004",)


@pytest.mark.parametrize("cut", [0, 1, 100, 2781])
def test_a_damaged_index_is_lacking(step: Path, cut: int) -> None:
    """A truncated index makes a step incomplete, whatever is left of it."""
    os.truncate(step / ".metadata", cut)
    version = listed(step)
    assert version.state is State.INCOMPLETE
    words = "the pickle is damaged" if cut > 99 else "it does not begin as an index of torch does"
    assert version.lacks[0].startswith(f".metadata: {words}")


def test_an_unknown_name_is_unsupported(step: Path) -> None:
    """A step whose index has a name of another program is there, and cannot be read."""
    data = (step / ".metadata").read_bytes()
    (step / ".metadata").write_bytes(data.replace(b"BytesStorageMetadata", b"BytesStorageMetadatX"))
    version = listed(step)
    assert version.state is State.UNREADABLE
    assert "BytesStorageMetadatX" in version.why_unreadable
    with pytest.raises(UnsupportedError):
        open_checkpoint(version)


def test_several_indexes_make_one_step(tmp_path: Path) -> None:
    """A model and an optimizer in directories are one step; names of both get these, and all names of a third do."""
    for folder in ("model", "optimizer"):
        shutil.copytree(SAVED / "torchrec/step_2", tmp_path / "model.ckpt-7" / folder)
    shutil.copytree(SAVED / "dtensor/step_1", tmp_path / "model.ckpt-7" / "rest")
    version = listed(tmp_path / "model.ckpt-7")
    assert (version.state, version.version, version.ps_num) == (State.COMPLETE, 7, 4)
    with open_checkpoint(version) as checkpoint:
        assert "model.model.over.bias" in checkpoint
        assert "optimizer.model.over.bias" in checkpoint
        assert "rest.emb" in checkpoint
        assert "model.model.ebc.embedding_bags.user.weight" in checkpoint.tables
        state = "model.optim.state.ebc.embedding_bags.user.weight.user.momentum1"  # of either of two tables
        assert state in checkpoint
        problems = [problem for shard in checkpoint.shards for problem in shard.problems if problem.subject == state]
        assert [(problem.code, problem.warning) for problem in problems] == [("ambiguous-companion", True)]


def index() -> bytes:
    """Return an index without its frame, so that its length may change."""
    data = (SAVED / "torchrec/step_2/.metadata").read_bytes()
    return data[:2] + data[11:]


@pytest.mark.parametrize("path", ["../x", "/etc/x", "a/../x", "a\\x", "a\0x", "", "./x", "a//x"])
def test_paths_stay_in_the_directory(path: str) -> None:
    """An index that names a file outside of its directory is damaged."""
    old, new = (b"\x8c" + bytes([len(text)]) + text for text in (b"__1_0.distcp", path.encode()))
    with pytest.raises(ValueError, match="leads out of its directory"):
        dcp.digest(BytesReader(index().replace(old, new), ".metadata"))


def test_transformed_items_are_unsupported() -> None:
    """Items that an extension of torch has compressed or encrypted are not read as they are."""
    data = index()
    length = data.index(b"\x8c\x06length")
    end = data.index(b"ub", length)
    more = b"\x8c\x15transform_descriptors]\x8c\x04zstda"
    with pytest.raises(UnsupportedError, match="transformed"):
        dcp.digest(BytesReader(data[:end] + more + data[end:], ".metadata"))
