"""Random commands that are killed and fail, compared with a model after every step (`story.py` has more)."""

from __future__ import annotations

from pathlib import Path

import pytest

import story
from s3_fixtures import Bucket


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.hours)])
def test_nothing_is_lost_on_the_disk(seed: int, tmp_path: Path) -> None:
    """Versions, tags, metrics and notes are there as acknowledged, the scan is right, and nothing is left over."""
    counts = story.tell(tmp_path, seed, steps=30)
    assert counts["exit 0"] > 5
    assert sum(counts.values()) > counts["exit 0"]


@pytest.mark.hours
def test_nothing_is_lost_on_s3(s3: Bucket, tmp_path: Path) -> None:
    """Nothing is lost in a bucket, with two commands at a time, faults of the service, and kills."""
    counts = story.tell_on_s3(tmp_path, s3, 1, steps=10)
    assert counts["exit 0"] > 2
    assert sum(counts.values()) > counts["exit 0"]


@pytest.mark.hours
@pytest.mark.parametrize("seed", range(10, 20))
def test_longer_stories(seed: int, s3: Bucket, tmp_path: Path) -> None:
    """Nothing is lost in five minutes of each kind, in ten stories of half a minute."""
    for name in ("disk", "s3"):
        (tmp_path / name).mkdir()
    story.tell(tmp_path / "disk", seed, steps=10_000, seconds=30)
    story.tell_on_s3(tmp_path / "s3", s3, seed, steps=10_000, seconds=30)
