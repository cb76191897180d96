"""Issue 13.5: `recover` removes what no journal lists beside a whole version, and nothing that may be somebody's."""

from __future__ import annotations

from pathlib import Path

import pytest

from checkpoints import drop_seal, only, save_small
from edl_ckpt.core import recover, verify_version
from edl_ckpt.core.storage.s3.upload import WRITE_ID
from s3_fixtures import Bucket

OLD_MARKER = "resharding-0.0"
MARKER = "resharding-0a1b2c3d-0.1"


def copy_shards(s3: Bucket, folder: Path, *, ours: bool) -> None:
    """Put the shards of another set beside those of version 7, with our write id or without, as a job has them."""
    for path in (folder / "version-7").iterdir():
        metadata = {WRITE_ID: "20260101T000000-elsewhere_00000000-7-00000001"} if ours else {}
        s3.put(f"run/version-7/{path.name}", path.read_bytes(), metadata)


@pytest.fixture
def five(tmp_path: Path) -> Path:
    """Return a location with version 7 in five shards."""
    save_small(tmp_path / "five", 7, ps_num=5)
    return tmp_path / "five"


def test_placeholders(s3: Bucket) -> None:
    """Placeholder objects beside one whole set go, those of earlier versions of edl-ckpt too."""
    save_small(s3.url, 7)
    for name in (OLD_MARKER, MARKER):
        s3.put(f"run/version-7/{name}", b"")
    assert recover(s3.url).done == ("removed 2 objects of a lost command beside version 7",)
    version = only(s3.url)
    assert (version.state.value, version.extra) == ("complete", ())
    assert recover(s3.url).done == ()


def test_a_set_beside_the_sealed_one(s3: Bucket, five: Path) -> None:
    """The sealed set stays; another one that we wrote goes, whole as it is."""
    save_small(s3.url, 7)
    copy_shards(s3, five, ours=True)
    s3.put(f"run/version-7/{MARKER}", b"")
    assert recover(s3.url).done == ("removed 6 objects of a lost command beside version 7",)
    assert only(s3.url).ps_num == 2
    assert verify_version(only(s3.url), level="deep").findings == ()


def test_a_part_beside_that_of_a_job(s3: Bucket, five: Path, tmp_path: Path) -> None:
    """Without a seal the only whole set stays, and the part of another one that we wrote goes."""
    save_small(tmp_path / "job", 7)
    s3.upload(tmp_path / "job")
    drop_seal(s3.url, 7)
    copy_shards(s3, five, ours=True)
    s3.delete("run/version-7/variables-4-of-5.ckpt")
    assert recover(s3.url).done == ("removed 4 objects of a lost command beside version 7",)
    assert only(s3.url).ps_num == 2


@pytest.mark.parametrize("sealed", [True, False])
def test_shards_of_somebody_else_stay(s3: Bucket, five: Path, sealed: bool) -> None:
    """Shards without our write id are never removed: a person is told to look."""
    save_small(s3.url, 7, sealed=sealed)
    copy_shards(s3, five, ours=False)
    before = s3.objects()
    assert recover(s3.url).done == ("version 7 has shards of several sets; nothing was changed: look at them",)
    assert s3.objects() == before


def test_two_sets_of_ours_without_a_seal(s3: Bucket, five: Path) -> None:
    """Nobody can say which of two whole sets of ours is right, so both stay."""
    save_small(s3.url, 7, sealed=False)
    copy_shards(s3, five, ours=True)
    before = s3.objects()
    assert "several sets" in recover(s3.url).done[0]
    assert s3.objects() == before


def test_an_incomplete_version_stays(s3: Bucket) -> None:
    """Where no set is whole nothing goes, placeholders neither: they may keep a mixture from looking whole."""
    save_small(s3.url, 7, ps_num=3)
    s3.delete("run/version-7/variables-1-of-3.ckpt")
    s3.put(f"run/version-7/{MARKER}", b"")
    before = s3.objects()
    recover(s3.url)
    assert s3.objects() == before
