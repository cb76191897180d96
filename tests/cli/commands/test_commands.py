"""The command line as scripts and people meet it: documents, tables, exit codes, streams."""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import elasticdl_rules
from places import GOLDEN
from program import document, edl, without_reader

VERSION_KEYS = {
    *("version", "ref", "path", "state", "ps_num", "shards", "missing", "missing_count"),
    *("size_bytes", "modified", "metrics", "tags", "metadata", "uuid", "fingerprint", "note", "sealed"),
    *("fault", "mixture", "system", "lacks", "suspect", "verdict", "name"),
}


def test_list_document() -> None:
    """`list --json` has the promised keys, versions by number, and the state that the names show."""
    result = document("list", GOLDEN / "multi", GOLDEN / "bad/mixed-n")
    assert result["schema"] == "edl-ckpt/list/1"
    first, second = result["locations"]
    assert first["layout"] == "elasticdl"
    assert [(v["version"], v["state"], v["ps_num"], v["missing"]) for v in first["versions"][:2]] == [
        (9, "complete", 2, []),
        (20, "complete", 2, []),
    ]
    assert first["versions"][2]["state"] in {"incomplete", "writing"}
    assert first["versions"][2]["missing"] == [1]
    assert second["versions"][0]["state"] == "mixed"
    assert second["versions"][0]["ps_num"] is None
    for version in first["versions"]:
        assert set(version) == VERSION_KEYS
        assert version["fault"] is None


def test_list_rows_and_table(tmp_path: Path) -> None:
    """`list --csv` is rows; the table says the state in words; a foreign name is a warning on stderr only."""
    shutil.copytree(GOLDEN / "multi", tmp_path / "run")
    (tmp_path / "run" / "metrics.json").write_text("{}")
    rows = list(csv.reader(io.StringIO(edl("list", tmp_path / "run", "--csv").stdout)))
    assert rows[0][:3] == ["location", "version", "state"]
    assert [row[1] for row in rows[1:]] == ["9", "20", "100"]
    done = edl("list", tmp_path / "run", "--grace", "0s")
    assert done.returncode == 0
    assert "incomplete" in done.stdout
    assert "shard 1 of 2 (numbered 0 to 1) is missing" in done.stdout
    assert "\x1b" not in done.stdout
    assert "metrics.json" in done.stderr
    assert "metrics.json" not in done.stdout
    assert edl("list", tmp_path / "run", "--quiet").stderr == ""


def test_inspect_document() -> None:
    """`inspect --json` has the promised keys and the content that ElasticDL wrote."""
    result = document("inspect", GOLDEN / "current/ps3")
    names = "schema ref version ps_num generation layout size_bytes parameters shards variables tables metadata"
    keys = [*names.split(" "), "file_metadata", "system", "items", "lacks"]
    assert list(result) == keys
    assert (result["version"], result["ps_num"], result["generation"], result["layout"]) == (120, 3, "v4", "elasticdl")
    assert set(result["shards"][0]) == {"ps_id", "path", "size_bytes", "variables", "rows"}
    table = next(t for t in result["tables"] if t["name"] == "emb_a/embeddings:0")
    assert table["dim"] == 4
    assert table["rows"] == sum(table["rows_per_shard"]) == 11
    kernel = next(v for v in result["variables"] if v["name"] == "conv/kernel:0")
    assert kernel["shape"] == [2, 3, 4, 5]
    assert kernel["dtype"] == "float32"
    one = document("inspect", GOLDEN / "current/ps3", "--table", "emb_neg")
    assert [t["name"] for t in one["tables"]] == ["emb_neg"]
    assert one["variables"] == []


def test_inspect_stats() -> None:
    """`--stats` reads values; NaN and infinities are counted and never printed as bare NaN."""
    result = document("inspect", GOLDEN / "current/ps2", "--stats")
    special = next(s for s in result["stats"] if s["name"] == "special/f32:0")
    assert (special["nan"], special["inf"], special["elements"]) == (2, 2, 6)
    assert sum(special["histogram"]) == 2
    empty = next(s for s in result["stats"] if s["name"] == "empty/f32:0")
    assert empty["minimum"] is None


def test_inspect_incomplete() -> None:
    """An incomplete version is shown as far as it is there, with exit code 4."""
    done = edl("inspect", GOLDEN / "bad/missing-shard@7", "--json")
    assert done.returncode == 4
    assert json.loads(done.stdout)["tables"][0]["name"] == "e"
    error = json.loads(done.stderr.splitlines()[-1])
    assert error["schema"] == "edl-ckpt/error/1"
    assert (error["code"], error["id"]) == (4, "incomplete")


