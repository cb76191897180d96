from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from checkpoints import only, save_small
from edl_ckpt.core import (
    EdlCkptError,
    Version,
    add_tag,
    execute_copy,
    list_versions,
    plan_copy,
    recover,
    reshard_version,
    set_metrics,
    verify_version,
)
from shim_sweep import build, start
from truth_sweep import ROWS

SAMPLED = ("reshard --output", "copy", "export .npz", "policy set")
"""The commands of the ordinary suite."""
PARTS = 16
"""The full sweep of a command has so many parts: `pytest -n 0 -m hours tests/core/commit/test_truth_sweep.py`."""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if sys.platform != "linux" or shutil.which("gcc") is None:
        pytest.skip("needs LD_PRELOAD and gcc")
    return build(tmp_path_factory.mktemp("shim"))


def test_sample(library: Path) -> None:
    """What a command says of a full or failing disk is true, and `recover` and the same command bring the rest."""
    done = start(library, "--sample", "2", *SAMPLED, module="truth_sweep")
    assert done.returncode == 0, done.stderr[-3000:]
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [outcome["command"] for outcome in found] == list(SAMPLED)
    assert all(outcome["met"] == outcome["points"] == 2 for outcome in found)
    wrong = [f"{o['command']} {point}: {problem}" for o in found for point, problem in o["wrong"].items()]
    assert not wrong, "\n".join(wrong)


@pytest.mark.hours
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("command", ROWS)
def test_every_call(library: Path, command: str, part: int, capsys: pytest.CaptureFixture[str]) -> None:
    """The same for each of six errors at every call, once and from then on; prints the counts."""
    done = start(library, "--part", f"{part}/{PARTS}", command, module="truth_sweep")
    assert done.returncode == 0, done.stderr[-3000:]
    outcome = json.loads(done.stdout)
    with capsys.disabled():
        calls = ", ".join(f"{call} {count}" for call, count in sorted(outcome["calls"].items()))
        print(f"\n{command} {part}: {outcome['points']} points ({calls}), {len(outcome['wrong'])} wrong")
    assert outcome["points"] > 20
    assert not outcome["wrong"], json.dumps(outcome["wrong"], indent=1)


# The checker


def test_the_library_bites(library: Path, tmp_path: Path) -> None:
    """Each function that the library stands for is called, by a path or a descriptor, and its error comes back."""
    done = subprocess.run(["nm", "-D", "--defined-only", str(library)], capture_output=True, text=True, check=True)
    hooked = {line.split()[-1] for line in done.stdout.splitlines()}
    checked = start(library, str(tmp_path), module="shim_check")
    assert checked.returncode == 0, checked.stderr[-3000:]
    found = json.loads(checked.stdout)
    assert found["c"] == dict.fromkeys(sorted(n for n in hooked if not n.startswith("shim_")), errno.ESTALE)
    assert found["python"] == dict.fromkeys(found["python"], errno.ESTALE)
    assert {"Directory.rename_new", "Directory.exchange", "os.mkdir at", "os.rename at"} <= found["python"].keys()


# After the rename


def _fail_in_meta(monkeypatch: pytest.MonkeyPatch, place: Path, code: int) -> None:
    """Let every change of the location's metadata fail once a version is visible there."""
    real = {name: getattr(os, name) for name in ("mkdir", "rename")}

    def failing(name: str) -> None:
        def call(*words: object, **more: object) -> object:
            visible = place.is_dir() and any(path.name.startswith("version") for path in place.iterdir())
            inside = words[-1 if name == "rename" else 0]
            if visible and (inside == "meta-0" or (name == "rename" and str(inside).endswith(".json"))):
                raise OSError(code, os.strerror(code))
            return real[name](*words, **more)

        monkeypatch.setattr(os, name, call)

    for name in real:
        failing(name)


_BRING: dict[str, Callable[[Version, str], object]] = {
    "reshard": lambda version, out: reshard_version(version, 3, output=out),
    "copy": lambda version, out: execute_copy(plan_copy([version], out)),
}


@pytest.mark.parametrize("command", _BRING)
def test_a_disk_that_fails_after_the_rename(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    """The error says that the version is in place, and `recover` adds its seal, its metrics and its tags."""
    save_small(tmp_path / "run", 7)
    set_metrics(only(tmp_path / "run"), {"f1": 0.5}, mode="max")
    add_tag(only(tmp_path / "run"), "serving")
    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        _fail_in_meta(patch, out, errno.ENOSPC)
        with pytest.raises(EdlCkptError) as failed:
            _BRING[command](only(tmp_path / "run"), str(out))
    assert failed.value.exit_code == 14
    assert str(failed.value.hint).startswith("version 7 is in place, perhaps without its seal, tags or metrics")
    assert f"edl-ckpt recover {out}" in str(failed.value.hint)
    assert only(out).tags == ()
    assert recover(str(out)).done == ("finished the commit of version 7; the new version is in place",)
    listing = list_versions(str(out))
    assert (only(out).tags, only(out).metrics, dict(listing.modes)) == (("serving",), {"f1": 0.5}, {"f1": "max"})
    check = verify_version(only(out), level="deep")
    assert (check.sealed, check.findings) == (True, ())
    assert recover(str(out)).done == ()


def test_the_place_that_was_full_for_a_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lack that passes at the second try is no error: the version is there with all that belongs to it."""
    save_small(tmp_path / "run", 7)
    add_tag(only(tmp_path / "run"), "serving")
    real, calls = os.rename, list[object]()

    def rename(old: str, new: str, **more: int) -> None:
        if new == "7.json" and not calls:
            calls.append(new)
            raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))
        real(old, new, **more)

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", rename)
        reshard_version(only(tmp_path / "run"), 3, output=str(tmp_path / "out"))
    assert calls
    assert only(tmp_path / "out").tags == ("serving",)
    assert verify_version(only(tmp_path / "out"), level="deep").findings == ()
