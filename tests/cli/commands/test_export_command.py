"""export as scripts and people meet it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from edl_ckpt.core import export_version, parse_ref, resolve
from edl_ckpt.core.operations.export.interface import Selection
from places import GOLDEN
from program import document, edl

PLACE = GOLDEN / "current/ps3"


def test_document(tmp_path: Path) -> None:
    """The document has what scripts rely on; `@best:METRIC` can be exported; the text shows the proof."""
    result = document("export", f"{PLACE}@120", tmp_path / "m.safetensors")
    keys = ["schema", "ref", "output", "format", "files", "variables", "tables", "rows", "fingerprint", "seconds"]
    assert list(result)[: len(keys)] == keys
    assert result["schema"] == "edl-ckpt/export/1"
    inspected = document("inspect", PLACE)
    assert result["variables"] == len(inspected["variables"])
    assert result["tables"] == len(inspected["tables"])
    assert result["rows"] == sum(t["rows"] for t in inspected["tables"])
    words = edl("export", PLACE, tmp_path / "arrays", "--format", "npy").stdout
    assert "proved" in words
    done = edl("export", tmp_path / "m.csv", "--table", "emb_a*", EDL_CKPT_DIR=str(PLACE))
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "m.csv").read_text().startswith("id,v0,v1,v2,v3\n")


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["m.xyz"], 2),
        (["m.npz", "--format", "hdf5"], 2),
        (["m.npz", "--dtype", "int8"], 2),
        (["m.npz", "--dense-rows", "some"], 2),
        (["m.npz", "--dense-rows", "auto", "--fill", "initializer:x"], 2),
        (["m.npz", "--dense-rows", "auto", "--fill", "zeros:7"], 2),
        (["m.npz", "--limit", "3"], 2),
        (["m.npz", "--table", "none*"], 10),
        (["nowhere/m.npz"], 10),
        (["m.csv"], 2),
        (["nosuch://bucket/m.npz"], 15),
        (["m.npz", "--table", "emb_neg", "--dense-rows", "auto"], 2),
    ],
)
def test_failures(tmp_path: Path, arguments: list[str], code: int) -> None:
    """Every wrong wish has its code, no traceback, and leaves nothing."""
    done = edl("export", PLACE, *arguments, cwd=tmp_path)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []
    assert edl("export", PLACE, tmp_path / "m.npz").returncode == 0
    assert edl("export", PLACE, tmp_path / "m.npz").returncode == 16
    assert edl("export", PLACE, tmp_path / "m.npz", "--force").returncode == 0


def test_the_seed_stands_behind_the_initializer(tmp_path: Path) -> None:
    """`--fill initializer:7` draws rows as the library does with the seed 7, and without a number with 0."""
    version = resolve(parse_ref(str(PLACE)))
    for words, seed in (("initializer:7", 7), ("initializer", 0)):
        selection = Selection(("emb_a*",), dense_rows=4000, fill="initializer", seed=seed)
        export_version(version, tmp_path / f"{seed}.npz", selection=selection)
        form = ("--table", "emb_a*", "--dense-rows", "4000", "--fill", words)
        assert edl("export", PLACE, tmp_path / f"by-{seed}.npz", *form).returncode == 0
        with np.load(tmp_path / f"{seed}.npz") as ours, np.load(tmp_path / f"by-{seed}.npz") as drawn:
            assert {name: ours[name].tobytes() for name in ours} == {name: drawn[name].tobytes() for name in drawn}
    with np.load(tmp_path / "0.npz") as zero, np.load(tmp_path / "7.npz") as seven:
        assert any(zero[name].tobytes() != seven[name].tobytes() for name in zero)


def test_dry_run_of_an_export(tmp_path: Path) -> None:
    """It shows the files that the export then writes, with their sizes where these follow from names and shapes."""
    same = ("ref", "output", "format", "variables", "tables", "rows")
    for name in ("m.safetensors", "s.safetensors", "m.npy", "m.ckpt", "m.tf", "m.npz"):
        split = {"s.safetensors": ("--max-shard-size", "1KiB"), "m.tf": ("--format", "tensorflow")}.get(name, ())
        command: tuple[str | Path, ...] = ("export", PLACE, tmp_path / name, *split)
        before = sorted(tmp_path.rglob("*"))
        planned = document(*command, "--dry-run")
        assert "Nothing was written" in edl(*command, "--dry-run").stdout
        assert sorted(tmp_path.rglob("*")) == before
        done = document(*command)
        assert {key: done[key] for key in same} == {key: planned[key] for key in same}
        assert [each["path"] for each in planned["files"]] == [each["path"] for each in done["files"]]
        assert planned["files"] == done["files"]
        assert (planned["dry_run"], done["dry_run"], planned["fingerprint"]) == (True, False, None)
        assert edl(*command, "--dry-run").returncode == 16
    assert edl("export", PLACE, tmp_path / "none" / "m.npy", "--dry-run").returncode == 10
    assert document("export", PLACE, "-", "--format", "csv", "--table", "emb_big", "--dry-run")["rows"] > 0


def test_dry_run_of_an_import(tmp_path: Path) -> None:
    """It shows what the import then writes, of arrays and of a checkpoint; nothing is written."""
    document("export", PLACE, tmp_path / "m.safetensors")
    same = ("ref", "output", "from_ps", "to_ps", "version", "size_bytes", "rows", "shards", "forced")
    for number, source in enumerate((tmp_path / "m.safetensors", PLACE), start=1):
        before = sorted(tmp_path.rglob("*"))
        command = ("import", source, f"{tmp_path}/run@{number}", "--ps", "3")
        planned = document(*command, "--dry-run")
        assert "Nothing was written" in edl(*command, "--dry-run").stdout
        assert sorted(tmp_path.rglob("*")) == before
        assert (planned["dry_run"], planned["bytes_written"], planned["layout"]) == (True, 0, "design")
        done = document(*command)
        assert {name: done[name] for name in same} == {name: planned[name] for name in same}
        assert not done["dry_run"]
    assert edl("import", PLACE, f"{tmp_path}/run@1", "--ps", "2", "--dry-run").returncode == 16


def test_import(tmp_path: Path) -> None:
    """Export and import are each other's other way, for arrays, for a bare shard file and for checkpoints."""
    first = document("export", PLACE, tmp_path / "m.safetensors")
    document("export", PLACE, tmp_path / "m.ckpt")
    sources: list[str | Path] = [tmp_path / "m.safetensors", tmp_path / "m.ckpt", PLACE, f"{PLACE}@120"]
    for number, source in enumerate(sources, start=1):
        done = document("import", source, f"{tmp_path}/run@{number}", "--ps", "2")
        assert done["schema"] == "edl-ckpt/import/1"
        assert (done["version"], done["to_ps"], done["fingerprint"]) == (number, 2, first["fingerprint"])
        assert len(done["shards"]) == 2
        assert document("verify", f"{tmp_path}/run@{number}", "--quick")["ok"]
    assert document("diff", f"{tmp_path}/run@1", f"{tmp_path}/run@4")["equal"]
    assert edl("import", tmp_path / "m.ckpt", f"{tmp_path}/run@1", "--ps", "2").returncode == 16
    assert edl("import", tmp_path / "m.ckpt", f"{tmp_path}/run", "--ps", "2").returncode == 2
    assert edl("import", tmp_path / "none.npz", f"{tmp_path}/run@9", "--ps", "2").returncode == 10
    assert "proved" in edl("import", tmp_path / "m.safetensors", f"{tmp_path}/run@9", "--ps", "1").stdout


def test_errors_name_options(tmp_path: Path) -> None:
    """The engine quotes its parameters in an error; the command names the options that were typed."""
    refused = edl("export", PLACE, tmp_path / "m.csv", "--max-shard-size", "1KB")
    assert refused.returncode == 2
    assert "--max-shard-size is for safetensors" in refused.stderr
    assert "max_shard_bytes" not in refused.stderr
