"""Processes that are stopped by SIGSTOP and go on later, on S3 beyond their lock, on a disk under it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
from pathlib import Path

import pytest

from bucket_parts import without_upload
from checkpoints import at, only, save_small
from edl_ckpt.core import recover, reshard_version, verify_version
from edl_ckpt.core.operations.annotate import add_tag
from edl_ckpt.core.state import owner as owners
from program import PROGRAM, edl
from s3_fixtures import Bucket
from s3_proxy import Fault, hook
from waiting import paused, wait_until


@pytest.mark.parametrize(
    ("command", "operation", "key"),
    [
        (["reshard", "{url}@3", "--ps", "5"], "complete", "1-of-5"),
        (["prune", "{url}", "--keep", "2", "--yes"], "delete_many", ""),
        (["tag", "add", "{url}@2", "mine"], "get", "meta-0/2.json"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_stopped_on_s3(
    s3: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: list[str], operation: str, key: str
) -> None:
    """A stopped process loses its lock; it goes on, ends with 11, and the tag of the other command is there."""
    save_small(tmp_path / "run", 1, 2, 3)
    s3.upload(tmp_path / "run")
    gate = threading.Event()
    held = Fault(hook(lambda _: gate.wait(600)), operation=operation, key=key)  # type: ignore[arg-type]
    s3.proxy.fail(Fault(without_upload, operation="complete", times=None))  # moto's 500 would be tried again
    armed = s3.proxy.fail(held)
    words = [*PROGRAM, *(word.format(url=s3.url) for word in command), "--json"]
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        try:
            wait_until(lambda: armed.hits)
            process.send_signal(signal.SIGSTOP)
            with monkeypatch.context() as patch:
                patch.setattr(owners, "STALE_SECONDS", -1.0)
                recover(s3.url)
                add_tag(at(s3.url, 2), "good")
            gate.set()
            process.send_signal(signal.SIGCONT)
            _, printed = process.communicate(timeout=60)
        finally:
            gate.set()
            process.kill()
    assert process.returncode == 11, printed
    assert json.loads(printed.splitlines()[-1])["id"] == "locked"
    version = at(s3.url, 2)
    assert version.tags == ("good",)
    assert verify_version(version, level="deep").findings == ()
    recover(s3.url)
    assert s3.state() == []
    assert s3.open_uploads() == []


def test_stopped_on_disk(tmp_path: Path) -> None:
    """On a disk a stopped process keeps the kernel's lock: others end with 11, `unlock` too, and it finishes later."""
    save_small(tmp_path / "run", 7)
    with paused("reshard", tmp_path / "run@7", "--ps", "3", at="fsync:1") as program:
        program.process.send_signal(signal.SIGSTOP)
        lock = tmp_path / "run/.edl-ckpt-0/lock-0"
        os.utime(lock, (1, 1))  # silent for longer than any limit
        assert edl("tag", "add", tmp_path / "run@7", "good", "--lock-wait", "0s").returncode == 11
        assert edl("unlock", tmp_path / "run", "--yes").returncode == 11
        assert lock.exists()
        program.process.send_signal(signal.SIGCONT)
        program.resume()
        assert program.process.wait(300) == 0
    assert only(tmp_path / "run").ps_num == 3
    assert reshard_version(only(tmp_path / "run"), 2).to_ps == 2
