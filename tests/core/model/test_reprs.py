"""The `repr` of a public object says what it is, in one short line without values, whatever names files have."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import edl_ckpt.core as edl
from edl_ckpt.core.base.progress import SILENT

HOSTILE = "t\x1b[2J\n\u202e" + "n" * 3000
LIMIT = 600
SMALL = {
    "CheckpointRef": "a location and a word",
    "Location": "its `repr` leaves out the options",
    "Policy": "a few rules, which are what it says",
    "Changes": "what a person asked for",
    "LeftOut": "plain texts and numbers of one name",
    "NameMap": "what a person wrote in a file",
    "NamePairs": "what a person wrote in a file",
    "Selection": "what a person asked for",
    "Guards": "what a person asked for",
    "Tagged": "what a person asked for",
    "DenseEntry": "plain texts and numbers of one variable",
    "Finding": "three ids at most",
    "PruneEntry": "plain texts and numbers of one version",
    "SavedShard": "plain texts and numbers of one shard",
    "TableDiff": "plain texts and numbers of one table",
    "TableEntry": "plain texts and numbers of one table in one shard",
    "TableSummary": "plain texts and numbers of one table",
    "Target": "plain texts, and a version",
    "VariableSummary": "plain texts and numbers of one variable",
}
"""Public dataclasses with fields of any length that keep the `repr` of a dataclass, each with the reason."""


@pytest.fixture(scope="module")
def objects(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """One public object of each kind, of a location with a hostile name and many variables."""
    run = tmp_path_factory.mktemp("run") / "r\x1b[2J\n"
    names = {f"{HOSTILE}{number}": np.zeros(2) for number in range(300)}
    table = edl.Table(np.arange(2000), np.ones((2000, 2), np.float32), HOSTILE[:50])
    version = edl.save_checkpoint(run, 1, 100, variables=names, tables={HOSTILE: table})
    (run / HOSTILE[:9]).mkdir()
    edl.save_checkpoint(run, 2, 1, variables=names, tables={HOSTILE: table})
    found = list(_of_version(version, run, run.parent / "out\x1b"))
    checkpoint = next(each for each in found if isinstance(each, edl.Checkpoint))
    survey = edl.survey_ids(checkpoint, 5)
    target = edl.free_target(run.parent / "new", 1)
    found += [survey, target, edl.plan_reshard(survey, target), edl.fingerprint_checkpoint(checkpoint), table]
    checkpoint.close()
    return {type(each).__name__: each for each in found}


def _of_version(version: edl.Version, run: Path, out: Path) -> Iterator[Any]:
    checkpoint = edl.open_checkpoint(version)
    policy = edl.Policy((edl.Latest(1),))
    yield from (version, edl.list_versions(run), checkpoint, checkpoint.shards[0], checkpoint.table(HOSTILE))
    yield from (checkpoint.table(HOSTILE).to_numpy(), checkpoint.restore(0, 1), checkpoint.tables[HOSTILE])
    yield edl.look_up(version, HOSTILE, [1, 5000])
    yield edl.tensor_stats(checkpoint, tables=[HOSTILE], variables=[])[0]
    yield edl.summarize(version, checkpoint.shards)
    yield edl.verify_version(version)
    yield edl.verify_versions([version])
    yield edl.diff_versions(version, f"{run}@2", rows=True)
    yield edl.export_version(version, f"{out}.npz")
    yield edl.import_arrays(f"{out}.npz", f"{out}-import", 1, 2)
    yield (copy := edl.plan_copy([version], f"{out}-copy"))
    yield edl.execute_copy(copy)
    yield edl.reshard_version(version, 3, output=f"{out}-reshard")
    yield (plan := edl.plan_prune([run], policy))
    yield edl.execute_prune(plan, trash=True)
    yield edl.recover(run)
    yield edl.Progress()


def public_classes() -> dict[str, type[Any]]:
    """Return the public classes that are dataclasses or named tuples, by name."""
    classes = {name: getattr(edl, name) for name in edl.__all__ if isinstance(getattr(edl, name), type)}
    return {n: c for n, c in classes.items() if dataclasses.is_dataclass(c) or hasattr(c, "_fields")}


def test_every_class_is_short() -> None:
    """A public class with a field of any length (a tuple, a mapping, an array) has a `repr` of its own."""
    dumping = set()
    for name, kind in public_classes().items():
        words = ("tuple[", "Mapping[", "dict[", "NDArray", "list[", "I64", "Array")
        fields = [str(hint) for hint in kind.__annotations__.values()]
        generated = "__repr__" not in vars(kind) or hasattr(kind.__repr__, "__wrapped__")  # as `dataclass` makes it
        if generated and any(word in field for field in fields for word in words):
            dumping.add(name)
    assert dumping <= set(SMALL)


def test_reprs_are_short_lines(objects: dict[str, Any]) -> None:
    """Each is one printable line that begins with the class, and grows neither with names nor with what it has."""
    assert len(objects) > 20
    for name, each in objects.items():
        text = repr(each)
        assert text.isprintable(), name
        assert text.startswith((f"<{name} ", f"{name}(")), text
        assert len(text) < LIMIT, f"{name}: {len(text)} characters"
        assert "array(" not in text, name


def test_what_they_say(objects: dict[str, Any]) -> None:
    """A few of them, word for word behind their subject."""
    ends = {
        "Version": "@1: complete, 100 shards, 1.5 MiB, design>",
        "Rows": "<Rows 2000 x 2 float32>",
        "Part": "<Part of version 1: 300 variables, 1 table, 2000 rows>",
        "Lookup": ": 1 row of 2 float32, 1 id missing>",
        "Table": "<Table 2000 x 2 float32, ",
        "PrunePlan": ": delete 1 of 2 versions, ",
        "Progress": "<Progress 0 of 0 bytes, 0 warnings>",
    }
    for name, words in ends.items():
        assert words in repr(objects[name]), repr(objects[name])
    assert repr(SILENT) == "SILENT"
