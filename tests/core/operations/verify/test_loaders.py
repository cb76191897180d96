"""What is said of other loaders is what they do: TFRA, TorchRec and dynamicemb run on the same files.

The full counts: `EDL_CKPT_TEST_LOADS=300 EDL_CKPT_TEST_TFRA_PYTHON=.../python pytest -n 0 -m frameworks
tests/core/operations/verify/test_loaders.py`; likewise with EDL_CKPT_TEST_TORCHREC_PYTHON, _TORCH_PYTHON and
_RECSYS_EXAMPLES.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

from checkpoints import at, only
from edl_ckpt.core import Table, open_checkpoint, save_checkpoint, verify_version
from edl_ckpt.core.base.errors import EdlCkptError, UnsupportedError, UsageError
from edl_ckpt.core.operations.convert import convert_version
from edl_ckpt.core.operations.verify.findings import LoadedTable
from edl_ckpt.core.operations.verify.loaders import LOADERS, Load
from edl_ckpt.core.storage import Location
from foreign import copied, run_judge

LOADS = int(os.environ.get("EDL_CKPT_TEST_LOADS", "12"))


def write_tfra(folder: Path, name: str, ids: np.ndarray, rows: np.ndarray, ranks: int, *, mask: bool) -> None:
    """Write a table as one device in each of some processes saves it."""
    folder.mkdir(parents=True, exist_ok=True)
    owner = (ids & 0x7FFFFFFF if mask else ids) % ranks
    for rank in range(ranks):
        stem = folder / f"{name}_mht_1of1_rank{rank}_size{ranks}"
        ids[owner == rank].tofile(f"{stem}-keys")
        rows[owner == rank].tofile(f"{stem}-values")


def random_case(out: Path, number: int) -> int:
    """Write the files of a case, and return how many processes load it."""
    rng = np.random.default_rng(number)
    folder, dim, name = out / f"step_{number}/TFRADynamicEmbedding", int(rng.integers(1, 5)), f"user_{number}"
    saved, ranks = int(rng.integers(1, 5)), int(rng.integers(1, 5))
    low = int(rng.choice([0, -(2**40), -50]))
    high = int(rng.choice([60, 2**31, 2**45]))
    ids = np.unique(rng.integers(low, high, int(rng.integers(1, 60)), np.int64))
    rng.shuffle(ids)
    mask = bool(rng.integers(0, 2))
    if rng.random() < 0.4:  # an older save of another size
        stale = int(rng.choice([n for n in range(1, 5) if n != saved]))
        old = np.unique(np.concatenate([rng.choice(ids, len(ids) // 2), rng.integers(low, high, 9, np.int64)]))
        write_tfra(folder, name, old, rng.standard_normal((len(old), dim)).astype(np.float32), stale, mask=mask)
        for path in folder.iterdir():
            os.utime(path, (1e9, 1e9))
    write_tfra(folder, name, ids, rng.standard_normal((len(ids), dim)).astype(np.float32), saved, mask=mask)
    if rng.random() < 0.15:
        victim = (
            folder / f"{name}_mht_1of1_rank{int(rng.integers(0, saved))}_size{saved}-{rng.choice(['keys', 'values'])}"
        )
        data = victim.read_bytes()
        victim.write_bytes(data[: max(len(data) - int(rng.integers(1, 12)), 0)])
    (out / f"{number}.json").write_text(json.dumps({"name": name, "dim": dim, "ranks": ranks}))
    return ranks


def loads_of(place: Path, number: int, loader: str, ranks: int) -> tuple[list[Load], bool]:
    """Return what a loader loads of the tables, and whether it is said to fail."""
    with open_checkpoint(at(place, number)) as checkpoint:
        tables = [table for table in checkpoint.table_names if not checkpoint.infos[table].companion_of]
        view = LOADERS[loader][1](checkpoint, ranks)
        loads = [load for table in tables for load in view.loads(table)]
        for table in tables:
            view.check(table)
        return loads, bool(view.faults)


@pytest.mark.frameworks
@pytest.mark.parametrize("build", ["cpu", "gpu"])
def test_tfra_holds_the_rows_that_are_predicted(tmp_path: Path, build: str) -> None:
    """Tfra holds the rows that are predicted."""
    sizes = {number: random_case(tmp_path, number) for number in range(LOADS)}
    run_judge("EDL_CKPT_TEST_TFRA_PYTHON", "tfra_loads.py", str(tmp_path), "0", str(LOADS), build)
    held = failed = 0
    for number, ranks in sizes.items():
        with np.load(tmp_path / f"{number}.npz") as real:
            loaded = {int(key[5:]): real[key] for key in real.files if key.startswith("keys_")}
        try:
            loads, fails = loads_of(tmp_path, number, f"tfra:{build}", ranks)
        except EdlCkptError:  # the files of the newest save are torn: `verify` says so before any loader
            failed += 1
            continue
        if fails:
            assert len(loaded) < ranks, number
            failed += 1
            continue
        for rank in range(ranks):
            mine = np.unique(np.concatenate([np.empty(0, np.int64), *(one.ids[one.ranks == rank] for one in loads)]))
            assert mine.tolist() == loaded[rank].tolist(), (number, rank)
            held += len(mine)
    assert held > 5 * LOADS
    print(held, "rows as predicted,", failed, "cases that fail")


@pytest.mark.frameworks
def test_dynamicemb_keeps_the_rows_that_are_predicted(tmp_path: Path) -> None:
    """Its own functions keep them, in jobs of one to six ranks; they refuse files of two saves."""
    checkout = os.environ.get("EDL_CKPT_TEST_RECSYS_EXAMPLES") or pytest.skip("no EDL_CKPT_TEST_RECSYS_EXAMPLES")
    run_judge("EDL_CKPT_TEST_TORCH_PYTHON", "dynamicemb.py", checkout, str(tmp_path), "0", str(LOADS), "6")
    kept = refused = 0
    for number in range(LOADS):
        with np.load(tmp_path / f"loads_{number}.npz") as arrays:
            real = dict(arrays)
        for ranks in range(1, 7):
            loads, fails = loads_of(tmp_path, number, "dynamicemb", ranks)
            refused += fails
            assert fails == (f"{ranks}_0" not in real), (number, ranks)
            for rank in () if fails else range(ranks):
                mine = np.concatenate([np.empty(0, np.int64), *(one.ids[one.ranks == rank] for one in loads)])
                assert sorted(mine.tolist()) == sorted(real[f"{ranks}_{rank}"].tolist()), (number, ranks, rank)
                kept += len(mine)
    assert kept > 100 * LOADS
    print(kept, "rows as predicted,", refused, "loads refused")


@pytest.mark.frameworks
@pytest.mark.parametrize("saved", range(1, 9) if LOADS > 12 else (4,))
def test_torchrec_loads_the_models_that_are_predicted(tmp_path: Path, saved: int) -> None:
    """Models of any numbers of rows into one to eight ranks, with managed collision and without."""
    judge, count = "EDL_CKPT_TEST_TORCHREC_PYTHON", max(LOADS // 30, 3)
    run_judge(judge, "torchrec_models.py", "uneven", str(tmp_path), str(saved), str(count), str(saved))
    loaded = {"kept": 0, "plain": 0}
    worlds = range(1, 9) if LOADS > 12 else (1, 3, 4, 8)
    for ranks in worlds:
        run_judge(judge, "torchrec_models.py", "loads", str(tmp_path), str(ranks), str(count), str(saved))
        real = json.loads((tmp_path / f"loads_{ranks}.json").read_text())
        for name in loaded:
            mine = [number for number in range(count) if not loads_of(tmp_path / name, number, "torchrec", ranks)[1]]
            assert mine == real[name], (name, ranks)
            loaded[name] += len(mine)
    assert loaded["plain"] == len(worlds) * count
    print(loaded, "of", len(worlds) * count, "loads succeed as predicted, saved by", saved)


@pytest.mark.frameworks
def test_torchrec_cannot_give_a_rank_no_row_of_a_managed_collision(tmp_path: Path) -> None:
    """Ten rows are two for each of five of eight ranks."""
    run_judge("EDL_CKPT_TEST_TORCHREC_PYTHON", "torchrec_models.py", "uneven", str(tmp_path), "2", "-10", "0")
    (step,) = (tmp_path / "kept").glob("step_10")
    assert loads_of(step.parent, 10, "torchrec", 8)[1]
    with pytest.raises(AssertionError, match="zch_size must be > 0"):
        run_judge("EDL_CKPT_TEST_TORCHREC_PYTHON", "torchrec_models.py", "loads", str(tmp_path), "8", "-10", "0")


@pytest.mark.frameworks
@pytest.mark.parametrize("build", ["cpu", "gpu"])
def test_tfra_loads_all_rows_after_reshards(tmp_path: Path, build: str) -> None:
    """Two processes of TFRA load all rows of what was resharded from 3 to 2 and to 5 processes."""
    rng = np.random.default_rng(7)
    ids = np.unique(np.concatenate([rng.integers(-(2**63), 2**63 - 1, 3000), np.arange(-500, 500)]))
    rows = rng.standard_normal((len(ids), 6)).astype(np.float32)
    write_tfra(tmp_path / "3/step_1/TFRADynamicEmbedding", "user", ids, rows, 3, mask=build == "gpu")
    for old, new in ((3, 2), (2, 5)):
        place = tmp_path / str(new)
        convert_version(at(tmp_path / str(old), 1), new, output=place)
        (place / "1.json").write_text(json.dumps({"name": "user", "dim": 6, "ranks": 2}))
        run_judge("EDL_CKPT_TEST_TFRA_PYTHON", "tfra_loads.py", str(place), "1", "1", build)
        with np.load(place / "1.npz") as real:
            keys = np.concatenate([real["keys_0"], real["keys_1"]])
            values = np.concatenate([real["values_0"], real["values_1"]]).reshape(-1, 6)
            assert min(len(real["keys_0"]), len(real["keys_1"])) > 1000
        order = np.argsort(keys)
        assert keys[order].tolist() == ids.tolist()
        assert values[order].tobytes() == rows.tobytes()


def views(place: Path, loader: str, ranks: int, number: int) -> LoadedTable:
    """Return what is said of the first table."""
    result = verify_version(at(place, number), loader=(loader, ranks))
    assert result.loader is not None
    codes = {finding.code for finding in result.findings if finding.code.startswith("loader")}
    table = result.loader.tables[0]
    assert ("loader-drops" in codes, "loader-misroutes" in codes, "loader-twice" in codes) == (
        table.dropped > 0,
        table.misrouted > 0,
        table.twice > 0,
    )
    return table


def tfra_run(place: Path, ids: list[int], ranks: int, *, mask: bool = False) -> Path:
    keys = np.array(ids, np.int64)
    write_tfra(place / "step_1/T", "user", keys, np.ones((len(keys), 2), np.float32), ranks, mask=mask)
    return place


def test_two_builds_of_tfra_look_for_large_and_negative_keys_on_other_ranks(tmp_path: Path) -> None:
    """Two builds of tfra look for large and negative keys on other ranks."""
    run = tfra_run(tmp_path, [1, 2, 3, -1, 2**31, 2**31 + 1], 3)
    assert views(run, "tfra:cpu", 3, 1) == LoadedTable("user", 6, 6, 0, 0, 0, ())
    table = views(run, "tfra:gpu", 3, 1)
    assert (table.restored, table.misrouted) == (3, 3)
    assert set(table.ids) == {-1, 2**31, 2**31 + 1}
    assert views(run, "tfra:gpu", 2, 1).restored == 6


def test_files_of_another_save_are_loaded_again_or_instead(tmp_path: Path) -> None:
    """Files of another save are loaded again or instead."""
    run = tfra_run(tmp_path, list(range(10)), 2)
    for path in (run / "step_1/T").iterdir():
        os.utime(path, (1e9, 1e9))
    tfra_run(tmp_path, list(range(5, 25)), 3)
    again = views(run, "tfra:cpu", 1, 1)
    assert (again.rows, again.dropped, again.twice) == (20, 0, 5)
    instead = views(run, "tfra:cpu", 2, 1)
    assert (instead.rows, instead.dropped) == (20, 20)


def test_dynamicemb_keeps_a_remainder_whatever_its_router_does(tmp_path: Path) -> None:
    """Dynamicemb keeps a remainder whatever its router does."""
    folder = tmp_path / "step_1"
    folder.mkdir()
    keys = np.array([1, 2, 3, 4, 5, 6, -1, -2], np.int64)
    owner = keys.view(np.uint64) % np.uint64(3)
    for rank in range(3):
        keys[owner == rank].tofile(folder / f"t_emb_keys.rank_{rank}.world_size_3")
        np.ones((int((owner == rank).sum()), 2), np.float32).tofile(folder / f"t_emb_values.rank_{rank}.world_size_3")
    (folder / "t_opt_args.json").write_text('{"dist_type": "roundrobin"}')
    same = views(tmp_path, "dynamicemb", 3, 1)
    assert (same.rows, same.dropped, set(same.ids)) == (8, 2, {-1, -2})
    other = views(tmp_path, "dynamicemb", 5, 1)
    assert (other.dropped, other.misrouted) == (0, 2)
    assert views(tmp_path, "dynamicemb", 1, 1).restored == 8


def test_servers_in_go_and_deeprec_have_no_place_for_negative_ids(tmp_path: Path) -> None:
    """Servers in go and deeprec have no place for negative ids."""
    table = Table(np.array([-4, -3, -1, 0, 5]), np.ones((5, 2), np.float32))
    save_checkpoint(tmp_path, 1, 2, variables={}, tables={"t": table})
    assert views(tmp_path, "elasticdl:python", 3, 1).restored == 5
    go = views(tmp_path, "elasticdl:go", 2, 1)
    assert (go.dropped, set(go.ids)) == (2, {-3, -1})


def test_managed_collision_wants_a_divisor_of_its_ranks(tmp_path: Path) -> None:
    """Managed collision wants a divisor of its ranks."""
    place = copied("dcp/mch", 6, tmp_path).parent
    for ranks in range(1, 9):
        result = verify_version(at(place, 6), loader=("torchrec", ranks))
        assert ("loader-fails" in {f.code for f in result.findings}) == (2 % ranks > 0), ranks
        assert result.ok == (2 % ranks == 0)


def test_loaders_of_other_systems_and_unknown_ones_are_refused(tmp_path: Path) -> None:
    """Loaders of other systems and unknown ones are refused."""
    run = tfra_run(tmp_path, [1], 1)
    with pytest.raises(UnsupportedError, match="reads dcp, and this is tfra"):
        verify_version(only(run), loader=("torchrec", 2))
    with pytest.raises(UsageError, match="no loader 'tfra'"):
        verify_version(only(run), loader=("tfra", 2))


def test_slots_of_deeprec_with_other_keys_are_found(tmp_path: Path) -> None:
    """Slots of DeepRec with other keys than their variable are found, and negative keys."""
    rows = np.ones((5, 2), np.float32)
    tables = {"item": Table(np.arange(5), rows), "item/Adagrad": Table(np.arange(1, 6), rows)}
    save_checkpoint(tmp_path / "run", 7, 1, variables={}, tables=tables)
    convert_version(at(tmp_path / "run", 7), 2, output=Location(str(tmp_path / "out")), system="tensorflow")
    version = at(tmp_path / "out", 7)
    assert verify_version(version).ok
    result = verify_version(version, loader=("deeprec:parts=3", None))
    assert result.loader is not None
    assert result.loader.world_size == 3
    assert [(f.code, f.subject) for f in result.findings] == [("companion-ids", "item/Adagrad")]
