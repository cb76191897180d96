"""Files of known size: what is written, copied and flushed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from edl_ckpt.core import EdlCkptError
from edl_ckpt.core.storage.files import PreallocatedFile


def test_a_copy_of_a_file_that_becomes_shorter(tmp_path: Path) -> None:
    """It is an error that names the file, and not a copy that never ends."""
    old, new = (PreallocatedFile(str(tmp_path / name), 4096) for name in ("old", "new"))
    try:
        os.truncate(tmp_path / "old", 100)
        with pytest.raises(EdlCkptError, match="became shorter"):
            new.copy_of(old)
    finally:
        old.close()
        new.close()
