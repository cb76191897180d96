"""`import DIRECTORY` takes what `@latest` is, or is refused for the same reason, in every spelling of the record."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from bundle_files import write_bundle
from edl_ckpt.core import resolve
from edl_ckpt.core.base.errors import EdlCkptError
from edl_ckpt.core.model.versions import Version
from edl_ckpt.core.operations.importing.bundle_arrays import bundle_at
from edl_ckpt.core.storage import Location

_NAMES = ("ckpt-1", "ckpt-2", "模型", "weights.10-0.32")
_SPELLINGS = (
    'model_checkpoint_path: "ckpt-1"',
    'model_checkpoint_path : "ckpt-1"',
    "model_checkpoint_path:'ckpt-1'",
    'model_checkpoint_path: "ckpt" "-1"',
    '# a comment\nmodel_checkpoint_path: "ckpt-1" # another\n',
    'all_model_checkpoint_paths: "ckpt-2" model_checkpoint_path: "ckpt-1"',
    'all_model_checkpoint_paths: ["ckpt-1", "ckpt-2"]\nmodel_checkpoint_path: "ckpt-2"',
    'model_checkpoint_path: "\\346\\250\\241\\345\\236\\213"',
    'model_checkpoint_path: "\\xe6\\xa8\\xa1\\xe5\\x9e\\x8b"',
    'model_checkpoint_path: "模型"',
    'model_checkpoint_path: "weights.10-0.32"',
    'model_checkpoint_path: "/gone/and/moved/ckpt-1"',
    'model_checkpoint_path: "C:\\\\runs\\\\ckpt-2"',
    'model_checkpoint_path: "ckpt-9"',
    'model_checkpoint_path: "sub/ckpt-1"',
    'model_checkpoint_path: ""',
    'model_checkpoint_path: "ckpt-1',
    "ckpt-1",
    "",
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A directory with bundles of several names."""
    for name in _NAMES:
        write_bundle(tmp_path / name, {"w": np.arange(3, dtype="<f4")})
    return tmp_path


@pytest.mark.parametrize("text", _SPELLINGS)
def test_import_and_latest_agree(folder: Path, text: str) -> None:
    """Both take the same bundle, or both are refused with the same words."""
    (folder / "checkpoint").write_text(text)
    assert _answer(lambda: bundle_at(Location(str(folder)))) == _answer(lambda: resolve(f"{folder}@latest"))


def _answer(look: Callable[[], Version | None]) -> object:
    """Return the path of what is found, or what the error says."""
    try:
        found = look()
    except EdlCkptError as error:
        return type(error), error.message, error.hint
    return found and found.path


def test_a_record_of_nothing_is_refused(tmp_path: Path) -> None:
    """A record next to no bundle is an error of its own, and not one of files of other tools."""
    (tmp_path / "checkpoint").write_text(_SPELLINGS[0])
    with pytest.raises(EdlCkptError, match="no checkpoint here"):
        bundle_at(Location(str(tmp_path)))
