"""The packaging says what is on disk, and the engine stays light."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from fnmatch import fnmatch
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest

import edl_ckpt.core
from edl_ckpt.cli import __version__
from edl_ckpt.core import save_checkpoint
from places import TOP

PROJECT = tomllib.loads((TOP / "pyproject.toml").read_text(encoding="utf-8"))


def test_packages_are_those_on_disk() -> None:
    """Every folder with an __init__.py under cli, core and proto is a package, as are the completion scripts."""
    found = {
        ".".join(("edl_ckpt", *path.parent.relative_to(TOP).parts))
        for room in ("cli", "core", "proto")
        for path in (TOP / room).rglob("__init__.py")
    }
    assert set(PROJECT["tool"]["setuptools"]["packages"]) == found | {"edl_ckpt", "edl_ckpt.completions"}


def test_version_is_one_literal() -> None:
    """The version of the program, of the package and of the engine stands in one file."""
    assert edl_ckpt.__version__ == __version__ == edl_ckpt.core.__version__ == version("edl-ckpt")
    files = [
        TOP / "pyproject.toml",
        *(path for room in (".src/package", "cli", "core") for path in (TOP / room).rglob("*.py")),
    ]
    literal = f'"{__version__}"'
    assert [p for p in files if literal in p.read_text(encoding="utf-8")] == [TOP / "core/base/version.py"]


def test_typed() -> None:
    """Each room tells type checkers that it has types."""
    for room in (".src/package", "cli", "core", "proto"):
        assert (TOP / room / "py.typed").exists()


def test_protos_have_their_modules() -> None:
    """Every .proto has its generated module and stub."""
    for proto in (TOP / "proto").glob("*.proto"):
        assert proto.with_name(f"{proto.stem}_pb2.py").exists()
        assert proto.with_name(f"{proto.stem}_pb2.pyi").exists()


def test_engine_is_light() -> None:
    """Importing the engine and listing a directory imports no library but Python's own."""
    code = "import sys, edl_ckpt.core as c; c.list_versions('.'); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    heavy = {"typer", "rich", "click", "numpy", "fsspec", "s3fs", "google.protobuf"}
    assert not heavy & set(done.stdout.split())


def test_start_up_is_light() -> None:
    """A command whose options have values of each kind imports no pydantic, as typer itself would."""
    words = ["wait", ".", "--version-ge", "3", "--timeout", "0s", "--storage-option", "a=b", "--json"]
    code = f"""
import sys
from edl_ckpt.cli.app import main
try:
    main({words})
except SystemExit as end:
    print(end.code, "pydantic" in sys.modules, file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stderr.splitlines()[-1] == "3 False"


ROOMS_OF_OTHERS = (
    "sources.dcp.* sources.bundle.format sources.torch.machine sources.*.format storage.fsspec storage.s3.* cluster.* "
    "commit.repair.object* commit.publish.objects commit.publish.uploads"
)
NEEDED_BY_NONE = [*(f"edl_ckpt.core.{room}" for room in ROOMS_OF_OTHERS.split()), "google.protobuf"]
"""What no command on shards of ElasticDL on a disk imports: readers of other systems, other storage, Dask, protobuf."""
REFUSALS = [f"edl_ckpt.cli.{module}" for module in ("options.hints", "options.usage", "options.slips", "completion")]
"""What finds out what was meant by a command line that is refused."""
NOT_WRITING_ONE = [f"edl_ckpt.core.{room}" for room in ("commit.shard", "commit.deletion.trash", "reading.gather")]
"""What writes a single shard, deletes a version, and restores a part."""
ALLOWED = {"edl_ckpt.core.cluster.choice", "edl_ckpt.core.sources.dcp.table_names"}


@pytest.mark.parametrize(
    ("command", "others"),
    [
        (["--help"], ["typer", "rich", "edl_ckpt.core.storage", "edl_ckpt.core.model.*"]),
        (["list", "run"], ["numpy", "edl_ckpt.core.kernel", "edl_ckpt.core.operations"]),
        (["verify", "run"], ["edl_ckpt.core.moving", "edl_ckpt.core.converting", "edl_ckpt.core.reading.gather"]),
        (["copy", "run", "new"], ["edl_ckpt.core.converting.destinations", *NOT_WRITING_ONE]),
        (
            ["reshard", "run", "--ranks", "3", "--output", "new"],
            ["edl_ckpt.core.converting.destinations.dcp", *NOT_WRITING_ONE],
        ),
    ],
    ids=["help", "list", "verify", "copy", "reshard"],
)
def test_a_command_imports_what_it_needs(tmp_path: Path, command: list[str], others: list[str]) -> None:
    """A command on shards of ElasticDL on a disk imports no room that only other systems, storage or machines need."""
    save_checkpoint(tmp_path / "run", 7, ps_num=2, variables={"w": np.ones(3, np.float32)}, layout="elasticdl")
    code = f"""
import sys
from edl_ckpt.cli.app import main
try:
    main({command})
except SystemExit as end:
    print(end.code, *sys.modules, file=sys.stderr)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60, cwd=tmp_path
    )
    ended, *modules = done.stderr.splitlines()[-1].split()
    assert ended == "0"
    unwanted = [*NEEDED_BY_NONE, *REFUSALS, *others]
    loaded = {name for name in modules if any(fnmatch(name, pattern) for pattern in unwanted)}
    assert loaded <= ALLOWED


@pytest.mark.parametrize(
    "command",
    [["verify", "run"], ["copy", "run", "new"], ["reshard", "run", "--ranks", "3", "--output", "new"]],
    ids=["verify", "copy", "reshard"],
)
def test_numpy_is_imported_by_the_command_itself(tmp_path: Path, command: list[str]) -> None:
    """Few frames are above the import of numpy: at the bottom of a chain of imports it takes 20 ms more."""
    save_checkpoint(tmp_path / "run", 7, ps_num=2, variables={"w": np.ones(3, np.float32)}, layout="elasticdl")
    code = f"""
import sys, traceback
class Frames:
    def find_spec(self, name, path=None, target=None):
        if name == "numpy":
            print("numpy", len(traceback.extract_stack()), file=sys.stderr)
sys.meta_path.insert(0, Frames())
from edl_ckpt.cli.app import main
main({command})
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60, cwd=tmp_path
    )
    (frames,) = (line.split()[1] for line in done.stderr.splitlines() if line.startswith("numpy "))
    assert int(frames) < 30
