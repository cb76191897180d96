"""The fingerprint: its definition computed again in plain Python, and the changes that it must and must not show."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given

from builders import models, write_checkpoint
from edl_ckpt.core import fingerprint_checkpoint, open_checkpoint
from edl_ckpt.core.proof.fingerprint import ContentSketch
from examples import examples
from oracle import Model, Table
from slow_fingerprint import slow_fingerprint, slow_sketch


def fingerprint(location: Path, model: Model, ps_num: int = 2) -> str:
    """What the engine says of a model."""
    write_checkpoint(location, model, ps_num)
    with open_checkpoint(str(location)) as checkpoint:
        return fingerprint_checkpoint(checkpoint, workers=2).text


@examples(10)
@given(models())
def test_is_its_definition(tmp_path_factory: pytest.TempPathFactory, either_kernel: str, model: Model) -> None:
    """The engine's fingerprint is the one that docs/fingerprint.md defines."""
    assert fingerprint(tmp_path_factory.mktemp("definition"), model) == slow_fingerprint(model)


def base() -> Model:
    """A model with something of everything; one variable takes several chunks."""
    random = np.random.default_rng(1)
    rows = {i: random.integers(0, 256, 12).astype(np.uint8).tobytes() for i in (0, 3, 8, -5, 2**40)}
    model = Model(3)
    model.dense["w"] = ("float32", (30, 100), random.standard_normal(3000).astype("<f4").tobytes())
    model.dense["b"] = ("int32", (3,), bytes(range(12)))
    model.tables["t"] = Table(3, "uniform", "float32", rows)
    model.tables["none"] = Table(4, "zeros")
    return model


def rename(model: Model) -> None:
    model.dense["b2"] = model.dense.pop("b")


def rename_table(model: Model) -> None:
    model.tables["u"] = model.tables.pop("t")


def change_dtype(model: Model) -> None:
    model.dense["b"] = ("float32", *model.dense["b"][1:])


def change_shape(model: Model) -> None:
    model.dense["b"] = ("int32", (3, 1), model.dense["b"][2])


def change_table_dtype(model: Model) -> None:
    model.tables["t"].dtype = "int32"


def change_dim(model: Model) -> None:
    model.tables["none"].dim = 5


def change_initializer(model: Model) -> None:
    model.tables["none"].initializer = "ones"


def change_id(model: Model) -> None:
    model.tables["t"].rows[9] = model.tables["t"].rows.pop(8)


def swap_rows(model: Model) -> None:
    rows = model.tables["t"].rows
    rows[0], rows[3] = rows[3], rows[0]


def drop_row(model: Model) -> None:
    del model.tables["t"].rows[3]


def add_zero_row(model: Model) -> None:
    model.tables["t"].rows[77] = bytes(12)


def negate(model: Model) -> None:
    rows = model.tables["t"].rows
    for i in (0, 3, 8, 2**40):
        rows[i] = (-np.frombuffer(rows[i], "<f4")).tobytes()


def swap_chunks(model: Model) -> None:
    dtype, shape, data = model.dense["w"]
    model.dense["w"] = (dtype, shape, data[4096:8192] + data[:4096] + data[8192:])


CHANGES = [
    rename, rename_table, change_dtype, change_shape, change_table_dtype, change_dim, change_initializer, change_id,
    swap_rows, drop_row, add_zero_row, negate, swap_chunks,
]  # fmt: skip


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_changes(tmp_path: Path, change: Callable[[Model], None]) -> None:
    """Each kind of change of the content gives another fingerprint."""
    changed = base()
    change(changed)
    assert fingerprint(tmp_path / "a", base()) != fingerprint(tmp_path / "b", changed)


def test_every_bit(tmp_path: Path) -> None:
    """Every single flipped bit of every row, and bits all over a long variable, give fingerprints of their own."""
    seen = {slow_fingerprint(base())}
    count = 1
    for i, data in base().tables["t"].rows.items():
        for bit in range(len(data) * 8):
            model = copy.deepcopy(base())
            flipped = bytearray(data)
            flipped[bit // 8] ^= 1 << bit % 8
            model.tables["t"].rows[i] = bytes(flipped)
            del model.dense["w"]
            seen.add(slow_fingerprint(model))
            count += 1
    assert len(seen) == count


def test_known_answer(tmp_path: Path) -> None:
    """The fingerprint of a known content never changes: recorded ones stay comparable between releases."""
    model = Model(1)
    model.dense["b"] = ("int32", (3,), bytes(range(12)))
    model.tables["t"] = Table(2, "zeros", "float32", {1: bytes(range(8)), -7: bytes(range(8, 16))})
    assert fingerprint(tmp_path / "a", model) == KNOWN


KNOWN = "edl1:9cb38b1da698f2f3321ef7f2a485ed0eab681c87960eb8aaaaf38073387d4a1e"


def test_variable_sums_add_up() -> None:
    """Sums of a variable that came in pieces, whole, twice or without a byte are those of the definition, in order."""
    random = np.random.default_rng(2)
    data = {name: random.integers(0, 256, size).astype(np.uint8) for name, size in SIZES.items()}
    sketch = ContentSketch()
    for name, own in data.items():
        for start in range(0, max(len(own), 1), 8192):
            sketch.add_dense(name, len(own), start, own[start : start + 8192])
    sketch.add_dense("twice", 1, 0, data["twice"])
    names = sorted(data, reverse=True)
    found = list(sketch.variable_sums(names))
    assert [name for name, _ in found] == names
    assert sketch.variable_names() == data.keys()
    for name, sums in found:
        once = np.array(slow_sketch({0: data[name].tobytes()}, len(data[name])), np.uint32)
        assert np.array_equal(sums, once * np.uint32(2) if name == "twice" else once), name


SIZES = {"none": 0, "twice": 1, "odd": 77, "chunk": 4096, "more": 4097, "pieces": 30_001}
