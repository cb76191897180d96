"""A signal at the commit of a command: the exit code of a signal never stands for a result that is there."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from checkpoints import files_but_seals, save_small
from edl_ckpt.cli import app
from edl_ckpt.cli.terminal.signals import handle_signals
from edl_ckpt.core.base.errors import UnavailableError
from edl_ckpt.core.base.interruption import COMMIT, Commit
from edl_ckpt.core.commit.publish import disk as local
from s3_fixtures import Bucket

PRUNE = "prune run --keep 1 --yes"
COMMANDS = {
    "reshard run@20 --ps 3": "",
    "reshard run@20 --ps 3 --output out": "tag add run@20 serving",
    "copy run out --all": "",
    "import run@20 out@1 --ps 3": "",
    "export run@20 arrays.npz": "",
    "export run@20 arrays.npz --force": "export run@10 arrays.npz",
    "export run@20 one.ckpt": "",
    "export run@20 rows.csv --table t": "",
    PRUNE: "",
    f"{PRUNE} --trash": "",
    f"{PRUNE} --purge": f"{PRUNE} --trash",
    "undo run": f"{PRUNE} --trash",
    "tag add run@20 serving": "tag add run@10 serving",
    "metrics import m.csv run": "",
    "policy set run --keep 3": "",
    "verify run@20 --seal": "",
}
"""Commands, each with one that makes ready for it."""


class _Moment:
    """Sends a signal of the kernel's to this process right before or right after one of the blocks of commits."""

    def __init__(self, patch: pytest.MonkeyPatch, *, before: int = 0, after: int = 0) -> None:
        self.count = 0
        enter, leave = Commit.__enter__, Commit.__exit__

        def entering(commit: Commit) -> None:
            self.count += not commit._depth
            if not commit._depth and self.count == before:
                signal.raise_signal(signal.SIGTERM)
            enter(commit)

        def leaving(commit: Commit, *error: Any) -> None:
            leave(commit, *error)
            if not commit._depth and self.count == after:
                signal.raise_signal(signal.SIGTERM)

        patch.setattr(Commit, "__enter__", entering)
        patch.setattr(Commit, "__exit__", leaving)


def _run(command: str) -> int:
    """Run a command in this process, with the handlers of signals, and return its exit code."""
    before = signal.getsignal(signal.SIGTERM)
    handle_signals()
    try:
        with pytest.raises(SystemExit) as end:
            app.run([*shlex.split(command), "--json"])
    finally:
        signal.signal(signal.SIGTERM, before)
        COMMIT.forget()
    return int(end.value.code or 0)


def _there(place: Path) -> dict[str, bytes]:
    """Return every file of a result, by names without ids of processes.

    What a stopped copy leaves for the next one is no result, and neither is a verdict: it is noted only of files that
    have not changed for a moment, so a fast run notes none.
    """
    seals = {str(p.relative_to(place)): b"" for p in place.rglob("*.seal.json")}
    files = {
        name: data
        for name, data in (files_but_seals(place) | seals).items()
        if "stage-0/copy-" not in name and "meta-0/verdicts-" not in name
    }
    bare = {name: b"" if name.endswith("record.json") else data for name, data in files.items()}
    return {re.sub(r"(drop-)?\d{8}T\d{6}[^/]*", "ID", name): data for name, data in bare.items()}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_code_of_a_signal_stands_for_no_result(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before each commit, and right after it: either all is there and reported, or the code says that it is not."""
    ready, at_work = tmp_path / "ready", tmp_path / "work"
    ready.mkdir()
    monkeypatch.chdir(ready)
    save_small("run", 10, 20, sealed="--seal" not in command)
    (ready / "m.csv").write_text("step,auc\n10,0.5\n20,0.7\n")
    if COMMANDS[command]:
        assert _run(COMMANDS[command]) == 0
    begin = _there(ready)

    def at(**moment: int) -> tuple[int, int, dict[str, bytes]]:
        shutil.rmtree(at_work, ignore_errors=True)
        shutil.copytree(ready, at_work)
        monkeypatch.chdir(at_work)
        with monkeypatch.context() as patch:
            blocks = _Moment(patch, **moment)
            code = _run(command)
        return blocks.count, code, _there(at_work)

    blocks, code, done = at()
    assert (code, done != begin) == (0, True)
    _, code, left = at(before=1)
    assert (code, left == done) == (143, False)
    assert begin.items() <= left.items()  # and a prune may have made its directory in the trash
    ended = []
    for k in range(1, blocks + 1):
        capsys.readouterr()
        _, code, left = at(after=k)
        printed = capsys.readouterr()
        assert code in {0, 143}
        assert (code == 0) == (left == done), (k, code)
        assert ("SIGTERM came after the commit" in printed.err) == (code == 0)
        assert code == 143 or json.loads(printed.out)
        ended.append(code)
    assert ended[-1] == 0


@pytest.mark.parametrize("command", ["reshard {run}@20 --ps 3", "export {run}@20 {out}", "prune {run} --keep 1 --yes"])
def test_on_s3(
    command: str,
    s3: Bucket,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A signal right after the last commit on S3 leaves the command its report, and what it would have left without."""
    save_small(tmp_path / "run", 10, 20)
    done = []
    for after in (0, 1):
        place = f"s3://{s3.name}/{after}"
        assert _run(f"copy {shlex.quote(str(tmp_path))}/run {place} --all") == 0
        capsys.readouterr()
        with monkeypatch.context() as patch:
            _Moment(patch, after=after)
            assert _run(command.format(run=place, out=f"s3://{s3.name}/out{after}/a.npz")) == 0
        assert json.loads(capsys.readouterr().out)
        done.append({k.partition("/")[2] for k in s3.objects() if k.partition("/")[0] in {str(after), f"out{after}"}})
        assert s3.open_uploads() == []
    assert done[0] == done[1]


def test_what_fails_after_the_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A signal after the commit wins over an error that follows it, and the words say that the version is complete."""
    monkeypatch.chdir(tmp_path)
    save_small("run", 20)

    def fail(*_: object) -> None:
        raise UnavailableError("no answer")

    monkeypatch.setattr(local, "place_metadata", fail)
    _Moment(monkeypatch, after=1)
    assert _run("reshard run@20 --ps 3 --output out") == 143
    assert capsys.readouterr().err == (
        "terminated; the new version is complete, its metrics and tags may be missing: `edl-ckpt list out` shows them\n"
    )