@pytest.mark.parametrize(
    ("case", "code"),
    [("zero-byte", 5), ("truncated", 5), ("mixed-n", 5), ("bitflip", 0), ("unknown-field-1000", 0)],
)
def test_inspect_bad(case: str, code: int) -> None:
    """A version that cannot be read ends with 5, and the error names file and byte; a readable one is shown."""
    done = edl("inspect", GOLDEN / "bad" / f"{case}@7")
    assert done.returncode == code
    assert "Traceback" not in done.stderr
    if case == "truncated":
        assert "variables-1-of-2.ckpt" in done.stderr
        assert "at byte 142" in done.stderr


def test_verify_document(tmp_path: Path) -> None:
    """`verify --json` has the promised keys; findings end with 3, and warnings do only with --strict."""
    result = document("verify", GOLDEN / "bad/swapped-shards", code=3)
    promised = ["schema", "ref", "ok", "state", "suspect", "path", "level", "findings", "fingerprint", "bytes_read"]
    promised += ["sealed", "shards", "shards_read", "ids_read", "checks", "checksums"]
    promised += ["uncompared", "unread_files", "newer", "fallback"]
    assert list(result) == promised
    assert result["ok"] is False
    keys = ["severity", "code", "shard", "path", "subject", "offset", "message", "hint", "check", "ids", "count"]
    assert list(result["findings"][0]) == keys
    assert {f["code"] for f in result["findings"]} == {"misplaced-row", "misplaced-variable"}
    assert document("verify", GOLDEN / "bad/unknown-field-1000")["ok"] is True
    document("verify", GOLDEN / "bad/unknown-field-1000", "--strict", code=3)
    deep = document("verify", GOLDEN / "legacy/v4a", "--deep")
    assert deep["fingerprint"].startswith("edl1:")
    run = shutil.copytree(GOLDEN / "multi", tmp_path / "run")
    for path in (run / "version-100", *(run / "version-100").iterdir()):  # else a job may be writing it
        os.utime(path, (1e9, 1e9))
    every = document("verify", run, "--all", "--quick", code=3)
    assert [r["ok"] for r in every["results"]] == [True, True, None]  # the last one is not whole


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        (["--quick"], "Checked names and headers, not ids and values; add --deep to check values."),
        ([], "Checked names, headers and ids, not values; add --deep to check values."),
        (
            ["--deep"],
            ("Checked every value; not sealed: there is no recorded checksum to compare with (use --seal)."),
        ),
    ],
)
def test_verify_says_what_it_did_not_check(flags: list[str], line: str) -> None:
    """An answer of ok says what was not read, and that values without a seal were compared with nothing."""
    assert line in edl("verify", GOLDEN / "legacy/v4a", *flags).stdout.splitlines()


def test_wrong_dtypes_and_their_way_out(tmp_path: Path) -> None:
    """A float64 table that Python saved is a warning whose hint names the command that mends it; `--strict` refuses."""
    shutil.copytree(GOLDEN / "current/ps3", tmp_path / "run")
    assert document("verify", tmp_path / "run", "--quick", "--strict", code=3)["ok"]
    found = [f for f in document("verify", tmp_path / "run", "--quick")["findings"] if f["code"] != "negative-id"]
    warned = [f for f in found if f["code"] == "info-dtype-mismatch"]
    assert {f["severity"] for f in found} == {"warning"}
    assert [(f["subject"], f["shard"]) for f in warned] == [("emb_f64", ps_id) for ps_id in range(3)]
    assert "Python servers write float32 in every info" in warned[0]["message"]
    assert "`edl-ckpt reshard --force` with the same number of servers" in warned[0]["hint"]
    result = document("reshard", tmp_path / "run", "--ps", "3", "--force")
    check = document("verify", tmp_path / "run", "--deep", code=3)  # it has infinities on purpose
    assert check["fingerprint"] == result["fingerprint"]
    assert not {f["code"] for f in check["findings"]} & {"info-dtype-mismatch", "empty-table-form"}


def test_shards_without_bytes(tmp_path: Path) -> None:
    """Version 0 without tables is imported for more servers than it has variables, and resharded."""
    np.savez(tmp_path / "dense.npz", w=np.ones(3, np.float32))
    imported = document("import", tmp_path / "dense.npz", tmp_path / "run@0", "--ps", "4")
    assert sorted(s["size_bytes"] for s in imported["shards"])[:3] == [0, 0, 0]
    assert document("verify", tmp_path / "run@0", "--deep")["findings"] == []
    assert document("reshard", tmp_path / "run@0", "--ps", "3")["fingerprint"] == imported["fingerprint"]
    assert document("inspect", tmp_path / "run@0")["parameters"] == 3


