"""Damaged versions: what can be read is shown and exported, what is lost is said, and a copy repairs it."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from checkpoints import drop_seal, only
from edl_ckpt.core import look_up, open_checkpoint, save_checkpoint
from edl_ckpt.core.operations.save import Table
from edl_ckpt.core.sources.elasticdl.placement import variable_owner
from places import DATA
from program import inside

IDS = np.arange(4000)
OF_1 = next(f"layer_{k}" for k in range(99) if variable_owner(f"layer_{k}", 4) == 1)
OF_2 = next(f"layer_{k}" for k in range(99) if variable_owner(f"layer_{k}", 4) == 2)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A sealed version of four shards: user has 1,000 rows in each, item 400 in shard 1 and 100 in all others."""
    place = tmp_path / "run"
    item = np.concatenate([IDS[1::4][:400], *(IDS[k::4][:100] for k in (0, 2, 3))])
    tables = {name: Table(ids, np.ones((len(ids), 4), np.float32)) for name, ids in (("user", IDS), ("item", item))}
    variables = {OF_1: np.ones(3), OF_2: np.ones(3)}
    save_checkpoint(str(place), 7, 4, variables=variables, tables=tables, layout="elasticdl")
    return place


def shard(run: Path, number: int) -> Path:
    return run / f"version-7/variables-{number}-of-4.ckpt"


def cut(run: Path, number: int) -> None:
    """Cut a shard, so that its headers promise more than it has."""
    path = shard(run, number)
    path.write_bytes(path.read_bytes()[:5000])


def told(capsys: pytest.CaptureFixture[str], *arguments: str | Path, code: int = 0) -> tuple[Any, str]:
    """Run a command with --json that may print a document and end with an error; return both."""
    from edl_ckpt.cli import app

    capsys.readouterr()
    with pytest.raises(SystemExit) as end:
        app.run([*map(str, arguments), "--json"])
    printed = capsys.readouterr()
    assert (end.value.code or 0) == code, printed
    assert "Traceback" not in printed.err
    return (json.loads(printed.out) if printed.out else None), printed.err


