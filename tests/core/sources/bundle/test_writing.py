"""Bundles that we write: TensorFlow reads the same arrays from them, and writes the same bytes."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edl_ckpt.core import open_checkpoint, verify_version
from edl_ckpt.core.base.errors import UnsupportedError
from edl_ckpt.core.kernel.checksums import crc32c
from edl_ckpt.core.model.dtypes import DTYPES
from edl_ckpt.core.sources.bundle.index import read_index
from edl_ckpt.core.sources.bundle.new_table import table
from edl_ckpt.core.sources.bundle.table import entries
from edl_ckpt.core.sources.bundle.writing import BundleLayout, lay_out
from edl_ckpt.core.sources.steps.file_layout import Array, Slab
from foreign import run_judge

UNREAD = {"float16", "uint16", "uint32", "uint64"}
"""TensorFlow saves slices of these, and cannot read them."""


def whole(key: str, dtype: str = "float32", shape: tuple[int, ...] = (), rank: int = 0) -> Array:
    """Return an array in one slab."""
    return Array(key, DTYPES[dtype], shape, (Slab(rank, (0,) * len(shape), shape),))


def random_array(rng: np.random.Generator, number: int, ranks: int) -> Array:
    """Return an array of any dtype, whole or cut along a dimension, one slab at most for a rank."""
    key = f"{'scope/' * int(rng.integers(0, 4))}v{rng.integers(1 << 40)}_{number}/é"
    shape = tuple(int(n) for n in rng.integers(0, 6, rng.integers(0, 4)))
    array = whole(key, list(DTYPES)[number % 13], shape, int(rng.integers(ranks)))
    if not shape or rng.integers(3):
        return array
    axis = int(rng.integers(len(shape)))
    cuts = [0, *sorted(int(n) for n in rng.integers(0, shape[axis] + 1, ranks - 1)), shape[axis]]
    slabs = []
    for rank, (start, end) in enumerate(pairwise(cuts)):
        offsets = tuple(start if d == axis else 0 for d in range(len(shape)))
        slabs.append(Slab(rank, offsets, tuple(end - start if d == axis else n for d, n in enumerate(shape))))
    return Array(key, array.dtype, shape, tuple(slabs))


def random_values(rng: np.random.Generator, array: Array) -> Any:
    """Return random bits, bfloat16 as uint16; a bool is one of two bytes."""
    kind = np.dtype("uint16" if array.dtype.name == "bfloat16" else array.dtype.name)
    data = np.frombuffer(rng.bytes(prod(array.shape) * kind.itemsize), np.uint8)
    return (data % 2 if array.dtype.name == "bool" else data).view(kind).reshape(array.shape)


def box_of(values: Any, slab: Slab) -> bytes:
    """Return the bytes of a slab."""
    ends = zip(slab.offsets, slab.sizes, strict=True)
    return bytes(values[tuple(slice(start, start + size) for start, size in ends)].tobytes())


def write(folder: Path, layout: BundleLayout, arrays: Sequence[Array], values: Sequence[Any]) -> None:
    """Write the files of a layout: first the values, then the rest."""
    folder.mkdir(exist_ok=True)
    for name, size in layout.files.items():
        (folder / name).write_bytes(b"\xee" * size)
    sums = {}

    def put(name: str, offset: int, data: bytes) -> None:
        with (folder / name).open("r+b") as file:
            file.seek(offset)
            file.write(data)

    for array, content in zip(arrays, values, strict=True):
        for number, slab in enumerate(array.slabs):
            data = box_of(content, slab)
            put(*layout.at(array.key, number), data)
            if data:
                sums[array.key, number] = crc32c(data)
    for name, offset, data in layout.literals(sums):
        put(name, offset, data)
    assert {name: (folder / name).stat().st_size for name in layout.files} == layout.files


def random_bundle(folder: Path, count: int, seed: int, **options: Any) -> tuple[list[Array], list[Any]]:
    """Write a random bundle of three data files; arrays are in the order of their names, as TensorFlow sorts them."""
    rng = np.random.default_rng(seed)
    arrays = sorted((random_array(rng, number, 3) for number in range(count)), key=lambda array: array.key.encode())
    values = [random_values(rng, array) for array in arrays]
    write(folder, lay_out("model", arrays, 3, with_state=True, **options), arrays, values)
    return arrays, values


def test_we_read_what_we_write(tmp_path: Path) -> None:
    """Each array is read with its dtype, shape and bytes, and all checksums are right."""
    arrays, values = random_bundle(tmp_path / "run", 400, 1, strings={"a graph": b"text" * 99, "z": b""})
    with open_checkpoint(str(tmp_path / "run/model")) as checkpoint:
        assert sorted(checkpoint.variable_names) == sorted(array.key for array in arrays)
        for array, content in zip(arrays, values, strict=True):
            entry = checkpoint.find_variable(array.key)[1]
            assert (entry.dtype, entry.shape) == (array.dtype, array.shape)
            assert checkpoint.variable(array.key, bits=True).tobytes() == content.tobytes()
        report = verify_version(checkpoint.version, level="deep")
    assert [finding for finding in report.findings if finding.check != "values"] == []


def test_files_of_a_layout() -> None:
    """Sizes and offsets are known from shapes alone, the index is the last file, and a rank without slabs has one."""
    layout = lay_out("run/m", [whole("a", shape=(2, 3), rank=2), whole("b", "int8", rank=2)], 3, with_state=True)
    data = [f"run/m.data-0000{rank}-of-00003" for rank in range(3)]
    assert list(layout.files) == [*data, "run/checkpoint", "run/m.index"]
    assert [layout.files[name] for name in data] == [0, 0, 25]
    assert (layout.at("a", 0), layout.at("b", 0)) == ((data[2], 0), (data[2], 24))
    (state, _, text), (index, offset, literal) = layout.literals({("a", 0): 1, ("b", 0): 0xFFFFFFFF})
    assert (state, text.splitlines()[0]) == ("run/checkpoint", b'model_checkpoint_path: "m"')
    assert (index, offset, len(literal)) == ("run/m.index", 0, layout.files["run/m.index"])
    assert read_index(literal).tensors["a"].shape == (2, 3)


def test_slabs_without_elements() -> None:
    """A slab without elements is no slice; what then is in one slab is one tensor, as an array without elements is."""
    parts = (Slab(0, (0, 0), (0, 4)), Slab(1, (0, 0), (3, 4)))
    hollow = Array("none", DTYPES["int64"], (4, 0), (Slab(1, (0, 0), (2, 0)), Slab(0, (2, 0), (2, 0))))
    layout = lay_out("m", [Array("t", DTYPES["float32"], (3, 4), parts), hollow], 2)
    ((_, _, literal),) = layout.literals({("t", 1): crc32c(bytes(48))})
    index = read_index(literal)
    assert index.tensors["t"] == (1, (3, 4), 1, 0, 48, index.tensors["t"].crc32c, ())
    assert index.tensors["none"][:5] == (9, (4, 0), 1, 48, 48)
    assert index.slices == {}


@pytest.mark.parametrize("name", ["", "\0x", "twice", "\udcff"])
def test_names_that_a_bundle_cannot_have(name: str) -> None:
    """Such a name is refused before anything is written."""
    with pytest.raises(UnsupportedError, match="cannot have this name"):
        lay_out("m", [whole("twice"), whole(name)])


@pytest.mark.parametrize("size", [0, 1, 5, 3000])
def test_a_table_is_read_again(size: int) -> None:
    """Any keys and values are read again, whatever their length: blocks, restarts and separators are right."""
    rng = np.random.default_rng(size)
    pairs = {rng.bytes(int(rng.integers(0, 200))): rng.bytes(int(rng.integers(0, 400))) for _ in range(size)}
    pairs |= {b"\xff" * n: bytes(600_000 * (n == 3)) for n in range(5) if size}
    ordered = sorted(pairs.items())
    assert [(key, value) for key, value, _ in entries(table(ordered))] == ordered


@pytest.mark.frameworks
@pytest.mark.parametrize("seed", range(3))
def test_tensorflow_reads_and_writes_the_same(tmp_path: Path, seed: int) -> None:
    """TensorFlow lists and reads 500 arrays, whole and in slices, and its own index and data have the same bytes."""
    judged(tmp_path, lambda: random_bundle(tmp_path, 500, seed), seed)
    for path in tmp_path.glob("theirs.*"):
        assert path.read_bytes() == path.with_name(path.name.replace("theirs", "model")).read_bytes(), path.name


@pytest.mark.frameworks
def test_tensorflow_reads_strings(tmp_path: Path) -> None:
    """TensorFlow reads strings of any length."""
    names = {name: name.encode() for name in ("string ", f"string {'x' * 300}", f"string {'é' * 70_000}")}
    judged(tmp_path, lambda: random_bundle(tmp_path, 30, 9, strings=names), 9)


@pytest.mark.frameworks
def test_tensorflow_reads_many(tmp_path: Path) -> None:
    """Several blocks of an index, each key with the same long begin, are those that TensorFlow writes."""

    def many() -> tuple[list[Array], list[Any]]:
        names = sorted(f"model/layer_{number // 7:06}/{'x' * (number % 200)}{number % 7}" for number in range(9000))
        arrays = [whole(name, "int8", (number % 4,)) for number, name in enumerate(names)]
        values = [np.full(number % 4, number % 100, np.int8) for number in range(len(names))]
        write(tmp_path, lay_out("model", arrays, with_state=True), arrays, values)
        return arrays, values

    judged(tmp_path, many, 1)
    assert (tmp_path / "model.index").stat().st_size > 300_000
    assert (tmp_path / "theirs.index").read_bytes() == (tmp_path / "model.index").read_bytes()


def judged(folder: Path, make: Callable[[], tuple[list[Array], list[Any]]], seed: int) -> None:
    """Write a bundle, and have TensorFlow compare it with what went in."""
    arrays, values = make()
    plan = []
    for array in arrays:
        slabs = [(slab.rank, slab.offsets, slab.sizes) for slab in array.slabs if prod(slab.sizes)]
        slabs = slabs or [(array.slabs[0].rank, (0,) * len(array.shape), array.shape)]
        plan.append({"name": array.key, "dtype": array.dtype.name, "shape": array.shape, "slabs": slabs})
    (folder / "plan.json").write_text(json.dumps(plan))
    octets: Any = {f"v{number}": np.frombuffer(v.tobytes(), np.uint8) for number, v in enumerate(values)}
    np.savez(folder / "truth.npz", **octets)
    run_judge("EDL_CKPT_TEST_TENSORFLOW_PYTHON", "tensorflow_reads.py", str(folder), str(seed))
