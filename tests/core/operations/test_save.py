"""Saving arrays as a new version."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from checkpoints import only, save_small
from edl_ckpt.core import Rows, open_checkpoint, save_checkpoint
from edl_ckpt.core.base.arrays import BFLOAT16, Array
from edl_ckpt.core.base.choices import LayoutName
from edl_ckpt.core.base.errors import EdlCkptError, RefusedError, UsageError
from edl_ckpt.core.operations.save import Table
from edl_ckpt.core.storage.files import PreallocatedFile
from reporters import Recorder
from s3_fixtures import Bucket


def save(location: str, ps_num: int = 2, layout: LayoutName = "design") -> object:
    """Save version 7, and return it without its time: a directory's own time may be the latest in a listing."""
    table = Table(np.arange(9), np.ones((9, 2), np.float32))
    version = save_checkpoint(location, 7, ps_num, variables={}, tables={"t": table}, layout=layout)
    assert version.modified > 0
    return _content(version)


def _content(version: object) -> object:
    from dataclasses import replace

    return replace(version, modified=0.0)  # type: ignore[type-var]


def test_the_version_is_as_listed(tmp_path: Path) -> None:
    """The version that is returned equals that of a listing: shards with their times, state, seal, layout."""
    assert save(str(tmp_path / "run")) == _content(only(tmp_path / "run"))


def test_the_version_is_as_listed_on_s3(s3: Bucket) -> None:
    """The same on S3, where no listing is made for it: one HEAD for each shard tells its time."""
    saved = save(s3.url)
    lists = s3.proxy.count("list")
    assert saved == _content(only(s3.url))
    assert s3.proxy.count("list") > lists


@pytest.mark.parametrize(("ps_num", "layout"), [(2, "design"), (3, "design"), (2, "elasticdl")])
def test_a_taken_number_is_refused(tmp_path: Path, s3: Bucket, ps_num: int, layout: LayoutName) -> None:
    """A version that exists is not touched, whatever its layout and its number of shards, on S3 neither."""
    for place in (str(tmp_path / "run"), s3.url):
        save_small(place, 7)
        before = only(place)
        with pytest.raises(RefusedError, match="version 7 exists there already"):
            save(place, ps_num, layout)
        assert only(place) == before


def test_arrays_of_other_libraries(tmp_path: Path) -> None:
    """Variables, ids and vectors may be any arrays; bfloat16, which numpy lacks, is saved bit for bit."""
    values = np.array([1.0, -2.5, 3.0], np.float32)
    half = (values.view("<u4") >> 16).astype("<u2").view(BFLOAT16)
    table = Table(memoryview(np.array([4, 5])), memoryview(np.ones((2, 3))))  # type: ignore[arg-type]
    save_checkpoint(tmp_path / "run", 1, 2, variables={"half": half, "b": values}, tables={"t": table})
    with open_checkpoint(f"{tmp_path}/run@1") as checkpoint:
        dtypes = {v.name: v.dtype.name for shard in checkpoint.shards for v in shard.variables}
        assert dtypes == {"half": "bfloat16", "b": "float32"}
        assert checkpoint.variable("half").tolist() == [1.0, -2.5, 3.0]
        assert sum(len(batch.ids) for batch in checkpoint.table("t")) == 2


@pytest.mark.parametrize(
    "table",
    [
        (np.array([4, 5]), np.ones((2, 3))),
        Rows(np.array([4, 5]), np.ones((2, 3))),
        Table([4, 5], np.ones((2, 3))),  # type: ignore[arg-type]
        Table(np.array([4, 5], np.uint16), np.ones((2, 3))),
    ],
)
def test_forms_of_a_table(table: Table | tuple[Array, Array], tmp_path: Path) -> None:
    """A table is a Table or (ids, vectors), such as another checkpoint gives; ids are whole numbers of any width."""
    save_checkpoint(tmp_path, 1, 2, variables={}, tables={"t": table})
    with open_checkpoint(tmp_path) as checkpoint:
        assert checkpoint.table("t").initializer == "uniform"
        assert checkpoint.table("t").to_numpy([5, 4]).vectors.tolist() == [[1.0] * 3] * 2


@pytest.mark.parametrize(
    "table",
    [
        np.ones((2, 3)),
        (np.arange(2), np.ones((2, 3)), "zeros"),
        Table(np.ones(2), np.ones((2, 3))),
        Table(np.arange(2), np.ones((3, 3))),
        Table(np.arange(2), np.ones(2)),
        Table(np.array([0, 2**63], np.uint64), np.ones((2, 3))),
        Table(np.arange(2), None),  # type: ignore[arg-type]
    ],
)
def test_what_is_no_table(table: Any, tmp_path: Path) -> None:
    """Anything else is a UsageError that names the table, and nothing is written."""
    with pytest.raises(UsageError, match="table 't'"):
        save_checkpoint(tmp_path / "run", 1, 2, variables={}, tables={"t": table})
    assert not (tmp_path / "run").exists()


class Phases(Recorder):
    """Keeps the phases in their order, each with the bytes that are to be done and that are done."""

    def __init__(self) -> None:
        super().__init__()
        self.phases: list[list[Any]] = []

    def start(self, what: str, total_bytes: int) -> None:
        """Begin a phase."""
        self.phases.append([what, total_bytes, 0])

    def advance(self, size_bytes: int) -> None:
        """Add to the phase."""
        self.phases[-1][2] += size_bytes


def test_progress(tmp_path: Path) -> None:
    """A save reports each pass over the values, from the first byte to the last, to whatever reporter it is given."""
    phases = Phases()
    table = Table(np.arange(900), np.ones((900, 5), np.float32))
    save_checkpoint(tmp_path, 1, 2, variables={"w": np.ones(7)}, tables={"t": table}, reporter=phases)
    ids, values = 900 * 8, 900 * 5 * 4 + 56
    assert [phase[1:] for phase in phases.phases[:2]] == [[ids] * 2, [values] * 2]
    assert len(phases.phases) > 2
    assert all(total <= done for _, total, done in phases.phases)


@pytest.mark.parametrize("size", [56, 450 * 20, 3], ids=["a variable", "rows", "ids"])
def test_the_proof_is_against_the_arrays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    """What is read back is compared with the arrays that were given: one wrong bit, and nothing is saved."""
    write = PreallocatedFile.write

    def flip(self: PreallocatedFile, offset: int, data: memoryview | bytes) -> None:
        changed = bytearray(data)
        if len(changed) == size:
            changed[0] ^= 2
        write(self, offset, bytes(changed))

    monkeypatch.setattr(PreallocatedFile, "write", flip)
    tables = {"t": Table(np.arange(900), np.ones((900, 5), np.float32)), "u": Table(np.arange(6), np.ones((6, 0)))}
    with pytest.raises(EdlCkptError):
        save_checkpoint(tmp_path / "run", 1, 2, variables={"w": np.ones(7)}, tables=tables)
    assert list(tmp_path.iterdir()) == []