def test_inspect_says_what_is_lost(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A seal tells how much of each table is lost with a shard, and which variables; the rest is shown, with 4 or 5."""
    shard(run, 1).unlink()
    document, words = told(capsys, "inspect", f"{run}@7", code=4)
    assert [s["ps_id"] for s in document["shards"]] == [0, 2, 3]
    lost = {t["name"]: (t["rows"], t["total"]) for t in document["lost"]["tables"]}
    assert abs(lost["user"][0] - 1000) < 30
    assert abs(lost["item"][0] - 400) < 20
    assert document["lost"]["variables"] == [OF_1]
    assert "(57 %) are lost with shard 1" in words or "(58 %) are lost with shard 1" in words
    cut(run, 2)
    document, words = told(capsys, "inspect", f"{run}@7", code=5)
    assert [s["ps_id"] for s in document["shards"]] == [0, 2, 3]
    assert [s["shard"] for s in document["lost"]["shards"]] == [1, 2]
    assert document["lost"]["variables"] == [OF_1]  # the other one stands before the cut
    assert "lost with shards 1, 2" in words


def test_inspect_without_a_seal(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without a seal the shards of servers count as equal, and it is said that variables may be lost without a name."""
    drop_seal(run, 7)
    shard(run, 3).unlink()
    document, words = told(capsys, "inspect", f"{run}@7", code=4)
    assert {t["name"]: t["share"] for t in document["lost"]["tables"]} == {"item": 0.25, "user": 0.25}
    assert document["lost"]["is_named"] is False
    assert "user: about 1,000 of 4,000 rows (25 %) are lost with shard 3" in words
    assert "without a seal nothing names them" in words


@pytest.mark.parametrize("hurt", ["missing", "cut"])
def test_a_healthy_part(run: Path, capsys: pytest.CaptureFixture[str], hurt: str) -> None:
    """A shard, a variable or ids of whole shards end with 0, those of the bad one with its code if they are lost."""
    code = 4 if hurt == "missing" else 5
    shard(run, 1).unlink() if hurt == "missing" else cut(run, 1)
    at = f"{run}@7"
    assert [s["ps_id"] for s in told(capsys, "inspect", at, "--shard", "0")[0]["shards"]] == [0]
    told(capsys, "inspect", at, "--variable", OF_2)
    told(capsys, "inspect", at, "--table", "user", code=code)
    assert told(capsys, "get", at, "--variable", OF_2)[0]["values"] == [1.0, 1.0, 1.0]
    if hurt == "missing":
        assert told(capsys, "inspect", at, "--shard", "1", code=code)[0] is None
        assert OF_1 in told(capsys, "inspect", at, "--variable", OF_1, code=code)[1]
        assert told(capsys, "get", at, "--variable", OF_1, code=code)[0] is None
    else:
        document, _ = told(capsys, "inspect", at, "--shard", "1", code=code)
        assert [(s["ps_id"], s["rows"], s["variables"]) for s in document["shards"]] == [(1, 0, 1)]
        told(capsys, "inspect", at, "--variable", OF_1)
        assert told(capsys, "get", at, "--variable", OF_1)[0]["values"] == [1.0, 1.0, 1.0]
    assert len(told(capsys, "get", at, "--table", "user", "--id", "4", "--id", "6")[0]["rows"]) == 2
    document, words = told(capsys, "get", at, "--table", "user", "--id", "4", "--id", "5", "--id", "80004", code=code)
    assert ([r["id"] for r in document["rows"]], document["missing"], document["unread"]) == ([4], [80004], [5])
    assert "id 5: may be in a shard that cannot be read" in words
    document, _ = told(capsys, "get", at, "--table", "user", "--id", "5", code=code)
    assert (document or {"rows": []})["rows"] == []


@pytest.mark.parametrize("sealed", [True, False])
def test_a_table_before_the_cut(run: Path, capsys: pytest.CaptureFixture[str], *, sealed: bool) -> None:
    """All rows of a table that ends before the cut are read, with 0; what is lost is a part of the other one."""
    if not sealed:
        drop_seal(run, 7)
    os.truncate(shard(run, 1), 10_000)  # the 400 rows of item are before it
    at = f"{run}@7"
    document, words = told(capsys, "inspect", at, code=5)
    assert [(t["name"], t["rows"]) for t in document["tables"]] == [("item", 700), ("user", 3000)]
    (lost,) = document["lost"]["tables"]
    assert (lost["name"], round(lost["share"], 2)) == ("user", 0.25)
    assert "dense variables may be lost" not in words or not sealed
    assert len(told(capsys, "ids", at, "--table", "item")[0]["ids"]) == 700
    told(capsys, "head", at, "--table", "user", code=5)
    found, _ = told(capsys, "get", at, "--table", "item", "--id", "5", "--id", "3001", code=3)
    assert ([r["id"] for r in found["rows"]], found["missing"], found["unread"]) == ([5], [3001], [])
    exported = inside(capsys, "export", at, run.parent / "m.npz", "--partial")
    assert exported["rows"] == 3700
    assert "truncated" in inside(capsys, "verify", at, "--quick", code=3)["findings"][0]["code"]


def test_a_cut_between_two_fields(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No header shows it; the size in the seal does. Without a seal a bigger file is not known to have been there."""
    with open_checkpoint(f"{run}@7") as checkpoint:
        (end,) = (entry.offset for part in checkpoint.shards[1:2] for entry in part.tables if entry.name == "user")
    os.truncate(shard(run, 1), end)
    at = f"{run}@7"
    document, words = told(capsys, "inspect", at, code=5)
    assert [(t["name"], round(t["share"], 2)) for t in document["lost"]["tables"]] == [("user", 0.25)]
    assert f"ends after {end:,} of " in words
    assert told(capsys, "get", at, "--table", "user", "--id", "5", code=5)[0]["unread"] == [5]
    exported = inside(capsys, "export", at, run.parent / "m.npz", "--partial")
    assert (exported["partial"], exported["proved"], exported["rows"]) == (True, False, 3700)


def test_many_missing_shards(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All of them count, also those that no list names."""
    drop_seal(run, 7)
    for number in range(4):
        shard(run, number).rename(run / f"version-7/variables-{number}-of-1000.ckpt")
    document, words = told(capsys, "inspect", f"{run}@7", code=4)
    assert {t["name"]: t["share"] for t in document["lost"]["tables"]} == {"item": 0.996, "user": 0.996}
    assert "at least 380" in words


def test_head_and_ids(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Both go on with the next shard that can be read, and end with the code of the damage."""
    cut(run, 0)
    document, words = told(capsys, "head", f"{run}@7", "--table", "user", "-n", "2", code=5)
    assert [r["id"] for r in document["rows"]] == [1, 5]
    assert "item" not in words
    document, _ = told(capsys, "ids", f"{run}@7", "--table", "user", code=5)
    assert document["ids"] == [*IDS[1::4].tolist(), *IDS[2::4].tolist(), *IDS[3::4].tolist()]
    assert document["lost"]["shards"][0]["code"] == "truncated"
    for number in range(1, 4):
        cut(run, number)
    assert told(capsys, "ids", f"{run}@7", "--table", "user", code=5)[0]["ids"] == []
    for number in range(4):
        shard(run, number).write_bytes(b"")
    assert "nothing was read" in told(capsys, "ids", f"{run}@7", "--table", "user", code=5)[1]


def test_a_short_name_in_another_shard(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The shard that a short name would belong to may be damaged: the variable is in another one."""
    variables = {f"layer/bias_{k}": np.full(2, k) for k in range(99)}
    save_checkpoint(str(tmp_path / "run"), 7, 4, variables=variables, tables={}, layout="elasticdl")
    name = next(n for n in variables if variable_owner(n, 4) != 1 and variable_owner(n[6:], 4) == 1)
    shard(tmp_path / "run", 1).write_bytes(b"damage")
    found, _ = told(capsys, "get", f"{tmp_path}/run@7", "--variable", name[6:])
    assert found["values"] == variables[name].tolist()


def test_a_contradiction_stays_an_error(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Shards of two versions are no damage of one of them: nothing is made from them."""
    save_checkpoint(str(run.parent / "other"), 8, 4, variables={OF_1: np.ones(3)}, tables={}, layout="elasticdl")
    shutil.copyfile(run.parent / "other/version-8/variables-1-of-4.ckpt", shard(run, 1))
    assert "version" in told(capsys, "head", f"{run}@7", "--table", "user", code=5)[1]
    told(capsys, "export", f"{run}@7", run.parent / "x.npz", "--partial", code=5)


@pytest.mark.parametrize("name", ["m.safetensors", "m.npz", "m.csv"])
def test_export_partial(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    """What can be read goes out, unproved, and the document and the file say so; a plain export refuses."""
    cut(run, 1)
    only_table = ("--table", "user") if name.endswith("csv") else ()
    out = tmp_path / name
    told(capsys, "export", f"{run}@7", out, *only_table, code=5)
    planned = inside(capsys, "export", f"{run}@7", out, *only_table, "--partial", "--dry-run")
    document = inside(capsys, "export", f"{run}@7", out, *only_table, "--partial")
    for found in (planned, document):
        assert (found["partial"], found["proved"]) == (True, False)
        assert [s["shard"] for s in found["lost"]["shards"]] == [1]
    assert document["rows"] == (3000 if only_table else 3300)
    if name.endswith("safetensors"):
        from safetensors import safe_open

        with safe_open(out, "np") as file:
            assert sorted(file.get_tensor("user.ids").tolist()) == sorted(IDS[IDS % 4 != 1].tolist())
            assert file.metadata()["partial"] == "true"
            assert "lost with shard 1" in file.metadata()["lost"]
    if name.endswith("npz"):
        assert np.load(out)[OF_1].tolist() == [1, 1, 1]  # it stands before the cut
        told(capsys, "import", out, f"{tmp_path}/again@7", "--ps", "2", "--layout", "elasticdl")
        inside(capsys, "verify", f"{tmp_path}/again@7", "--deep")
        assert look_up(only(tmp_path / "again"), "user", [5]).missing == (5,)


def test_export_partial_of_a_whole_version(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Where nothing is lost, the export is proved as ever."""
    document = inside(capsys, "export", f"{run}@7", tmp_path / "m.npz", "--partial")
    assert (document["partial"], document["proved"], document["lost"]["shards"]) == (False, True, [])


def test_export_partial_to_a_system(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Files of another system are written and read back, and not called proved; one merged shard is refused."""
    cut(run, 1)
    document = inside(capsys, "export", f"{run}@7", tmp_path / "t", "--format", "tfra", "--partial")
    assert (document["rows"], document["proved"], document["partial"]) == (3300, False, True)
    assert "--partial" in inside(capsys, "export", f"{run}@7", tmp_path / "m.ckpt", "--partial", code=2)["message"]


@pytest.mark.parametrize(
    ("system", "number", "name", "lost"),
    [
        ("dcp/dtensor", 1, "step_1/__1_0.distcp", "model.weight"),
        ("bundle/sharded", 40, "model.ckpt-40.data-00001-of-00002", "names"),
        ("safetensors", 200, "checkpoint-200/model-00002-of-00003.safetensors", "model.layers.0.weight"),
        ("tfra", 3, "step_3/TFRADynamicEmbedding/scope_user_3_mht_1of4_rank0_size1-values", ""),
    ],
)
def test_other_systems(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], system: str, number: int, name: str, lost: str
) -> None:
    """Of other systems too the rest is shown and exported, and what an index names is named."""
    shutil.copytree(DATA / "systems" / system, tmp_path / "run")
    (tmp_path / "run" / name).unlink()
    document, words = told(capsys, "inspect", f"{tmp_path}/run@{number}", code=4)
    assert not lost or lost in document["lost"]["variables"]
    assert lost or "about 17 of 68 rows (25 %) are lost with shard 0" in words
    exported = inside(capsys, "export", f"{tmp_path}/run@{number}", tmp_path / "m.safetensors", "--partial")
    assert exported["partial"]


def test_repair(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A location is enough after --from: the version is that of the same number; then nothing is left to repair."""
    inside(capsys, "copy", f"{run}@7", tmp_path / "other")
    whole = shard(run, 1).read_bytes()
    shard(run, 1).unlink()
    cut(run, 2)
    assert inside(capsys, "repair", f"{run}@7", code=2)["id"] == "usage"
    assert len(inside(capsys, "repair", f"{run}@7", "--from", tmp_path / "other", "--dry-run")["replaced"]) == 2
    (folder,) = (path for path in (tmp_path / "other").iterdir() if path.name.startswith("version"))
    assert len(inside(capsys, "repair", f"{run}@7", "--from", folder, "--dry-run")["replaced"]) == 2
    document = inside(capsys, "repair", f"{run}@7", "--from", tmp_path / "other")
    assert [(r["shard"], bool(r["kept"])) for r in document["replaced"]] == [(1, False), (2, True)]
    assert shard(run, 1).read_bytes() == whole
    assert inside(capsys, "verify", f"{run}@7", "--deep")["fingerprint"] == document["fingerprint"]
    assert inside(capsys, "repair", f"{run}@7", "--from", f"{tmp_path}/other@7")["replaced"] == []
    assert inside(capsys, "prune", run, "--purge")["freed_bytes"] == 5000


def test_repair_text(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """People read each file, why it was replaced, where the damaged one is, and the proof."""
    from edl_ckpt.cli import app

    inside(capsys, "copy", f"{run}@7", tmp_path / "other")
    cut(run, 2)
    with pytest.raises(SystemExit):
        app.run(["repair", f"{run}@7", "--from", str(tmp_path / "other")])
    printed = capsys.readouterr().out
    assert "replaced" in printed
    assert "the damaged file is now .edl-ckpt-0/trash-0/" in printed
    assert "proved: the seal of the version names these bytes" in printed
