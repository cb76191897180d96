"""A format claims by content: files that only end like those of a format are no part of a checkpoint, and tear none."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from bundle_files import write_bundle
from edl_ckpt.core import list_versions, open_checkpoint, verify_version
from edl_ckpt.core.base.errors import UnsupportedError
from edl_ckpt.core.model.versions import State, Version
from foreign import SYSTEMS
from torch_checkpoints import SAVED
from torch_items import boxes, write_step

LONG_AGO = 1_000_000_000


def huge(path: Path) -> None:
    """Make a sparse file of 1 TiB."""
    path.write_bytes(b"")
    os.truncate(path, 1 << 40)


FOREIGN: dict[str, Callable[[Path], object]] = {
    "an index of another library": lambda step: (step / "faiss.index").write_bytes(os.urandom(3000)),
    "an empty index": lambda step: (step / "corpus-7.index").write_bytes(b""),
    "a text": lambda step: (step / "notes" / ".metadata").write_text("saved by hand\n"),
    "a pickle of others": lambda step: (step / "notes" / ".metadata").write_bytes(b"\x80\x04]\x94."),
    "parts of a data set": lambda step: (step / "train.data-00000-of-00002").write_bytes(b"rows"),
    "one huge index": lambda step: huge(step / "big.index"),
}
STEPS = ["dcp/torchrec/step_2", "safetensors/checkpoint-200", "dynamicemb/step_2", "tfra/step_3"]


def listed(location: Path) -> list[Version]:
    """Return the versions of a location, whose files are all old."""
    for path in [location, *location.rglob("*")]:
        os.utime(path, (LONG_AGO, LONG_AGO), follow_symlinks=False)
    return list(list_versions(str(location)).versions)


@pytest.mark.parametrize("name", FOREIGN)
@pytest.mark.parametrize("system", STEPS[:2])
def test_a_foreign_file_tears_nothing(name: str, system: str, tmp_path: Path) -> None:
    """A step with a file of somebody else, that ends like one of a bundle or of torch, is as complete as before."""
    step = tmp_path / "step_7"
    shutil.copytree(SYSTEMS / system, step)
    (step / "notes").mkdir()
    (before,) = listed(tmp_path)
    FOREIGN[name](step)
    (after,) = listed(tmp_path)
    assert (after.state, after.lacks, after.ps_num) == (State.COMPLETE, (), before.ps_num)
    assert after.layout.system == before.layout.system
    with open_checkpoint(after) as checkpoint:
        assert [*checkpoint.variable_names, *checkpoint.table_names]


@pytest.mark.parametrize("name", ["faiss-12.index", "corpus-7.index", "items-150.index"])
def test_a_foreign_index_is_no_version(name: str, tmp_path: Path) -> None:
    """An `.index` with a number, of another library, in a location is no version of it."""
    shutil.copytree(SAVED / "torchrec/step_2", tmp_path / "step_2")
    (tmp_path / name).write_bytes(os.urandom(2000))
    assert [version.version for version in listed(tmp_path)] == [2]


def test_a_bundle_whose_index_is_cut_is_torn(tmp_path: Path) -> None:
    """Data files of a bundle beside an index that has lost its end are an incomplete version, as they were."""
    write_bundle(tmp_path / "m-7", {"w": np.arange(4, dtype=np.float32)})
    assert [version.state for version in listed(tmp_path)] == [State.COMPLETE]
    os.truncate(tmp_path / "m-7.index", 50)
    assert [version.state for version in listed(tmp_path)] == [State.INCOMPLETE]


def test_a_bundle_beside_data_of_others(tmp_path: Path) -> None:
    """Data files without an index, beside a bundle that is whole, do not belong to it."""
    step = tmp_path / "step_3"
    step.mkdir()
    write_bundle(step / "model", {"w": np.arange(4, dtype=np.float32)})
    (step / "train.data-00000-of-00002").write_bytes(b"rows")
    (step / "faiss.index").write_bytes(os.urandom(2000))
    (version,) = listed(tmp_path)
    assert version.state is State.COMPLETE
    with open_checkpoint(version) as checkpoint:
        assert checkpoint["w"].tolist() == [0, 1, 2, 3]


def test_files_below_the_index_that_names_them(tmp_path: Path) -> None:
    """Files of ranks in directories of their own, as connectors of S3 spread them, are read by the index above."""
    values = np.arange(70, dtype=np.float32).reshape(10, 7)
    step = write_step(tmp_path / "step_1", boxes("s", values, [[5], []], ranks=2))
    data = (step / ".metadata").read_bytes()
    for rank in range(2):
        (step / f"p{rank}/e").mkdir(parents=True)
        shutil.move(step / f"__{rank}_0.distcp", step / f"p{rank}/e/__{rank}_0.distcp")
        old, new = f"__{rank}_0.distcp".encode(), f"p{rank}/e/__{rank}_0.distcp".encode()
        data = data.replace(b"\x8c" + bytes([len(old)]) + old, b"\x8c" + bytes([len(new)]) + new)
    (step / ".metadata").write_bytes(data[:2] + data[11:])  # without its frame, whose length has changed
    (version,) = listed(tmp_path)
    assert (version.state, version.lacks, version.ps_num) == (State.COMPLETE, (), 2)
    with open_checkpoint(version) as checkpoint:
        assert checkpoint["s"].tolist() == values.tolist()
    (step / "p1/e/__1_0.distcp").unlink()
    (version,) = listed(tmp_path)
    assert (version.state, version.lacks) == (State.INCOMPLETE, ("p1/e/__1_0.distcp",))


def test_an_index_of_each_rank_is_unsupported(tmp_path: Path) -> None:
    """A save in which each rank keeps an index of its own is there, is not read, and is never torn."""
    step = Path(shutil.copytree(SAVED / "torchrec/step_2", tmp_path / "step_2"))
    shutil.copy(step / ".metadata", step / "__1.metadata")
    shutil.move(step / ".metadata", step / "__0.metadata")
    (version,) = listed(tmp_path)
    assert (version.state, version.lacks) == (State.UNREADABLE, ())
    assert "use_collectives=False" in version.why_unreadable
    with pytest.raises(UnsupportedError, match="each rank has an index of its own"):
        open_checkpoint(version)


def test_other_bundles_in_a_directory_are_named(tmp_path: Path) -> None:
    """Where the file `checkpoint` names one of several bundles, a warning names the others, which are not read."""
    step = tmp_path / "step_3"
    for name in ("actor", "critic", "old"):
        write_bundle(step / name, {name: np.arange(4, dtype=np.float32)})
    (step / "checkpoint").write_text('model_checkpoint_path: "critic"\n')
    (version,) = listed(tmp_path)
    with open_checkpoint(version) as checkpoint:
        assert [*checkpoint.variable_names] == ["critic"]
    (finding,) = verify_version(version).findings
    assert (finding.severity, finding.code) == ("warning", "passed-over")
    assert "2 other bundles in the directory, not read (actor, old)" in finding.message
