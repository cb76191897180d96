"""One version that cannot be read now: commands go on with the others, and it is never taken for absent."""

from __future__ import annotations

import ctypes
import errno
import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.spec import AbstractFileSystem

import elasticdl_rules
from builders import write_checkpoint
from edl_ckpt.core import add_tag, list_versions, open_checkpoint, parse_ref, plan_prune, prune, resolve, set_metrics
from edl_ckpt.core.base.errors import AuthError, EdlCkptError, NotFoundError
from edl_ckpt.core.model.versions import State, Version
from edl_ckpt.core.operations.prune.guards import Guards
from edl_ckpt.core.operations.prune.own_shard import remove_own_shard
from edl_ckpt.core.operations.prune.retention import Latest, Policy
from edl_ckpt.core.storage import LocalStore, open_store
from fork_server import server
from oracle import Model, Table
from places import GOLDEN
from program import inside
from reporters import Recorder

VICTIM = "version-9"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Return a location with the complete versions 9, 15 and 20."""
    for number in (9, 15, 20):
        model = Model(number, {"v": ("float32", (1,), bytes(4))}, {"t": Table(1, "zeros", "float32", {3: bytes(4)})})
        write_checkpoint(tmp_path / "run", model, 2, layout="elasticdl")
    return tmp_path / "run"


def at(location: Path, version: int | str) -> Version:
    """Return the version that a reference names."""
    return resolve(parse_ref(f"{location}@{version}"))


def no_listing(code: int) -> Callable[[pytest.MonkeyPatch, Path], None]:
    """Return what makes the listing of the victim's directory fail with an error of the system."""

    def spoil(patch: pytest.MonkeyPatch, run: Path) -> None:
        scandir = os.scandir

        def failing(path: str) -> Any:
            if str(path) == str(run / VICTIM):
                raise OSError(code, os.strerror(code), path)
            return scandir(path)

        patch.setattr(os, "scandir", failing)

    return spoil


def replaced_by_link(goal: str) -> Callable[[pytest.MonkeyPatch, Path], None]:
    """Return what puts a symbolic link in the place of the victim's directory."""

    def spoil(_: pytest.MonkeyPatch, run: Path) -> None:
        shutil.move(run / VICTIM, run.parent / "away")
        (run / VICTIM).symlink_to(goal)

    return spoil


def shard_replaced_by_link(_: pytest.MonkeyPatch, run: Path) -> None:
    """Put a dangling link in the place of one of the victim's shards."""
    shard = run / VICTIM / "variables-0-of-2.ckpt"
    shard.unlink()
    shard.symlink_to("nowhere")


FAULTS: dict[str, tuple[Callable[[pytest.MonkeyPatch, Path], None], int]] = {
    "permission": (no_listing(errno.EACCES), 12),
    "input/output": (no_listing(errno.EIO), 1),
    "stale": (no_listing(errno.ESTALE), 11),
    "dangling link": (replaced_by_link("nowhere"), 10),
    "loop of links": (replaced_by_link(VICTIM), 10),
    "dangling shard": (shard_replaced_by_link, 10),
}
"""How a version becomes unreadable, and the exit code of a command that names it."""


