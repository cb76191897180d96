"""get and diff as scripts and people meet them."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from edl_ckpt.cli.app import run
from edl_ckpt.cli.commands.get_ import read_ids
from edl_ckpt.core import ObjectCheckpoint, Table, UsageError, save_checkpoint
from edl_ckpt.core.base.errors import ReplacedError
from edl_ckpt.core.operations import export
from edl_ckpt.core.training.objects import Variable
from places import GOLDEN
from program import document, edl

PLACE = GOLDEN / "current/ps3"


def test_get_document(tmp_path: Path) -> None:
    """Rows come with their ids in the order asked for; missing ids are named, with exit code 3."""
    ids = tmp_path / "ids.txt"
    ids.write_text("2\n\n 1\n")
    result = document("get", PLACE, "--table", "emb_a/embeddings:0", "--ids-file", ids, "--id", "99999", code=3)
    assert result["schema"] == "edl-ckpt/get/1"
    assert result["missing"] == [99999]
    assert all(len(row["vector"]) == result["dim"] == 4 for row in result["rows"])
    done = edl("get", PLACE, "--table", "emb_a/embeddings:0", "--id", "99999")
    assert (done.returncode, "99999: not in the table" in done.stderr) == (3, True)
    near = document(
        "get", PLACE, "--table", "emb_a/embeddings:0", "--id", str(result["rows"][0]["id"]), "--nearest", "2"
    )
    assert len(near["nearest"][0]["neighbours"]) == 2


def test_get_follows_aliases(tmp_path: Path) -> None:
    """Objects saved under one name are shown under each name that led to them; an unknown name is 10."""
    layer = {"bias": np.arange(5.0)}
    ObjectCheckpoint(step=Variable(1), optimizer={"l1": layer}, net={"l1": layer}).save(tmp_path / "run", ps_num=2)
    for name in ("net/l1/bias", "optimizer/l1/bias"):
        shown = document("get", tmp_path / "run", "--variable", name, "--slice", "1:3")
        assert (shown["variable"], shown["values"]) == (name, [1, 2])
    assert edl("get", tmp_path / "run", "--variable", "optimizer/bias").returncode == 10


def test_get_forms(tmp_path: Path) -> None:
    """The same rows as CSV and as an .npy file; ids come from an .npy file too; a variable has its shape."""
    inspected = document("inspect", PLACE)
    name = next(t["name"] for t in inspected["tables"] if t["rows"])
    np.save(tmp_path / "ids.npy", np.arange(-50, 50))
    asked = ("get", PLACE, "--table", name, "--ids-file", tmp_path / "ids.npy")
    result = document(*asked, "--npy", tmp_path / "rows.npy", code=3)
    assert np.load(tmp_path / "rows.npy").tolist() == [row["vector"] for row in result["rows"]]
    rows = list(csv.reader(io.StringIO(edl(*asked, "--csv").stdout)))
    assert [int(row[0]) for row in rows[1:]] == [row["id"] for row in result["rows"]]
    kernel = document("get", PLACE, "--variable", "conv/kernel:0", "--npy", tmp_path / "kernel.npy")
    assert np.array(kernel["values"]).shape == (2, 3, 4, 5) == np.load(tmp_path / "kernel.npy").shape
    line = edl("get", PLACE, "--table", name, "--id", str(result["rows"][0]["id"])).stdout.splitlines()[0]
    assert line.endswith(f"{name}  1 row of {result['dim']} {result['dtype']}")
    assert "float32 2x3x4x5" in edl("get", PLACE, "--variable", "conv/kernel:0").stdout


@pytest.mark.parametrize("content", [b"", b"\x93NUMPY\x01\x00\x06\x00{'a':("])
def test_ids_in_a_torn_file(content: bytes, tmp_path: Path) -> None:
    """An .npy file that is empty, or ends in its header, is a wrong value."""
    (tmp_path / "ids.npy").write_bytes(content)
    with pytest.raises(UsageError, match=r"not an \.npy file of ids"):
        read_ids(str(tmp_path / "ids.npy"))


@pytest.mark.parametrize("mode", [(), ("--json",)])
def test_no_id_is_printed_twice(
    mode: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """When a version is replaced while its ids are printed, the command ends: no second attempt follows the first."""

    def torn(*_: object) -> Iterator[object]:
        yield np.arange(3)
        raise ReplacedError("replaced")

    monkeypatch.setattr("edl_ckpt.core.operations.lookup.rows.ids_of", torn)
    with pytest.raises(SystemExit) as end:
        run(["ids", str(PLACE), "--table", "emb_a/embeddings:0", *mode])
    assert end.value.code == ReplacedError.exit_code
    assert len(re.findall(r"\b2\b", capsys.readouterr().out.partition('"ids"')[2 * bool(mode)])) == 1


@pytest.mark.parametrize(("target", "attempts"), [("-", 1), ("x.csv", 5)])
def test_an_export_to_a_stream_is_tried_once(
    target: str, attempts: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A version that is replaced meanwhile is exported again into a file, which is whole or not there."""
    monkeypatch.chdir(tmp_path)
    tried: list[object] = []

    def torn(*given: object, **_: object) -> None:
        tried.append(given)
        raise ReplacedError("replaced")

    monkeypatch.setattr(export, "run_export", torn)
    with pytest.raises(SystemExit):
        run(["export", str(PLACE), target, "--format", "csv"])
    assert len(tried) == attempts


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--table", "emb_a/embeddings:0"], 2),
        (["--id", "1"], 2),
        (["--table", "t", "--variable", "v"], 2),
        (["--variable", "v", "--id", "1"], 2),
        (["--variable", "none"], 10),
        (["--table", "none", "--id", "1"], 10),
        (["--table", "emb_a/embeddings:0", "--id", str(2**63)], 2),
        (["--table", "emb_a/embeddings:0", "--ids-file", "none.txt"], 10),
        (["--table", "emb_a/embeddings:0", "--ids-file", f"{GOLDEN}/README.md"], 2),
        (["--variable", "conv/kernel:0", "--npy", "/nowhere/x.npy"], 10),
    ],
)
def test_get_failures(arguments: list[str], code: int, tmp_path: Path) -> None:
    """Every wrong question has its code and no traceback."""
    done = edl("get", PLACE, *arguments, cwd=tmp_path)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr


