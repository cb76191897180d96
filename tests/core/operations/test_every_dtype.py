r"""Each dtype of each framework through each verb, judged by the frameworks.

The whole takes ten minutes:

    EDL_CKPT_TEST_TORCH_PYTHON=PYTHON EDL_CKPT_TEST_TENSORFLOW_PYTHON=PYTHON \
        pytest -q -n 0 -s -m hours tests/core/operations/test_every_dtype.py

The first is a Python with torch==2.13.0, safetensors==0.8.0 and numpy, the second one with tensorflow-cpu==2.16.2.
`test_other_items.py` has a sample that needs neither: `tests/data/systems/dcp/everything` is of torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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


SAMPLE = {"dcp": "qint8", "safetensors": "float8_e4m3fnuz", "tensorflow": "variant"}
SYSTEMS = ("dcp", "safetensors", "tensorflow")


@pytest.mark.frameworks
@pytest.mark.parametrize("name", SYSTEMS)
def test_a_dtype_through_each_verb(name: str, systems: dict[str, System], tmp_path: Path) -> None:
    """The same of a dtype that fell once."""
    check(systems, name, [SAMPLE[name]], tmp_path)


@pytest.mark.hours
@pytest.mark.frameworks
@pytest.mark.parametrize("name", SYSTEMS)
def test_each_dtype_through_each_verb(name: str, systems: dict[str, System], tmp_path: Path) -> None:
    """The result of each verb has the bytes, as its framework reads them, or it is refused by name with a way on."""
    check(systems, name, systems[name].dtypes(), tmp_path)


def check(systems: dict[str, System], name: str, dtypes: Sequence[str], tmp_path: Path) -> None:
    """Look at all cells of some dtypes, and print how many ended in which way."""
    torch = systems["dcp"].judge
    readers = {
        **{kind: one.read for kind, one in systems.items()},
        "torch": lambda place: torch.tensors("read", "pt", str(place)),
        "npz": numpy_arrays,
        "npy": numpy_arrays,
        "checkpoint": shards,
    }
    cells = Cells()
    for dtype in dtypes:
        (tmp_path / dtype).mkdir()
        Column(systems[name], dtype, tmp_path / dtype, readers, cells).all()
    print(name, *cells.lines(), sep="\n  ")
    assert not cells.wrong, "\n".join([f"{len(cells.wrong)} cells", *cells.wrong])
