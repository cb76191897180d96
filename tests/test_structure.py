"""The structure that a machine can judge: imports inside functions, the public door, and the top level."""

from __future__ import annotations

import ast
import functools
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import edl_ckpt.core
from edl_ckpt.cli.catalogue import COMMANDS
from places import TOP

PRIVATE = frozenset(
    {
        "_client_config",
        "_convert_to_request_dict",
        "_emit_api_params",
        "_endpoint",
        "_get_conn",
        "_new_conn",
        "_put_conn",
        "_request_signer",
    }
)
"""Private names of botocore and urllib3: a release of theirs may change them."""
HEAVY = frozenset({"numpy", "xxhash", "google", "email", "botocore", "fsspec", "asyncio", "tempfile", "http"})
"""Libraries that cost more than 5 ms of start-up time: only a command that needs them may import them."""
SLOW = frozenset(
    {
        "edl_ckpt.core.cluster.executor",
        "edl_ckpt.core.cluster.preflight",
        "edl_ckpt.core.commit.deletion.trash",
        "edl_ckpt.core.commit.publish.probes",
        "edl_ckpt.core.commit.repair.object_kind",
        "edl_ckpt.core.commit.repair.recovery",
        "edl_ckpt.core.commit.shard",
        "edl_ckpt.core.converting.destinations",
        "edl_ckpt.core.model.tables",
        "edl_ckpt.core.moving.file_parts",
        "edl_ckpt.core.operations.verify.loaders",
        "edl_ckpt.core.reading.gather",
        "edl_ckpt.core.sources.torch_checkpointing.metadata",
        "edl_ckpt.core.storage.fsspec",
    }
)
"""Our own modules that do, by their many classes: no listing needs the contents of shards, what only looks at versions
needs nothing that writes or repairs them, few commands that write delete a version or write a single shard, and most
locations are on a disk."""


_INDENTED = re.compile(r"^ +from edl_ckpt\.", re.MULTILINE)


def sources(*rooms: str) -> list[Path]:
    """Return the Python files of packages of the project."""
    return [path for room in rooms for path in sorted((TOP / room).rglob("*.py"))]


def name_of(path: Path) -> str:
    """Return the name of the module in a file."""
    parts = path.relative_to(TOP).with_suffix("").parts
    return ".".join(("edl_ckpt", *parts)).removesuffix(".__init__")


def test_commands_are_where_the_catalogue_says() -> None:
    """Each command is one function whose name is that of the command."""
    functions = {
        node.name
        for path in sources("cli/commands")
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef) and any("declared" in ast.unparse(d) for d in node.decorator_list)
    }
    assert functions == {f"{command.replace(' ', '_')}_command" for command in COMMANDS}


def test_no_private_name_of_a_client_is_used() -> None:
    """The requests to S3 go through the public names of the libraries that make them."""
    used = [
        f"{path.relative_to(TOP)}:{node.lineno} {node.attr}"
        for path in sources("core", "cli")
        if any(name in path.read_text(encoding="utf-8") for name in PRIVATE)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and node.attr in PRIVATE
    ]
    assert used == []


def imports_of(nodes: list[ast.stmt]) -> Iterator[str]:
    """Yield the modules that statements import, as `from a import b` names both a and a.b."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Try):
            yield from imports_of(node.body)


def local_imports(tree: ast.Module) -> Iterator[ast.ImportFrom]:
    """Yield the imports inside functions."""
    nodes = list(ast.walk(tree))
    bodies = [(f.lineno, f.end_lineno or 0) for f in nodes if isinstance(f, ast.FunctionDef | ast.AsyncFunctionDef)]
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and any(first <= node.lineno <= last for first, last in bodies):
            yield node


def test_imports_inside_functions_save_start_up_time() -> None:
    """The engine imports a module of its own inside a function only to put off a heavy library, never to hide a circle.

    The library must be one that the importing module does not load in any case.
    """
    texts = {name_of(path): path.read_text(encoding="utf-8") for path in sources("core")}
    trees = {module: ast.parse(text) for module, text in texts.items()}

    direct, below = {}, {}
    for module, tree in trees.items():
        names = {module.rpartition(".")[0], *imports_of(tree.body)}  # Python runs the __init__.py of the package first
        direct[module] = {name.partition(".")[0] for name in names} & HEAVY | {module, *names} & SLOW
        below[module] = names & trees.keys()

    @functools.cache
    def heavy(module: str) -> set[str]:
        seen, waiting = {module}, [module]
        for name in waiting:
            waiting += below[name] - seen
            seen |= below[name]
        return set().union(*(direct[name] for name in seen))

    checked, needless = 0, []
    for module in (module for module, text in texts.items() if _INDENTED.search(text)):
        for node in local_imports(trees[module]):
            if (node.module or "").startswith("edl_ckpt."):
                checked += 1
                wanted = {name for name in imports_of([node]) if name in trees}
                saved = set().union(*(heavy(name) for name in wanted)) - heavy(module)
                if not saved:
                    needless.append(f"{module}:{node.lineno} imports {node.module}")
    assert checked > 0
    assert needless == []


HAND_ON = {
    ("base", ("call",)),  # what a public function got, after a look at its types
    (
        "s3",
        ("begin", "begin_upload", "pages", "request", "request_many", "upload"),
    ),  # parameters, by their names in S3
    ("objects", ("marked", "update")),  # methods of dict and list, with their arguments
}
"""Public functions, by folder, that hand on keywords of a library as they are."""


def test_functions_write_their_parameters_out() -> None:
    """A keyword that is packed into a dict is not checked: a misspelt one would be ignored."""
    packed: dict[str, set[str]] = {}
    for path in sources("core"):
        text = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)) if "**" in text else ():
            if isinstance(node, ast.FunctionDef) and node.args.kwarg and not node.name.startswith("_"):
                packed.setdefault(path.parent.name, set()).add(node.name)
    assert {(folder, tuple(sorted(names))) for folder, names in packed.items()} == HAND_ON


def test_the_door_names_everything_once() -> None:
    """No public name has two homes, and all are listed in order; `tests/docs` compares the file for type checkers."""
    names = [name for names in edl_ckpt.core._HOMES.values() for name in names.split()]
    assert len(set(names)) == len(names)
    assert edl_ckpt.core.__all__ == sorted([*names, "__version__"]) == dir(edl_ckpt.core)
    assert all(hasattr(edl_ckpt.core, name) for name in edl_ckpt.core.__all__)


def test_the_door_has_every_error() -> None:
    """A library user can catch every error of the engine by a public name."""
    errors = ast.parse((TOP / "core/base/errors.py").read_text(encoding="utf-8"))
    assert {node.name for node in errors.body if isinstance(node, ast.ClassDef)} <= set(edl_ckpt.core.__all__)


def test_the_top_level_is_that_of_the_design() -> None:
    """Git tracks nothing at the top level but these names: a package that somebody downloaded stays out."""
    if not (TOP / ".git").exists():
        pytest.skip("not a checkout of git")
    done = subprocess.run(["git", "ls-files"], cwd=TOP, capture_output=True, text=True, timeout=60, check=True)
    hidden = {".ci", ".github", ".gitignore", ".pre-commit-config.yaml", ".src"}
    pages = {"CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "MANIFEST.in", "README.md", "SECURITY.md", "mkdocs.yml"}
    rooms = {"cli", "completions", "core", "docs", "proto", "pyproject.toml", "tests"}
    assert {name.partition("/")[0] for name in done.stdout.splitlines()} == hidden | pages | rooms