def test_diff_document() -> None:
    """Equal is 0, different 3; the document has what scripts rely on, in words there is a bar for each tensor."""
    same = document("diff", GOLDEN / "current/ps1", GOLDEN / "current/ps4")
    assert (same["schema"], same["equal"]) == ("edl-ckpt/diff/1", True)
    result = document("diff", f"{GOLDEN}/multi@9", f"{GOLDEN}/multi@20", "--top", "1", code=0)
    assert result["equal"] in {True, False}
    other = document("diff", GOLDEN / "current/ps1", GOLDEN / "bad/dir-version-differs", "--rows", code=3)
    assert {"name", "status", "max_abs", "l2", "relative", "cosine"} <= set(other["variables"][0])
    assert {"name", "status", "added", "removed", "changed", "unchanged", "top", "rows"} <= set(other["tables"][0])
    assert {t["status"] for t in other["tables"]} == {"added", "removed"}
    done = edl("diff", GOLDEN / "current/ps1", GOLDEN / "bad/dir-version-differs")
    assert (done.returncode, "tensors differ" in done.stdout) == (3, True)
    assert "equal" in edl("diff", GOLDEN / "current/ps1", GOLDEN / "current/ps2").stdout
    rows = list(csv.reader(io.StringIO(edl("diff", GOLDEN / "current/ps1", GOLDEN / "legacy/v4a", "--csv").stdout)))
    assert rows[0][:3] == ["kind", "name", "status"]


@pytest.mark.parametrize(
    ("arguments", "code"),
    [(["--tolerance", "-1"], 2), (["--tolerance", "nan"], 2), (["--rows"], 2), (["--top", "-1"], 2)],
)
def test_diff_failures(arguments: list[str], code: int) -> None:
    """Wrong flags are code 2; a version that cannot be compared has the code of its fault."""
    assert edl("diff", PLACE, PLACE, *arguments).returncode == code
    assert edl("diff", PLACE, f"{GOLDEN}/bad/missing-shard@7").returncode == 4
    assert edl("diff", PLACE, f"{GOLDEN}/bad/truncated@7").returncode == 5
    assert edl("diff", PLACE, "nowhere").returncode == 10


def test_diff_rows(tmp_path: Path) -> None:
    """`--rows --csv` has a line for each variable, table and row that differs, as the page says."""
    one, row = np.ones(1, np.float32), np.ones((2, 1), np.float32)
    for number, tables in ((1, {"both": [0, 1], "old": [5, 7]}), (2, {"both": [1, 2], "new": [3, 4]})):
        found = {name: Table(np.array(ids), row * number) for name, ids in tables.items()}
        save_checkpoint(str(tmp_path / "run"), number, 2, variables={"v": one * number, "same": one}, tables=found)
    done = edl("diff", f"{tmp_path}/run@1", f"{tmp_path}/run@2", "--rows", "--csv")
    assert done.returncode == 3
    assert done.stdout.splitlines() == [
        "kind,name,id,status,max_abs,l2",
        "variable,v,,changed,1.0,1.0",
        "row,both,0,removed,,",
        "row,both,1,changed,,1.0",
        "row,both,2,added,,",
        "table,new,,added,,",
        "row,new,3,added,,",
        "row,new,4,added,,",
        "table,old,,removed,,",
        "row,old,5,removed,,",
        "row,old,7,removed,,",
    ]
    tables = document("diff", f"{tmp_path}/run@1", f"{tmp_path}/run@2", "--rows", code=3)["tables"]
    assert [[r["id"] for r in t["rows"]] for t in tables] == [[0, 1, 2], [3, 4], [5, 7]]
