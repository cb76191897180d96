"""Dtypes that a format lacks: refused before anything is written."""

from __future__ import annotations

import os
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from builders import write_checkpoint
from edl_ckpt.core import list_versions
from edl_ckpt.core.base.choices import FormatName
from edl_ckpt.core.base.errors import UnsupportedError
from edl_ckpt.core.model.dtypes import DTYPES
from edl_ckpt.core.model.versions import Version
from edl_ckpt.core.operations.export import Selection, export_version
from edl_ckpt.core.operations.export.formats import content_format, parquet_file
from oracle import Model, Table


@pytest.fixture
def version(tmp_path: Path) -> Version:
    """Return a version with tables and variables of float32 and of bool."""
    model = Model(1)
    for name in ("float32", "bool"):
        data = np.ones(2, name).tobytes()
        model.dense[f"{name}/v"] = (name, (2,), data)
        model.tables[f"{name}/t"] = Table(2, "zeros", name, {0: data, 1: data})
    write_checkpoint(tmp_path / "run", model, 2)
    return list_versions(tmp_path / "run").versions[0]


def library_without(*names: str) -> Any:
    """Return what stands for a framework that lacks some dtypes."""
    return types.SimpleNamespace(**{name: object() for name in DTYPES if name not in names})


@pytest.mark.parametrize(
    ("kind", "selection", "words"),
    [
        ("parquet", Selection(dtype="bfloat16"), "'float32/t': the format parquet has no bfloat16"),
        ("word2vec", Selection(tables=("bool/*",)), "'bool/t': the format word2vec has no bool"),
        ("projector", Selection(tables=("bool/*",)), "'bool/t': the format projector has no bool"),
    ],
)
def test_refused(
    kind: FormatName,
    selection: Selection,
    words: str,
    version: Version,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Content of a dtype that the format lacks is refused from headers alone: nothing is read or written."""
    monkeypatch.setattr(parquet_file, "library", lambda *_: library_without("bool"))
    monkeypatch.setattr(content_format, "ContentReader", lambda *_, **__: pytest.fail("values were read"))
    (tmp_path / "out").mkdir()
    with pytest.raises(UnsupportedError, match=words) as end:
        export_version(version, str(tmp_path / "out/m"), format_name=kind, selection=selection)
    assert end.value.exit_code == 15
    assert os.listdir(tmp_path / "out") == []


@pytest.mark.parametrize("kind", ["safetensors", "npz", "npy"])
def test_accepted(kind: FormatName, version: Version, tmp_path: Path) -> None:
    """Formats that have every dtype refuse none, cast or not."""
    for number, selection in enumerate((Selection(), Selection(dtype="bfloat16"))):
        export_version(version, str(tmp_path / f"m{number}"), format_name=kind, selection=selection)


def test_only_what_is_selected_counts(version: Version, tmp_path: Path) -> None:
    """A dtype that the format lacks is no obstacle in tables that are not exported."""
    export_version(version, str(tmp_path / "m.vec"), format_name="word2vec", selection=Selection(tables=("float32/*",)))
