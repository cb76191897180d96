"""What a system costs: one folder, and a line in each of three registries."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from places import TESTS, TOP

REGISTRIES = {
    "core/sources/steps/formats.py": """
import toy_system
FORMATS = (*FORMATS, FormatFolder(toy_system))
""",
    "core/converting/destinations/table.py": """
from toy_system.destination import ToToy
DESTINATIONS = {**DESTINATIONS, ToToy.system: ToToy}
""",
    "core/operations/verify/loaders.py": """
from toy_system.loader import ToyLoader
LOADERS = {**LOADERS, "toy": ("toy", ToyLoader)}
""",
}
"""The files outside of the system's folder that know of it, and what each gains."""


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a copy of the package that has the toy system; all but the registries are links."""
    top = tmp_path_factory.mktemp("package")
    copy = top / "edl_ckpt"
    copy.mkdir()
    for part in (TOP / ".src/package").iterdir():
        (copy / part.name).symlink_to(part)
    for name in ("cli", "core", "proto"):
        _link(TOP / name, copy / name, name)
    for name, lines in REGISTRIES.items():
        (copy / name).write_text((TOP / name).read_text(encoding="utf-8") + lines, encoding="utf-8")
    return top


def _link(original: Path, copy: Path, name: str) -> None:
    """Make a link to a file or folder; a folder with a registry in it is a folder of links."""
    if name in REGISTRIES:
        return
    if not any(registry.startswith(f"{name}/") for registry in REGISTRIES):
        copy.symlink_to(original)
        return
    copy.mkdir()
    for inner in original.iterdir():
        if inner.name != "__pycache__":
            _link(inner, copy / inner.name, f"{name}/{inner.name}")


def run(package: Path, program: str, *arguments: str | Path) -> str:
    """Run a program with the copy of the package, and return what it prints."""
    command = [sys.executable, "-c", program, *map(str, arguments)]
    paths = os.pathsep.join([str(package), str(TESTS / "support")])
    env = {**os.environ, "PYTHONPATH": paths, "XDG_CONFIG_HOME": "/nowhere", "XDG_CACHE_HOME": str(package / "cache")}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def edl(package: Path, *arguments: str | Path) -> str:
    """Run a command of the program with the copy of the package."""
    return run(package, "from edl_ckpt.cli.app import main; main()", *arguments)


def convert(package: Path, source: Path, output: Path, system: str, ranks: int) -> None:
    """Write the newest version of a location as one of another system, with the library."""
    program = (
        "import sys; from edl_ckpt.core import convert_version; source, output, system, ranks = sys.argv[1:];"
        "convert_version(source, int(ranks), output=output, system=system)"
    )
    run(package, program, source, output, system, str(ranks))


def save(step: Path, ranks: Sequence[Sequence[int]]) -> None:
    """Write a step of the toy system: a table `user` of dim 4, whose row for an id has that id in each element."""
    step.mkdir(parents=True)
    for rank, ids in enumerate(ranks):
        keys = np.array(ids, np.int64)
        (step / f"user.toy-{rank}-of-{len(ranks)}.ids").write_bytes(keys.tobytes())
        rows = np.repeat(keys.astype(np.float32), 4)
        (step / f"user.toy-{rank}-of-{len(ranks)}.rows").write_bytes(rows.tobytes())


def rows_of(step: Path) -> dict[int, list[float]]:
    """Return the rows of all ranks of a step, by their ids."""
    found: dict[int, list[float]] = {}
    for ids in step.glob("user.toy-*.ids"):
        keys = np.fromfile(ids, np.int64)
        rows = np.fromfile(ids.with_suffix(".rows"), np.float32).reshape(len(keys), 4)
        found |= dict(zip(keys.tolist(), rows.tolist(), strict=True))
    return found


def test_it_is_listed_and_inspected(tmp_path: Path, package: Path) -> None:
    """A step of the new system is a version with its own words."""
    save(tmp_path / "run/step_3", [[0, 2, 4], [1, 3]])
    assert "Toy" in edl(package, "list", tmp_path / "run")
    told = edl(package, "inspect", tmp_path / "run")
    assert "2 toy ranks" in told
    assert "user" in told
    assert "Toy" in edl(package, "systems")


def test_its_rows_are_read_and_exported(tmp_path: Path, package: Path) -> None:
    """Rows are found by their ids, and go into files of arrays."""
    save(tmp_path / "run/step_3", [[0, 2, 4], [1, 3]])
    assert "3" in edl(package, "get", tmp_path / "run", "--table", "user", "--id", "3")
    edl(package, "export", tmp_path / "run", tmp_path / "rows.npz")
    with np.load(tmp_path / "rows.npz") as arrays:
        ids, rows = arrays["user.ids"], arrays["user.vectors"]
    assert ids.tolist() == [0, 1, 2, 3, 4]
    assert rows.tolist() == [[float(id_)] * 4 for id_ in range(5)]


def test_it_is_verified(tmp_path: Path, package: Path) -> None:
    """A sound step has no finding, a row in the wrong rank is one, and a torn step is incomplete."""
    save(tmp_path / "run/step_3", [[0, 2, 4], [1, 3]])
    edl(package, "verify", tmp_path / "run", "--deep")
    edl(package, "verify", tmp_path / "run", "--loader", "toy")
    save(tmp_path / "torn/step_3", [[0, 2, 4], [1, 3]])
    (tmp_path / "torn/step_3/user.toy-1-of-2.rows").unlink()
    assert "incomplete" in edl(package, "list", tmp_path / "torn", "--grace", "0s")


def test_it_is_resharded(tmp_path: Path, package: Path) -> None:
    """Other numbers of ranks have the same rows, each in the rank of its id."""
    save(tmp_path / "run/step_3", [[0, 2, 4], [1, 3]])
    edl(package, "reshard", tmp_path / "run", "--ranks", "3", "--output", tmp_path / "new")
    assert rows_of(tmp_path / "new/step_3") == rows_of(tmp_path / "run/step_3")
    assert len(list((tmp_path / "new/step_3").glob("*.ids"))) == 3
    edl(package, "verify", tmp_path / "new", "--deep")


def test_it_goes_to_other_systems_and_back(tmp_path: Path, package: Path) -> None:
    """A version of ElasticDL becomes one of the new system, and that goes to ElasticDL with the same rows."""
    save(tmp_path / "run/step_3", [[0, 2, 4], [1, 3]])
    convert(package, tmp_path / "run", tmp_path / "elasticdl", "elasticdl", 2)
    assert "design layout" in edl(package, "list", tmp_path / "elasticdl")
    convert(package, tmp_path / "elasticdl", tmp_path / "back", "toy", 4)
    (made,) = (tmp_path / "back").glob("*3")
    assert rows_of(made) == rows_of(tmp_path / "run/step_3")
    assert len(list(made.glob("*.ids"))) == 4
