"""Hints for callers of the library: each command is a call that exists, and each option an argument of one."""

from __future__ import annotations

import ast
import inspect
import re
import traceback
from functools import cache
from pathlib import Path

import pytest

import edl_ckpt.core as public
from edl_ckpt.core.base.errors import EdlCkptError, EdlCkptWarning, RefusedError
from edl_ckpt.core.base.progress import WARNINGS
from edl_ckpt.core.base.python_form import CALLS, in_python

CORE = Path(inspect.getfile(public)).parent
_OF_DASK = re.compile(r"--(memory-limit|nthreads|scheduler-file)\b")


def _text(node: ast.expr) -> str | None:
    """Return a text of the source with X in place of each value; None for what is no text."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(str(v.value) if isinstance(v, ast.Constant) else "X" for v in node.values)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "command":
        return " ".join(["edl-ckpt", *(_text(each) or "X" for each in node.args if not isinstance(each, ast.Starred))])
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, right = _text(node.left), _text(node.right)
        return f"{left or 'X'}{right or 'X'}" if left or right else None
    return None


@cache
def _hints() -> tuple[tuple[str, str], ...]:
    """Return each hint of the engine with the module and line of it, and each command that it may be made of."""
    found: list[tuple[str, str]] = []
    for path in sorted(CORE.rglob("*.py")):
        tree = ast.parse(path.read_text())
        values: list[ast.expr] = []
        for node in ast.walk(tree):
            named = [getattr(t, "attr", getattr(t, "id", "")) for t in getattr(node, "targets", ())]
            if isinstance(node, ast.keyword | ast.Assign) and "hint" in [getattr(node, "arg", ""), *named]:
                values.append(node.value)
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "command":
                values.append(node)
        for value in values:
            parts = [value.body, value.orelse] if isinstance(value, ast.IfExp) else [value]
            found += [(f"{path.relative_to(CORE)}:{part.lineno}", text) for part in parts if (text := _text(part))]
    return tuple(found)


def _arguments() -> set[str]:
    """Return the parameters of all public functions and classes of the library."""
    names: set[str] = set()
    for line in (CORE / "__init__.pyi").read_text().splitlines():
        if found := re.search(r" as (\w+)$", line):
            value = getattr(public, found[1])
            if inspect.isfunction(value) or inspect.isclass(value):
                try:
                    names |= set(inspect.signature(value).parameters)
                except ValueError:
                    continue
    return names


def test_the_hints_of_the_engine_are_found() -> None:
    """The search below sees hints of all kinds, so that it cannot pass by finding none."""
    texts = [text for _, text in _hints()]
    assert len(texts) > 200
    assert sum("--" in text for text in texts) > 50
    assert any(text.startswith("edl-ckpt tag add") for text in texts)


def test_no_hint_of_the_library_names_an_option() -> None:
    """In Python every option is an argument, and every argument one of a public function or class."""
    known, wrong = _arguments(), []
    for place, hint in _hints():
        said = in_python(hint)
        names = {name for name in re.findall(r"\b([a-z_]+)=", said) if f"{name}=" not in hint}
        if re.search(r"(?<![\w-])--[a-z]", _OF_DASK.sub("", said)) or names - known:
            wrong.append((place, said))
    assert not wrong


def test_every_command_of_a_hint_is_a_call() -> None:
    """A command that the engine names has a function of the same meaning, and the call is Python."""
    commands = [(place, hint) for place, hint in _hints() if re.fullmatch(r"edl-ckpt [^;]*", hint)]
    assert len(commands) > 20
    for place, hint in commands:
        said = in_python(hint)
        assert said.startswith("edl_ckpt.core."), (place, said)
        call = ast.parse(said, mode="eval").body
        assert isinstance(call, ast.Call)
        assert hasattr(public, ast.unparse(call.func).rpartition(".")[2]), (place, said)


@pytest.mark.parametrize("name", CALLS)
def test_every_call_takes_its_arguments(name: str) -> None:
    """The functions that stand for commands are public."""
    function, _ = CALLS[name](["a@1", "b@2"], [])
    assert callable(getattr(public, function))


@pytest.mark.parametrize(
    ("hint", "said"),
    [
        ("try: edl-ckpt tag add run@1 good --force", "try: edl_ckpt.core.add_tag('run@1', 'good', force=True)"),
        ("a; try: edl-ckpt verify 'my run@1' --deep", "a; try: edl_ckpt.core.verify_version('my run@1', level='deep')"),
        ("edl-ckpt verify run@1 --seal", "edl_ckpt.core.verify_and_seal('run@1')"),
        ("edl-ckpt import f.npz run@7 --ranks 4", "edl_ckpt.core.import_arrays('f.npz', 'run', 7, 4)"),
        ("edl-ckpt import a@1 run@7 --ranks N", "edl_ckpt.core.import_checkpoint('a@1', 'run', 7, N)"),
        ("edl-ckpt copy a@1 NEW --force", "edl_ckpt.core.execute_copy(plan_copy(['a@1'], NEW, force=True))"),
        ("edl-ckpt repair a@1 --from b@1 --mix", "edl_ckpt.core.repair_version('a@1', 'b@1', mix=True)"),
        ("edl-ckpt reshard a@1 --ranks 3 --output o", "edl_ckpt.core.convert_version('a@1', ranks=3, output='o')"),
        ("edl-ckpt prune a --delete 5", "edl_ckpt.core.prune(['a'], Policy(), guards=Guards(delete=(5,)))"),
        ("`inspect` shows it, `export --partial` takes it out",
         "`open_checkpoint` shows it, `export_version(..., partial=True)` takes it out"),
        ("give --keep N, --keep-best N or --keep-within 7d", "give Latest(N), Best(N, METRIC) or Within(604800)"),
        ("use --mode max or --mode min", "use mode='max' or mode='min'"),
        ("wait for it: --lock-wait 10m", "wait for it: wait_seconds=600"),
        ("try: --rename 'user=NEW'", "try: rename=(('user', NEW),)"),
        ("give workers more memory (their --memory-limit)", "give workers more memory (their --memory-limit)"),
        ("did you mean dense/kernel:0?", "did you mean dense/kernel:0?"),
        ("run `edl-ckpt 'half a quote`", "run `edl-ckpt 'half a quote`"),
    ],
)  # fmt: skip
def test_a_hint_in_python(hint: str, said: str) -> None:
    """Commands become calls, options arguments; all other words stay."""
    assert in_python(hint) == said


def test_a_traceback_shows_python_and_the_command_line_its_option() -> None:
    """An error keeps both forms, also if a caller gives it another hint later."""
    error = RefusedError("exists already", path="out", hint="--force replaces it")
    assert (error.hint, error.python_hint) == ("--force replaces it", "force=True replaces it")
    assert traceback.format_exception_only(error)[-1] == "force=True replaces it\n"
    error.add_note("of the caller")
    error.hint = "try: --output LOCATION"
    assert error.__notes__ == ["of the caller", "try: output=LOCATION"]
    error.hint = None
    assert error.__notes__ == ["of the caller"]
    assert EdlCkptError("no way on").python_hint is None


def test_a_warning_of_the_library_is_python() -> None:
    """Python's warnings name arguments, and no options."""
    with pytest.warns(EdlCkptWarning, match=r"^for its scan, add layout='elasticdl'$"):
        WARNINGS.warn("for its scan, add --layout elasticdl")


@pytest.mark.parametrize("name", CALLS)
def test_a_command_without_words_is_a_call(name: str) -> None:
    """A hint may name a command alone: no error of the library fails while it is made."""
    assert "edl-ckpt" not in in_python(f"`edl-ckpt {name}` does it")
