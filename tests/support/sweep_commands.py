"""The commands of the fault sweep, a row for each: the state before it, its words, and the changes it makes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from edl_ckpt.core import (
    execute_copy,
    export_version,
    parse_ref,
    plan_copy,
    reshard_version,
    resolve,
    save_checkpoint,
)
from edl_ckpt.core.operations.annotate import set_metrics
from edl_ckpt.core.operations.prune.execute import prune
from edl_ckpt.core.operations.prune.retention import Latest, Policy
from edl_ckpt.core.operations.save import Table
from sweep_state import EXPORTS
from system_runs import bundle_run, step_run

SWEEPS_LEFTOVERS = True
"""Whether a later command removes what a killed one left; a row of `COMMANDS` may say otherwise with `sweeps`."""

KILL = "signal=KILL"
ENOSPC = "error=ENOSPC"
EIO = "error=EIO"

RENAME = "?rename,?renameat,?renameat2"
MKDIR = "?mkdir,mkdirat"
UNLINK = "?unlink,unlinkat,?rmdir"
"""Sets of calls, for samples: the machine decides which one of a set a program makes."""


@dataclass(frozen=True, slots=True)
class Command:
    """A command to be swept: the state before it, its words, and the changes it makes.

    `new` has all items that change: a version as `FoundVersion` prints it, a document without its schema, the word
    "file" for an exported file, None for an item that is gone. The ordinary suite tries `sample`, as (calls, k, fault).
    `always` is injected all the time: a file system that lacks something. With `one_step` all of it changes at once.
    `then` is run after each fault; empty, it is the same command, which must bring the new state.
    """

    name: str
    prepare: Callable[[Path], None]
    argv: tuple[str, ...]
    new: Mapping[str, Any]
    sample: tuple[tuple[str, int, str], ...] = ((RENAME, 1, KILL), ("fsync", 1, EIO))
    always: str = ""
    gap: int = 0
    """The rename between two steps, from 1: after a kill there the next command brings the old state or the new one.

    Which call renames is the machine's choice: `rename` or `renameat`.
    """
    late: tuple[str, ...] = ()
    """Items that come after the rest, and not again from a command that is refused because the rest is there."""
    one_step: bool = True
    then: tuple[str, ...] = ()
    torn: bool = False
    """Its files lie side by side: a kill, or the error of a removal, may leave a part of them to the next command."""
    sweeps: bool = SWEEPS_LEFTOVERS


def prepare_run(work: Path) -> None:
    """Make a location with three versions of two shards; the second and the third have metrics."""
    ids = np.array([0, 1, 2, 3, 300, 70_000, 2**40 + 1, 7], np.int64)
    for number in (10, 20, 30):
        chance = np.random.default_rng(number)
        variables: dict[str, np.ndarray[Any, Any]] = {
            "w": chance.standard_normal((3, 2)),
            "b": np.full(3, number, np.int8),
        }
        tables = {"t": Table(ids, chance.standard_normal((8, 2)).astype(np.float32))}
        save_checkpoint(str(work / "run"), number, 2, variables=variables, tables=tables, layout="elasticdl")
    for number in (20, 30):
        set_metrics(resolve(parse_ref(f"{work}/run@{number}")), {"loss": 0.25})
    (work / EXPORTS).mkdir()


def prepare_trash(work: Path) -> None:
    """Make the same, with two of the versions in the trash."""
    prepare_run(work)
    place = str(work / "run")
    prune([place], Policy((Latest(1),)), trash=True)


def prepare_replaced(work: Path) -> None:
    """Make the same as `prepare_run`, with the newest version resharded and its old shards in the trash."""
    prepare_run(work)
    reshard_version(resolve(parse_ref(f"{work}/run@30")), 3, keep_old=True)


def prepare_target(work: Path) -> None:
    """Make the same, and a file where the export is to go."""
    prepare_run(work)
    (work / EXPORTS / "model.safetensors").write_bytes(b"older")


def prepare_arrays(work: Path) -> None:
    """Make the same, and a file of arrays to be imported."""
    prepare_run(work)
    export_version(resolve(parse_ref(f"{work}/run@30")), str(work / "arrays.safetensors"))


def prepare_names(work: Path) -> None:
    """Make bundles with names that have no number."""
    prepare_bundles(work)
    for path in (work / "run").iterdir():
        if "-30" in path.name:
            path.rename(path.with_name("weights" + path.name[path.name.index("-30") :].replace("-30", ".30-0.32", 1)))
        elif "-20" in path.name:
            path.rename(path.with_name("weights" + path.name[path.name.index("-20") :].replace("-20", ".20-0.45", 1)))


def prepare_bundles(work: Path) -> None:
    """Make a location with three bundles of TensorFlow, whose files lie side by side."""
    bundle_run(work / "run")
    (work / EXPORTS).mkdir()


def prepare_bundle_trash(work: Path) -> None:
    """Make the same, with two of them in the trash."""
    prepare_bundles(work)
    prune([str(work / "run")], Policy((Latest(1),)), trash=True)


def prepare_steps(work: Path) -> None:
    """Make a location with a step directory of TorchRec, and a directory in it."""
    step_run(work / "run", (30,))
    (work / EXPORTS).mkdir()


def prepare_damaged(work: Path) -> None:
    """Make the same as `prepare_run`, with a whole copy of the newest version, which lacks a shard here."""
    prepare_run(work)
    execute_copy(plan_copy([resolve(parse_ref(f"{work}/run@30"))], str(work / "other")))
    (work / "run/version-30/variables-1-of-2.ckpt").unlink()


_RESHARD = ("reshard", "run@30", "--ps", "3", "--workers", "1")
_EXPORT = ("export", "run@30", "out/model.safetensors")
_TWO = "2 shards in place"
_THREE = "3 shards in place"
_TRASHED = "2 shards in the trash"
_CRASH = "crash ValueError"
"""What ElasticDL's scan says of the names of other systems."""
_LOSS = {"metrics": {"loss": 0.25}}
_BOTH = {"metrics": {"loss": 0.25, "auc": 0.5}}
_AWAY = {"place": "in the trash"}
_NO_EXCHANGE = "renameat2:error=EINVAL"


