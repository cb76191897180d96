"""Counters of the code's shape, which `tests/test_structure.py` holds: each is a sign of one idea written twice.

A line of code has a token of code: no blank line, comment or docstring. Python of core and cli counts, without what
protoc made.
"""

from __future__ import annotations

import ast
import io
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

_NO_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
    tokenize.ENCODING,
}
_PRIVATE_CLIENT = {"_endpoint", "_get_conn", "_request_signer", "_new_conn", "_put_conn", "_client_config"}
_PRIVATE_CLIENT |= {"_convert_to_request_dict", "_emit_api_params"}
"""Private names of botocore and urllib3."""
_WORN = {"found", "at", "place", "each", "some", "own"}
"""Names that have stood for so many things that they say nothing any more."""


def sources(top: Path) -> dict[str, str]:
    """Return the text of each Python file of core and cli, by its path."""
    paths = sorted(path for room in ("core", "cli") for path in (top / room).rglob("*.py"))
    return {str(path.relative_to(top)): path.read_text(encoding="utf-8") for path in paths if "_pb2" not in path.name}


def counted(texts: Mapping[str, str]) -> Counter[str]:
    """Return all counters of a set of files."""
    counts: Counter[str] = Counter()
    classes, functions = defaultdict[str, set[str]](set), set[str]()
    works = set[tuple[str, str]]()
    for path, text in texts.items():
        tree = ast.parse(text)
        counts["code lines"] += code_lines(text, tree)
        for node in ast.walk(tree):
            counts.update(_signs(node))
            if isinstance(node, ast.FunctionDef):
                functions.add(node.name)
            elif isinstance(node, ast.ClassDef):
                methods = {child.name for child in node.body if isinstance(child, ast.FunctionDef)}
                above = set[str]().union(*map(_names, node.bases))
                if {"open", "do"} <= methods or any("Work" in name for name in above):
                    works.add((path, node.name))
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                classes[node.name.lstrip("_")].add(path)
    pairs = {name for name in functions if name.endswith("_by") and _is_twin(name.removesuffix("_by"), functions)}
    counts["functions with a twin"] = len(pairs)
    counts["classes of work"] = len(works)
    counts["class names in two modules"] = sum(len(paths) > 1 for paths in classes.values())
    return counts


def code_lines(text: str, tree: ast.Module) -> int:
    """Return how many lines have code."""
    docstrings, code = set[int](), set[int]()
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        for child in body if isinstance(body, list) else ():
            if (
                isinstance(child, ast.Expr)
                and isinstance(child.value, ast.Constant)
                and isinstance(child.value.value, str)
            ):
                docstrings.update(range(child.lineno, (child.end_lineno or 0) + 1))
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _NO_CODE:
            code.update(range(token.start[0], token.end[0] + 1))
    return len(code - docstrings)


def _signs(node: ast.AST) -> Iterator[str]:
    """Yield the counters that one node of a tree counts for."""
    if isinstance(node, ast.Attribute) and node.attr in {"elsewhere", "is_cluster"}:
        yield "forks by executor"
    if isinstance(node, ast.Attribute) and node.attr in _PRIVATE_CLIENT:
        yield "private names of clients"
    if (isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id in _WORN) or (
        isinstance(node, ast.arg) and node.arg in _WORN
    ):
        yield "worn names"
    if isinstance(node, ast.Call):
        called = getattr(node.func, "id", getattr(node.func, "attr", ""))
        if called == "open_store":
            yield "stores opened"
        if called == "isinstance" and "LocalStore" in _names(node.args[-1]):
            yield "forks by store"
        if called in {"getattr", "hasattr"} and "kernel" in _names(node.args[0]):
            yield "guards for other kernels"


def _names(node: ast.AST) -> set[str]:
    """Return the names and attributes in an expression."""
    return {child.id for child in ast.walk(node) if isinstance(child, ast.Name)} | {
        child.attr for child in ast.walk(node) if isinstance(child, ast.Attribute)
    }


def _is_twin(name: str, functions: set[str]) -> bool:
    """Say whether a function is there under this name, too, or under this name and `_checkpoint`."""
    return name in functions or f"{name}_checkpoint" in functions
