"""Checkpoints of torch for other ranks: real torch loads every tensor as it was, and other systems' tables too.

They need a Python with torch, torchrec and fbgemm-gpu-cpu. The full count, 100 models:
`EDL_CKPT_TEST_TORCHREC_PYTHON=.../python EDL_CKPT_TEST_MODELS=25 pytest -n 0 -m frameworks tests/core/converting`.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

from checkpoints import at, files_of
from edl_ckpt.core import (
    Changes,
    Table,
    convert_version,
    fingerprint_checkpoint,
    open_checkpoint,
    save_checkpoint,
    verify_and_seal,
    verify_version,
)
from edl_ckpt.core.base.errors import CorruptError, UnsupportedError
from edl_ckpt.core.model.dtypes import DTYPES
from edl_ckpt.core.sources.dcp.writing import lay_out, pickled
from edl_ckpt.core.sources.steps.file_layout import Array, Slab
from foreign import copied
from places import TESTS

JUDGE = TESTS / "support/judges/torchrec_models.py"
PYTHON = os.environ.get("EDL_CKPT_TEST_TORCHREC_PYTHON", "")
COUNT = int(os.environ.get("EDL_CKPT_TEST_MODELS", "1"))
WORLDS = (1, 2, 3, 8)
needs_torchrec = pytest.mark.skipif(not PYTHON, reason="EDL_CKPT_TEST_TORCHREC_PYTHON names no Python with torchrec")


def judged(job: str, out: Path, world: int, count: int, seed: int) -> None:
    """Let the ranks of a judge do a job."""
    command = [PYTHON, "-W", "ignore", str(JUDGE), job, str(out), str(world), str(count), str(seed)]
    done = subprocess.run(command, check=False, capture_output=True, timeout=3600)
    assert done.returncode == 0, done.stderr.decode()[-3000:]


@needs_torchrec
@pytest.mark.frameworks
@pytest.mark.parametrize("job", ["models", "collisions"])
@pytest.mark.parametrize("world", WORLDS if COUNT > 1 else (2,))
def test_every_rank_of_torch_loads_what_it_loaded_before(tmp_path: Path, world: int, job: str) -> None:
    """Every rank of torch loads what it loaded before."""
    judged(job, tmp_path, world, COUNT, world + 7)
    for ranks in WORLDS if COUNT > 1 else (3,):
        for number in range(COUNT):
            version = at(tmp_path, number)
            convert_version(version, ranks, output=tmp_path / f"to_{ranks}")
            there = at(tmp_path / f"to_{ranks}", number)
            assert verify_version(there, level="deep").ok
            with open_checkpoint(version) as one, open_checkpoint(there) as other:
                assert fingerprint_checkpoint(one).text == fingerprint_checkpoint(other).text
        judged("same", tmp_path, ranks, COUNT, 0)


@pytest.mark.parametrize(("name", "number"), [("torchrec", 2), ("dtensor", 1), ("mch", 6)])
@pytest.mark.parametrize("ranks", [1, 2, 3, 5, 8])
def test_a_reshard_in_place_keeps_the_fingerprint(tmp_path: Path, name: str, number: int, ranks: int) -> None:
    """A reshard in place keeps the fingerprint."""
    place = copied(f"dcp/{name}", number, tmp_path).parent
    version = at(place, number)
    with open_checkpoint(version) as checkpoint:
        before = fingerprint_checkpoint(checkpoint).text
        items = checkpoint.item_names
    assert convert_version(version, ranks).fingerprint == before
    again = at(place, number)
    assert verify_version(again, level="deep").ok
    with open_checkpoint(again) as checkpoint:
        assert fingerprint_checkpoint(checkpoint).text == before
        assert checkpoint.item_names == items


def test_tables_by_rows_travel_to_torch_and_back(tmp_path: Path) -> None:
    """Tables by rows travel to torch and back."""
    rng = np.random.default_rng(5)
    ids = rng.permutation(1000)
    rows = rng.standard_normal((1000, 8)).astype(np.float32)
    version = save_checkpoint(
        tmp_path / "run", 3, 4, variables={"w": np.arange(6.0)}, tables={"user": Table(ids, rows)}
    )
    convert_version(version, 3, output=tmp_path / "torch", system="dcp")
    key = "embedding_bags.user.weight"
    with open_checkpoint(at(tmp_path / "torch", 3)) as checkpoint:
        assert checkpoint.table_names == [key]
        assert np.array_equal(checkpoint.table(key).to_numpy()[1], rows[np.argsort(ids)])
        assert checkpoint["w"].tolist() == list(range(6))
    back = Changes(rename=((key, "user"),))
    convert_version(at(tmp_path / "torch", 3), 2, output=tmp_path / "back", system="elasticdl", changes=back)
    with open_checkpoint(version) as one, open_checkpoint(at(tmp_path / "back", 3)) as other:
        assert fingerprint_checkpoint(one).text == fingerprint_checkpoint(other).text


def test_ids_that_are_no_row_numbers_are_refused(tmp_path: Path) -> None:
    """Ids that are no row numbers are refused."""
    for number, ids in enumerate(([0, 1, 3], [-1, 0, 1], [5, 6, 7])):
        table = Table(np.array(ids), np.ones((3, 2), np.float32))
        version = save_checkpoint(tmp_path / "run", number, 2, variables={}, tables={"user": table})
        before = files_of(tmp_path)
        with pytest.raises(UnsupportedError, match="a matrix has ids 0 to 2"):
            convert_version(version, 3, output=tmp_path / "torch", system="dcp")
        assert files_of(tmp_path) == before


@pytest.mark.parametrize("rows", [300, 1003, 1500])
def test_a_matrix_and_its_companions_are_cut_or_grow_with_zeros(tmp_path: Path, rows: int) -> None:
    """A matrix and its companions are cut or grow with zeros."""
    place = copied("dcp/torchrec", 2, tmp_path / "run").parent
    result = convert_version(at(place, 2), output=tmp_path / "out", changes=Changes(resize=(("user", rows),)))
    with open_checkpoint(at(place, 2)) as one, open_checkpoint(at(tmp_path / "out", 2)) as other:
        for name in ("user", "user:momentum1"):
            old, new = (opened.table(opened.table_name(name)).to_numpy() for opened in (one, other))
            kept = min(rows, 1003)
            assert new.ids.tolist() == list(range(rows))
            assert np.array_equal(new.vectors[:kept], old.vectors[:kept])
            assert not new.vectors[kept:].any()
    assert ("model.ebc.embedding_bags.user.weight" in result.untouched) == (rows == 1003)


def test_managed_collision_is_neither_cut_nor_grown(tmp_path: Path) -> None:
    """Managed collision is neither cut nor grown."""
    place = copied("dcp/mch", 6, tmp_path / "run").parent
    with pytest.raises(UnsupportedError, match="managed collision"):
        convert_version(at(place, 6), output=tmp_path / "out", changes=Changes(resize=(("user", 100),)))
    with pytest.raises(UnsupportedError, match="rows of dcp have numbers"):
        convert_version(at(place, 6), output=tmp_path / "out", changes=Changes(rows=("user where counts < 3",)))


def test_managed_collision_goes_to_keyed_tables_with_its_counts(tmp_path: Path) -> None:
    """Managed collision goes to keyed tables with its counts."""
    place = copied("dcp/mch", 6, tmp_path / "run").parent
    table = "model.mc._embedding_module.embedding_bags.user.weight"
    convert_version(
        at(place, 6), 3, output=tmp_path / "out", system="dynamicemb", changes=Changes(tables=("user", "user:counts"))
    )
    with open_checkpoint(at(place, 6)) as one, open_checkpoint(at(tmp_path / "out", 6)) as other:
        ids, vectors = one.table(table).to_numpy()
        assert np.array_equal(other.table(table).to_numpy(ids).vectors, vectors)
        counts = one.table(one.table_name("user:counts")).to_numpy(ids).vectors
        assert np.array_equal(other.table(f"{table}_emb_scores").to_numpy(ids).vectors, counts)
    assert verify_version(at(tmp_path / "out", 6), level="deep").ok


def test_large_items_have_their_sizes_in_64_bits() -> None:
    """Large items have their sizes in 64 bits."""
    rows = (5 << 30) // 4
    layout = lay_out([Array("x", DTYPES["float32"], (rows,), (Slab(0, (0,), (rows,)),))])
    file, start = layout.at("x", 0)
    parts = {offset: data for name, offset, data in layout.literals({("x", 0): 7}) if name == file}
    assert layout.files[file] == max(offset + len(data) for offset, data in parts.items())
    assert start % 64 == 0


def test_the_pickle_of_a_value_is_that_value() -> None:
    """The pickle of a value is that value."""
    import pickle

    value: dict[str, object] = {"a": [1, -5, 1 << 40, True, None, ("x", "x"), {}], "x" * 300: ()}
    assert pickle.loads(pickled(value)) == pickle.loads(pickled(value, memo=False)) == value


@pytest.mark.parametrize(("name", "number"), [("torchrec", 2), ("mch", 6)])
def test_a_sealed_step_with_damage_gets_no_new_seal(tmp_path: Path, name: str, number: int) -> None:
    """A plain reshard compares what it read with the seal of the source, and writes nothing when it differs."""
    place = copied(f"dcp/{name}", number, tmp_path / "run").parent
    verify_and_seal(at(place, number))
    assert convert_version(at(place, number), 3, output=tmp_path / "good").fingerprint
    with open_checkpoint(at(place, number)) as checkpoint:
        shard, entry = next(iter(checkpoint.entries(max(checkpoint.table_names, key=len))))
        path, offset = shard.path(entry.values), entry.values.start
        position = shard.gathered[0].boxes[0].extent if shard.gathered else None
    file = Path(path if position is None else checkpoint.version.shards[0].path)
    data, stat = bytearray(file.read_bytes()), file.stat()
    data[(offset if position is None else position.start) + 5] ^= 1
    file.write_bytes(data)
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    with pytest.raises(CorruptError):
        convert_version(at(place, number), 3, output=tmp_path / "bad")
    assert not list((tmp_path / "bad").glob("step*"))
