"""Each operation, wherever it runs: what one thread of this machine makes is what every other execution makes.

The columns are the executions and the storage of source and target. A row is added to `OPERATIONS`, and says what its
result is without the places in it: shards to the byte, findings and differences as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bucket_parts import in_bucket, nothing_is_left
from builders import models, write_checkpoint
from checkpoints import only, save_mixed, save_varied, shards_of
from edl_ckpt.core import (
    Changes,
    Table,
    convert_version,
    diff_versions,
    execute_copy,
    export_version,
    import_arrays,
    import_checkpoint,
    open_checkpoint,
    plan_copy,
    reshard_version,
    save_checkpoint,
    verify_version,
)
from edl_ckpt.core.base.parallel import Threads
from edl_ckpt.core.operations.diff import tables as by_tables
from examples import examples
from oracle import Model
from s3_fixtures import Bucket

FORMATS: Final = {"safetensors": "m.safetensors", "npy": "m.npy", "npz": "m.npz"}


@dataclass(frozen=True)
class Cell:
    """Where an operation reads and writes, and with what."""

    source: str
    target: str
    executor: Any
    changed: str = ""
    """A location with a changed version of the source."""
    exports: str = ""
    """Where exports of the source are."""


def verified(cell: Cell) -> Any:
    """Return what a deep verification finds."""
    result = verify_version(only(cell.source), level="deep", executor=cell.executor)
    return result.ok, result.sealed, result.fingerprint, [finding.code for finding in result.findings]


def compared(cell: Cell, **options: Any) -> Any:
    """Return all differences, with as many digits of measures as two orders of summing must agree on."""
    result = diff_versions(only(cell.source), only(cell.changed), executor=cell.executor, **options)
    tables = [
        replace(
            table,
            l2=digits(table.l2),
            relative=digits(table.relative),
            top=tuple(replace(row, l2=digits(row.l2) or 0.0) for row in table.top),
        )
        for table in result.tables
    ]
    return result.equal, result.variables, tables


def digits(value: float | None) -> float | None:
    """Return a measure with nine digits."""
    return None if value is None else float(f"{value:.9g}")


def resharded(cell: Cell) -> Any:
    """Return what a reshard to five servers says; its shards are compared by the caller."""
    result = reshard_version(only(cell.source), 5, output=cell.target, executor=cell.executor)
    return result.fingerprint, result.rows, result.size_bytes


def copied(cell: Cell) -> Any:
    """Return what a copy says."""
    result = execute_copy(plan_copy([only(cell.source)], cell.target), executor=cell.executor)
    return result.bytes_copied, result.copied[0].fingerprint


def imported(cell: Cell, form: str) -> Any:
    """Return what an import of an export says."""
    result = import_arrays(f"{cell.exports}/{FORMATS[form]}", cell.target, 5, 4, executor=cell.executor)
    return result.fingerprint, result.rows, result.size_bytes


def imported_checkpoint(cell: Cell) -> Any:
    """Return what an import of the version itself says."""
    result = import_checkpoint(only(cell.source), cell.target, 9, 4, executor=cell.executor)
    return result.fingerprint, result.rows, result.size_bytes


CHANGES: Final = {
    "varied": Changes(
        drop=("layer_3/kernel:0",),
        rows=("user where id < 0",),
        cast=(("user", "float64"), ("layer_*", "float32")),
        rename=(("user", "people"), ("layer_*", "l/*")),
    ),
    "mixed": Changes(
        drop=("b",),
        rows=("narrow where id < 0",),
        cast=(("wide", "float32"), ("w", "float16")),
        rename=(("narrow", "people"), ("w", "l/w")),
    ),
}
"""What an edit changes of each version: it leaves out values and rows, casts and renames."""


def edited(cell: Cell) -> Any:
    """Return what an edit to four servers says."""
    version = only(cell.source)
    with open_checkpoint(version) as checkpoint:
        changes = CHANGES["varied" if "user" in checkpoint.tables else "mixed"]
    result = convert_version(version, 4, output=cell.target, changes=changes, executor=cell.executor)
    return result.fingerprint, result.rows, result.left_out, result.untouched, result.overflowed, result.items


OPERATIONS: Final[dict[str, Callable[[Cell], Any]]] = {
    "verify": verified,
    "diff": compared,
    "diff --top": lambda cell: compared(cell, top=5),
    "diff --rows": lambda cell: compared(cell, rows=True),
    "diff --tolerance": lambda cell: compared(cell, tolerance=2.0),
    "reshard": resharded,
    "copy": copied,
    "import of safetensors": lambda cell: imported(cell, "safetensors"),
    "import of npy": lambda cell: imported(cell, "npy"),
    "import of npz": lambda cell: imported(cell, "npz"),
    "import of a checkpoint": imported_checkpoint,
    "edit": edited,
}


def save_changed(source: Path, changed: Path) -> None:
    """Save a version like another one, on four servers: rows and variables differ, are gone and new."""
    with open_checkpoint(only(source)) as checkpoint:
        variables = {name: np.array(checkpoint.variable(name)) for name in checkpoint.variable_names}
        tables = {name: checkpoint.table(name).to_numpy() for name in checkpoint.tables}
    del variables[min(variables)]
    variables[max(variables)] = variables[max(variables)] + 1
    kept: dict[str, tuple[Any, Any]] = {name: (rows.ids[1:], rows.vectors[1:].copy()) for name, rows in tables.items()}
    for _, vectors in kept.values():
        vectors[::7] += 1
    new = Table(np.arange(9), np.ones((9, 2), np.float32))
    save_checkpoint(changed, 7, 4, variables=variables, tables={**kept, "new": new})


@pytest.fixture(scope="module", params=["mixed", "varied"])
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with a version in `run`, a changed one in `changed`, and exports of the first."""
    top = tmp_path_factory.mktemp(request.param)
    if request.param == "mixed":
        save_mixed(top / "run")
    else:
        save_varied(top / "run", 3)
    save_changed(top / "run", top / "changed")
    (top / "exports").mkdir()
    for name in FORMATS.values():
        export_version(only(top / "run"), top / "exports" / name)
    return top


