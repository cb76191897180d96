"""A seal that is there and does not match stops everything that would replace it, or that relies on it."""

from __future__ import annotations

import errno
import getpass
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from checkpoints import at, files_but_verdicts, files_of, only, save_small
from edl_ckpt.core import open_checkpoint, reshard_version, save_checkpoint, verify_version
from edl_ckpt.core.base.errors import CorruptError, EdlCkptError
from edl_ckpt.core.operations.copy.execute import execute_copy
from edl_ckpt.core.operations.copy.plan import plan_copy
from edl_ckpt.core.operations.save import Table
from edl_ckpt.core.proof.trust import check_trust
from edl_ckpt.core.state.paths import seal_file
from edl_ckpt.core.state.seal import read_seal
from edl_ckpt.core.storage import open_store
from program import edl, inside


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:100])


def garble(path: Path) -> None:
    path.write_bytes(bytes(byte ^ 0x15 for byte in path.read_bytes()))


def swap(path: Path) -> None:
    """Put the seal of another version there."""
    shutil.copy(path.with_name("8.seal.json"), path)


def make_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def flip(location: Path, number: int = 7) -> None:
    """Flip a bit in the values of a shard: the file can be read as before."""
    with open_checkpoint(at(location, number)) as checkpoint:
        shard = checkpoint.shards[1]
        path, offset = Path(shard.file.path), shard.tables[0].values.start + 1
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    save_small(tmp_path / "run", 7, 8)
    return tmp_path / "run"


COMMANDS: dict[str, Callable[[Path, Path], list[Any]]] = {
    "in place": lambda run, _: ["reshard", f"{run}@7", "--ps", "3"],
    "elsewhere": lambda run, out: ["reshard", f"{run}@7", "--ps", "3", "--output", out],
    "dry run": lambda run, _: ["reshard", f"{run}@7", "--ps", "3", "--dry-run"],
    "copy": lambda run, out: ["copy", f"{run}@7", out],
    "import": lambda run, out: ["import", f"{run}@7", f"{out}@9", "--ps", "3"],
    "export": lambda run, out: ["export", f"{run}@7", f"{out}.safetensors"],
    "export a part": lambda run, out: ["export", f"{run}@7", f"{out}.csv", "--table", "t", "--limit", "1"],
    "export a checkpoint": lambda run, out: ["export", f"{run}@7", out, "--format", "checkpoint"],
    "export a shard": lambda run, out: ["export", f"{run}@7", f"{out}.ckpt"],
}
SEALED = {"in place": 7, "elsewhere": 7, "copy": 7, "import": 9, "export a checkpoint": 7}
"""The commands that seal their result, and its number."""


@pytest.mark.parametrize(
    "damage", [truncate, garble, swap, make_pipe, None], ids=lambda d: d.__name__ if d else "whole"
)
@pytest.mark.parametrize("command", COMMANDS)
def test_damage_is_never_sealed(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], damage: Callable[[Path], None] | None, command: str
) -> None:
    """A flipped bit, with a damaged seal or a whole one, is error 5 everywhere, and nothing changes.

    The option goes on; its result says why, and so does the seal that is made.
    """
    if command == "dry run" and damage is None:
        pytest.skip("a dry run reads no values")
    flip(run)
    if damage:
        damage(run / seal_file(7))
    out = tmp_path / "out"
    arguments = COMMANDS[command](run, out)
    before = files_of(tmp_path)
    error = inside(capsys, *arguments, code=5)
    assert "--force" in error["hint"]
    assert files_of(tmp_path) == before
    if command == "in place" and damage is make_pipe:  # a pipe is not ours, so nobody but a person moves it away
        inside(capsys, *arguments, "--force", code=16)
        return
    done = inside(capsys, *arguments, "--ignore-seal" if "export" in command else "--force")
    if command == "dry run":
        return
    result = done["copied"][0] if command == "copy" else done
    assert result["forced"]
    if command in SEALED:
        made = read_seal(open_store(str(run if command == "in place" else out)), SEALED[command])
        assert made is not None
        (override,) = made.history
        assert override.why == result["forced"]
        assert override.who.startswith(f"{getpass.getuser()}@")
        assert override.when[:2] == "20"


@pytest.mark.parametrize("damage", [truncate, garble, swap])
def test_verify(run: Path, capsys: pytest.CaptureFixture[str], damage: Callable[[Path], None]) -> None:
    """Verify finds a damaged seal at every level; `--seal` does not replace it, `--seal --force` records that."""
    damage(run / seal_file(7))
    for level in ("--quick", "--deep", "--seal"):
        found = inside(capsys, "verify", f"{run}@7", level, code=3)
        assert [f["code"] for f in found["findings"]] == ["checksum-mismatch"]
    shown = edl("verify", f"{run}@7", "--deep").stdout
    assert "a seal cannot be read, so its version was not compared with it" in shown
    assert "use --seal" not in shown
    with pytest.raises(CorruptError):
        read_seal(open_store(str(run)), 7)
    assert inside(capsys, "verify", f"{run}@7", "--seal", "--force")["sealed"] is True
    seal = read_seal(open_store(str(run)), 7)
    assert seal is not None
    assert [(o.command, o.why.startswith("damaged seal")) for o in seal.history] == [("verify --seal", True)]
    assert verify_version(at(run, 7), level="deep").findings == ()


