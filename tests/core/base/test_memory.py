"""The peak memory of a process is its own."""

from __future__ import annotations

import subprocess
import sys

from edl_ckpt.core.base.memory import page_cache_bytes, peak_memory_bytes, physical_memory_bytes

SMALL = "from edl_ckpt.core.base.memory import peak_memory_bytes; print(peak_memory_bytes())"
LARGE = "import os, sys; data = bytearray(b'x') * (256 << 20); os.execv(sys.executable, [sys.executable, '-c', {!r}])"


def run(script: str) -> int:
    """Return the number that a new interpreter prints."""
    return int(subprocess.run([sys.executable, "-c", script], capture_output=True, check=True, text=True).stdout)


def test_it_grows_with_what_is_used() -> None:
    """Memory that was used once stays in the peak after it was freed."""
    grown = "data = bytearray(b'x') * (128 << 20); del data; " + SMALL
    assert run(grown) > run(SMALL) + (100 << 20)
    assert peak_memory_bytes() > 1 << 20


def test_it_is_not_that_of_another_program() -> None:
    """A program that was started by `exec` in a large process has the peak of its own; `ru_maxrss` has not."""
    assert run(LARGE.format(SMALL)) < 200 << 20


def test_files_have_no_more_than_the_machine() -> None:
    """The page cache is bounded by the machine, or by a container that has less."""
    assert 1 << 20 < page_cache_bytes() <= physical_memory_bytes()
