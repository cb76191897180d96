"""What `.ci/run` imports exists: no other run of the suite would notice a name that a merge has changed."""

from __future__ import annotations

import ast
import importlib
import re

import pytest

from places import TOP

CI = (TOP / ".ci/run").read_text(encoding="utf-8")
SCRIPTS = re.findall(r"""(?:-c |\w+=)('[^']*import[^']*'|"[^"]*import[^"]*")""", CI)


def names_in(script: str) -> list[tuple[str, str]]:
    """Return the modules of ours that a script imports, each with a name that it takes from there, and attributes."""
    found = []
    for node in ast.walk(ast.parse(script)):
        if isinstance(node, ast.ImportFrom):
            found += [(node.module or "", alias.name) for alias in node.names]
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            homes = {n: m for m, n in found} | {"edl_ckpt": ""}
            if node.value.id in homes:
                found.append((f"{homes[node.value.id]}.{node.value.id}".lstrip("."), node.attr))
    return [(module, name) for module, name in found if module.startswith("edl_ckpt")]


NAMES = sorted({name for script in SCRIPTS if "$" not in script for name in names_in(script[1:-1])})


def test_scripts_are_found() -> None:
    """The pattern finds each line that imports something of ours."""
    assert sum("edl_ckpt" in script for script in SCRIPTS) == len(re.findall(r"import edl_ckpt|from edl_ckpt", CI)) >= 4
    assert len(NAMES) >= 5


@pytest.mark.parametrize(("module", "name"), NAMES)
def test_names_of_ci_exist(module: str, name: str) -> None:
    """A name that a script of CI imports or uses is there."""
    found = importlib.import_module(module)
    if not hasattr(found, name):
        importlib.import_module(f"{module}.{name}")


def test_files_of_ci_exist() -> None:
    """Every test, folder and script that CI names is on the disk."""
    paths = {path.rstrip("/.") for path in re.findall(r"(?<![\w/$}.-])(?:tests|core|proto)/[\w/.-]+", CI)}
    assert len(paths) > 8
    assert [path for path in paths if not (TOP / path).exists()] == []