@pytest.mark.parametrize("fault", sorted(FAULTS))
def test_every_command_goes_on(
    fault: str, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each command works on the other versions, names the unreadable one, and never counts it as absent."""
    spoil, code = FAULTS[fault]
    spoil(monkeypatch, run)
    listed = inside(capsys, "list", run, code=3)["locations"][0]["versions"]
    assert [(v["version"], v["state"]) for v in listed] == [(9, "unreadable"), (15, "complete"), (20, "complete")]
    assert listed[0]["fault"].startswith("cannot be read now: ")
    assert inside(capsys, "inspect", f"{run}@20")["version"] == 20
    assert inside(capsys, "inspect", run)["version"] == 20
    assert (
        inside(capsys, "inspect", f"{run}@9", code=code).get("code", code) == code
    )  # or the rest, where there is some
    assert inside(capsys, "metrics", "set", f"{run}@20", "auc=0.5")["versions"]
    plan = inside(capsys, "prune", run, "--keep", "1", "--dry-run", code=3)["plan"]
    assert [(e["version"], e["action"]) for e in plan] == [(9, "keep"), (15, "delete"), (20, "keep")]
    assert "cannot be read now" in plan[0]["reasons"][-1]
    assert inside(capsys, "prune", run, "--even-newest", "--delete", "9", code=16)["code"] == 16
    done = inside(capsys, "copy", run, tmp_path / "out", "--all", code=code)
    assert [c["ref"] for c in done["copied"]] == [f"{run}@15", f"{run}@20"]
    assert [f["ref"] for f in done["failed"]] == [f"{run}@9"]
    assert os.path.lexists(run / VICTIM)


@pytest.mark.parametrize("fault", sorted(FAULTS))
def test_verify_goes_on(
    fault: str, run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`verify --all` verifies the others; a version that is listed in part has findings and no error."""
    spoil, code = FAULTS[fault]
    spoil(monkeypatch, run)
    in_part = fault == "dangling shard"
    done = inside(capsys, "verify", run, "--all", code=3 if in_part else code)
    assert [r["ok"] for r in done["results"]] == ([False] if in_part else []) + [True, True]
    assert [f["code"] for f in done["failed"]] == ([] if in_part else [code])
    assert done["ok"] is False


def test_warning_names_it(run: Path) -> None:
    """Commands that go on say which version cannot be read, and why; an unreadable one is never the latest."""
    (run / "version-30").symlink_to("nowhere")
    report = Recorder()
    assert resolve(parse_ref(str(run)), reporter=report).version == 20
    assert report.warnings == [f"{run}@30: cannot be read now: the symbolic link leads nowhere"]
    assert list_versions(run).problems == tuple(report.warnings)
    assert plan_prune([run], Policy((Latest(1),))).warnings[0] == f"{report.warnings[0]}; it is kept"


def test_protected(run: Path) -> None:
    """No rule, no --even-newest and no server's own pruning touches an unreadable version, nor its metadata."""
    add_tag(at(run, 9), "old")
    add_tag(at(run, 15), "prod")
    shard_replaced_by_link(pytest.MonkeyPatch(), run)
    prune([run], Policy((), 0), guards=Guards(everything=True, drop_tags=("old", "prod")))
    (left,) = list_versions(run).versions
    assert (left.version, left.state, left.tags) == (9, State.UNREADABLE, ("old",))
    assert remove_own_shard(run, 1, 2, 1) == ()
    elasticdl_rules.latest_valid(run)


def test_gone_is_gone(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only what has no name is absent; a directory that is exchanged meanwhile is listed once it is there."""
    scandir, calls = os.scandir, []

    def deleted(path: str) -> Any:
        if str(path) == str(run / VICTIM):
            shutil.rmtree(run / VICTIM)
        return scandir(path)

    def exchanged(path: str) -> Any:
        calls.append(str(path))
        if calls.count(str(run / "version-15")) == 1:
            raise FileNotFoundError(errno.ENOENT, "just renamed", path)
        return scandir(path)

    with monkeypatch.context() as patch:
        patch.setattr(os, "scandir", deleted)
        assert [v.version for v in list_versions(run).versions] == [15, 20]
    monkeypatch.setattr(os, "scandir", exchanged)
    assert [(v.version, v.state) for v in list_versions(run).versions] == [(15, State.COMPLETE), (20, State.COMPLETE)]


def test_metadata_that_cannot_be_read(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An unreadable file of metadata protects its version, and hides nothing of the others."""
    set_metrics(at(run, 15), {"auc": 0.5})
    add_tag(at(run, 9), "prod")
    for code, message in ((errno.EACCES, "permission denied"), (errno.EIO, "input/output error")):
        opened = os.open

        def failing(path: Any, *flags: Any, code: int = code, opened: Any = opened, **more: Any) -> int:
            if os.path.basename(path) == "9.json":
                raise OSError(code, os.strerror(code), path)
            return int(opened(path, *flags, **more))

        with monkeypatch.context() as patch:
            patch.setattr(os, "open", failing)
            listing = list_versions(run)
            assert message in listing.versions[0].metadata_fault
            assert "9.json" in listing.problems[0]
            assert listing.versions[1].metrics == {"auc": 0.5}
            entries = plan_prune([run], Policy((Latest(1),))).entries
            assert [e.reasons[0] for e in entries if e.version == 9] == ["its tags cannot be read"]
    (run / ".edl-ckpt-0/meta-0/9.json").unlink()
    (run / ".edl-ckpt-0/meta-0/9.json").symlink_to("nowhere")
    assert "is a symbolic link" in list_versions(run).versions[0].metadata_fault
    with pytest.raises(EdlCkptError, match="is a symbolic link"):
        add_tag(at(run, 9), "other")


@pytest.mark.parametrize("name", [".edl-ckpt-0", ".edl-ckpt-0/meta-0"])
def test_state_that_cannot_be_listed(name: str, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When our own directory cannot be listed, versions are, and each may have a tag that protects it."""
    add_tag(at(run, 9), "prod")
    scandir = os.scandir

    def failing(place: int | str) -> Any:
        path = os.readlink(f"/proc/self/fd/{place}") if isinstance(place, int) else place
        if path == str(run / name):
            raise PermissionError(errno.EACCES, "denied", path)
        return scandir(place)

    monkeypatch.setattr(os, "scandir", failing)
    listing = list_versions(run)
    assert [(v.state, v.metadata_fault) for v in listing.versions] == [(State.COMPLETE, "permission denied")] * 3
    assert listing.problems == (f"{run / name}: cannot be read now: permission denied",)
    assert {e.action.value for e in plan_prune([run], Policy((Latest(1),))).entries} == {"keep"}


def test_shard_that_cannot_be_opened(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A newest version whose shard may not be read protects itself and the one before it from a prune."""
    opened = os.open

    def failing(path: Any, *flags: Any, **more: Any) -> int:
        if str(path) == str(run / "version-20/variables-0-of-2.ckpt"):
            raise PermissionError(errno.EACCES, "denied", path)
        return int(opened(path, *flags, **more))

    monkeypatch.setattr(os, "open", failing)
    with pytest.raises(AuthError):
        open_checkpoint(at(run, 20))
    plan = plan_prune([run], Policy((Latest(1),)))
    assert [(e.version, e.action.value) for e in plan.entries] == [(9, "delete"), (15, "keep"), (20, "keep")]
    assert "cannot be read" in plan.warnings[0]


def test_locations_go_on(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of several locations those that can be listed are, and the error of another has its path and code."""
    (tmp_path / "loop").symlink_to("loop")
    inside(capsys, "list", tmp_path / "loop", run, tmp_path / "none", code=10)
    from edl_ckpt.cli import app

    with pytest.raises(SystemExit):
        app.run(["list", str(tmp_path / "loop"), str(run), "--json"])
    printed = capsys.readouterr()
    assert [place["location"] for place in json.loads(printed.out)["locations"]] == [str(run)]
    assert json.loads(printed.err.splitlines()[-1])["path"] == str(tmp_path / "loop")


@pytest.mark.parametrize("code", [errno.EACCES, errno.EIO, errno.ELOOP, errno.ENAMETOOLONG, errno.ENOTDIR])
def test_error_of_the_location(
    code: int, run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An error of the location itself names its path, whatever the command."""
    scandir, listdir = os.scandir, os.listdir

    def failing(real: Any) -> Any:
        def call(path: Any = ".") -> Any:
            if str(path) == str(run):
                raise OSError(code, os.strerror(code), path)
            return real(path)

        return call

    monkeypatch.setattr(os, "scandir", failing(scandir))
    monkeypatch.setattr(os, "listdir", failing(listdir))
    expected = {errno.EACCES: 12, errno.ELOOP: 10, errno.ENOTDIR: 10}.get(code, 1)
    for words in (["list"], ["inspect"], ["verify", "--all"], ["prune", "--keep", "1"], ["recover"], ["undo"]):
        error = inside(capsys, words[0], run, *words[1:], code=expected)
        assert error["path"] == str(run)


def test_other_storage(monkeypatch: pytest.MonkeyPatch) -> None:
    """On storage behind fsspec a directory that may not be listed is unreadable, not without shards."""
    memory = fsspec.filesystem("memory")
    memory.put(str(GOLDEN / "multi"), "/closed/run", recursive=True)
    whole = MemoryFileSystem.ls

    def ls(self: MemoryFileSystem, path: str, detail: bool = True, **kwargs: Any) -> Any:
        if path.endswith("version-20"):
            raise PermissionError("denied")
        return whole(self, path, detail, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(MemoryFileSystem, "find", AbstractFileSystem.find)
        patch.setattr(MemoryFileSystem, "ls", ls)
        listing = list_versions("memory://closed/run", grace_seconds=0)
        assert [v.state.value for v in listing.versions] == ["complete", "unreadable", "incomplete"]
        with pytest.raises(AuthError):
            open_checkpoint(listing.versions[1])
    memory.rm("/closed", recursive=True)


def drop_capabilities() -> None:
    """Let permissions count for root too: without CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH it is like anyone else."""
    if os.geteuid() == 0:
        for capability in (1, 2):
            if ctypes.CDLL(None).prctl(24, capability, 0, 0, 0) != 0:  # PR_CAPBSET_DROP
                os._exit(99)


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("name", [VICTIM, "version-9/variables-1-of-2.ckpt", ".edl-ckpt-0/meta-0", ".edl-ckpt-0"])
def test_real_permissions(name: str, run: Path, tmp_path: Path) -> None:
    """With real permissions, `list`, `verify --all`, `prune` and `inspect` of another version go on."""
    add_tag(at(run, 15), "prod")
    (run / name).chmod(0)

    weak = server(drop_capabilities)
    if weak.process.poll() == 99:
        pytest.skip("root cannot give up its capabilities here")

    def edl(*words: str | Path) -> subprocess.CompletedProcess[str]:
        done = weak.run([*map(str, words)], cwd=None, env=os.environ, timeout=60)
        assert "Traceback" not in done.stderr
        return done

    try:
        listed = edl("list", run)
        assert listed.returncode == (0 if name.endswith(".ckpt") else 3)
        assert ("permission denied" in listed.stderr) == (not name.endswith(".ckpt"))
        assert edl("inspect", f"{run}@20").returncode == 0
        assert edl("verify", f"{run}@20").returncode == (12 if name == ".edl-ckpt-0" else 0) or name.endswith("meta-0")
        every = edl("verify", run, "--all")
        assert every.returncode in {0, 12}
        assert every.returncode == 12 or not name.startswith("version")
        plan = json.loads(edl("prune", run, "--keep", "1", "--dry-run", "--json").stdout)["plan"]
        kept = {e["version"] for e in plan if e["action"] == "keep"}
        assert kept == ({15, 20} if name.endswith(".ckpt") else {9, 15, 20})
    finally:
        (run / name).chmod(0o700)


def test_small_files(tmp_path: Path) -> None:
    """A small file that is there and cannot be read is an error; only a missing one is absent."""
    store = open_store(str(tmp_path))
    assert isinstance(store, LocalStore)
    assert store.read_small("none") is None
    assert store.read_small("none/none") is None
    for name, goal in (("dangling", "nowhere"), ("loop", "loop")):
        (tmp_path / name).symlink_to(goal)
        with pytest.raises(EdlCkptError, match="is a symbolic link"):
            store.read_small(name)
        with pytest.raises(NotFoundError):
            store.names(name)
    assert store.names("none") == {}
