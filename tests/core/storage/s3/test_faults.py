"""Requests that fail once, for good, or too late: what is tried again, and what is found."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import botocore.session
import numpy as np
import pytest

from checkpoints import at
from edl_ckpt.core import (
    Table,
    execute_reshard,
    list_versions,
    open_checkpoint,
    prepare_reshard,
    reshard_version,
    save_checkpoint,
    verify_version,
)
from edl_ckpt.core.base.errors import EdlCkptError, UnavailableError
from edl_ckpt.core.operations.copy.execute import execute_copy
from edl_ckpt.core.operations.copy.plan import plan_copy
from edl_ckpt.core.reading.kept_ids import KeptReader
from edl_ckpt.core.storage import Location
from edl_ckpt.core.storage.s3 import client
from s3_fixtures import Bucket, begun_now
from s3_proxy import (
    Call,
    Fault,
    Forward,
    Kind,
    Reply,
    corrupt_reply,
    corrupt_request,
    flipped,
    list_no_uploads,
    lose_reply,
    reset,
    stall,
    status,
    truncate,
)

HARMLESS: list[tuple[str, Callable[..., Any]]] = [
    ("SlowDown", status(503, "SlowDown")),
    ("InternalError", status(500, "InternalError")),
    ("reset", reset),
    ("truncated", truncate),
]
OPERATIONS = ("list", "get", "put", "create_upload", "upload_part", "complete", "delete", "head")


def sampled() -> list[Any]:
    """Return each operation with each fault that it can have; all but one fault of each operation are slow."""
    return [
        pytest.param(
            operation, kind, id=f"{operation}-{name}", marks=() if (i + k) % len(HARMLESS) == 1 else pytest.mark.slow
        )
        for i, operation in enumerate(OPERATIONS)
        for k, (name, kind) in enumerate(HARMLESS)
        if name != "truncated" or operation in {"get", "list"}  # the others have no body
    ]


@pytest.mark.parametrize(("operation", "kind"), sampled())
def test_faults_that_pass(
    s3: Bucket,
    large: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    kind: Any,
    operation: Any,
) -> None:
    """A request that fails once is tried again, and told: a reshard from S3 to S3 gives the same as without."""
    monkeypatch.setattr("edl_ckpt.core.storage.s3.client.pause", lambda _seconds: None)
    s3.upload(large)
    armed = s3.proxy.fail(Fault(kind, operation=operation))
    caplog.set_level("INFO", "edl_ckpt")
    result = reshard_version(at(s3.url), 1, output=f"s3://{s3.name}/out")
    assert armed.hits == 1
    assert any("retry 1 of 4" in record.message for record in caplog.records)
    s3.proxy.heal()
    assert verify_version(at(f"s3://{s3.name}/out"), level="deep").fingerprint == result.fingerprint
    assert s3.open_uploads() == []
    assert not any("stage-0" in key for key in s3.objects())


@pytest.mark.parametrize("operation", ["put", "upload_part", "complete", "create_upload"])
def test_a_lost_reply_is_no_doubt(s3: Bucket, large: Path, operation: Any) -> None:
    """What was done though its reply was lost is recognised as ours: nothing fails, nothing is there twice."""
    armed = s3.proxy.fail(Fault(lose_reply, operation=operation))
    s3.proxy.fail(Fault(begun_now(), operation="list_uploads", times=None))
    result = reshard_version(at(large), 3, output=s3.url)
    assert armed.hits == 1
    assert verify_version(at(s3.url), level="deep").fingerprint == result.fingerprint
    assert s3.open_uploads() == []


def test_uploads_whose_beginning_had_no_answer_are_aborted(
    s3: Bucket, large: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When no attempt to begin an upload is answered, none of them stays open; an older one of the name does."""
    monkeypatch.setattr(client, "pause", lambda _seconds: None)
    raw = botocore.session.Session().create_client("s3")
    older = raw.create_multipart_upload(Bucket=s3.name, Key="run/version-7/variables-0-of-1.ckpt")["UploadId"]
    armed = s3.proxy.fail(Fault(lose_reply, operation="create_upload", times=None))
    s3.proxy.fail(Fault(begun_now(older), operation="list_uploads", times=None))
    with pytest.raises(UnavailableError):
        reshard_version(at(large), 1, output=s3.url)
    assert armed.hits == client.ATTEMPTS
    assert [upload_id for _, upload_id in s3.open_uploads()] == [older]
    assert s3.keys() == []


def test_without_a_listing_of_uploads_a_lost_reply_fails_nothing(s3: Bucket, large: Path) -> None:
    """A service that does not list uploads keeps the lost one for its lifecycle rules, and the command goes on."""
    armed = s3.proxy.fail(Fault(lose_reply, operation="create_upload"))
    s3.proxy.fail(Fault(list_no_uploads, operation="list_uploads", times=None))
    result = reshard_version(at(large), 1, output=s3.url)
    assert armed.hits == 1
    assert verify_version(at(s3.url), level="deep").fingerprint == result.fingerprint
    assert len(s3.open_uploads()) == 1


