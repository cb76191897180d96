"""A version is compared with a file of digests, name by name, and what is compared with nothing is counted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edl_ckpt.core import Table, save_checkpoint, verify_version
from edl_ckpt.core.base.errors import UsageError
from edl_ckpt.core.operations.verify.findings import Against
from edl_ckpt.core.proof.digests import read_digests, save_digests
from program import edl


def save(location: Path, step: int, **changes: Any) -> str:
    """Save a version with two variables and a table, some of them changed, and return its reference."""
    variables = {"w": np.arange(6.0), "b": np.zeros(2, np.float32)} | changes
    rows = variables.pop("rows", np.ones((4, 2), np.float32))
    tables = {} if rows is None else {"user": Table(np.arange(4), rows)}
    found = {name: value for name, value in variables.items() if value is not None}
    return save_checkpoint(str(location), step, 2, variables=found, tables=tables).ref


@pytest.fixture
def digests(tmp_path: Path) -> str:
    """The file of digests of step 1."""
    result = verify_version(save(tmp_path / "run", 1), level="deep")
    assert result.content is not None
    path = str(tmp_path / "digests.json")
    save_digests(path, result.content)
    return path


def test_equal_in_another_version(digests: str, tmp_path: Path) -> None:
    """The same content in another version is equal; a name more is no fault, and is counted."""
    result = verify_version(save(tmp_path / "run", 2, more=np.ones(1)), level="deep", against=digests)
    assert result.ok
    assert result.against == Against(digests, 3, 3, (), (), 1)


@pytest.mark.parametrize(
    ("change", "code", "subject"),
    [
        ({"w": np.arange(6.0) + 1}, "against-differs", "w"),
        ({"w": np.arange(6.0).reshape(2, 3)}, "against-differs", "w"),
        ({"w": None}, "against-missing", "w"),
        ({"rows": np.zeros((4, 2), np.float32)}, "against-differs", "user"),
        ({"rows": None}, "against-missing", "user"),
        ({"rows": None, "user": np.ones((4, 2), np.float32)}, "against-differs", "user"),
    ],
    ids=["value", "shape", "variable", "row", "table", "kind"],
)
def test_other_content(change: dict[str, Any], code: str, subject: str, digests: str, tmp_path: Path) -> None:
    """Other content is an error that names it; the version itself is not called damaged for it."""
    result = verify_version(save(tmp_path / "run", 2, **change), level="deep", against=digests)
    assert [(f.code, f.subject, f.severity) for f in result.findings] == [(code, subject, "error")]
    assert result.against is not None
    assert result.against.equal == 2
    assert (result.against.differing or result.against.missing) == (subject,)
    assert not result.ok
    assert not result.own_errors


def test_damage(digests: str, tmp_path: Path) -> None:
    """Of a version that cannot be read whole, nothing is called equal."""
    assert digests
    shard = min((tmp_path / "run").rglob("*.chkpt"))
    shard.write_bytes(shard.read_bytes()[:-3])
    result = verify_version(f"{tmp_path / 'run'}@1", level="deep", against=digests)
    assert result.against == Against(digests, 3, 0, (), ("b", "w", "user"), 0)
    assert result.own_errors


def test_only_deep(digests: str, tmp_path: Path) -> None:
    """At another level no digest is known."""
    with pytest.raises(UsageError, match="level deep"):
        verify_version(f"{tmp_path / 'run'}@1", against=digests)


def test_program(digests: str, tmp_path: Path) -> None:
    """The program writes and compares digests: 0 for equal, 3 for others, 5 for a file that is none, 10 for none."""
    save(tmp_path / "run", 2, w=np.ones(1))
    one, other, made = f"{tmp_path / 'run'}@1", f"{tmp_path / 'run'}@2", str(tmp_path / "made.json")
    assert edl("verify", one, "--digests", made).returncode == 0
    assert read_digests(made).variables == read_digests(digests).variables
    done = edl("verify", one, "--against", made)
    assert (done.returncode, f"3 of 3 names in {made} are equal" in done.stdout) == (0, True)
    done = edl("verify", other, "--against", made, "--json")
    assert done.returncode == 3
    assert json.loads(done.stdout)["against"]["differing"] == ["w"]
    Path(made).write_text("{}")
    assert edl("verify", one, "--against", made).returncode == 5
    assert edl("verify", one, "--against", str(tmp_path / "none.json")).returncode == 10
    for options in (["--quick"], ["--seal"], ["--all"], ["--sample", "5%"]):
        assert edl("verify", one, "--against", digests, *options).returncode == 2
