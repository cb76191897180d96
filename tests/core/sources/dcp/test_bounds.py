"""Indexes of torch as large as jobs of a thousand ranks make them: bounds are bounds, and no verdicts."""

from __future__ import annotations

import os
import subprocess
import sys
import tracemalloc
from contextlib import suppress
from pathlib import Path

import pytest

from edl_ckpt.core import list_versions, open_checkpoint
from edl_ckpt.core.base.errors import CorruptError, UnsupportedError
from edl_ckpt.core.model.versions import State
from edl_ckpt.core.sources.dcp import metadata
from edl_ckpt.core.sources.steps.interface import HEAD_BYTES
from edl_ckpt.core.storage.interface import BytesReader
from torch_items import write_many

READ = """
import re, resource, sys
from edl_ckpt.core import list_versions
(version,) = list_versions(sys.argv[1]).versions
usage = resource.getrusage(resource.RUSAGE_SELF)
kibibytes = re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]  # of this program, not of its parent
print(version.state.value, int(kibibytes) >> 10, int(usage.ru_utime + usage.ru_stime))
"""


def test_memory_is_a_multiple_of_the_index(tmp_path: Path) -> None:
    """An index of 30,000 items is read in ten times the memory of its bytes, and some for a window of it."""
    data = (write_many(tmp_path / "step_1", 100, 300) / ".metadata").read_bytes()
    tracemalloc.start()
    try:
        ends = metadata.ends(metadata.read(BytesReader(data, ".metadata")))
        assert tracemalloc.get_traced_memory()[1] < 10 * len(data) + (8 << 20)
    finally:
        tracemalloc.stop()
    assert len(ends) == 300


ATTACKS = {
    "lists": b"\x80\x04(" + b"]NNNNNNN" * 100_000 + b"t.",
    "tuples": b"\x80\x04(" + b"N\x85" * 400_000 + b"t.",
    "numbers": b"\x80\x04(" + b"J\1\2\3\4" * 200_000 + b"t.",
    "places in the memo": b"\x80\x04(" + b"N\x94" * 400_000 + b"t.",
    "no pickle": b"\x80\x04" + b"]" * 800_000,
    "zeros": b"\x80\x04N." + bytes(8 << 20),
}


@pytest.mark.parametrize("name", ATTACKS)
def test_no_pickle_takes_more_than_forty_times_its_bytes(name: str) -> None:
    """Whatever the opcodes are, the memory that a pickle takes is at most forty times its bytes, and a window."""
    data = ATTACKS[name]
    tracemalloc.start()
    try:
        with suppress(CorruptError):
            metadata.read(BytesReader(data, ".metadata"))
        assert tracemalloc.get_traced_memory()[1] < 40 * len(data) + (24 << 20)
    finally:
        tracemalloc.stop()


def test_an_index_beyond_the_bound_is_unsupported(tmp_path: Path) -> None:
    """A larger index than any reader has memory for is not read, and its step is not called torn."""
    step = write_many(tmp_path / "step_1", 2, 2)
    os.truncate(step / ".metadata", HEAD_BYTES + 1)
    (version,) = list_versions(str(tmp_path)).versions
    assert (version.state, version.lacks) == (State.UNREADABLE, ())
    assert "512.0 MiB" in version.why_unreadable
    with pytest.raises(UnsupportedError):
        open_checkpoint(version)
    os.truncate(step / ".metadata", 1 << 40)
    assert list_versions(str(tmp_path)).versions[0].state is State.UNREADABLE


@pytest.mark.hours
def test_a_million_items(tmp_path: Path) -> None:
    """An index of 10^6 items, over 100 MiB, is listed within 1.5 GiB and 20 s of a processor."""
    step = write_many(tmp_path / "step_1", 1000, 1000)
    assert (step / ".metadata").stat().st_size > 100 << 20
    command = [sys.executable, "-c", READ, str(tmp_path)]
    state, mebibytes, seconds = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    assert state == "complete"
    assert int(mebibytes) < 1536
    assert int(seconds) < 20
