"""The shape of the code: short commands, short files, imports at the top of modules unless they cost start-up time."""

from __future__ import annotations

import ast
import functools
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import edl_ckpt.core
from counters import counted
from counters import sources as texts_of
from edl_ckpt.cli.catalogue import COMMANDS
from places import TOP

MAX_COMMAND_LINES = 30
MAX_CODE_LINES = 46_000
COUNTS = {
    "class names in two modules": 7,
    "classes of work": 3,
    "forks by executor": 9,
    "forks by store": 3,
    "functions with a twin": 0,
    "guards for other kernels": 0,
    "private names of clients": 0,
    "stores opened": 24,
    "worn names": 824,
}
"""Signs of one idea written twice (`counters`). They only fall, and a lower number is written here."""
MAX_C_LINES = 800
MAX_FILE_LINES = 520
LONG_FILES: dict[str, str] = {}
"""Files that may have more lines, each with the reason."""

HEAVY = frozenset({"numpy", "xxhash", "google", "email", "botocore", "fsspec", "asyncio", "tempfile", "http"})
"""Libraries that cost more than 5 ms of start-up time: only a command that needs them may import them."""
SLOW = frozenset({"edl_ckpt.core.model.tables"})
"""Our own modules that do, by their many classes: no listing needs the contents of shards."""


def sources(*rooms: str) -> list[Path]:
    """Return the Python files of packages of the project."""
    return [path for room in rooms for path in sorted((TOP / room).rglob("*.py"))]


def name_of(path: Path) -> str:
    """Return the name of the module in a file."""
    parts = path.relative_to(TOP).with_suffix("").parts
    return ".".join(("edl_ckpt", *parts)).removesuffix(".__init__")


def body_lines(function: ast.FunctionDef) -> int:
    """Return the number of lines of a function's statements, without its docstring and its imports."""
    first = function.body[0]
    is_docstring = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
    statements = function.body[1:] if is_docstring else function.body
    return sum(
        (s.end_lineno or s.lineno) - s.lineno + 1 for s in statements if not isinstance(s, ast.Import | ast.ImportFrom)
    )


def test_commands_are_short() -> None:
    """A command parses its options, calls the engine and renders the result; more is work for the engine."""
    functions = {
        node.name: node
        for path in sources("cli/commands")
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef) and any("declared" in ast.unparse(d) for d in node.decorator_list)
    }
    assert set(functions) == {f"{command.replace(' ', '_')}_command" for command in COMMANDS}
    lines = {name: body_lines(function) for name, function in functions.items()}
    assert {name: count for name, count in lines.items() if count > MAX_COMMAND_LINES} == {}


def test_files_are_short() -> None:
    """No file is too long to read, except those with a reason; no reason outlives its file."""
    lines = {
        str(path.relative_to(TOP)): len(path.read_text(encoding="utf-8").splitlines())
        for path in sources("core", "cli")
    }
    assert len(lines) > 100
    assert {name: count for name, count in lines.items() if count > MAX_FILE_LINES and name not in LONG_FILES} == {}
    assert {name for name in LONG_FILES if lines.get(name, 0) <= MAX_FILE_LINES} == set()


def test_nothing_is_written_twice() -> None:
    """The code stays below its ceiling, and each sign of an idea that is written twice is counted, and never rises."""
    counts = counted(texts_of(TOP))
    assert 10_000 < counts.pop("code lines") <= MAX_CODE_LINES
    assert +counts == {name: count for name, count in COUNTS.items() if count}  # without zeros


def test_the_counters_count() -> None:
    """Each sign is seen in a file that has it."""
    twice = """
class _Task:
    def open(self): ...
    def do(self): ...
def sum_by(store, found): return store._endpoint, store.is_cluster
def sum(store): return open_store(store), isinstance(store, (LocalStore, Other)), hasattr(kernel, "x")  # one line
"""
    counts = counted({"core/a.py": twice, "cli/b.py": "class Task: ..."})
    assert counts.pop("code lines") == 6
    assert dict(counts) == dict.fromkeys(COUNTS, 1)


def test_c_files_are_short() -> None:
    """The kernel is in files by subject."""
    lines = {path.name: len(path.read_text(encoding="utf-8").splitlines()) for path in (TOP / "core").rglob("*.c")}
    assert len(lines) > 5
    assert {name: count for name, count in lines.items() if count > MAX_C_LINES} == {}


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
    trees = {name_of(path): ast.parse(path.read_text(encoding="utf-8")) for path in sources("core")}

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
    for module, tree in trees.items():
        for node in local_imports(tree):
            if (node.module or "").startswith("edl_ckpt."):
                checked += 1
                wanted = {name for name in imports_of([node]) if name in trees}
                saved = set().union(*(heavy(name) for name in wanted)) - heavy(module)
                if not saved:
                    needless.append(f"{module}:{node.lineno} imports {node.module}")
    assert checked > 0
    assert needless == []


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
