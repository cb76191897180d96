"""Commands that rewrite, move or copy a directory account for every entry of it: written anew, carried, or refused.

The directory is read raw before and after, by code that is none of the product. What the system does not own is there
afterwards, with the same bytes, target, owner, mode and time.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from checkpoints import at
from edl_ckpt.core import convert_version, execute_copy, plan_copy, prune, repair_version, verify_version
from edl_ckpt.core.base.errors import EdlCkptError, EdlCkptWarning, RefusedError
from edl_ckpt.core.base.progress import SILENT
from edl_ckpt.core.operations.convert import strip_versions
from edl_ckpt.core.operations.prune.guards import Guards
from edl_ckpt.core.operations.prune.retention import Latest, Policy
from raw_trees import RawEntry, lost_entries, raw_tree
from s3_fixtures import Bucket
from zoo import BASES, GUESTS, REFUSED, settle, step_of

Command = Callable[[Path, Path], Path]
"""Takes a location and a place for a result; returns the directory of the version afterwards."""
NUMBER = 5


def _reshard(place: Path, _: Path) -> Path:
    convert_version(at(place, NUMBER), 3)
    return place / f"step_{NUMBER}"


def _reshard_kept(place: Path, _: Path) -> Path:
    convert_version(at(place, NUMBER), 2, keep_old=True)
    return place / f"step_{NUMBER}"


def _strip(place: Path, _: Path) -> Path:
    strip_versions([str(place)], 1, reporter=SILENT)
    return place / f"step_{NUMBER}"


def _repair(place: Path, result: Path) -> Path:
    step = place / f"step_{NUMBER}"
    copied = result / f"step_{NUMBER}"
    shutil.copytree(step, copied, symlinks=True)
    damaged = _largest(step)
    state = damaged.stat()
    damaged.unlink()
    repair_version(at(place, NUMBER), at(result, NUMBER), mix=True)
    os.utime(damaged, ns=(state.st_atime_ns, state.st_mtime_ns))
    return step


def _reshard_elsewhere(place: Path, result: Path) -> Path:
    convert_version(at(place, NUMBER), 3, output=result)
    return result / f"step_{NUMBER}"


def _copy(place: Path, result: Path) -> Path:
    execute_copy(plan_copy([at(place, NUMBER)], result))
    return result / f"step_{NUMBER}"


IN_PLACE = {"reshard": _reshard, "reshard-keep-old": _reshard_kept, "strip": _strip}
ELSEWHERE = {"reshard-output": _reshard_elsewhere, "copy": _copy}
COMMANDS: dict[str, Command] = {**IN_PLACE, **ELSEWHERE}
"""What a layout goes through."""


def _largest(step: Path) -> Path:
    return max((path for path in step.rglob("*") if path.is_file() and not path.is_symlink()), key=_size)


def _size(path: Path) -> int:
    return path.stat().st_size


def _visit(tmp_path: Path, system: str, guests: Iterable[str]) -> tuple[Path, set[str], dict[str, RawEntry]]:
    """Make a location with a step that has guests, and a newer one; return what the system owns, and the raw tree."""
    place = tmp_path / "run"
    step = step_of(system, place, NUMBER)
    own = {str(path.relative_to(step)) for path in step.rglob("*") if path.is_file()}
    step_of(system, place, NUMBER + 1)
    for guest in guests:
        {**GUESTS, **REFUSED}[guest](step)
    settle(place)
    return place, own, raw_tree(step)


def _check(before: dict[str, RawEntry], after: dict[str, RawEntry], own: set[str], *, in_place: bool) -> None:
    if not in_place:  # a copy belongs to whoever makes it, and a new file of the system is as any new file is
        before, after = map(_without_owners, (before, after))
    assert lost_entries(before, after, own) == {}


def _without_owners(tree: dict[str, RawEntry]) -> dict[str, RawEntry]:
    return {name: entry._replace(uid=0, gid=0) for name, entry in tree.items()}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("system", BASES)
def test_all_guests_at_once(tmp_path: Path, system: str, command: str) -> None:
    """A step with all guests goes through a command: none is lost, followed or changed, and the values are right."""
    place, own, before = _visit(tmp_path, system, GUESTS)
    step = COMMANDS[command](place, tmp_path / "result")
    _check(before, raw_tree(step), own, in_place=command in IN_PLACE)
    assert (step / "aa").is_symlink()
    assert (tmp_path / "secret").stat().st_mode & 0o777 == 0o600
    version = at(step.parent, NUMBER)
    assert version.seal_fault == ""
    assert [f for f in verify_version(version, level="deep").findings if f.severity == "error"] == []


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("guest", GUESTS)
@pytest.mark.parametrize("system", BASES)
def test_each_guest(tmp_path: Path, system: str, guest: str, command: str) -> None:
    """Each layout goes through each command alone."""
    place, own, before = _visit(tmp_path, system, [guest])
    step = COMMANDS[command](place, tmp_path / "result")
    _check(before, raw_tree(step), own, in_place=command in IN_PLACE)


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("guest", REFUSED)
def test_refused_guests(tmp_path: Path, guest: str, command: str) -> None:
    """A pipe or a socket ends a command with 16 before anything is written, and the message names it."""
    place, _, before = _visit(tmp_path, "dcp", [guest])
    if command == "strip":  # one that cannot be replaced is left with a warning
        _strip(place, place)
    else:
        with pytest.raises(RefusedError, match=r"events\.fifo|run/s") as refused:
            COMMANDS[command](place, tmp_path / "result")
        assert refused.value.exit_code == 16
    assert raw_tree(place / f"step_{NUMBER}") == before
    assert not (tmp_path / f"result/step_{NUMBER}").exists()


@pytest.mark.parametrize(
    "guest", ["empty", "config-map", "twins", "long-names", "circle", "pointers", "state-of-others"]
)
@pytest.mark.parametrize("system", BASES)
def test_no_rule_deletes_a_guest(tmp_path: Path, system: str, guest: str) -> None:
    """A step with content of somebody stays under every rule, with all that is in it."""
    place, _, before = _visit(tmp_path, system, [guest])
    for rules in (Guards(), Guards(incomplete=True, grace_seconds=0.0)):
        assert prune([place], Policy((Latest(1),)), guards=rules, reporter=SILENT).deleted == ()
    with pytest.raises(RefusedError, match="foreign content"):
        prune([place], Policy(), guards=Guards(delete=(NUMBER,)), reporter=SILENT)
    assert raw_tree(place / f"step_{NUMBER}") == before


@pytest.mark.parametrize("system", BASES)
def test_a_repair_touches_no_other_entry(tmp_path: Path, system: str) -> None:
    """A repair puts one file back, with the access of its neighbours, and nothing else changes."""
    place, own, _ = _visit(tmp_path, system, [name for name in GUESTS if name != "read-only"])
    for name in own:
        path = place / f"step_{NUMBER}" / name
        path.chmod(0o600)
        path.parent.chmod(0o2770)
    before = raw_tree(place / f"step_{NUMBER}")
    step = _repair(place, tmp_path / "result")
    after = raw_tree(step)
    assert {name: entry[:5] for name, entry in after.items()} == {name: entry[:5] for name, entry in before.items()}


@pytest.mark.parametrize("system", BASES)
def test_a_new_file_never_takes_the_name_of_a_guest(tmp_path: Path, system: str) -> None:
    """Where a new file would need the name of a file that the version does not use, the command names it and ends."""
    place, _, _ = _visit(tmp_path, system, [])
    step = place / f"step_{NUMBER}"
    convert_version(at(place, NUMBER), 4, output=tmp_path / "other")
    new = raw_tree(tmp_path / f"other/step_{NUMBER}").keys() - raw_tree(step).keys()
    if not new:
        pytest.skip("the names do not depend on the number of ranks")
    name = min(path for path in new if not (tmp_path / f"other/step_{NUMBER}" / path).is_dir())
    (step / name).symlink_to("elsewhere")
    settle(place)
    before = raw_tree(step)
    with pytest.raises(EdlCkptError) as refused:
        convert_version(at(place, NUMBER), 4)
    assert refused.value.exit_code in {15, 16, 10}
    assert raw_tree(step) == before


def test_a_copy_to_object_storage_has_every_file(s3: Bucket, tmp_path: Path) -> None:
    """Hidden and deep files go to object storage and back; a link is refused, and an empty directory is warned of."""
    no_links = ["hydra", "clone", "cache", "deep", "private", "ranks", "unlisted", "hosts", "trainer"]
    place, _, before = _visit(tmp_path, "dcp", no_links)
    step = place / f"step_{NUMBER}"
    with pytest.warns(EdlCkptWarning, match=r"\.git/refs/tags is an empty directory"):
        execute_copy(plan_copy([at(place, NUMBER)], s3.url))
    execute_copy(plan_copy([at(s3.url, NUMBER)], tmp_path / "back"))
    files = {name: entry.content for name, entry in before.items() if (step / name).is_file()}
    after = raw_tree(tmp_path / f"back/step_{NUMBER}")
    assert {name: after[name].content for name in files} == files
    (step / "aa").symlink_to("/etc/hostname")
    settle(place)
    with pytest.raises(RefusedError, match="symbolic link \\(aa\\)"):
        execute_copy(plan_copy([at(place, NUMBER)], f"{s3.url}-2"))
