"""Each kind of poison, given to each command that reads: a typed error or a result, never a traceback (70)."""

from __future__ import annotations

import json
import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from bundle_files import HEADER, block, entry, masked, table, write_bundle
from checkpoints import at
from edl_ckpt.core import import_checkpoint, open_checkpoint
from edl_ckpt.core.base.errors import EdlCkptError, IncompleteError, UnsupportedError
from edl_ckpt.core.base.names import name_bytes
from program import edl
from system_runs import SYSTEMS
from torch_items import boxes, write_step

READING: tuple[tuple[str, ...], ...] = (
    ("list", "{run}"),
    ("inspect", "{ref}"),
    ("verify", "{ref}"),
    ("verify", "{ref}", "--deep"),
    ("verify", "{run}", "--all"),
    ("head", "{ref}"),
    ("sample", "{ref}"),
    ("get", "{ref}", "--variable", "{name}"),
    ("diff", "{ref}", "{ref}"),
    ("export", "{ref}", "{out}.npz"),
    ("export", "{ref}", "{out}", "--format", "dcp"),
    ("export", "{ref}", "{out}.safetensors", "--partial"),
    ("reshard", "{ref}", "--ranks", "2", "--output", "{out}"),
    ("edit", "{ref}", "--rename", "w=v", "--output", "{out}"),
    ("copy", "{ref}", "{out}"),
    ("import", "{ref}", "{out}@1", "--ps", "2"),
    ("du", "{run}"),
    ("report", "{run}", "--output", "{out}.html"),
)
"""Commands that read a version and leave it as it is."""