def test_a_flipped_bit_on_the_way_up(s3: Bucket, large: Path) -> None:
    """What S3 has is compared with what was sent: a part that arrived damaged is sent again."""
    armed = s3.proxy.fail(Fault(corrupt_request, operation="upload_part", times=2))
    result = reshard_version(at(large), 1, output=s3.url)
    assert armed.hits == 2
    assert verify_version(at(s3.url), level="deep").fingerprint == result.fingerprint


def corrupt_values(struck: list[Call]) -> Kind:
    """Flip one bit in the first reply of a megabyte: smaller ones are of ids, or of the index."""

    def kind(call: Call, forward: Forward) -> Reply | None:
        reply = forward(call)
        if reply is None or len(reply.body) < 1 << 20 or struck:
            return reply
        struck.append(call)
        return replace(reply, body=flipped(reply.body, 0, len(reply.body)))

    return kind


def test_a_flipped_bit_on_the_way_down(s3: Bucket, large: Path, tmp_path: Path) -> None:
    """Of what is sealed, a damaged answer is found: verify and copy read once more, a reshard publishes nothing."""
    shutil.copytree(large, tmp_path / "sealed")
    version = at(tmp_path / "sealed")
    execute_copy(plan_copy([version], s3.url))
    struck: list[Call] = []
    s3.proxy.fail(Fault(corrupt_values(struck), operation="get", key="0-of-2", times=None))
    found = verify_version(at(s3.url), level="deep", workers=1)
    assert (len(struck), found.findings) == (1, ())
    struck.clear()
    execute_copy(plan_copy([at(s3.url)], str(tmp_path / "back")))
    assert len(struck) == 1
    assert verify_version(at(tmp_path / "back"), level="deep").fingerprint == found.fingerprint
    s3.proxy.heal()
    refused = 0
    for nth in range(2, 9):
        plan, settings = prepare_reshard(at(s3.url), 3, output=str(tmp_path / f"out{nth}"))
        s3.proxy.fail(Fault(corrupt_reply, operation="get", key="0-of-2", nth=nth))
        try:
            assert execute_reshard(plan, settings).fingerprint == found.fingerprint  # a byte that is not of the content
        except EdlCkptError:
            refused += 1
            assert not (tmp_path / f"out{nth}").exists()
        s3.proxy.heal()
    assert refused >= 1


def test_a_flipped_bit_among_kept_ids(s3: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    """An id that was damaged on its way, and looks right where it is kept, is read again before it is called damage."""
    ids = np.arange(3000) * 1000
    made = save_checkpoint(s3.url, 1, 2, variables={}, tables={"t": Table(ids, np.ones((3000, 8), np.float32))})
    with open_checkpoint(made) as checkpoint:
        target = checkpoint.entries("t")[0][1].ids[0].start + 500
    read_into = KeptReader.read_into
    struck: list[int] = []

    def damaged(reader: KeptReader, offset: int, buffer: memoryview) -> None:
        read_into(reader, offset, buffer)
        if "0-of-2" in reader.path and offset <= target < offset + buffer.nbytes:
            struck.append(offset)
            buffer.cast("B")[target - offset] ^= 2

    monkeypatch.setattr(KeptReader, "read_into", damaged)
    found = verify_version(made, level="deep")
    assert struck
    assert found.findings == ()
    monkeypatch.setattr(KeptReader, "read_into", read_into)
    assert verify_version(made, level="deep").fingerprint == found.fingerprint


@pytest.mark.parametrize("operation", ["upload_part", "complete", "create_upload", "put"])
def test_faults_that_stay(s3: Bucket, large: Path, monkeypatch: pytest.MonkeyPatch, operation: Any) -> None:
    """Storage that does not answer is error 13 after five attempts; nothing is visible, and no upload is open."""
    monkeypatch.setattr("edl_ckpt.core.storage.s3.client.pause", lambda _seconds: None)
    plan, settings = prepare_reshard(at(large), 1, output=s3.url)
    s3.proxy.fail(Fault(status(503, "SlowDown"), operation=operation, times=None))
    with pytest.raises(UnavailableError):
        execute_reshard(plan, settings)
    assert s3.keys() == []
    assert s3.open_uploads() == []


def test_stalls(multi: Bucket) -> None:
    """A reply that does not come is waited for as long as is said, then asked for again."""
    armed = multi.proxy.fail(Fault(stall(120), operation="list"))
    begin = time.monotonic()
    assert len(list_versions(Location(multi.url, {"read_timeout": "1"})).versions) == 3
    assert armed.hits == 1
    assert time.monotonic() - begin < 60
