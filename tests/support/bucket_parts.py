"""Uploads whose parts are sent by workers: small ones in tests, and what is left of them."""

from __future__ import annotations

import signal
import subprocess
from dataclasses import replace

import pytest

from edl_ckpt.core.storage.s3.store import S3Store
from program import PROGRAM
from s3_fixtures import Bucket
from s3_proxy import Call, Fault, Forward, Reply, stall, status
from waiting import wait_until


def with_parts(monkeypatch: pytest.MonkeyPatch, size_bytes: int) -> None:
    """Let the least part have so many bytes, here and in moto, and tasks have some parts."""
    monkeypatch.setattr(S3Store, "properties", replace(S3Store.properties, part_bytes=size_bytes))
    monkeypatch.setattr("edl_ckpt.core.storage.s3.upload.MIN_PART_BYTES", size_bytes)
    monkeypatch.setattr("moto.s3.models.S3_UPLOAD_PART_MIN_SIZE", size_bytes)
    monkeypatch.setattr("edl_ckpt.core.cluster.executor.LEAST_TASK_BYTES", 4 * size_bytes)


def in_bucket(s3: Bucket, prefix: str = "run/") -> dict[str, bytes]:
    """Return the content of every shard below a prefix of a bucket."""
    return {key.removeprefix(prefix): s3.get(key) for key in s3.keys(prefix) if "/variables-" in key}


def nothing_is_left(s3: Bucket) -> None:
    """No upload is open, and nothing is staged."""
    assert not s3.open_uploads()
    assert not [key for key in s3.objects() if "/stage-0/" in key or ".edl-ckpt." in key]


def killed_midway(s3: Bucket, *command: str) -> None:
    """Run the program, and kill it when a part has arrived; it cannot complete an upload before."""
    s3.proxy.fail(Fault(stall(120), operation="complete", times=None))
    running = subprocess.Popen([*PROGRAM, *command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_until(lambda: s3.has_parts() or running.poll() is not None)
    running.kill()
    assert running.wait() == -signal.SIGKILL
    s3.proxy.heal()


def without_upload(call: Call, forward: Forward) -> Reply | None:
    """Answer as S3 does to a part of an upload that is gone, where moto fails."""
    reply = forward(call)
    return status(404, "NoSuchUpload")(call, forward) if reply is not None and reply.status == 500 else reply
