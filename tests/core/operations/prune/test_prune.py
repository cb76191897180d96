from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from checkpoints import at, numbers, save_small
from edl_ckpt.core.base.errors import RefusedError, UnsupportedError
from edl_ckpt.core.catalog.listing import list_versions
from edl_ckpt.core.model.versions import State
from edl_ckpt.core.operations.annotate import add_tag, set_metrics
from edl_ckpt.core.operations.prune import plan_file
from edl_ckpt.core.operations.prune.execute import execute_prune
from edl_ckpt.core.operations.prune.plan import plan_prune
from edl_ckpt.core.operations.prune.plan_file import read_plan, write_plan
from edl_ckpt.core.operations.prune.readable import find_unreadable
from edl_ckpt.core.operations.prune.retention import Latest, Policy
from edl_ckpt.core.reading.reader import open_checkpoint
from places import GOLDEN
from pruning import NOW, check_whole, plan_for, prune


def test_prune_deletes(run: Path) -> None:
    """Versions that no rule keeps are gone with their metadata; all other files stay, and no file of ours is left."""
    result = prune(run)
    assert numbers(run) == [1, 5]
    assert [ref.rpartition("@")[2] for ref in result.deleted] == ["2", "3", "4"]
    assert result.freed_bytes > 0
    assert sorted(p.name for p in (run / ".edl-ckpt-0").iterdir()) == ["meta-0"]
    assert {p.name for p in (run / ".edl-ckpt-0/meta-0").iterdir()} == {"1.json"}
    check_whole(run)
    assert prune(run).deleted == ()


def test_a_plan_too_large_to_be_read(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan that could not be applied is not written: the error has its size and the limit; an older file stays."""
    path, plan = tmp_path / "plan.json", plan_for(run)
    write_plan(path, plan)
    before = path.read_bytes()
    monkeypatch.setattr(plan_file, "MAX_SUMS_BYTES", len(before))
    write_plan(path, plan)
    assert read_plan(path).entries == plan.entries
    monkeypatch.setattr(plan_file, "MAX_SUMS_BYTES", len(before) - 1)
    with pytest.raises(RefusedError, match=r"the plan has .* KiB, and one of more than .* KiB cannot be applied"):
        write_plan(path, plan)
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("change", "refused"),
    [
        (lambda run: save_small(run, 6, sealed=False), False),
        (lambda run: shutil.rmtree(run / "version-3"), False),
        (lambda run: shutil.rmtree(run / "version-5"), True),
        (lambda run: os.truncate(run / "version-5/variables-0-of-2.ckpt", 3), True),
        (lambda run: (run / "version-3/variables-0-of-2.ckpt").write_bytes(b""), True),
        (lambda run: add_tag(at(run, 3), "keep"), True),
        (lambda run: set_metrics(at(run, 3), {"auc": 0.9}), True),
        (lambda run: (run / ".edl-ckpt-0/meta-0/3.json").write_text("{"), True),
        (lambda run: (run / "version-3/notes.txt").write_text("x"), True),
    ],
)
def test_stale_plans(run: Path, change: Any, refused: bool) -> None:
    """A plan is refused before any deletion when a version that it deletes or relies on has changed."""
    plan = plan_for(run)
    change(run)
    before = numbers(run)
    if refused:
        with pytest.raises(RefusedError, match="stale"):
            execute_prune(plan, now=NOW)
        assert numbers(run) == before
    else:
        execute_prune(plan, now=NOW)
        assert not {2, 3, 4} & set(numbers(run))


def test_newest_is_half_written(run: Path) -> None:
    """All files of a version are there while its last one is still being written: the version before it stays."""
    shard = run / "version-5/variables-1-of-2.ckpt"
    os.truncate(shard, shard.stat().st_size // 2)
    plan = plan_for(run)
    assert any("version 5" in w or "@5" in w for w in plan.warnings)
    prune(run)
    assert numbers(run) == [1, 4, 5]


def test_symbolic_links_are_not_followed(run: Path, tmp_path: Path) -> None:
    """A version that is a symbolic link: the link goes, its target stays."""
    shutil.move(run / "version-3", tmp_path / "elsewhere")
    (run / "version-3").symlink_to(tmp_path / "elsewhere")
    prune(run)
    assert numbers(run) == [1, 5]
    assert len(list((tmp_path / "elsewhere").iterdir())) == 2


def test_gone_already(run: Path) -> None:
    """A version that another process deleted between plan and execution is no error."""
    plan = plan_for(run)
    shutil.rmtree(run / "version-2")
    result = execute_prune(plan, now=NOW)
    assert [ref.rpartition("@")[2] for ref in result.deleted] == ["3", "4"]


def test_metadata_of_gone_versions_is_forgotten(run: Path) -> None:
    """ElasticDL deletes versions too; a number that comes again must not inherit their tags and metrics."""
    shutil.rmtree(run / "version-2")
    prune(run, keep=4)
    save_small(run, 2, sealed=False)
    assert at(run, 2).metrics == {}


def test_store_without_rename() -> None:
    """On storage without rename a trash is refused, and the first file that goes makes a version invalid."""
    import fsspec

    from edl_ckpt.core.storage.fsspec import FsspecStore

    fs = fsspec.filesystem("memory")
    for source in (GOLDEN / "multi").rglob("*.ckpt"):
        fs.pipe_file(f"/prune/run/{source.parent.name}/{source.name}", source.read_bytes())
    location = "memory://prune/run"
    set_metrics(at(location, 9), {"auc": 0.5})
    plan = plan_prune([location], Policy((Latest(1),)), now=NOW)
    assert [e.version for e in plan.deletions] == [9]
    with pytest.raises(UnsupportedError):
        execute_prune(plan, now=NOW, trash=True)
    states: list[str] = []
    remove = FsspecStore.remove

    def watched(store: FsspecStore, relative: str) -> None:
        remove(store, relative)
        states.extend(v.state for v in list_versions(location, now=NOW).versions if v.version == 9)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FsspecStore, "remove", watched)
        execute_prune(plan, now=NOW)
    assert states == [State.INCOMPLETE]
    assert numbers(location) == [20, 100]
    assert not fs.exists("/prune/run/.edl-ckpt-0/meta-0/9.json")


def test_find_unreadable_stops_at_the_first_good_one(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only as many versions are opened as are needed to find a good one: usually one."""
    opened: list[int] = []

    def counted(version: Any, **options: Any) -> Any:
        opened.append(version.version)
        return open_checkpoint(version, **options)

    monkeypatch.setattr("edl_ckpt.core.reading.newest.open_checkpoint", counted)
    assert find_unreadable(list_versions(str(run)).versions) == {}
    assert opened == [5]
