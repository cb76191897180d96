"""Rows of a table and elements of a variable by their position: the same as in the whole table, and little is read."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from builders import message, table_shard
from checkpoints import save_mixed, save_varied, stored_rows
from edl_ckpt.core import CorruptError, Progress, Table, open_checkpoint, save_checkpoint
from edl_ckpt.core.base.errors import NameNotFoundError
from edl_ckpt.core.reading.pages import TablePages
from places import GOLDEN

PLACES = [path for kind in ("current", "legacy") for path in sorted((GOLDEN / kind).iterdir()) if path.is_dir()]


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a location with tables of wide rows, of many narrow rows, and of none."""
    place = tmp_path_factory.mktemp("pages")
    save_mixed(place)
    return place


@pytest.mark.parametrize("name", ["wide", "narrow", "none"])
@pytest.mark.parametrize("block_bytes", [64, 5000, 512 << 10])
def test_a_page_is_a_slice_of_the_table(name: str, block_bytes: int, mixed: Path, either_kernel: str) -> None:
    """Whatever was read before, and however ids are cut into blocks, a page has the rows that the table has there."""
    random = np.random.default_rng(block_bytes)
    with open_checkpoint(f"{mixed}@7") as checkpoint:
        whole = stored_rows(checkpoint.table(name))
        pages = TablePages(checkpoint, name, block_bytes=block_bytes)
        rows = len(pages)
        assert rows == checkpoint.table(name).rows == len(whole.ids)
        for first in [0, rows - 1, rows, *random.integers(0, max(rows, 1), 12).tolist()]:
            count = int(random.integers(0, 400))
            page = pages.read(first, count)
            assert page.ids.tolist() == whole.ids[max(first, 0) : first + count].tolist()
            assert np.array_equal(page.vectors, whole.vectors[max(first, 0) : first + count])
            assert page.vectors.shape[1] == whole.vectors.shape[1]
            assert page.shards.tolist() == (page.ids % 3).tolist()


def test_an_id_is_found_at_its_position(mixed: Path) -> None:
    """`find` says where the row of an id is, and None for an id without any."""
    with open_checkpoint(f"{mixed}@7") as checkpoint:
        ids = stored_rows(checkpoint.table("narrow")).ids
        pages = TablePages(checkpoint, "narrow", block_bytes=5000)
        for position in (0, 17, len(ids) // 2, len(ids) - 1):
            assert pages.find(int(ids[position])) == position
        assert pages.find(int(ids.max()) - 1) is None
        assert pages.find(-(2**63)) is None
        assert TablePages(checkpoint, "none").find(0) is None


@pytest.mark.parametrize("place", PLACES, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_golden_generations(place: Path, either_kernel: str) -> None:
    """The tables of every generation that ElasticDL wrote are paged through, whose ids are packed or not."""
    with open_checkpoint(str(place), partial=True) as checkpoint:
        for name in checkpoint.table_names:
            whole = stored_rows(checkpoint.table(name))
            pages = TablePages(checkpoint, name, block_bytes=48)
            got = [pages.read(first, 3) for first in range(0, len(pages), 3)]
            assert [i for page in got for i in page.ids.tolist()] == whole.ids.tolist()
            read = b"".join(page.vectors.tobytes() for page in got)  # NaN differs from itself
            assert read == whole.vectors.tobytes()


def test_misplaced_and_repeated_ids(tmp_path: Path) -> None:
    """A row in the wrong shard is found all the same; of an id with several rows, the last one counts."""
    save_checkpoint(str(tmp_path), 1, 1, variables={}, tables={"t": Table(np.arange(9), np.zeros((9, 2), np.float32))})
    directory = next(tmp_path.glob("version*"))
    shard = next(directory.iterdir())
    name = shard.name.replace("0-of-1", "{}-of-2")
    shutil.copy(shard, directory / name.format(0))
    shard.rename(directory / name.format(1))
    with open_checkpoint(f"{tmp_path}@1", partial=True) as checkpoint:
        pages = TablePages(checkpoint, "t")
        assert len(pages) == 18
        assert pages.find(4) == 4
        assert pages.find(5) == 9 + 5


def test_little_is_read(mixed: Path) -> None:
    """A page reads its values, and ids only from the last known place on; the ids of a page that was read are kept."""
    with open_checkpoint(f"{mixed}@7") as checkpoint:
        pages, before = TablePages(checkpoint, "narrow", block_bytes=4096), checkpoint.bytes_read
        seen = Progress()
        pages.read(0, 100, reporter=seen)
        assert checkpoint.bytes_read - before <= 4096 + 300 + 11  # an id that the block cuts
        assert 0 <= checkpoint.bytes_read - before - 300 - seen.done_bytes <= 11
        before = checkpoint.bytes_read
        pages.read(100, 100)
        assert checkpoint.bytes_read - before == 300
        pages.read(9000, 100)
        before = checkpoint.bytes_read
        pages.read(8000, 100)
        assert checkpoint.bytes_read - before <= 2 * 4096 + 300


@pytest.mark.parametrize("rows", [3, 5])
def test_damage_is_an_error(rows: int, tmp_path: Path) -> None:
    """Fewer ids than rows is CorruptError at the row that has none; an id behind the last row belongs to no row."""
    directory = tmp_path / "version-33"
    directory.mkdir()
    (directory / "variables-0-of-1.ckpt").write_bytes(table_shard(message(2, bytes([1, 2, 3, 4])), rows))
    with open_checkpoint(f"{tmp_path}@33", partial=True) as checkpoint:
        pages = TablePages(checkpoint, "t")
        assert len(pages) == rows
        assert pages.read(0, 3).ids.tolist() == [1, 2, 3]
        if rows == 5:
            with pytest.raises(CorruptError, match="has 4 ids for 5 rows"):
                pages.read(4, 1)
        else:
            assert pages.find(4) is None


def test_elements_of_a_variable(tmp_path: Path) -> None:
    """Elements come in C order, as many as there are; no others are read."""
    save_varied(tmp_path, 3)
    with open_checkpoint(f"{tmp_path}@7") as checkpoint:
        for name in checkpoint.variable_names:
            flat: Any = checkpoint[name].reshape(-1)
            before = checkpoint.bytes_read
            for first, count in ((0, 2), (1, 99), (len(flat), 5), (0, 0)):
                assert checkpoint.elements(name, first, count).tolist() == flat[first : first + count].tolist()
            assert checkpoint.bytes_read - before <= 8 * (2 + len(flat))
        with pytest.raises(NameNotFoundError):
            checkpoint.elements("nothing", 0, 1)
        with pytest.raises(KeyError):
            TablePages(checkpoint, "nothing")


def test_reprs(mixed: Path) -> None:
    """Pages and their source are one short line, without values."""
    with open_checkpoint(f"{mixed}@7") as checkpoint:
        pages = TablePages(checkpoint, "wide")
        assert (repr(pages), repr(pages.read(0, 2))) == (
            "<TablePages wide: 200 rows>",
            "<PageRows 2 rows of 1500 float64>",
        )