def test_reshard_document(tmp_path: Path) -> None:
    """A dry run writes nothing; the real run writes what is planned, and verify finds nothing wrong with it."""
    shutil.copytree(GOLDEN / "multi", tmp_path / "run")
    before = elasticdl_rules.answer(tmp_path / "run")
    planned = document("reshard", tmp_path / "run@20", "--ps", "3", "--dry-run")
    assert min(p.name for p in (tmp_path / "run" / "version-20").iterdir()) == "variables-0-of-2.ckpt"
    result = document("reshard", tmp_path / "run@20", "--ps", "3")
    names = "schema ref output from_ps to_ps version size_bytes bytes_read bytes_written rows seconds"
    keys = f"{names} peak_memory_bytes fingerprint shards".split(" ")
    assert list(result)[: len(keys)] == keys
    assert result["shards"] == planned["shards"]
    assert result["size_bytes"] == planned["size_bytes"] == sum(s["size_bytes"] for s in result["shards"])
    assert document("verify", tmp_path / "run@20", "--deep")["fingerprint"] == result["fingerprint"]
    assert elasticdl_rules.answer(tmp_path / "run") == before
    assert elasticdl_rules.leftovers(tmp_path / "run") == []


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["list", "nowhere"], 10),
        (["inspect", f"{GOLDEN}/multi@55"], 10),
        (["inspect", f"{GOLDEN}/multi@best"], 10),
        (["inspect", f"{GOLDEN}/multi", "--table", "none"], 10),
        (["verify", f"{GOLDEN}/multi", "--quick", "--deep"], 2),
        (["verify", f"{GOLDEN}/multi", "--nonsense"], 2),
        (["reshard", f"{GOLDEN}/multi"], 2),
        (["reshard", f"{GOLDEN}/multi", "--ps", "0"], 2),
        (["reshard", f"{GOLDEN}/multi", "--ps", "2", "--max-memory", "much"], 2),
        (["reshard", f"{GOLDEN}/multi@100", "--ps", "2"], 4),
        (["reshard", f"{GOLDEN}/legacy/v1", "--ps", "2"], 16),
        (["reshard", f"{GOLDEN}/multi", "--ps", "2", "--output", "ftp9://x"], 15),
        (["reshard", f"{GOLDEN}/multi", "--ps", "2", "--output", f"{GOLDEN}/README.md"], 10),
        (["reshard", f"{GOLDEN}/multi@20", "--ps", "2", "--output", f"{GOLDEN}/multi"], 16),
        (["reshard", f"{GOLDEN}/bad/extra-file@7", "--ps", "3"], 16),
        (["list", "nosuch://x"], 15),
        (["list", f"{GOLDEN}/multi", "--storage-option", "secret"], 2),
        (["frobnicate"], 2),
    ],
)
def test_failures(arguments: list[str], code: int, tmp_path: Path) -> None:
    """Every failure has its exit code, a plain sentence, no traceback, and with --json one document at the end."""
    done = edl(*arguments, cwd=tmp_path)
    assert done.returncode == code, done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    as_json = edl(*arguments, "--json", cwd=tmp_path)
    assert as_json.returncode == code
    error = json.loads(as_json.stderr.splitlines()[-1])
    assert error["schema"] == "edl-ckpt/error/1"
    assert error["code"] == code


def test_hostile_names(tmp_path: Path) -> None:
    """Names from files reach a terminal only with their control characters and markup made harmless."""
    import numpy as np

    from edl_ckpt.core import save_checkpoint
    from edl_ckpt.core.operations.save import Table

    name = "\x1b[31mred\x07[bold]x[/bold]\u202eevil\r\n"
    rows = np.ones((2, 2), np.float32)
    save_checkpoint(
        str(tmp_path), 1, 1, variables={name: rows}, tables={name + "t": Table(np.array([1, 2]), rows, name)}
    )
    for arguments in (["inspect", "--stats"], ["verify"], ["inspect", "--table", name + "?"]):
        done = edl(arguments[0], tmp_path, *arguments[1:])
        for stream in (done.stdout, done.stderr):
            assert not {"\x1b", "\x07", "\r", "\u202e"} & set(stream)
    assert "\\x1b[31mred\\x07[bold]x[/bold]\\u202eevil" in edl("inspect", f"{tmp_path}@1").stdout
    result = document("inspect", f"{tmp_path}@1")
    assert result["variables"][0]["name"] == name


