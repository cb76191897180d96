"""Nothing outside of the folder of a source knows how its files are spelled, tagged or placed."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from places import TOP

KNOWING = ("core/sources/", "core/kernel/")
"""The rooms of the engine that may know a format."""
NAMES = re.compile(r"variables-|-of-|\.c?h?kpt\b|version[-_]\{|model_v")
"""Spellings of ElasticDL's files and directories."""
REASONS = {
    "cli/options/arguments.py": "the endings that an export to a file has",
    "core/converting/destinations/bundle.py": "the data files of a bundle, as TensorFlow numbers them",
    "core/operations/export/formats/merged_checkpoint.py": "the endings of an export as one shard",
    "core/operations/export/cluster/files.py": "parts of a table in a set of safetensors, as Hugging Face names files",
    "core/operations/importing/__init__.py": "the endings that tell a checkpoint from arrays",
    "core/converting/destinations/torch.py": "the endings of the files that it writes anew",
    "core/catalog/record.py": "the directories from which jobs of Lightning go on",
    "core/state/shard_note.py": "the names of our own notes on shards",
}
"""Modules outside of these rooms that have such a text, and why."""
COUNTS = {
    "core/reading/gather.py": "the shards that can have rows of a server, by the common divisor",
}
"""Modules that count modulo a number of shards, and why."""


def modules(words: re.Pattern[str]) -> Iterator[tuple[str, ast.Module]]:
    """Yield the modules of the engine and of the program outside of these rooms that have one of these words."""
    for path in sorted([*(TOP / "core").rglob("*.py"), *(TOP / "cli").rglob("*.py")]):
        name = path.relative_to(TOP).as_posix()
        if not name.startswith(KNOWING):
            text = path.read_text(encoding="utf-8")
            if words.search(text):
                yield name, ast.parse(text)


def texts(tree: ast.Module) -> Iterator[str]:
    """Yield the strings of a module that are no docstrings."""
    docs = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs:
            yield node.value


def test_names_of_files_are_known_to_their_source() -> None:
    """No other module spells or reads the name of a version's directory or of a shard."""
    spelled = {name for name, tree in modules(NAMES) if any(map(NAMES.search, texts(tree)))}
    assert spelled == set(REASONS)


def test_placement_is_a_value() -> None:
    """No other module computes the shard of an id: the kernel does it, by the rule of the layout."""
    counting = {
        name
        for name, tree in modules(re.compile(r"%|\bmod\b"))
        for node in ast.walk(tree)
        if (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod) and "ps_num" in ast.unparse(node.right))
        or (isinstance(node, ast.Call) and ast.unparse(node.func) == "np.mod")
    }
    assert counting == set(COUNTS)


def test_tags_are_known_to_their_source() -> None:
    """No other module makes or reads the tag of a field, or imports a message of protobuf."""
    tagging: set[str] = set()
    for name, tree in modules(re.compile(r"<<|>>|proto")):
        for node in ast.walk(tree):
            if isinstance(node, ast.BinOp) and isinstance(node.op, ast.LShift | ast.RShift):
                tagging |= {name} if ast.unparse(node.right) == "3" else set()
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("edl_ckpt.proto"):
                tagging.add(name)
    assert tagging == set()
