"""Every command over a directory of hostile state; nothing outside of the location changes."""

from __future__ import annotations

import gc
import json
import os
import resource
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest

import hostile_state
from edl_ckpt.cli.catalogue import COMMANDS
from edl_ckpt.core.base.errors import EdlCkptError
from forked import run_forked
from hostile_state import facts, run_command

MEMORY_BYTES = 1 << 30
"""What a command may take beside what this process has already."""
REFUSED = {
    "linked state": set(hostile_state.COMMANDS) - hostile_state.READING - {"doctor"},  # which says so, and ends with 3
    "linked metadata": {
        "reshard", "import", "policy set", "policy clear", "metrics set", "metrics import", "metrics remove",
        "metadata set", "metadata remove", "metrics mode", "tag add", "tag remove", "note",
    },
}  # fmt: skip
"""The commands that need what a scene has taken away. They are refused before anything changes."""
SEALS_UNKNOWN = {"linked metadata", "linked state"}
"""Scenes in which no seal can be read: what would copy or replace a version says so instead."""
FAILING = {
    "browse": {2},  # it needs a terminal; its own tests go through these scenes
    "undo": {10, 16},
    "policy show": {2, 10, 16},
    "policy clear": {2, 10, 16},
    "policy set": {2, 16},
    "metrics mode": {2, 16},
    "unlock": {10, 16},
    "tag add": {1, 2, 16},  # after all that can be done: another version, whose metadata cannot be read, may have it
}
"""Commands that a scene leaves nothing to do, or whose own file it damages, and how they say so."""


def documented_codes() -> set[int]:
    """Return the exit codes of our errors."""

    def below(kind: type[EdlCkptError]) -> set[int]:
        return {kind.exit_code}.union(*map(below, kind.__subclasses__()))

    return {0, 3} | below(EdlCkptError)


def outside(base: Path) -> dict[str, tuple[int, int, int, bytes]]:
    """Return what there is beside the location and what commands are asked to write."""
    names = ("victim", "away", "arrays.npz", "metrics.csv")
    return {name: fact for place in names for name, fact in facts(base / place).items()} | {
        name: (0, 0, 0, (base / name).read_bytes()) for name in names if (base / name).is_file()
    }


def run_all(template: Path, base: Path, scene: str) -> list[str]:
    """Run every command over a scene, each that writes over a copy of its own; return what went wrong."""
    problems: list[str] = []
    for command in hostile_state.COMMANDS:
        reads = command in hostile_state.READING  # these change nothing, so they share one copy
        work = base / ("reading" if reads else command.replace(" ", "-"))
        if not work.exists():
            shutil.copytree(template, work)
            hostile_state.SCENES[scene](work / "run")
        problems += [f"{command}: {problem}" for problem in try_command(work, command, scene)]
        gc.collect()  # what an error held in a circle belongs to its own command, and not to the next one
        if not reads:
            remove(work)
    return problems


def try_command(work: Path, command: str, scene: str) -> Iterator[str]:
    """Run a command over a scene, and yield what went wrong."""
    before, inner = outside(work), facts(work / "run")
    try:
        code, _, err = run_command(work, (*command.split(), *hostile_state.COMMANDS[command]))
    except BaseException as error:  # noqa: BLE001 - whatever it is, it is a finding
        yield f"{type(error).__name__} {error}"
        return
    wanted = {0, 3} | FAILING.get(command, set())
    if command in REFUSED.get(scene, set()):
        wanted = {2, 16}
    if scene in SEALS_UNKNOWN and command in {"reshard", "edit", "copy", "export", "repair"}:
        wanted = {16}
    if code not in wanted & documented_codes():
        yield f"ended with {code}: {err[-600:]}"
    if "Traceback" in err:
        yield f"a traceback: {err[-3000:]}"
    after = outside(work)
    if after != before:
        yield f"changed {sorted({name for name, _ in after.items() ^ before.items()})}"
    if command in hostile_state.READING and facts(work / "run") != inner:
        yield "changed the location, though it only reads"


def remove(place: Path) -> None:
    """Remove a directory; `shutil` cannot remove a tree that is deeper than Python's stack."""
    subprocess.run(["rm", "-rf", place], check=True)


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory in which nothing is hostile yet."""
    base = tmp_path_factory.mktemp("scene")
    hostile_state.prepare(base)
    return base


def test_every_command_has_words() -> None:
    """A new command needs a row in `hostile_state.COMMANDS`, so that it cannot escape the test below."""
    assert set(hostile_state.COMMANDS) == set(COMMANDS)


@pytest.mark.parametrize("scene", sorted(hostile_state.SCENES, reverse=True))
def test_every_command(tmp_path: Path, template: Path, scene: str, request: pytest.FixtureRequest) -> None:
    """Within its time and memory each command ends by its own code, and the victim is as it was."""
    log = tmp_path / "problems.json"

    request.addfinalizer(lambda: remove(tmp_path / "work"))

    def act() -> None:
        used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY_BYTES, used + MEMORY_BYTES))
        own = {name: value for name, value in os.environ.items() if not name.startswith("EDL_CKPT_")}
        with mock.patch.dict(os.environ, {**own, "XDG_CONFIG_HOME": "/nowhere"}, clear=True):
            log.write_text(json.dumps(run_all(template, tmp_path / "work", scene)))

    assert run_forked(act) == 0
    problems = json.loads(log.read_text())
    assert not problems, "\n".join(problems)
