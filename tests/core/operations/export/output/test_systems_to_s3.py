"""Exports for other systems to S3: the files of a disk, byte by byte, with the index last, and nothing left behind."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bucket_parts import killed_midway, nothing_is_left
from checkpoints import at, files_of
from edl_ckpt.core import Selection, Version, export_version, recover, verify_version
from edl_ckpt.core.base.errors import EdlCkptError, RefusedError
from edl_ckpt.core.catalog.files import alone_at
from edl_ckpt.core.operations.export import plan_export
from edl_ckpt.core.operations.export.output import places
from edl_ckpt.core.proof.proving import prove
from edl_ckpt.core.storage.location import Location
from foreign import SYSTEMS
from s3_fixtures import Bucket, begun_now
from s3_proxy import Call, Fault, Forward, Reply, status

CASES: list[tuple[str, str, int, dict[str, Any]]] = [
    ("dcp", "dcp/torchrec", 2, {"ranks": 3}),
    ("tfra", "tfra", 3, {"ranks": 2}),
    ("dynamicemb", "dynamicemb", 3, {"ranks": 2}),
    ("torch-checkpointing", "dcp/torchrec", 2, {"ranks": 2}),
    ("tensorflow", "bundle/deeprec", 100, {"ranks": 2}),
    ("tensorflow", "bundle/deeprec", 100, {}),
]
NAMES = [f"{name}-{'ranks' if more else 'plain'}" for name, _, _, more in CASES]


def objects_of(s3: Bucket) -> dict[str, bytes]:
    """Return the objects of the export."""
    return {key.removeprefix("run/out/"): s3.get(key) for key in s3.keys("run/out/")}


def export(version: Version, output: str | Path, format_name: Any = "dcp", **more: Any) -> Any:
    """Export a version for another system."""
    return export_version(version, output, format_name=format_name, **more)


@pytest.fixture
def torchrec() -> Version:
    """A step whose export has an index and several other files."""
    return at(SYSTEMS / "dcp/torchrec", 2)


@pytest.mark.parametrize(("name", "folder", "number", "more"), CASES, ids=NAMES)
def test_the_files_of_a_disk(
    s3: Bucket, tmp_path: Path, name: str, folder: str, number: int, more: dict[str, Any]
) -> None:
    """A bucket gets what a disk gets, with the same result; it is a checkpoint by itself, and verifies."""
    version, goal = at(SYSTEMS / folder, number), f"{s3.url}/out"
    planned = plan_export(version, goal, format_name=name, **more)  # type: ignore[arg-type]
    assert objects_of(s3) == {}
    here = export(version, tmp_path / "out", name, **more)
    there = export(version, goal, name, **more)
    assert objects_of(s3) == files_of(tmp_path / "out")
    assert (there.fingerprint, there.proved, there.rows) == (here.fingerprint, here.proved, here.rows)
    assert (there.items, there.checksums) == (here.items, here.checksums)
    assert {file.path: file.size_bytes for file in there.files} == {f.path: f.size_bytes for f in planned.files}
    nothing_is_left(s3)
    found = verify_version(alone_at(Location.of(goal)), level="deep")
    assert (found.ok, found.fingerprint) == (True, verify_version(alone_at(tmp_path / "out"), level="deep").fingerprint)


def test_the_index_is_last(s3: Bucket, torchrec: Version) -> None:
    """When an object does not become visible, the index does not either: no reader takes the rest for whole."""
    s3.proxy.fail(Fault(status(403, "AccessDenied"), operation="complete", key="__1_0", times=None))
    s3.proxy.fail(Fault(status(403, "AccessDenied"), operation="put", key="__1_0", times=None))
    with pytest.raises(EdlCkptError, match="AccessDenied"):
        export(torchrec, f"{s3.url}/out", ranks=3)
    assert not any(name.endswith(".metadata") for name in objects_of(s3))
    assert not s3.open_uploads()


def test_what_differs_is_not_published(s3: Bucket, torchrec: Version, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the files do not read back as they were meant, the bucket gets nothing of them."""

    def broken(*_: object) -> None:
        raise EdlCkptError("reads back differently")

    monkeypatch.setattr("edl_ckpt.core.operations.export.formats.systems.prove", broken)
    with pytest.raises(EdlCkptError, match="reads back differently"):
        export(torchrec, f"{s3.url}/out", ranks=3)
    assert objects_of(s3) == {}
    nothing_is_left(s3)


