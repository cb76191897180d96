"""The trash of a prune: versions stay whole there, undo puts them back whole, a purge removes them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import elasticdl_rules
from checkpoints import at, files_but_verdicts, numbers, save_small
from edl_ckpt.core import add_tag, reshard_version, verify_version
from edl_ckpt.core.base.errors import NotFoundError, RefusedError
from edl_ckpt.core.commit.deletion.records import list_trash
from edl_ckpt.core.operations.prune.execute import prune as prune_locations
from edl_ckpt.core.operations.prune.retention import Policy
from edl_ckpt.core.operations.undo import undo
from places import GOLDEN
from pruning import check_whole, prune


def test_trash_and_undo(run: Path) -> None:
    """`--trash` keeps deleted versions whole; undo puts back the last deletion with its files, metrics and note."""
    before = files_but_verdicts(run)
    assert prune(run, keep=3, trash=True).freed_bytes == 0
    assert prune(run, keep=1, trash=True).deleted
    assert numbers(run) == [1, 5]
    assert elasticdl_rules.latest_valid(run) == "version-5"
    assert undo(str(run)) == ("version-3", "version-4")
    assert undo(str(run)) == ("version-2",)
    assert files_but_verdicts(run) == before
    assert not (run / ".edl-ckpt-0/trash-0").exists()
    check_whole(run)
    with pytest.raises(NotFoundError, match="nothing to undo"):
        undo(str(run))


def test_undo_of_one_version(run: Path) -> None:
    """One version comes back, with its metadata, from the last deletion that has it; the others stay in the trash."""
    before = files_but_verdicts(run)
    prune(run, keep=3, trash=True)
    prune(run, keep=1, trash=True)
    assert numbers(run) == [1, 5]
    assert undo(str(run), 3) == ("version-3",)
    assert (numbers(run), [sorted(entry.numbers) for entry in list_trash(str(run))]) == ([1, 3, 5], [[4], [2]])
    check_whole(run)
    with pytest.raises(NotFoundError, match="no version 3 in the trash") as absent:
        undo(str(run), 3)
    assert absent.value.hint == "versions there: 2, 4"
    assert undo(str(run), 2) == ("version-2",)
    save_small(run, 4, sealed=False)
    with pytest.raises(RefusedError, match="version-4 exists again"):
        undo(str(run), 4)
    shutil.rmtree(run / "version-4")
    assert undo(str(run)) == ("version-4",)
    assert files_but_verdicts(run) == before
    check_whole(run)


def test_undo_when_the_name_is_taken(run: Path) -> None:
    """A job that saved the same version again keeps its own: undo refuses before anything moves."""
    prune(run, keep=3, trash=True)
    save_small(run, 2, sealed=False)
    with pytest.raises(RefusedError, match="version-2 exists again"):
        undo(str(run))
    assert numbers(run) == [1, 2, 3, 4, 5]
    assert [entry.names for entry in list_trash(str(run))] == [("version-2",)]


def test_undo_of_a_reshard(run: Path) -> None:
    """The old shards that a reshard kept change places with the new ones: all files, seal, metrics and tags are back.

    A second undo brings the new shards back, sealed too; ElasticDL's scan chooses the version each time.
    """
    save_small(run, 6)
    add_tag(f"{run}@6", "serving")
    before = files_but_verdicts(run)
    done = reshard_version(f"{run}@6", 3, keep_old=True)
    resharded = {path: data for path, data in files_but_verdicts(run).items() if "trash-0" not in path}
    assert before != resharded
    for expected, ps_num in ((before, 2), (resharded, 3), (before, 2)):
        assert undo(str(run)) == ("version-6",)
        assert {path: data for path, data in files_but_verdicts(run).items() if "trash-0" not in path} == expected
        result = verify_version(f"{run}@6", level="deep")
        assert (result.ok, result.sealed, result.fingerprint) == (True, True, done.fingerprint)
        assert (at(run, "serving").version, at(run, 6).ps_num) == (6, ps_num)
        assert elasticdl_rules.answer(run) == ("version-6", "version-6")
        assert [(entry.names, entry.replaced) for entry in list_trash(str(run))] == [(("version-6",), 6)]
        assert not (run / ".edl-ckpt-0/stage-0").exists()
    shutil.rmtree(run / "version-6")
    assert undo(str(run), 6) == ("version-6",)  # without another one in its place it comes back like a deleted one
    assert (at(run, 6).ps_num, list_trash(str(run))) == (3, [])
    assert verify_version(f"{run}@6", level="deep").ok


def test_undo_of_a_reshard_where_nothing_is_sealed(run: Path) -> None:
    """Neither set of shards gets the seal of the other; what came last into the trash comes back first."""
    reshard_version(f"{run}@5", 4, keep_old=True)
    prune(run, keep=1, trash=True)
    undo(str(run))
    undo(str(run))
    result = verify_version(f"{run}@5", level="deep")
    assert (at(run, 5).ps_num, result.ok, result.sealed) == (2, True, False)
    undo(str(run))
    result = verify_version(f"{run}@5", level="deep")
    assert (at(run, 5).ps_num, result.ok, result.sealed) == (4, True, True)
    check_whole(run)


def test_purge(run: Path) -> None:
    """A purge removes the versions that have been in the trash for so long, and returns the bytes that it freed."""
    prune(run, keep=3, trash=True)
    before = numbers(run)
    result = prune_locations([run], Policy(), purge_older_than_seconds=3600)
    assert result.purge is not None
    assert (result.purge.freed_bytes, len(list_trash(str(run)))) == (0, 1)
    result = prune_locations([run], Policy(), purge_older_than_seconds=0)
    assert result.purge is not None
    assert result.purge.freed_bytes > 0
    assert (result.deleted, numbers(run)) == ((), before)
    assert list_trash(str(run)) == []
    assert not (run / ".edl-ckpt-0/trash-0").exists()


def test_single_files(tmp_path: Path) -> None:
    """Checkpoints of one file, before sharding, are pruned like any other, and put back."""
    source = next(GOLDEN.rglob("model_v*"))
    for number in (1, 2, 3):
        shutil.copy(source, tmp_path / f"model_v{number}.chkpt")
    prune(tmp_path, trash=True)
    assert numbers(tmp_path) == [3]
    assert undo(str(tmp_path)) == ("model_v1.chkpt", "model_v2.chkpt")
    assert numbers(tmp_path) == [1, 2, 3]