def test_commands_that_only_look(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Inspect, diff and get warn of a seal that does not match, and show what they were asked for."""
    truncate(run / seal_file(7))
    for arguments in (["inspect", f"{run}@7"], ["get", f"{run}@7", "--table", "t", "--id", "5"]):
        done = edl(*arguments)
        assert done.returncode == 0
        assert f"{run}@7: does not match its seal: damaged seal" in done.stderr
    done = edl("diff", f"{run}@7", f"{run}@8")
    assert (done.returncode, done.stderr.count("does not match its seal")) == (3, 1)


def rewrite(run: Path, *, rows: int) -> None:
    """Save version 7 again as a restarted job does: into the same directory, without a seal."""
    aside = run.parent / "again"
    tables = {"t": Table(*_table(rows))}
    save_checkpoint(str(aside), 7, 2, variables={}, tables=tables, layout="elasticdl")
    shutil.rmtree(run / "version-7")
    shutil.copytree(aside / "version-7", run / "version-7")


def _table(rows: int) -> tuple[Any, Any]:
    import numpy as np

    return np.arange(rows), np.full((rows, 2), 3.5, np.float32)


@pytest.mark.parametrize("rows", [60, 90], ids=["same sizes", "other sizes"])
def test_a_job_wrote_the_version_again(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], rows: int
) -> None:
    """Reshard of a version that a job wrote again is error 5; it names sizes and times, and how to go on."""
    rewrite(run, rows=rows)
    before = files_of(run)
    error = inside(capsys, "reshard", f"{run}@7", "--ps", "3", code=5)
    if rows == 90:
        size = at(run, 7).shards[0].size_bytes
        assert f"variables-0-of-2.ckpt has {size} bytes; it had" in error["message"]
        assert "it was sealed at 20" in error["message"]
        assert "its shards were last changed at 20" in error["message"]
    assert "--force" in error["hint"]
    assert files_of(run) == before
    assert inside(capsys, "reshard", f"{run}@7", "--ps", "3", "--force")["forced"]
    assert verify_version(at(run, 7), level="deep").findings == ()
    assert inside(capsys, "copy", f"{run}@7", tmp_path / "out")["copied"][0]["forced"] is None
    copied = read_seal(open_store(str(tmp_path / "out")), 7)
    assert copied is not None
    assert [o.command for o in copied.history] == ["reshard"]  # it goes where the content goes


def test_the_copy_at_the_target_has_a_damaged_seal(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Copy does not seal again what is at the target with a damaged seal; with `--force` only equal bytes."""
    out = tmp_path / "out"
    execute_copy(plan_copy([at(run, 7)], str(out)))
    truncate(out / seal_file(7))
    before = files_of(out)
    assert "is there" in inside(capsys, "copy", f"{run}@7", out, "--dry-run")["copied"][0]["why"]
    inside(capsys, "copy", f"{run}@7", out, code=5)
    assert files_of(out) == before
    flip(out)
    inside(capsys, "copy", f"{run}@7", out, "--force", code=16)
    flip(out)
    assert inside(capsys, "copy", f"{run}@7", out, "--force")["copied"][0]["forced"]
    assert verify_version(only(out), level="deep").findings == ()


def test_copy_all_goes_on(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`copy --all` copies the versions whose seals match, names the other one, and ends with 5."""
    garble(run / seal_file(7))
    inside_code = edl("copy", run, tmp_path / "out", "--all")
    assert inside_code.returncode == 5
    assert f"{run}@7: not copied" in inside_code.stderr
    assert [v.version for v in (at(tmp_path / "out", 8),)] == [8]
    assert not (tmp_path / "out/version-7").exists()


def test_an_error_of_the_disk_is_not_absence(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A seal that cannot be read for a moment stops a reshard; it does not count as missing."""
    real = os.open

    def failing(path: Any, *args: Any, **kwargs: Any) -> int:
        if str(path).endswith("7.seal.json"):
            raise OSError(errno.EIO, "Input/output error", str(path))
        return real(path, *args, **kwargs)

    version = at(run, 7)
    before = files_but_verdicts(run)
    monkeypatch.setattr(os, "open", failing)
    with pytest.raises(EdlCkptError, match="input/output error"):
        reshard_version(version, 3)
    with pytest.raises(EdlCkptError, match="input/output error"):
        check_trust(version)
    assert [f.message for f in verify_version(version).findings] == ["the seal cannot be read: input/output error"]
    monkeypatch.undo()
    assert files_but_verdicts(run) == before
    assert at(run, 7).verdict is None  # it says nothing of the files
    assert verify_version(at(run, 7)).ok


def test_no_seal_at_all(run: Path) -> None:
    """Without a seal there is nothing to contradict, and nothing is recorded."""
    (run / seal_file(7)).unlink()
    assert reshard_version(at(run, 7), 3, force=True).forced is None
    made = json.loads((run / seal_file(7)).read_text())
    assert "history" not in made
