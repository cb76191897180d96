"""State that a newer edl-ckpt wrote: it is named as that, and no command changes, removes or sets aside any of it."""

from __future__ import annotations

import json
import os
import shutil
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hostile_state
from checkpoints import at, numbers
from edl_ckpt.core import Guards, Policy, add_tag, prune, recover, save_checkpoint, verify_version
from edl_ckpt.core.base.errors import UnsupportedError
from edl_ckpt.core.operations.prune.retention import Latest
from edl_ckpt.core.storage import LocalStore, open_store
from hostile_state import META, STAGE, facts, put, record, run_command, stage, trash

NEWER = "written by a newer edl-ckpt"


def of_meta(name: str, schema: str) -> Callable[[Path], Path]:
    """Return what puts a newer file among the metadata; the rest of an existing one stays as it is."""

    def make(run: Path) -> Path:
        path = run / META / name
        document = json.loads(path.read_bytes()) if path.exists() else {"labels": ["x"]}
        put(path, {"schema": schema} | document | {"schema": schema})
        return path

    return make


def note(run: Path) -> Path:
    (run / META / "20.seal.json").unlink()
    path = run / ".edl-ckpt-0/shards-0/20/0-of-2.e4a6a0577479b2b4.1_2_3.json"
    put(path, '{"schema": "edl-ckpt/shard/9", "run": ""}\nsums')
    os.utime(path, (1, 1))
    return path


def newer_journal(version: int, **more: Any) -> dict[str, Any]:
    return hostile_state.journal(version, f"version-{version}", **more) | {"schema": "edl-ckpt/journal/9"}


def copy_journal(run: Path) -> Path:
    place = stage(run, 1, journal=newer_journal(40, source="x"))
    return place.rename(run / STAGE / "copy-40") / "journal.json"


