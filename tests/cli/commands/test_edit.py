"""`edl-ckpt edit`: what it prints, its exit codes, and that a failure or a signal leaves nothing behind."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import numpy as np
import pytest

from checkpoints import at, files_of
from edl_ckpt.cli import app
from edl_ckpt.core import Table, open_checkpoint, save_checkpoint, verify_version
from foreign import copied
from program import document, edl
from waiting import paused


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Return a location with a sealed version of two tables and two variables on two servers."""
    ids = np.arange(200)
    rows = np.random.default_rng(1).standard_normal((200, 4)).astype(np.float32)
    tables = {"user": Table(ids, rows), "item": Table(ids[:50], rows[:50] * 1e5)}
    variables = {"w": np.arange(6.0), "step": np.array(3, np.int64)}
    save_checkpoint(tmp_path / "run", 10, 2, variables=variables, tables=tables, layout="elasticdl")
    return tmp_path / "run"


def test_the_text_of_an_edit(run: Path, tmp_path: Path) -> None:
    """The text has each reason with rows and bytes, the values that became infinite, and what is untouched."""
    words = (
        "edit",
        "run",
        "--output",
        "out",
        "--drop",
        "w",
        "--drop-rows",
        "user where id < 9",
        "--cast",
        "item=float16",
    )
    plan = edl(*words, "--dry-run", cwd=tmp_path)
    assert plan.returncode == 0
    assert "241 rows, largest shard" in plan.stdout.splitlines()[-1]
    assert plan.stdout.splitlines()[-1].endswith("Nothing was written.")
    assert not (tmp_path / "out").exists()
    done = edl(*words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "out@10  2 PS -> 2 PS, ElasticDL, in out"
    reasons = [line for line in lines if line.startswith("left out: ")]
    assert reasons == [
        "left out: w: dropped by name (0 rows, 48 B)",
        "left out: user: user where id < 9 (9 rows, 144 B)",
    ]
    assert reasons == [line for line in plan.stdout.splitlines() if line.startswith("left out: ")]
    with open_checkpoint(at(tmp_path / "out", 10)) as checkpoint:
        infinite = int(np.isinf(np.asarray(checkpoint.table("item").to_numpy().vectors)).sum())
    assert f"{infinite} values became infinite: too large for the new type" in lines
    assert "proved: the new files were read back and compared with the source" in lines
    assert lines[-1] == "unchanged, by fingerprint: 1 name"


def test_the_document_of_an_edit(run: Path, tmp_path: Path) -> None:
    """The document of a dry run has the numbers of the run, and no fingerprint."""
    words = ("edit", run, "--output", tmp_path / "out", "--drop-rows", "item where id >= 10", "--rename", "user=u")
    plan, done = document(*words, "--dry-run"), document(*words)
    assert (plan["dry_run"], done["dry_run"], plan["fingerprint"], plan["untouched"]) == (True, False, None, [])
    for key in ("ref", "system", "rows", "size_bytes", "dropped", "from_ps", "to_ps", "version"):
        assert plan[key] == done[key], key
    assert done["rows"] == 210
    assert done["dropped"] == [
        {"name": "item", "rows": 40, "size_bytes": 640, "reason": "item where id >= 10", "kind": ""}
    ]
    assert [one["name"] for one in done["untouched"]] == ["step", "w"]
    out = at(tmp_path / "out", 10)
    assert (out.fingerprint, verify_version(out, level="deep").ok) == (done["fingerprint"], True)


@pytest.mark.parametrize(
    ("words", "code", "error"),
    [
        (("--drop", "w"), 2, "--output is missing"),
        (("--output", "out"), 2, "nothing is to be changed"),
        (("--output", "out@5", "--drop", "w"), 2, "--output"),
        (("--output", "out", "--drop", "nobody"), 10, "no table or variable matches 'nobody'"),
        (("--output", "out", "--drop", "*"), 2, "nothing of it would be written"),
        (("--output", "out", "--drop-rows", "user where id < x"), 2, "is not COLUMN OPERATOR NUMBER"),
        (("--output", "out", "--drop-rows", "user where freqs < 1"), 2, "it has id"),
        (("--output", "out", "--drop-rows", "nobody where id < 1"), 10, "no table 'nobody'"),
        (("--output", "out", "--cast", "user=int8"), 2, "values are cast to float16"),
        (("--output", "out", "--cast", "user"), 2, "GLOB=DTYPE"),
        (("--output", "out", "--rename", "user"), 2, "OLD=NEW"),
        (("--output", "out", "--rename", "user=item"), 2, "would be named 'item'"),
        (("--output", "out", "--rename", "user="), 2, "error"),
        (("--output", "out", "--resize", "user=0"), 2, "--resize expects a number of rows"),
        (("--output", "out", "--resize", "user=-1"), 2, "--resize expects a number of rows"),
        (("--output", "out", "--resize", "user=٣"), 2, "--resize expects a number of rows"),
        (("--output", "out", "--resize", f"user={'9' * 5000}"), 2, "--resize expects a number of rows"),
        (("--output", "out", "--resize", "user=5"), 15, "'user' is no matrix"),
        (("--output", "run", "--drop", "w"), 16, "version 10 exists there already"),
    ],
)
def test_refusals(run: Path, tmp_path: Path, words: tuple[str, ...], code: int, error: str) -> None:
    """A refusal has its exit code and its reason, and nothing on the disk differs."""
    before = files_of(tmp_path)
    done = edl("edit", "run", *words, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (code, ""), done.stderr
    assert error in done.stderr
    assert files_of(tmp_path) == before
    assert not (tmp_path / "out").exists()


def test_a_target_that_exists(run: Path, tmp_path: Path) -> None:
    """A second edit to the same location is refused, and the first result stays as it is."""
    words = ("edit", run, "--output", tmp_path / "out", "--drop", "w")
    assert edl(*words).returncode == 0
    before = files_of(tmp_path)
    for more in ((), ("--dry-run",), ("--force",)):
        done = edl(*words, *more)
        assert done.returncode == 16
        assert "version 10 exists there already" in done.stderr
    assert files_of(tmp_path) == before


@pytest.mark.parametrize("system", [("dcp/torchrec", 2), ("tfra", 3), ("dynamicemb", 3)])
def test_other_systems(tmp_path: Path, system: tuple[str, int]) -> None:
    """Versions of other systems are edited to a disk only, and never beside themselves."""
    folder, number = system
    place = copied(folder, number, tmp_path / "run").parent
    before = files_of(tmp_path)
    there = edl("edit", f"{place}@{number}", "--output", place, "--rename", "*=*")
    assert (there.returncode, "exists there already" in there.stderr) == (16, True)
    assert files_of(tmp_path) == before
    done = document("edit", f"{place}@{number}", "--output", tmp_path / "out", "--rename", "*=*")
    assert done["dropped"] == []
    assert verify_version(at(tmp_path / "out", number), level="deep").ok


def test_a_damaged_source(run: Path, tmp_path: Path) -> None:
    """A flipped bit under a seal ends the edit before anything is written; --force records why it went on."""
    shard = run / "version-10/variables-0-of-2.ckpt"
    with open_checkpoint(at(run)) as checkpoint:
        row = np.asarray(checkpoint.table("user").to_numpy().vectors)[0].tobytes()
    data, stat = bytearray(shard.read_bytes()), shard.stat()
    data[data.index(row)] ^= 1
    shard.write_bytes(data)
    os.utime(shard, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    before, words = files_of(tmp_path), ("edit", run, "--output", tmp_path / "out", "--drop", "w")
    done = edl(*words)
    assert done.returncode == 5
    assert "the values do not have the fingerprint in the version's seal" in done.stderr
    assert "--force" in done.stderr
    assert files_of(tmp_path) == before
    assert not (tmp_path / "out").exists()
    assert document(*words, "--force")["forced"].startswith("the values do not have the fingerprint")


def test_a_full_disk(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without room the edit ends with its exit code, and leaves no version and no staging directory."""
    stat = os.statvfs(tmp_path)
    full = os.statvfs_result((*stat[:3], 0, 0, *stat[5:]))
    with monkeypatch.context() as patched:
        patched.setattr(os, "statvfs", lambda _path: full)
        with pytest.raises(SystemExit) as end:
            app.run(["edit", str(run), "--output", str(tmp_path / "out"), "--drop", "w"])
    assert end.value.code == 14
    assert "Nothing" not in capsys.readouterr().out
    assert not [name for name in files_of(tmp_path) if name.startswith("out/") and "variables" in name]
    assert edl("edit", run, "--output", tmp_path / "out", "--drop", "w").returncode == 0


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("moment", ["pwrite:2", "fsync:1"])
def test_a_signal(run: Path, tmp_path: Path, number: int, code: int, moment: str) -> None:
    """An interrupted edit leaves nothing, and the same edit succeeds afterwards."""
    words = ("edit", "run", "--output", "out", "--drop", "w")
    before = files_of(tmp_path)
    with paused(*words, "--quiet", at=moment, cwd=tmp_path) as program:
        assert program.end_by(number) == code
    assert files_of(tmp_path) == before
    assert run.is_dir()
    assert edl(*words, cwd=tmp_path).returncode == 0
