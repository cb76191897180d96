"""Each dtype of each framework through each verb, judged by the frameworks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dtype_matrix import TENSORFLOW, TORCH, Cells, Column, Judge, System, numpy_arrays, shards


@pytest.fixture(scope="module")
def systems() -> Iterator[dict[str, System]]:
    """The systems with their judges."""
    torch, tensorflow = Judge(TORCH, "torch_dtypes.py"), Judge(TENSORFLOW, "tensorflow_dtypes.py")
    judges = {"dcp": torch, "safetensors": torch, "tensorflow": tensorflow}
    yield {name: System(name, judge) for name, judge in judges.items()}
    torch.close()
    tensorflow.close()


@pytest.mark.slow
@pytest.mark.frameworks
@pytest.mark.parametrize("name", ["dcp", "safetensors", "tensorflow"])
def test_each_dtype_through_each_verb(name: str, systems: dict[str, System], tmp_path: Path) -> None:
    """The result of each verb has the bytes, as its framework reads them, or it is refused by name with a way on."""
    torch = systems["dcp"].judge
    readers = {
        **{kind: one.read for kind, one in systems.items()},
        "torch": lambda place: torch.tensors("read", "pt", str(place)),
        "npz": numpy_arrays,
        "npy": numpy_arrays,
        "checkpoint": shards,
    }
    cells = Cells()
    for dtype in systems[name].dtypes():
        (tmp_path / dtype).mkdir()
        Column(systems[name], dtype, tmp_path / dtype, readers, cells).all()
    print(name, *cells.lines(), sep="\n  ")
    assert not cells.wrong, "\n".join([f"{len(cells.wrong)} cells", *cells.wrong])
