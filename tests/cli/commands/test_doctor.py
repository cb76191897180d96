"""`doctor`: what the program runs with, what a storage can do, and that looking leaves nothing behind."""

from __future__ import annotations

import io
import json
import os
import re
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from edl_ckpt.cli.render.doctor import EXTRAS, doctor_human, program_facts
from edl_ckpt.cli.terminal.tables import draw
from edl_ckpt.core import StorageReport, examine_storage, save_checkpoint
from edl_ckpt.core.base.errors import AuthError, EdlCkptError, NotFoundError, UnsupportedError
from edl_ckpt.core.kernel import bulk
from edl_ckpt.core.storage.beneath import Directory
from edl_ckpt.core.storage.facts import Fact, Verdict
from edl_ckpt.core.storage.location import Location
from edl_ckpt.core.storage.s3.transport import Transport
from places import TOP
from program import document, edl
from s3_fixtures import Bucket


def content(top: Path) -> list[tuple[str, int]]:
    """Return every path below a directory, and the time of each file."""
    return sorted((str(p.relative_to(top)), 0 if p.is_dir() else p.lstat().st_mtime_ns) for p in top.rglob("*"))


def verdicts(report: StorageReport) -> dict[str, str]:
    """Return the verdict of each fact."""
    return {fact.name: fact.verdict.value for fact in report.facts}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Return a location with a version and metadata."""
    save_checkpoint(tmp_path / "run", 1, 2, variables={"w": np.ones(3)}, tables={})
    assert edl("tag", "add", tmp_path / "run@1", "serving").returncode == 0
    return tmp_path / "run"


def test_a_disk(run: Path) -> None:
    """A local file system of Linux can do everything, and it is as before afterwards."""
    before = content(run)
    found = document("doctor", run)
    facts = {fact["name"]: fact for fact in found["storage"]["facts"]}
    assert (found["ok"], found["storage"]["wrote"]) == (True, True)
    for name in ("rename", "exchange of directories", "locks (flock)", "reserved space (fallocate)"):
        assert (facts[name]["value"], facts[name]["verdict"]) == ("yes", "fine")
    assert content(run) == before
    assert "No problems found" in edl("doctor", run).stdout


def test_reasons_stay_in_a_narrow_window() -> None:
    """At 80 columns, and at 40, the reason of a weaker fact is there whole: it is what `doctor` is asked for."""
    why = "`wait` and `watch` look every second; install edl-ckpt with its extra watch"
    weaker = Fact("reports changes (inotify)", "yes, without watchfiles", Verdict.WEAKER, why)
    storage = StorageReport(Location("run"), (weaker, Fact("reserved space (fallocate)", "yes")), wrote=True)
    for width in (40, 80):
        drawn = io.StringIO()
        draw(doctor_human([], [], storage), Console(file=drawn, width=width, force_terminal=True))
        assert why in " ".join(re.sub(r"\x1b\[[0-9;]*m", "", drawn.getvalue()).split())


def test_nothing_is_left_where_nothing_was(tmp_path: Path) -> None:
    """In a directory without our state there is none afterwards, and --no-write does not touch it at all."""
    assert examine_storage(tmp_path).wrote
    assert list(tmp_path.iterdir()) == []
    before = tmp_path.stat().st_mtime_ns
    done = edl("doctor", tmp_path, "--no-write")
    assert (done.returncode, done.stderr, tmp_path.stat().st_mtime_ns) == (0, "", before)
    assert "the write tests were skipped" in done.stdout
    assert "writes small files below" in edl("doctor", tmp_path).stderr


def test_without_a_location(tmp_path: Path) -> None:
    """Without a location the program alone is described, and the current directory stays as it is."""
    assert document("doctor")["storage"] is None
    assert edl("doctor", cwd=tmp_path).returncode == 0
    assert list(tmp_path.iterdir()) == []
    assert edl("doctor", tmp_path / "nowhere").returncode == 10


def test_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing kernel is weaker, and the extras are those of the package."""
    monkeypatch.setattr(bulk, "kernel", None)
    kernel = next(fact for fact in program_facts() if fact.name == "kernel")
    assert (kernel.value, kernel.verdict.value, "five times" in kernel.why) == ("not compiled", "weaker", True)
    project = tomllib.loads((TOP / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert {*EXTRAS} == {*project["optional-dependencies"]} - {"all", "test"}


def test_a_disk_that_fails(run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """What fails is broken (3), what is missing is weaker, and the location is as before."""
    from edl_ckpt.cli.app import run as program

    def fails(_: Directory) -> None:
        raise EdlCkptError("Input/output error")

    monkeypatch.setattr(Directory, "flush", fails)
    monkeypatch.setattr(Directory, "exchange", lambda *_: False)
    before = [name for name, _ in content(run)]
    with pytest.raises(SystemExit) as end:
        program(["doctor", str(run), "--json"])
    found = json.loads(capsys.readouterr().out)
    facts = {fact["name"]: fact["verdict"] for fact in found["storage"]["facts"]}
    assert (end.value.code, found["ok"]) == (3, False)
    assert (facts["flush (fsync)"], facts["exchange of directories"]) == ("broken", "weaker")
    assert [name for name, _ in content(run)] == before


@pytest.mark.parametrize(("error", "verdict"), [(AuthError, "weaker"), (EdlCkptError, "broken")])
def test_what_cannot_be_written_is_a_fact(
    error: type[EdlCkptError], verdict: str, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a write is refused, the facts that were read stay."""

    def refuses(*_: Any, **__: Any) -> Directory:
        raise error("refused")

    monkeypatch.setattr(Directory, "enter", refuses)
    found = verdicts(examine_storage(run))
    assert (found["write"], found["access"]) == (verdict, "fine")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_directory_that_is_read_only(run: Path) -> None:
    """A directory in which this user may not write is described, and nothing is tried."""
    run.chmod(0o555)
    try:
        found = examine_storage(run)
        assert (found.wrote, verdicts(found)["access"]) == (False, "weaker")
    finally:
        run.chmod(0o755)


def test_memory() -> None:
    """A file system in memory is called weaker, because its content is lost."""
    if not os.path.isdir("/dev/shm"):
        pytest.skip("no file system in memory")
    found = verdicts(examine_storage("/dev/shm", write=False))
    assert found["file system"] in {"weaker", "fine"}


def test_s3(s3: Bucket) -> None:
    """Of a service: where the credentials come from, the clock, conditions, uploads, deletion; nothing stays there."""
    s3.put("run/version-1/variables-0-of-1.ckpt", b"")
    before = s3.objects()
    found = examine_storage(s3.url)
    facts = {fact.name: fact for fact in found.facts}
    assert (found.is_sound, s3.objects(), s3.open_uploads()) == (True, before, [])
    assert facts["credentials from"].value == "environment (AWS_ACCESS_KEY_ID)"
    assert facts["clock"].value in {"right", "the service does not tell its time"}  # as moto in this process
    for name in (
        "multipart uploads",
        "delete many",
        "listings see earlier writes",
        "conditional writes (If-None-Match)",
    ):
        assert facts[name].value == "yes"
    assert "nobody" not in str(found.facts)  # the key of the tests
    quiet = examine_storage(s3.url, write=False)
    assert (quiet.wrote, "multipart uploads" in verdicts(quiet)) == (False, False)


def test_s3_that_lacks_things(s3: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    """A service without conditions is fine, one without lists of uploads weaker, one with another clock broken."""
    real = Transport.call

    def poor(self: Transport, method: str, parameters: dict[str, Any], *more: Any) -> dict[str, Any]:
        if method == "list_multipart_uploads":
            raise UnsupportedError("no")
        parameters.pop("IfNoneMatch", None)
        parameters.pop("IfMatch", None)
        answer = real(self, method, parameters, *more)
        if method == "list_objects_v2":
            answer["ResponseMetadata"]["HTTPHeaders"]["date"] = "Thu, 01 Jan 2026 00:00:00 GMT"
        return answer

    monkeypatch.setattr(Transport, "call", poor)
    facts = {fact.name: fact for fact in examine_storage(s3.url).facts}
    assert facts["conditional writes (If-None-Match)"].value == "no: the condition is ignored"
    assert facts["conditional writes (If-None-Match)"].verdict == "fine"
    assert facts["list of uploads"].verdict == "weaker"
    assert (facts["clock"].verdict, "ahead of the service" in facts["clock"].value) == ("broken", True)


def test_other_storage(tmp_path: Path) -> None:
    """A file system of fsspec is described, tried with small files, and left as it was."""
    found = examine_storage("memory://doctor")
    assert verdicts(found)["rename"] == "weaker"
    assert found.is_sound
    with pytest.raises(NotFoundError):
        examine_storage(tmp_path / "nowhere")
