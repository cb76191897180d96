"""The checks of the project agree with each other, and the tests keep their own rules."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from places import TESTS, TOP

CI = (TOP / ".ci" / "run").read_text(encoding="utf-8")
FILES = sorted(TESTS.rglob("*.py"))
TRACKER = re.compile(r"\A(Issue )?\d+(\.\d+)?[:,] |\A[A-Z]\d+: |\b[Ii]ssue \d")
SLEEPERS = {
    "cli/terminal/test_progress.py",  # a command at work while somebody drags the border of its window
    "core/catalog/test_swaps.py",  # a writer that takes its time between two renames
    "core/cluster/test_fault_sweep.py",  # looks whether a worker still takes CPU
    "support/crowd.py",  # a load of many processes, each at a pace of its own
    "support/judges/dcp_saver.py",  # ends a save at an instant, whatever it is doing then
    "support/training_job.py",  # servers and a pruner at a pace of their own
    "support/waiting.py",  # `wait_until` looks again
}


def test_hooks_are_those_of_ci() -> None:
    """Each hook of pre-commit runs a command of `.ci/run lint`, with a tool of the environment, and each has a hook."""
    config = (TOP / ".pre-commit-config.yaml").read_text(encoding="utf-8")
    entries = re.findall(r"entry: (.+)", config)
    (lint,) = re.findall(r"^check_lint\(\) \{\n(.*?)\n\n", CI, re.MULTILINE | re.DOTALL)
    assert entries == [line.strip() for line in lint.splitlines() if not re.match(r" *(#|section )", line)]
    assert len(entries) == config.count("language: system") == config.count("- id: ")
    assert re.findall(r"repo: (.+)", config) == ["local"]


@pytest.mark.parametrize("words", [["all", "of", "it"], ["lnit"]])
def test_ci_takes_no_other_words(words: list[str]) -> None:
    """A part that does not exist is a usage error before anything runs."""
    done = subprocess.run([TOP / ".ci" / "run", *words], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", "usage: .ci/run [lint | test | slow | coverage]\n")


def test_tests_mirror_the_rooms() -> None:
    """Each package of the engine has a folder of tests by its name, or tests in the folders below that."""
    rooms = {path.parent.relative_to(TOP / "core") for path in (TOP / "core").rglob("__init__.py")}
    tested = {path.parent.relative_to(TESTS / "core") for path in (TESTS / "core").rglob("test_*.py")}
    assert tested | {folder.parent for folder in tested} | {Path()} == rooms


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(TESTS)))
def test_each_file(path: Path) -> None:
    """Each test says what must hold, and no test waits for a time instead of an event.

    No test changes a private name: it would break when a module is rewritten, and pass when the product is broken.
    A docstring that begins with the number of an issue says nothing to a reader who has not the tracker.
    """
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    assert [f.name for f in functions if f.name.startswith("test_") and not ast.get_docstring(f)] == []
    documented: list[ast.Module | ast.FunctionDef] = [tree, *functions]
    docs = [ast.get_docstring(node) or "" for node in documented]
    assert [doc for doc in docs if TRACKER.search(doc)] == []
    if str(path.relative_to(TESTS)) not in SLEEPERS and path.parent.name != "bench":  # that looks at intervals
        assert re.findall(r"\btime\.sleep\((?!30\))", text) == []
    if path.parent.name != "judges":  # one of these stands in for a network below a library of another system
        assert list(private_changes(tree)) == []


def private_changes(tree: ast.Module) -> Iterator[str]:
    """Yield where a test sets a private name of a module or an object other than its own `self` or `cls`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Load):
            changed = node.attr if ast.unparse(node.value) not in {"self", "cls"} else ""
        elif isinstance(node, ast.Call) and re.search(r"\b(setattr|delattr|patch(\.object)?)$", ast.unparse(node.func)):
            changed = " ".join(ast.unparse(arg) for arg in node.args[:2] if not isinstance(arg, ast.Lambda))
        else:
            continue
        if re.search(r"(?<!\w)_[a-zA-Z]", changed):
            yield ast.unparse(node)


@pytest.mark.parametrize(
    "change",
    [
        "patched.setattr(module, '_SIZE', 1)",
        "monkeypatch.setattr('edl_ckpt.core._SIZE', 1)",
        "patch.object(module._Class, 'run')",
        "mock.patch('a._b.c')",
        "setattr(thing, '_name', 1)",
        "thing._name = 1",
        "thing._name += 1",
        "del thing._name",
    ],
)
def test_a_private_change_is_seen(change: str) -> None:
    """Each way to change a private name is seen; reading one, or setting a public or special one, is none."""
    assert len(list(private_changes(ast.parse(change)))) == 1
    assert not list(private_changes(ast.parse(change.replace("._b", ".b").replace("_", ""))))
    assert not list(private_changes(ast.parse("self._own = module._read(1); cls.__name__ = name")))


def test_nobody_changes_the_clock_of_all() -> None:
    """A test changes the clock of a module, never that of the process: event loops in other threads sleep by it."""
    changed = re.compile(r"""setattr\((time,|["']time\.)|patch\(["']time\.""")
    assert [str(path) for path in FILES if changed.search(path.read_text(encoding="utf-8"))] == []