ROWS = (
    Command(
        "reshard in place",
        prepare_run,
        _RESHARD,
        {"run@30": _THREE},
        ((RENAME, 1, KILL), ("?rename,?renameat", 1, KILL), ("pwrite64", 2, "retval=20"), ("fallocate", 2, ENOSPC)),
    ),
    Command(
        "reshard in place, no exchange",
        prepare_run,
        _RESHARD,
        {"run@30": _THREE},
        (("?rename,?renameat", 1, EIO), ("?rename,?renameat", 2, EIO), ("?rename,?renameat", 5, KILL)),
        always=_NO_EXCHANGE,
        gap=5,
    ),
    Command(
        "reshard --output",
        prepare_run,
        (*_RESHARD, "--output", "other"),
        {"other@30": _THREE, "other latest": "version-30", "other 30.json": _LOSS},
        ((RENAME, 1, KILL), ("pwrite64", 3, EIO)),
        late=("other 30.json",),
        one_step=False,
    ),
    Command(
        "prune",
        prepare_run,
        ("prune", "run", "--keep", "1", "--yes"),
        {"run@10": None, "run@20": None, "run 20.json": None},
        ((RENAME, 2, KILL), ("unlinkat", 3, EIO)),
        one_step=False,
    ),
    Command(
        "prune --trash",
        prepare_run,
        ("prune", "run", "--keep", "1", "--yes", "--trash"),
        {"run@10": _TRASHED, "run@20": _TRASHED, "run 20.json": _LOSS | _AWAY},
        ((RENAME, 2, EIO), ("fsync", 1, EIO)),
        one_step=False,
    ),
    Command(
        "undo",
        prepare_trash,
        ("undo", "run"),
        {"run@10": _TWO, "run@20": _TWO, "run 20.json": _LOSS},
        ((RENAME, 1, KILL), ("fsync", 1, EIO)),
        one_step=False,
    ),
    Command(
        "undo of a reshard",
        prepare_replaced,
        ("undo", "run"),
        {"run@30": _TWO},
        ((RENAME, 1, KILL), ("?rename,?renameat", 4, KILL), ("fsync", 2, EIO), (MKDIR, 7, ENOSPC)),
        then=("recover", "run"),
    ),
    Command(
        "undo of a reshard, no exchange",
        prepare_replaced,
        ("undo", "run"),
        {"run@30": _TWO},
        (("?rename,?renameat", 4, EIO), ("?rename,?renameat", 6, KILL)),
        always=_NO_EXCHANGE,
        gap=6,
        then=("recover", "run"),
    ),
    Command(
        "export",
        prepare_run,
        _EXPORT,
        {"out/model.safetensors": "file"},
        ((RENAME, 1, KILL), ("fsync", 1, EIO)),
    ),
    Command(
        "export --force",
        prepare_target,
        (*_EXPORT, "--force"),
        {"out/model.safetensors": "file"},
        ((RENAME, 1, KILL), (UNLINK, 1, KILL)),
    ),
    Command(
        "export --force, no exchange",
        prepare_target,
        (*_EXPORT, "--force"),
        {"out/model.safetensors": "file"},
        (("?rename,?renameat", 1, KILL), ("?rename,?renameat", 1, EIO)),
        always=_NO_EXCHANGE,
    ),
    Command(
        "import",
        prepare_arrays,
        ("import", "arrays.safetensors", "run@40", "--ps", "2", "--layout", "elasticdl"),
        {"run@40": _TWO, "run latest": "version-40"},
        ((RENAME, 1, KILL), ("pwrite64", 1, "retval=20")),
    ),
    Command(
        "copy",
        prepare_run,
        ("copy", "run@30", "other", "--workers", "1"),
        {"other@30": _TWO, "other latest": "version-30", "other 30.json": _LOSS},
        ((RENAME, 1, KILL), ("pwrite64", 2, "retval=20"), ("fsync", 2, EIO), ("?rename,?renameat", 4, EIO)),
        one_step=False,
    ),
    Command(
        "prune of bundles",
        prepare_bundles,
        ("prune", "run", "--keep", "1", "--yes"),
        {"run@10": None, "run@20": None},
        ((RENAME, 3, KILL), (RENAME, 2, EIO)),
        one_step=False,
        torn=True,
    ),
    Command(
        "prune --trash of bundles",
        prepare_bundles,
        ("prune", "run", "--keep", "1", "--yes", "--trash"),
        {"run@10": _TRASHED, "run@20": _TRASHED},
        ((RENAME, 3, KILL), (RENAME, 3, EIO)),
        one_step=False,
        torn=True,
    ),
    Command(
        "undo of bundles",
        prepare_bundle_trash,
        ("undo", "run"),
        {"run@10": _TWO, "run@20": _TWO},
        ((RENAME, 2, KILL), (RENAME, 2, EIO)),
        one_step=False,
        torn=True,
    ),
    Command(
        "copy of a bundle",
        prepare_bundles,
        ("copy", "run@30", "other", "--workers", "1"),
        {"other@30": _TWO, "other latest": _CRASH},
        ((RENAME, 6, KILL), ("fsync", 2, EIO)),
        one_step=False,
        torn=True,
    ),
    Command(
        "copy of a version without a number",
        prepare_names,
        ("copy", "run@weights.30-0.32", "other", "--workers", "1"),
        {"other@weights.30-0.32": _TWO, "other latest": _CRASH},
        ((RENAME, 6, KILL), ("fsync", 2, EIO)),
        one_step=False,
        torn=True,
    ),
    Command(
        "copy of a step directory",
        prepare_steps,
        ("copy", "run@30", "other", "--workers", "1"),
        {"other@30": _TWO, "other latest": _CRASH},
        ((RENAME, 3, KILL), ("fsync", 2, EIO)),
        one_step=False,
    ),
    Command(
        "repair",
        prepare_damaged,
        ("repair", "run@30", "--from", "other", "--workers", "1"),
        {"run@30": _TWO, "run latest": "version-30"},
        ((RENAME, 1, KILL), ("fsync", 2, EIO), ("pwrite64", 1, "retval=20")),
        one_step=False,
    ),
    Command(
        "verify --seal",
        prepare_run,
        ("verify", "run@30", "--seal", "--force", "--workers", "1"),
        {},
        ((RENAME, 1, KILL), ("fsync", 1, EIO)),
    ),
    Command(
        "metrics set",
        prepare_run,
        ("metrics", "set", "run@30", "auc=0.5", "--mode", "max"),
        {"run 30.json": _BOTH, "run location.json": {"modes": {"auc": "max"}}},
        ((RENAME, 2, KILL), ("fallocate", 1, ENOSPC)),
        one_step=False,
    ),
    Command(
        "tag add",
        prepare_run,
        ("tag", "add", "run@30", "serving"),
        {"run 30.json": _LOSS | {"tags": ["serving"]}},
        ((RENAME, 1, KILL), (MKDIR, 1, ENOSPC)),
    ),
)


COMMANDS = (
    *ROWS,
    *(
        replace(c, name=f"{c.name}, recover", then=("recover", "run"), sample=c.sample[:1])
        for c in ROWS
        if c.name.startswith("reshard in place")
    ),
)