@pytest.fixture(scope="module")
def expected(made: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Any, dict[str, bytes]]]:
    """Return what each operation makes with one thread on this machine: its result, and its shards."""
    top = tmp_path_factory.mktemp("one thread")
    outcomes = {}
    for number, (name, operation) in enumerate(OPERATIONS.items()):
        target = top / str(number)
        cell = Cell(str(made / "run"), str(target), Threads(1), str(made / "changed"), str(made / "exports"))
        outcomes[name] = operation(cell), shards_of(target)
    return outcomes


@pytest.fixture(autouse=True)
def large_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let tables of 10 KB be large to a diff."""
    monkeypatch.setattr(by_tables, "SMALL_BYTES", 10_000)


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("execution", ["two threads", "a cluster"])
def test_on_a_disk(
    made: Path, expected: Any, tmp_path: Path, client: Any, small_parts: None, operation: str, execution: str
) -> None:
    """On a directory that all share, threads and a cluster make the same, and leave nothing but that."""
    executor = Threads(2) if execution == "two threads" else client
    target = tmp_path / "out"
    cell = Cell(str(made / "run"), str(target), executor, str(made / "changed"), str(made / "exports"))
    assert (OPERATIONS[operation](cell), shards_of(target)) == expected[operation]
    assert not list(target.glob(".edl-ckpt-0/stage-0/*"))
    assert not shards_of(target) or verify_version(only(target), level="deep").sealed


WAYS: Final = {"disk to bucket": "mixed", "bucket to disk": "mixed", "bucket to bucket": "varied"}
"""Where an operation reads and writes, and the version for it."""
WITH_A_BUCKET: Final = [
    pytest.param(made, way, name, marks=() if row % len(WAYS) == column else pytest.mark.slow)
    for row, name in enumerate(name for name in OPERATIONS if not name.startswith("diff --"))
    for column, (way, made) in enumerate(WAYS.items())
]
"""All of them; the suite takes one way for each operation, in turn."""


@pytest.mark.parametrize(("made", "way", "operation"), WITH_A_BUCKET, indirect=["made"])
def test_with_a_bucket(
    made: Path, expected: Any, s3: Bucket, tmp_path: Path, client: Any, small_parts: None, way: str, operation: str
) -> None:
    """A cluster makes the same from a bucket and in a bucket, where each byte is sent once."""
    source, target = str(made), str(tmp_path / "out")
    if way.startswith("bucket"):
        source = f"s3://{s3.name}/from"
        for file in (path for path in made.rglob("*") if path.is_file()):
            s3.put(f"from/{file.relative_to(made)}", file.read_bytes())
    if way.endswith("bucket"):
        target = s3.url
    s3.proxy.reset()
    result = OPERATIONS[operation](Cell(f"{source}/run", target, client, f"{source}/changed", f"{source}/exports"))
    shards = in_bucket(s3) if way.endswith("bucket") else shards_of(Path(target))
    assert (result, shards) == expected[operation]
    assert s3.proxy.request_bytes("upload_part") == (sum(map(len, shards.values())) if way.endswith("bucket") else 0)
    nothing_is_left(s3)
    assert not shards or verify_version(only(target), level="deep").sealed


ANY: Final = ["verify", "reshard", "copy", "import of safetensors", "import of a checkpoint"]


@examples(4)
@given(
    model=models(), before=st.integers(1, 4), old=st.sampled_from(["v1", "v3", "v4"]), operation=st.sampled_from(ANY)
)
def test_any_model(
    tmp_path_factory: pytest.TempPathFactory, client: Any, model: Model, before: int, old: str, operation: str
) -> None:
    """Any model in any generation, on any number of servers, gives the same on a cluster."""
    top = tmp_path_factory.mktemp("any")
    write_checkpoint(top / "run", model, before, generation=old)
    if operation.startswith("import of s"):
        export_version(only(top / "run"), top / FORMATS["safetensors"])
    outcomes = []
    for name, executor in (("here", Threads(1)), ("there", client)):
        cell = Cell(str(top / "run"), str(top / name), executor, exports=str(top))
        outcomes.append((OPERATIONS[operation](cell), shards_of(top / name)))
    assert outcomes[1] == outcomes[0]


@examples(2)
@given(model=models(), before=st.integers(1, 4), operation=st.sampled_from(ANY[1:]))
def test_any_model_to_a_bucket(
    tmp_path_factory: pytest.TempPathFactory,
    s3: Bucket,
    client: Any,
    small_parts: None,
    model: Model,
    before: int,
    operation: str,
) -> None:
    """Any model gives the same in a bucket."""
    top = tmp_path_factory.mktemp("any")
    s3.delete(*s3.objects())
    write_checkpoint(top / "run", model, before)
    if operation.startswith("import of s"):
        export_version(only(top / "run"), top / FORMATS["safetensors"])
    here = OPERATIONS[operation](Cell(str(top / "run"), str(top / "here"), Threads(1), exports=str(top)))
    there = OPERATIONS[operation](Cell(str(top / "run"), s3.url, client, exports=str(top)))
    assert (there, in_bucket(s3)) == (here, shards_of(top / "here"))
    nothing_is_left(s3)