def safetensors_step(place: Path, header: dict[str, object], data: bytes = b"") -> Path:
    """Make a step of a file with any header."""
    step = place / "checkpoint-7"
    step.mkdir(parents=True)
    text = json.dumps(header).encode()
    (step / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
    return place


def dcp_step(place: Path) -> Path:
    """Make a step of torch on two ranks, and return the step."""
    parts = boxes("w", np.arange(64, dtype=np.float32).reshape(8, 8), ([4], []), ranks=2)
    write_step(place / "step_7", parts)
    return place / "step_7"


def data_files(step: Path) -> list[Path]:
    """Return the files of the ranks."""
    return sorted(step.glob("*.distcp"))


def gone(place: Path) -> None:
    """A data file that somebody has removed."""
    data_files(dcp_step(place))[1].unlink()


def pipe(place: Path) -> None:
    """A pipe in the place of a data file."""
    file = data_files(dcp_step(place))[1]
    file.unlink()
    os.mkfifo(file)


def device(place: Path) -> None:
    """A link to a device in the place of a data file."""
    file = data_files(dcp_step(place))[1]
    file.unlink()
    file.symlink_to("/dev/zero")


def directory(place: Path) -> None:
    """A directory in the place of a data file."""
    file = data_files(dcp_step(place))[1]
    file.unlink()
    file.mkdir()


def other_system_pipe(place: Path) -> None:
    """A pipe in the place of a file of values of TFRA."""
    shutil.copytree(SYSTEMS / "tfra/step_3", place / "step_7")
    file = min((place / "step_7").rglob("*values*"))
    file.unlink()
    os.mkfifo(file)


def surrogate(place: Path) -> None:
    """A name with half of a pair of surrogates."""
    safetensors_step(place, {"a\ud800": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}, bytes(8))


def surrogate_dtype(place: Path) -> None:
    """An element type with half of a pair of surrogates."""
    safetensors_step(place, {"a": {"dtype": "F\ud800", "shape": [2], "data_offsets": [0, 8]}}, bytes(8))


def surrogate_metadata(place: Path) -> None:
    """Metadata with half of a pair of surrogates."""
    header = {"__metadata__": {"k\ud800": "v\ud800"}, "a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}
    safetensors_step(place, header, bytes(8))


def many_dimensions(place: Path) -> None:
    """A tensor of more dimensions than numpy has."""
    safetensors_step(place, {"w": {"dtype": "F32", "shape": [1] * 65, "data_offsets": [0, 4]}}, bytes(4))


def long_number(place: Path) -> None:
    """A number of more digits than Python converts."""
    safetensors_step(place, {})
    text = '{"a":{"dtype":"F32","shape":[%s],"data_offsets":[0,4]}}' % ("9" * 5000)
    file = place / "checkpoint-7/model.safetensors"
    file.write_bytes(struct.pack("<Q", len(text)) + text.encode() + bytes(4))


def long_number_in_index(place: Path) -> None:
    """Such a number in the index of a set."""
    safetensors_step(place, {"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}, bytes(4))
    step = place / "checkpoint-7"
    (step / "model.safetensors").rename(step / "model-00001-of-00001.safetensors")
    text = '{"metadata":{"total_size":%s},"weight_map":{"a":"model-00001-of-00001.safetensors"}}' % ("9" * 5000)
    (step / "model.safetensors.index.json").write_text(text)


def text_tensor(place: Path) -> None:
    """A tensor of texts in a bundle, whose lengths are damaged."""
    prefix = place / "model-7"
    write_bundle(prefix, {"w": np.arange(4, dtype=np.float32)})
    data = np.arange(4, dtype=np.float32).tobytes()
    texts = b"\xff" * 12
    pairs = [
        (b"", HEADER),
        (b"t", entry(7, [3], len(data), len(texts), crc=masked(texts))),
        (b"w", entry(1, [4], 0, len(data), crc=masked(data))),
    ]
    prefix.with_name("model-7.data-00000-of-00001").write_bytes(data + texts)
    prefix.with_name("model-7.index").write_bytes(table([block(pairs)]))


POISONS = (
    gone,
    pipe,
    device,
    directory,
    other_system_pipe,
    surrogate,
    surrogate_dtype,
    surrogate_metadata,
    many_dimensions,
    long_number,
    long_number_in_index,
    text_tensor,
)


@pytest.mark.parametrize("poison", POISONS, ids=lambda poison: poison.__name__)
def test_no_poison_is_a_bug(tmp_path: Path, poison: Callable[[Path], None]) -> None:
    """Each command ends with a result, or with an error of its own, and nothing of the version changes."""
    place = tmp_path / "run"
    place.mkdir()
    poison(place)
    before = sorted(str(path) for path in place.rglob("*"))
    for number, command in enumerate(READING):
        out = tmp_path / str(number) / "out"
        out.parent.mkdir()
        words = {"run": str(place), "ref": f"{place}@7", "out": str(out), "name": "w"}
        done = edl(*(word.format(**words) for word in command))
        assert done.returncode not in {1, 70}, (command, done.stderr)
        assert "Traceback" not in done.stderr, (command, done.stderr)
        assert sorted(str(path) for path in place.rglob("*")) == before, command


def test_a_file_that_is_none_or_vanishes_has_a_reason(tmp_path: Path) -> None:
    """What needs a file that cannot be opened ends with a typed error, also where the rest is read."""
    pipe(tmp_path)
    file = data_files(tmp_path / "step_7")[1]
    version = at(tmp_path, 7)
    with open_checkpoint(version, partial=True) as checkpoint:
        assert [lost.path for lost in checkpoint.lost] == [str(file)]
        with pytest.raises(IncompleteError, match="not a regular file"):
            checkpoint.files[str(file)].read(0, 1)
    file.unlink()
    with pytest.raises(EdlCkptError):
        open_checkpoint(version, partial=True)


def test_a_shape_of_too_many_dimensions_is_named_with_its_limit(tmp_path: Path) -> None:
    """Numpy's own error never reaches a caller of the library."""
    many_dimensions(tmp_path)
    with open_checkpoint(at(tmp_path, 7)) as checkpoint, pytest.raises(UnsupportedError, match="the limit is 64"):
        checkpoint.variable("w")
    with pytest.raises(UnsupportedError, match="the limit is 32"):
        import_checkpoint(at(tmp_path, 7), tmp_path / "new", 1, 2)


@pytest.mark.parametrize("kind", ["toml", "json"])
def test_a_number_of_thousands_of_digits(tmp_path: Path, kind: str) -> None:
    """A map, and a document of metadata or metrics, end with a usage error."""
    dcp_step(tmp_path)
    digits = "9" * 5000
    (tmp_path / "map.toml").write_text(f"[tables]\nw = {digits}\n")
    (tmp_path / "metrics.jsonl").write_text(f'{{"version": {digits}, "auc": {digits}}}\n')
    if kind == "toml":
        done = edl("export", f"{tmp_path}@7", tmp_path / "out.npz", "--map", tmp_path / "map.toml")
        assert done.returncode == 2, done.stderr
    else:
        done = edl("metrics", "import", tmp_path / "metrics.jsonl", tmp_path)
        assert done.returncode in {2, 3, 5}, done.stderr


def test_any_name_counts_in_a_fingerprint() -> None:
    """A name of a file that is not UTF-8 has bytes of its own, and no two names have the same."""
    names = ["a", "é", "\ud800", "a\udcff", "\U0001f600"]
    assert len({name_bytes(name) for name in names}) == len(names)
    assert name_bytes("é") == "é".encode()