def test_a_killed_command(s3: Bucket, large: Path, tmp_path: Path) -> None:
    """After a kill nothing is visible; `recover` removes what is left, and the next command succeeds."""
    chosen = ("--format", "tfra", "--ranks", "2", "--table", "users")
    killed_midway(s3, "export", f"{large}@7", f"{s3.url}/out", *chosen)
    assert objects_of(s3) == {}
    s3.proxy.fail(Fault(begun_now(), operation="list_uploads", times=None))
    recover(s3.url)
    nothing_is_left(s3)
    options: dict[str, Any] = {"ranks": 2, "selection": Selection(tables=("users",))}
    export(at(large, 7), f"{s3.url}/out", "tfra", **options)
    export(at(large, 7), tmp_path / "out", "tfra", **options)
    assert objects_of(s3) == files_of(tmp_path / "out")


def test_another_export_is_replaced_only_with_force(s3: Bucket, tmp_path: Path, torchrec: Version) -> None:
    """What is there stays; with `force` it is replaced, and the files of more ranks go."""
    export(torchrec, f"{s3.url}/out", ranks=3)
    before = objects_of(s3)
    with pytest.raises(RefusedError, match="exists already"):
        export(torchrec, f"{s3.url}/out", ranks=1)
    assert objects_of(s3) == before
    export(torchrec, f"{s3.url}/out", ranks=1, force=True)
    export(torchrec, tmp_path / "out", ranks=1)
    assert objects_of(s3) == files_of(tmp_path / "out")


def test_no_file_of_the_local_disk(s3: Bucket, torchrec: Version, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files go to hidden objects; while the proof reads those, none is visible under its name."""
    seen: list[tuple[list[str], bool]] = []

    def noted(*given: Any) -> Any:
        seen.append((list(objects_of(s3)), any("/staged/" in key for key in s3.keys("run/."))))
        return prove(*given)

    def refused(*_: object, **__: object) -> None:
        raise AssertionError("a file on the local disk")

    monkeypatch.setattr("edl_ckpt.core.operations.export.formats.systems.prove", noted)
    monkeypatch.setattr(places.OutputFile, "__post_init__", refused)
    assert export(torchrec, f"{s3.url}/out", ranks=3).proved
    assert seen == [([], True)]
    assert s3.proxy.count("upload_part_copy") == len(objects_of(s3))
    nothing_is_left(s3)


def test_a_service_that_copies_no_parts(s3: Bucket, tmp_path: Path, torchrec: Version) -> None:
    """There the bytes go through this process once more."""
    s3.proxy.fail(Fault(status(501, "NotImplemented"), operation="upload_part_copy", times=None))
    export(torchrec, f"{s3.url}/out", ranks=3)
    export(torchrec, tmp_path / "out", ranks=3)
    assert objects_of(s3) == files_of(tmp_path / "out")
    nothing_is_left(s3)


def _other_sums(call: Call, forward: Forward) -> Reply | None:
    """Answer with the checksum of other bytes."""
    reply = forward(call)
    if reply is None:
        return None
    return replace(reply, body=re.sub(rb"[0-9a-f]{32}", b"0" * 32, reply.body))


def test_a_copy_that_differs_is_not_published(s3: Bucket, torchrec: Version) -> None:
    """Where the service reports another checksum of what it copied, nothing becomes visible, and nothing is left."""
    s3.proxy.fail(Fault(_other_sums, operation="upload_part_copy", times=None))
    with pytest.raises(EdlCkptError, match="S3 copied other bytes"):
        export(torchrec, f"{s3.url}/out", ranks=3)
    assert objects_of(s3) == {}
    nothing_is_left(s3)
