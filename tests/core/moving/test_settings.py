"""The settings of a reshard are arithmetic on sizes and on what the stores can do."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl_ckpt.core.base.errors import UsageError
from edl_ckpt.core.base.parallel import REMOTE_WORKERS
from edl_ckpt.core.kernel import bulk
from edl_ckpt.core.moving.settings import choose_settings
from edl_ckpt.core.reading.blocks import VALUE_BATCH_BYTES
from edl_ckpt.core.storage.local import LocalStore
from edl_ckpt.core.storage.parts import PART_MEMORY_BYTES

LOCAL = LocalStore.properties
REMOTE = replace(LOCAL, rename=False, trash=False, positional_write=False, round_trips=True, part_bytes=8 << 20)
MIB = 1 << 20


def test_local() -> None:
    """Without limits, batches have the size of a cache, and the workers are as many as asked for."""
    settings = choose_settings(64, LOCAL, workers=3)
    assert (settings.workers, settings.batch_bytes, settings.spool) == (3, VALUE_BATCH_BYTES, False)
    assert settings.warnings == ()
    assert choose_settings(9 * MIB, LOCAL).batch_bytes == 9 * MIB
    with pytest.raises(UsageError, match="workers must be at least 1, got 0"):
        choose_settings(64, LOCAL, workers=0)


def test_far_storage() -> None:
    """Far storage gets more workers."""
    for source, target in ((REMOTE, LOCAL), (LOCAL, REMOTE)):
        assert choose_settings(64, target, round_trips=source.round_trips).workers >= REMOTE_WORKERS


@given(st.integers(1, 1 << 34), st.integers(0, 1 << 22), st.integers(1, 64))
def test_a_limit_is_kept(limit: int, row_bytes: int, workers: int) -> None:
    """All workers together keep within the limit, or the error says how much is needed at least."""
    try:
        settings = choose_settings(row_bytes, LOCAL, workers=workers, max_memory_bytes=limit)
    except UsageError as error:
        assert f"one row of {row_bytes} bytes" in error.message  # noqa: PT017 - no error is as good
        assert limit < 24 * 4096 + 2 * max(row_bytes, bulk.CHUNK_BYTES)
        return
    each = 24 * settings.piece_bytes + 2 * settings.batch_bytes
    assert settings.workers * each <= limit
    assert 1 <= settings.workers <= workers
    assert settings.batch_bytes >= row_bytes
    assert settings.proof_batch_bytes <= max(settings.batch_bytes, limit // (2 * settings.workers))


def test_workers_are_given_up_first() -> None:
    """Under a small limit there are fewer workers, not an error."""
    many = choose_settings(MIB, LOCAL, workers=8, max_memory_bytes=10 * MIB)
    assert 1 < many.workers < 8
    assert choose_settings(MIB, LOCAL, workers=8, max_memory_bytes=3 * MIB).workers == 1


def test_open_parts() -> None:
    """Parts of uploads have half of the limit, and no worker is given up for them; a warning names the rest."""
    assert choose_settings(64, LOCAL).part_memory_bytes == 0
    plain = choose_settings(64, REMOTE, workers=8)
    assert (plain.workers, plain.part_memory_bytes, plain.warnings) == (8, PART_MEMORY_BYTES, ())
    small = choose_settings(64, REMOTE, workers=8, max_memory_bytes=64 * MIB)
    assert (small.workers, small.part_memory_bytes, small.spool) == (8, 32 * MIB, False)
    (warning,) = replace(small, open_part_bytes=20 * MIB).warnings
    assert warning.startswith("the open parts of all uploads take up to 20.0 MiB, more than 16.0 MiB of memory")
