"""Formats declare what they are; one registry knows them all."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from edl_ckpt.cli.commands import export_
from edl_ckpt.core import save_checkpoint
from edl_ckpt.core.base.choices import FormatName
from edl_ckpt.core.base.errors import EdlCkptWarning, RefusedError, UsageError
from edl_ckpt.core.model.versions import Version
from edl_ckpt.core.operations.export import FORMATS, Selection, export_version, guess_format
from edl_ckpt.core.operations.export.interface import ExportRequest
from edl_ckpt.core.operations.export.output.target import UploadTarget, open_target
from edl_ckpt.core.operations.save import Table
from edl_ckpt.core.storage import Location

ANYWHERE = ["checkpoint", "safetensors", "npz", "npy", "csv", "jsonl", "word2vec", "projector", "tensorflow"]
"""The formats that need no library of their own."""


@pytest.fixture
def run(tmp_path: Path) -> Version:
    """Return a version with three variables, a table of ten rows and an empty one."""
    tables = {
        "big": Table(np.arange(10, dtype=np.int64), np.ones((10, 4), np.float32)),
        "none": Table(np.zeros(0, np.int64), np.ones((0, 4), np.float32)),
    }
    variables: dict[str, np.ndarray[tuple[int, ...], np.dtype[np.generic]]] = {n: np.arange(3) for n in ("a", "b", "c")}
    return save_checkpoint(str(tmp_path / "run"), 7, 3, variables=variables, tables=tables)


def test_registry() -> None:
    """Each format has a name of its own and endings of its own; an ending chooses its format, in any case."""
    assert list(FORMATS) == [
        *ANYWHERE[:-1],
        "parquet",
        "torch",
        ANYWHERE[-1],
        "dcp",
        "tfra",
        "dynamicemb",
        "torch-checkpointing",
    ]
    endings = [ending for each in FORMATS.values() for ending in each.traits.endings]
    assert len(endings) == len(set(endings)) >= 11
    for name, each in FORMATS.items():
        assert each.traits.name == name
        for ending in each.traits.endings:
            assert guess_format(f"s3://bucket/m{ending}") == guess_format(f"m{ending.upper()}/") == name
    with pytest.raises(UsageError, match="no format has the ending of 'model'") as caught:
        guess_format("model")
    assert str(caught.value.hint) == f"choose one: --format {'|'.join(FORMATS)}"


def test_help_names_every_format() -> None:
    """The help of the command names every format."""
    for name in FORMATS:
        assert name in export_._FORMATS


@pytest.mark.parametrize("name", ANYWHERE)
def test_counts(run: Version, tmp_path: Path, name: FormatName) -> None:
    """The result counts variables, tables and rows of what was written, and is proved where nothing changed."""
    traits = FORMATS[name].traits
    selection = Selection(tables=("big",)) if traits.takes_limit else Selection()
    result = export_version(run, str(tmp_path / "out"), format_name=name, selection=selection)
    expected = (0, 1, 10) if traits.takes_limit else (3, 2, 10)
    assert (result.variables, result.tables, result.rows) == expected
    assert result.proved == traits.is_lossless
    assert result.fingerprint == run.fingerprint
    assert all(Path(file.path).stat().st_size == file.size_bytes for file in result.files)
    assert (tmp_path / "out").is_dir() == (traits.is_directory or name == "checkpoint")


@pytest.mark.parametrize("name", ANYWHERE)
def test_limits(run: Version, tmp_path: Path, name: FormatName) -> None:
    """Formats of rows take a limit, and count the rows within it; others refuse one before anything is written."""
    selection = Selection(tables=("big",))
    if not FORMATS[name].traits.takes_limit:
        with pytest.raises(UsageError, match="`limit` is for csv, jsonl, projector, word2vec"):
            export_version(run, str(tmp_path / "out"), format_name=name, limit=4)
        assert not (tmp_path / "out").exists()
        return
    for limit, rows in ((4, 4), (0, 0), (99, 10)):
        out = str(tmp_path / f"out-{limit}")
        result = export_version(run, out, format_name=name, selection=selection, limit=limit)
        assert (result.rows, result.proved) == (rows, False)


def test_counts_of_matrices(run: Version, tmp_path: Path) -> None:
    """A table as a matrix is one table, however many tensors there are."""
    one = Selection(dense_rows=20)
    result = export_version(run, str(tmp_path / "m.npz"), selection=one)
    assert (result.variables, result.tables, result.rows, result.proved) == (3, 2, 10, False)


def test_words_of_a_selection() -> None:
    """A dtype or a fill that does not exist is a usage error at once."""
    with pytest.raises(UsageError, match="dtype must be one of float16, bfloat16, float32, got 'int8'"):
        Selection(dtype="int8")
    with pytest.raises(UsageError, match="fill must be zeros or initializer, got 'ones'"):
        Selection(fill="ones")
    assert Selection(fill="initializer", seed=3).is_lossless
    assert not Selection(dense_rows="auto").is_lossless


def test_a_checkpoint_is_exported_whole(run: Version) -> None:
    """The checkpoint format refuses a selection before anything is opened."""
    with pytest.raises(UsageError, match="exported whole"):
        FORMATS["checkpoint"](ExportRequest(run, Location("out"), Selection(tables=("big",))))


def test_remote_targets() -> None:
    """A URL is written to the local disk first; it is refused among checkpoints, and nothing stays behind."""
    from edl_ckpt.core.storage import open_store

    folder = Location("memory://exports")
    npy = FORMATS["npy"].traits
    for is_directory in (False, True):
        with open_target(Location("memory://exports/m"), npy, is_directory=is_directory, force=False) as target:
            assert isinstance(target, UploadTarget)
            path = Path(target.path)
            assert path.is_dir() == is_directory
            (path / "a" if is_directory else path).write_bytes(b"abc")
            (file,) = target.publish()
        assert not path.parent.exists()
        relative = "m/a" if is_directory else "m"
        assert (file.path, file.size_bytes) == (open_store(folder).path(relative), 3)
        assert open_store(folder).read_small(relative) == b"abc"
        open_store(folder).remove(relative)
    for url in ("memory://exports/version-3/m", "memory://exports/version_3/m"):
        with pytest.raises(RefusedError, match="among checkpoints"):
            open_target(Location(url), npy, is_directory=False, force=True)


def test_a_format_of_rows_names_what_it_leaves_out(tmp_path: Path) -> None:
    """A format of one table names the variables that it leaves out, unless the user has named the table."""
    table = Table(np.arange(3, dtype=np.int64), np.ones((3, 2), np.float32))
    run = save_checkpoint(
        str(tmp_path / "run"), 7, 1, variables={"a": np.ones(2), "b": np.ones(1)}, tables={"t": table}
    )
    with pytest.warns(EdlCkptWarning, match=r"left out: a, b \(2 variables; not in csv\)"):
        result = export_version(run, str(tmp_path / "t.csv"))
    assert [one.name for one in result.left_out] == ["a", "b"]
    chosen = export_version(run, str(tmp_path / "u.csv"), selection=Selection(tables=("t",)))
    assert chosen.left_out == ()