KINDS: Mapping[str, Callable[[Path], Path]] = {
    "seal": of_meta("20.seal.json", "edl-ckpt/seal/9"),
    "metadata": of_meta("20.json", "edl-ckpt/meta/9"),
    "metadata of a version that is gone": of_meta("25.json", "edl-ckpt/meta/9"),
    "location": of_meta("location.json", "edl-ckpt/location/9"),
    "manager": of_meta("manager.json", "edl-ckpt/manager/9"),
    "note": note,
    "journal": lambda run: stage(run, 1, journal=newer_journal(20)) / "journal.json",
    "copy": copy_journal,
    "trash": lambda run: trash(run, 1, record(5) | {"schema": "edl-ckpt/trash/9"}) / "record.json",
}
COMMANDS: Mapping[str, tuple[str, ...]] = {
    "list": ("list", "run"),
    "inspect": ("inspect", "run@20"),
    "verify": ("verify", "run@20"),
    "verify --all": ("verify", "run", "--all"),
    "verify --seal": ("verify", "run@20", "--seal", "--force"),
    "export": ("export", "run@20", "out.npz", "--ignore-seal"),
    "tag add": ("tag", "add", "run@30", "serving"),
    "tag add it": ("tag", "add", "run@20", "serving"),
    "metrics set": ("metrics", "set", "run@20", "auc=0.5"),
    "policy set": ("policy", "set", "run", "--keep", "5"),
    "prune": ("prune", "run", "--keep", "1", "--yes"),
    "prune --purge": ("prune", "run", "--keep", "9", "--purge", "--yes"),
    "prune --delete": ("prune", "run", "--delete", "20", "--yes"),
    "reshard": ("reshard", "run@20", "--ps", "3", "--force"),
    "reshard --output": ("reshard", "run@20", "--ps", "3", "--output", "out"),
    "import": ("import", "arrays.npz", "run@50", "--ps", "2", "--layout", "elasticdl"),
    "recover": ("recover", "run", "--drop-copies"),
    "undo": ("undo", "run"),
    "copy": ("copy", "run@20", "target", "--force"),
    "unlock": ("unlock", "run", "--yes"),
}
FROM_IT = {"verify --seal", "export", "reshard", "reshard --output", "copy"}
WRITING = set(COMMANDS) - {
    "list", "inspect", "verify", "verify --all", "export", "reshard --output", "copy", "unlock",
}  # fmt: skip
ENDS_WITH_15: Mapping[str, set[str]] = {
    "seal": FROM_IT | {"verify", "verify --all"},
    "metadata": FROM_IT | {"tag add", "tag add it", "metrics set"},  # the other version may have the tag
    "metadata of a version that is gone": set(),
    "location": {"policy set"},
    "manager": set(),
    "note": FROM_IT,
    "journal": WRITING,
    "copy": WRITING,
    "trash": {"undo", "prune --purge"},
}
"""The commands that need what is newer."""
OTHER_CODES = {"undo": {10}, "prune --delete": {0, 3, 16}, "list": {0, 3}, "prune": {0, 3}, "prune --purge": {0, 3}}
"""Of the other commands; 3 says that modes and a policy could not be read."""
SAY_SO = {"seal": {"list", "inspect"}, "metadata": {"list", "inspect"}, "location": {"list"}}


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with a location and files for commands."""
    base = tmp_path_factory.mktemp("newer")
    hostile_state.prepare(base)
    return base


@pytest.mark.parametrize("kind", KINDS)
def test_commands(tmp_path: Path, template: Path, kind: str) -> None:
    """A command that needs the newer file ends with 15 and changes nothing, any other goes on; the file stays."""
    for name, words in COMMANDS.items():
        work = tmp_path / name.replace(" ", "-")
        shutil.copytree(template, work)
        newer = KINDS[kind](work / "run")
        before, shards = newer.read_bytes(), facts(work / "run/version-20")
        code, _, err = run_command(work, words)
        assert newer.read_bytes() == before, name
        if name in ENDS_WITH_15[kind]:
            assert (code, "newer edl-ckpt" in err) == (15, True), (name, err)
            assert facts(work / "run/version-20") == shards, name
            assert not [*work.glob("out*"), *work.glob("target"), *work.rglob("damaged-*")], name
        else:
            assert code in OTHER_CODES.get(name, {0}), (name, err)
        assert name not in SAY_SO.get(kind, ()) or NEWER in err, (name, err)
        assert verify_version(at(work / "run", 30), level="deep").ok


@pytest.mark.parametrize("kind", ["seal", "metadata", "note"])
def test_no_rule_deletes_it(tmp_path: Path, template: Path, kind: str) -> None:
    """A prune that would take every version but one keeps the newer one, and says why."""
    run = tmp_path / "run"
    shutil.copytree(template / "run", run)
    KINDS[kind](run)
    done = prune([str(run)], Policy((Latest(1),)), guards=Guards(grace_seconds=0))
    assert done.deleted == (f"{run}@10",)
    (kept,) = (entry for entry in done.plan.entries if entry.version == 20)
    assert kept.reasons[0] == "a newer edl-ckpt wrote its state; upgrade"
    assert numbers(run) == [20, 30]


def test_plan_file(tmp_path: Path, template: Path) -> None:
    """A plan of a newer prune is not carried out."""
    shutil.copytree(template, tmp_path / "work")
    plan = tmp_path / "work/plan.json"
    assert run_command(plan.parent, ("prune", "run", "--keep", "1", "--plan-out", "plan.json", "--dry-run"))[0] == 0
    put(plan, json.loads(plan.read_bytes()) | {"schema": "edl-ckpt/prune-plan/9"})
    code, _, err = run_command(plan.parent, ("prune", "--apply", "plan.json", "--yes"))
    assert (code, NEWER in err, numbers(plan.parent / "run")) == (15, True, [10, 20, 30])


@pytest.mark.parametrize("schema", ["edl-ckpt/journal/9", "edl-ckpt/deletions/9"])
def test_journals_of_storage_without_rename(schema: str) -> None:
    """On an object store a newer journal ends every command that takes the lock, and nothing is touched."""
    where = f"memory://{uuid.uuid4().hex}"
    save_checkpoint(where, 10, 2, variables={"v": np.ones(3)}, tables={}, layout="elasticdl")
    store = open_store(where)
    assert not isinstance(store, LocalStore)
    path = f"{STAGE}/20200101T000000-elsewhere-7-00000001/journal.json"
    data = json.dumps(newer_journal(10) | {"schema": schema}).encode()
    store.write_small(path, data)
    before = set(store.tree(""))
    for act in (lambda: recover(where), lambda: add_tag(at(where, 10), "x")):
        with pytest.raises(UnsupportedError, match=f"{path}: {NEWER}"):
            act()
    assert store.read_small(path) == data
    assert set(store.tree("")) == before
    assert verify_version(at(where, 10), level="deep").ok
