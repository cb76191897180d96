"""Exports to S3: parts are uploaded while the file is still written, and nothing is visible or left when it fails."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from checkpoints import at
from descriptors import opened
from edl_ckpt.core import export_version
from edl_ckpt.core.base.errors import EdlCkptError
from edl_ckpt.core.commit.publish import file_upload
from edl_ckpt.core.operations.export.content import reader as content
from s3_fixtures import Bucket
from s3_proxy import Fault, status


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return how many parts were on their way whenever a file was whole."""
    seen: list[int] = []
    finish = file_upload.FileUpload.finish

    def counted(self: file_upload.FileUpload) -> None:
        seen.append(len(self._sent))
        finish(self)

    monkeypatch.setattr(file_upload.FileUpload, "finish", counted)
    return seen


def test_parts_go_ahead(s3: Bucket, large: Path, tmp_path: Path, parts: list[int]) -> None:
    """What S3 has in the end is the file that a disk gets, byte for byte, though its head is written last."""
    export_version(at(large), f"s3://{s3.name}/out/all.safetensors", format_name="safetensors")
    export_version(at(large), str(tmp_path / "all.safetensors"), format_name="safetensors")
    (before,) = parts
    assert 0 < before < s3.proxy.count("upload_part")
    assert s3.get("out/all.safetensors") == (tmp_path / "all.safetensors").read_bytes()
    assert (s3.open_uploads(), s3.keys("out/")) == ([], ["out/all.safetensors"])
    tensors = safetensors.numpy.load(s3.get("out/all.safetensors"))
    assert tensors.keys() == safetensors.numpy.load_file(tmp_path / "all.safetensors").keys()


def test_several_files_go_ahead(s3: Bucket, large: Path, tmp_path: Path, parts: list[int]) -> None:
    """The same for a directory of arrays, of which the large ones have parts."""
    export_version(at(large), f"s3://{s3.name}/out/arrays", format_name="npy")
    export_version(at(large), str(tmp_path / "arrays"), format_name="npy")
    assert any(parts)
    local = {path.name: path.read_bytes() for path in (tmp_path / "arrays").iterdir()}
    assert {key.rpartition("/")[2]: s3.get(key) for key in s3.keys("out/")} == local
    assert s3.open_uploads() == []


def test_a_part_that_cannot_be_sent(s3: Bucket, large: Path) -> None:
    """A part that S3 refuses ends the export: no object, and no upload that stays open."""
    armed = s3.proxy.fail(Fault(status(403, "AccessDenied"), operation="upload_part", times=None))
    with pytest.raises(EdlCkptError, match="AccessDenied"):
        export_version(at(large), f"s3://{s3.name}/out/all.safetensors", format_name="safetensors")
    assert armed.hits
    assert (s3.open_uploads(), s3.objects()) == ([], {})


def test_an_upload_that_cannot_begin(s3: Bucket, large: Path) -> None:
    """When S3 refuses the upload itself, the local file is closed as well as removed."""
    s3.proxy.fail(Fault(status(403, "AccessDenied"), operation="create_upload", times=None))
    with pytest.raises(EdlCkptError, match="AccessDenied"):
        export_version(at(large), f"s3://{s3.name}/out/all.safetensors", format_name="safetensors")
    assert not [each for each in opened() if each.name.startswith("all.safetensors")]


def test_a_proof_that_fails(s3: Bucket, large: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the written bytes differ from those that were read, the parts that went ahead are aborted."""

    def differ(*_: object) -> None:
        raise EdlCkptError("the exported rows differ")

    monkeypatch.setattr(content, "compare_rows", differ)
    with pytest.raises(EdlCkptError, match="rows differ"):
        export_version(at(large), f"s3://{s3.name}/out/all.safetensors", format_name="safetensors")
    assert s3.proxy.count("create_upload") > 0
    assert (s3.open_uploads(), s3.objects()) == ([], {})


def test_only_whole_parts_are_final() -> None:
    """Ranges that overlap, repeat or leave a gap cover a part exactly when each of its bytes is in one."""
    random = np.random.default_rng(3)
    for _ in range(200):
        ranges = [tuple(sorted(random.integers(0, 12, 2).tolist())) for _ in range(random.integers(1, 6))]
        marked = {byte for start, end in ranges for byte in range(start, end)}
        assert file_upload._cover(ranges, 2, 9) == (marked >= set(range(2, 9)))