def test_environment_and_config(tmp_path: Path) -> None:
    """The command line wins over the environment, that over the file; unknown keys are code 2, naming the file."""
    config = tmp_path / "night.toml"
    config.write_text("json = true\n[reshard]\nps = 3\n")
    done = edl("list", GOLDEN / "multi", "--config", config)
    assert json.loads(done.stdout)["schema"] == "edl-ckpt/list/1"

    def planned(*arguments: str, **env: str) -> int:
        done = edl("reshard", GOLDEN / "multi", "--dry-run", *arguments, cwd=None, EDL_CKPT_CONFIG=str(config), **env)
        ps: int = json.loads(done.stdout)["to_ps"]
        return ps

    assert planned() == 3
    assert planned(EDL_CKPT_PS="5") == 5
    assert planned("--ps", "7", EDL_CKPT_PS="5") == 7
    listed = edl("list", "--config", config, EDL_CKPT_DIR=str(GOLDEN / "multi"))
    assert json.loads(listed.stdout)["locations"][0]["versions"]
    for text in ("jsn = true\n", "not toml", "[nothing]\nx = 1\n"):
        config.write_text(text)
        done = edl("list", GOLDEN / "multi", f"--config={config}")
        assert done.returncode == 2
        assert "night.toml" in done.stderr


def test_closed_pipe() -> None:
    """A reader that goes away ends the program with 141, without a traceback."""
    done = without_reader("inspect", f"{GOLDEN}/current/ps1")
    assert (done.returncode, done.stderr) == (141, "")


def test_demo(tmp_path: Path) -> None:
    """`demo` makes a real checkpoint_dir, shows every command with its output, and refuses a directory in use."""
    done = edl("demo", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("warning: ") == 1
    assert "warning: edl-ckpt-demo-torch@300 is passed over: damaged: " in done.stderr
    for command in ("list", "inspect", "verify", "reshard"):
        assert f"$ edl-ckpt {command} " in done.stdout
    assert "$ edl-ckpt verify edl-ckpt-demo-torch --newest --deep\nedl-ckpt-demo-torch/step_200: " in done.stdout
    assert "missing-shard" in done.stdout
    assert "0.78*" in done.stdout
    assert "tag serving" in done.stdout
    assert ": restored version_100\n" in done.stdout
    assert "proved" in done.stdout
    assert edl("demo", cwd=tmp_path).returncode == 16


def imported(*arguments: str) -> set[str]:
    """Return the modules that a command imports."""
    code = f"import sys; from edl_ckpt.cli.app import main\ntry: main({list(arguments)!r})\nexcept SystemExit: pass\n"
    code += "print(*sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    return set(done.stderr.splitlines()[-1].split())


HEAVY = {"numpy", "fsspec", "google.protobuf", "rich.table", "s3fs"}


def test_imports() -> None:
    """`--version` and `--help` import no typer; other help and `list --json` none of the heavy libraries."""
    assert "typer" not in imported("--version")
    for flag in ("-h", "--help"):
        modules = imported(flag)
        assert "typer" not in modules
        assert not [name for name in modules if name.startswith(("edl_ckpt.cli.commands", "edl_ckpt.cli.options"))]
    for command in ("", "prune", "tag", "tag add"):
        modules = imported(*command.split(), "--help")
        assert not HEAVY & modules
        assert not {"rich", "numpy"} & {module.partition(".")[0] for module in modules}
    assert not HEAVY & imported("list", str(GOLDEN / "multi"), "--json")
    assert "fsspec" not in imported("inspect", str(GOLDEN / "multi"), "--json")


def test_quick_end() -> None:
    """The program ends with its exit code, its output and the work of `atexit`, and does not take its memory apart."""
    code = f"""
import atexit, sys
from edl_ckpt.cli.app import main
class Slow:
    def __del__(self): print("taken apart")
kept = Slow()
atexit.register(print, "the end")
sys.argv = ["edl-ckpt", "list", {str(GOLDEN / "nowhere")!r}, "--quiet"]
main()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (edl("list", GOLDEN / "nowhere").returncode, "the end\n")
    assert done.stderr.startswith("error: ")


def test_looking_at_a_table(tmp_path: Path) -> None:
    """`ids` prints what `get --ids-file` reads; `head` and `sample` print the same rows in every form."""
    place = GOLDEN / "current/ps3"
    name = "emb_f64"
    printed = edl("ids", place, "--table", name).stdout
    ids = [int(line) for line in printed.splitlines()]
    (tmp_path / "ids").write_text(printed)
    assert [row["id"] for row in document("get", place, "--table", name, "--ids-file", tmp_path / "ids")["rows"]] == ids
    assert document("ids", place, "--table", name, "-n", "2")["ids"] == ids[:2]
    for command in (["head"], ["sample", "--seed", "3"]):
        whole = document(*command, place, "--table", name, "-n", "3")
        lines = edl(*command, place, "--table", name, "-n", "3", "--jsonl").stdout.splitlines()
        rows = [[*json.loads(line).values()] for line in lines]
        assert rows == [[row["id"], *row["vector"]] for row in whole["rows"]]
        assert len(edl(*command, place, "--table", name, "-n", "3", "--csv").stdout.splitlines()) == 4
    assert edl("sample", place, "--table", "emb_f65").returncode == 10
