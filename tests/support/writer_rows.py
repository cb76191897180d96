"""The commands of the sweeps over steps of other systems: what there is before, and their words.

Each step has guests: what people keep in it, and no command may lose, follow or change. So the directory of a version
is rewritten, copied, deleted and put back with all that `zoo.py` knows.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from edl_ckpt.core import execute_copy, list_versions, plan_copy
from edl_ckpt.core.operations.annotate import add_tag
from edl_ckpt.core.operations.prune.execute import prune
from edl_ckpt.core.operations.prune.guards import Guards
from edl_ckpt.core.operations.prune.retention import Policy
from edl_ckpt.core.operations.verify.check import verify_version
from sweep_state import EXPORTS
from system_runs import SYSTEMS
from zoo import BASES, GUESTS, settle, step_of

PLACES: Final = ("run", "other", EXPORTS)
"""The directories whose entries are looked at."""
STEP, NEWER = 5, 6
SOME: Final = ("hydra", "empty", "private", "secret-link", "dangling", "hard-links", "trainer")
"""The guests of a step: a directory, a hidden one, an empty one, links, files of another user."""


@dataclass(frozen=True, slots=True)
class Writer:
    """A command that changes a location of another system than ElasticDL, and what is there before it."""

    name: str
    prepare: Callable[[Path], None]
    argv: tuple[str, ...]
    usual: int = 0
    """How it ends when nothing disturbs it."""
    each: bool = False
    """True where entries change one by one, and not a version at a time."""
    has_exchange: bool = True
    """False on a file system that cannot exchange two names, such as one of FUSE."""
    damaged: frozenset[int] = frozenset()
    """The versions with damaged values."""


def _steps(system: str, work: Path, *, guests: tuple[str, ...] = SOME) -> None:
    """Make a location with two steps; the older one has guests."""
    place = work / "run"
    step = step_of(system, place, STEP)
    step_of(system, place, NEWER)
    for guest in guests:
        GUESTS[guest](step)
    (work / EXPORTS).mkdir()
    settle(place)


def _torch_files(work: Path) -> None:
    """Make two steps, each with one file of torch.save; the older one has guests."""
    for number in (STEP, NEWER):
        step = work / f"run/step_{number}"
        step.mkdir(parents=True)
        shutil.copyfile(SYSTEMS / "torch/verl2.full.pt", step / "pytorch_model.bin")
    for guest in SOME:
        GUESTS[guest](work / f"run/step_{STEP}")
    (work / EXPORTS).mkdir()
    settle(work / "run")


def _torch_file_exported(work: Path) -> None:
    """Make the same, and an earlier export in the place of the new one."""
    _torch_files(work)
    shutil.copyfile(SYSTEMS / "torch/files/1.pt", work / EXPORTS / "made.pt")
    settle(work / EXPORTS)


def _plain(system: str, work: Path) -> None:
    """Make two steps without guests: each is as the job left it."""
    _steps(system, work, guests=())


def _tagged(system: str, work: Path) -> None:
    """Make the same, with our state in the location."""
    _steps(system, work)
    add_tag(f"{work}/run@{STEP}", "kept")


def _damaged(system: str, work: Path) -> None:
    """Make the same, with a tag; a byte of a value of the older step is another one."""
    _tagged(system, work)
    path = _largest(work / f"run/step_{STEP}")
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0x10
    path.write_bytes(data)
    settle(work / "run")


def _lacking(system: str, work: Path) -> None:
    """Make steps, and a whole copy of the older one, which lacks a file here."""
    _steps(system, work)
    execute_copy(plan_copy([f"{work}/run@{STEP}"], f"{work}/other"))
    _largest(work / f"run/step_{STEP}").unlink()
    settle(work / "run")


def _trashed(system: str, work: Path) -> None:
    """Make steps with a tag and a seal, and delete the older one so that it can come back."""
    _tagged(system, work)
    verify_version(f"{work}/run@{STEP}", level="deep")
    guards = Guards(delete=(STEP,), with_foreign=True, drop_tags=("kept",), everything=True, grace_seconds=0)
    prune([f"{work}/run"], Policy(()), guards=guards, trash=True)


def _exported(system: str, work: Path) -> None:
    """Make steps, and an earlier export in the place of the new one."""
    _steps(system, work, guests=())
    shutil.copytree(work / f"run/step_{NEWER}", work / EXPORTS / "made")
    settle(work / EXPORTS)


def _largest(step: Path) -> Path:
    files = (path for path in step.rglob("*") if path.is_file() and not path.is_symlink())
    return max(files, key=lambda path: (path.stat().st_size, str(path)))


_SPLIT: Final[Mapping[str, tuple[str, ...]]] = {"safetensors": ("--max-shard-size", "1KiB")}
_STRIP: Final = ("prune", "run", "--keep", "9", "--strip-after", "1", "--yes")


def _of_system(system: str) -> Iterator[Writer]:
    steps = partial(_steps, system)
    reshard = ("reshard", f"run@{STEP}", *_SPLIT.get(system, ("--ranks", "3")), "--workers", "1")
    yield Writer(f"reshard in place, {system}", steps, reshard)
    yield Writer(f"reshard in place without exchange, {system}", steps, reshard, has_exchange=False)
    yield Writer(f"copy, {system}", steps, ("copy", f"run@{STEP}", "other", "--workers", "1"))
    lacking = partial(_lacking, system)
    yield Writer(
        f"repair, {system}",
        lacking,
        ("repair", f"run@{STEP}", "--from", "other", "--mix", "--workers", "1"),
        each=True,
    )
    yield Writer(f"prune, {system}", partial(_plain, system), ("prune", "run", "--keep", "1", "--yes"))
    yield Writer(
        f"prune --with-foreign, {system}",
        steps,
        ("prune", "run", "--delete", str(STEP), "--with-foreign", "--even-newest", "--grace", "0s", "--yes"),
    )


def _of_torch_files() -> Iterator[Writer]:
    again = ("reshard", f"run@{STEP}", "--ranks", "1", "--workers", "1")
    yield Writer("reshard in place, torch file", _torch_files, again)
    yield Writer("reshard in place without exchange, torch file", _torch_files, again, has_exchange=False)
    edit = ("edit", f"run@{STEP}", "--output", "other", "--cast", "*=float64", "--workers", "1")
    yield Writer("edit, torch file", _torch_files, edit)
    export = ("export", f"run@{STEP}", f"{EXPORTS}/made.pt", "--force")
    yield Writer("export --force, torch file", _torch_file_exported, export)
    yield Writer("copy, torch file", _torch_files, ("copy", f"run@{STEP}", "other", "--workers", "1"))


def _rows() -> Iterator[Writer]:
    for system in BASES:
        yield from _of_system(system)
    yield from _of_torch_files()
    for system in ("dcp", "tensorflow"):
        steps = partial(_steps, system)
        yield Writer(f"strip, {system}", steps, _STRIP)
        yield Writer(f"strip without exchange, {system}", steps, _STRIP, has_exchange=False)
        edit = ("edit", f"run@{STEP}", "--output", "other", "--drop-companions", "--workers", "1")
        yield Writer(f"edit, {system}", steps, edit)
        yield Writer(f"import, {system}", steps, ("import", f"run@{STEP}", "other@9", "--ps", "3"))
        export = ("export", f"run@{STEP}", f"{EXPORTS}/made", "--force", "--format")
        yield Writer(f"export --force, {system}", partial(_exported, system), (*export, _FORMATS[system]))
        yield Writer(
            f"export --force without exchange, {system}",
            partial(_exported, system),
            (*export, _FORMATS[system]),
            has_exchange=False,
        )
        yield Writer(
            f"prune --trash, {system}",
            steps,
            (
                "prune",
                "run",
                "--delete",
                str(STEP),
                "--with-foreign",
                "--even-newest",
                "--grace",
                "0s",
                "--yes",
                "--trash",
            ),
        )
        yield Writer(f"undo, {system}", partial(_trashed, system), ("undo", "run"))
        tagged, damaged = partial(_tagged, system), partial(_damaged, system)
        yield Writer(f"verify --seal, {system}", tagged, ("verify", f"run@{NEWER}", "--seal", "--workers", "1"))
        verify = ("verify", "run", "--all", "--deep", "--workers", "1")
        yield Writer(f"verify, {system}", tagged, verify)
        yield Writer(f"verify of damage, {system}", damaged, verify, usual=3, damaged=frozenset({STEP}))


_FORMATS: Final = {"dcp": "dcp", "tensorflow": "tensorflow"}
ROWS: Final[Mapping[str, Writer]] = {row.name: row for row in _rows()}


def all_versions(work: Path) -> Iterator[str]:
    """Yield the reference of each version that is there."""
    for place in PLACES:
        if (work / place).is_dir():
            yield from (version.ref for version in list_versions(work / place).versions)
