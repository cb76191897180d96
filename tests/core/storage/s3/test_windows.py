"""What readers keep of what they read ahead: within a bound, and right in any order."""

from __future__ import annotations

import gc

import pytest

from edl_ckpt.core.storage import windows
from edl_ckpt.core.storage.windows import Windows


def test_ranges_are_found_where_they_are_whole() -> None:
    """A range is found when one window has all of it, or two that touch."""
    some = Windows()
    some.keep(0, b"0123456789")
    some.keep(100, b"abc")
    some.keep(10, b"*")
    assert some.find(8, 3) == b"89*"
    assert bytes(some.find(3, 4) or b"") == b"3456"
    assert bytes(some.find(100, 3) or b"") == b"abc"
    assert [some.find(8, 4), some.find(99, 2), some.find(102, 2)] == [None] * 3


def test_all_readers_share_one_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the bound the last readers keep all, others their first bytes; what is gone counts no longer."""
    gc.collect()
    monkeypatch.setattr(windows, "ALL_BYTES", windows._Kept.size_bytes + 1_000_000)
    before = windows._Kept.size_bytes
    many = [Windows() for _ in range(20)]
    for some in many:
        some.keep(0, bytes(100_000))
        some.keep(100_000, bytes(100_000))
    assert windows._Kept.size_bytes - before == 1_000_000
    assert all(some.find(0, 32_768) is not None for some in many)
    whole = [some.find(0, 200_000) is not None for some in many]
    assert whole == [False] * 15 + [True] * 5
    many[0].clear()
    del some
    many.clear()
    gc.collect()
    assert windows._Kept.size_bytes == before
