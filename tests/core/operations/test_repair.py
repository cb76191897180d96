"""Repairs: a missing or damaged file is taken from another copy, if something proves it, and nothing is lost."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from checkpoints import at, drop_seal, only, save_varied, shards_of
from edl_ckpt.core import (
    CorruptError,
    EdlCkptError,
    LockedError,
    RefusedError,
    RepairResult,
    UsageError,
    Version,
    list_versions,
    repair_version,
    reshard_version,
    save_checkpoint,
    verify_version,
)
from edl_ckpt.core.base.choices import LayoutName
from edl_ckpt.core.commit.shard import DiskShard, ShardOutput
from edl_ckpt.core.operations import repair
from edl_ckpt.core.operations.save import Table
from edl_ckpt.core.proof.trust import Trust, check_trust
from edl_ckpt.core.state.seal import read_seal
from edl_ckpt.core.storage import open_store
from edl_ckpt.core.storage.beneath import Directory
from edl_ckpt.core.storage.s3.upload import Upload
from elasticdl_restore import restore_params
from places import DATA, GOLDEN
from s3_fixtures import Bucket

GONE, CUT, FLIPPED = (f"version-7/variables-{i}-of-4.ckpt" for i in (0, 2, 3))


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A sealed version of four shards, without its first one, with a cut one and with one whose last bit is flipped."""
    save_varied(tmp_path / "whole", 4)
    shutil.copytree(tmp_path / "whole", tmp_path / "run")
    (tmp_path / "run" / GONE).unlink()
    cut, flipped = tmp_path / "run" / CUT, tmp_path / "run" / FLIPPED
    cut.write_bytes(cut.read_bytes()[:500])
    data = bytearray(flipped.read_bytes())
    data[-1] ^= 1
    flipped.write_bytes(data)
    return tmp_path / "run"


def mended(location: Path | str, source: Path | str, *, mix: bool = False) -> RepairResult:
    """Repair the only version of a location from the only one of another; verify finds nothing wrong then."""
    result = repair_version(only(location), only(source), mix=mix)
    checked = verify_version(only(location), level="deep")
    assert [f for f in checked.findings if f.severity == "error"] == []
    assert checked.fingerprint == result.fingerprint
    return result


def test_own_seal(run: Path, tmp_path: Path) -> None:
    """Files that the seal names are taken: the bytes are those of the copy, ElasticDL restores them, the seal stays."""
    before = read_seal(open_store(str(run)), 7)
    result = mended(run, tmp_path / "whole")
    assert [(one.shard, one.reason) for one in result.replaced[:1]] == [(0, "missing")]
    assert [one.shard for one in result.replaced] == [0, 2, 3]
    assert (result.proof, result.forced) == (repair._OWN, None)
    assert shards_of(run).items() >= shards_of(tmp_path / "whole").items()
    assert read_seal(open_store(str(run)), 7) == before
    for ps_id in range(3):
        here, there = (vars(restore_params(place / "version-7", ps_id, 3)) for place in (run, tmp_path / "whole"))
        np.testing.assert_equal(here, there)
    assert mended(run, tmp_path / "whole").replaced == ()


def test_what_was_damaged_is_in_the_trash(run: Path, tmp_path: Path) -> None:
    """Each damaged file is moved to the trash of the location; nothing else is left of the repair."""
    damaged = {name: (run / name).read_bytes() for name in (CUT, FLIPPED)}
    result = mended(run, tmp_path / "whole")
    kept = {Path(one.path).relative_to(run).as_posix(): one.kept for one in result.replaced}
    assert kept[GONE] == ""
    assert {name: (run / kept[name]).read_bytes() for name in damaged} == damaged
    assert not (run / ".edl-ckpt-0/stage-0").exists()


def test_a_dry_run_changes_nothing(run: Path, tmp_path: Path) -> None:
    """It says the same as the repair, and leaves every file as it is."""
    before = sorted((path, path.stat().st_mtime_ns) for path in run.rglob("*"))
    planned = repair_version(only(run), only(tmp_path / "whole"), dry_run=True)
    assert sorted((path, path.stat().st_mtime_ns) for path in run.rglob("*")) == before
    assert [one.path for one in planned.replaced] == [one.path for one in mended(run, tmp_path / "whole").replaced]


def test_equal_files_prove_the_others(run: Path, tmp_path: Path) -> None:
    """Without seals, a file is taken if all others are equal byte for byte; then the version is sealed."""
    for place in ("run", "whole"):
        drop_seal(tmp_path / place, 7)
    (run / FLIPPED).write_bytes((tmp_path / "whole" / FLIPPED).read_bytes())
    result = mended(run, tmp_path / "whole")
    assert result.proof == "all other files are equal, byte for byte"
    assert [one.shard for one in result.replaced] == [0, 2]
    assert only(run).fingerprint == result.fingerprint
    assert shards_of(run).items() >= shards_of(tmp_path / "whole").items()


def test_a_difference_is_refused(run: Path, tmp_path: Path) -> None:
    """Where another file differs nothing proves the missing one; `mix` takes it, and the new seal says who and why."""
    for place in ("run", "whole"):
        drop_seal(tmp_path / place, 7)
    before = shards_of(run)
    with pytest.raises(RefusedError, match=r"variables-3-of-4.ckpt differs from that of .*whole@7"):
        repair_version(only(run), only(tmp_path / "whole"))
    assert shards_of(run) == before
    result = mended(run, tmp_path / "whole", mix=True)
    assert [one.shard for one in result.replaced] == [0, 2]
    seal = read_seal(open_store(str(run)), 7)
    assert seal is not None
    assert [(one.command, one.why) for one in seal.history] == [("repair --mix", result.forced)]


def test_a_difference_that_nothing_shows(run: Path, tmp_path: Path) -> None:
    """A version without a seal, whose files show no damage, is not said to be what the other copy is."""
    shutil.copyfile(tmp_path / "whole" / GONE, run / GONE)
    shutil.copyfile(tmp_path / "whole" / CUT, run / CUT)
    drop_seal(run, 7)
    with pytest.raises(RefusedError, match="the content is not that of"):
        repair_version(only(run), only(tmp_path / "whole"))
    drop_seal(tmp_path / "whole", 7)
    result = mended(run, tmp_path / "whole")
    assert result.replaced == ()
    assert result.fingerprint != verify_version(only(tmp_path / "whole"), level="deep").fingerprint


def test_no_file_is_left_to_compare(run: Path, tmp_path: Path) -> None:
    """A directory without any whole shard and without a seal proves nothing."""
    drop_seal(run, 7)
    for path in (run / "version-7").iterdir():
        path.unlink()
    with pytest.raises(RefusedError, match="no whole file is left to compare"):
        repair_version(only(run), only(tmp_path / "whole"))
    assert len(mended(run, tmp_path / "whole", mix=True).replaced) == 4


def test_other_bytes_of_the_same_content(tmp_path: Path) -> None:
    """Shards with the rows in another order are refused although both seals have one fingerprint: no file is proved."""
    ids, rows = np.arange(100), np.random.default_rng(1).standard_normal((100, 3), np.float32)
    for place, step in (("run", 1), ("other", -1)):
        tables = {"t": Table(ids[::step], rows[::step])}
        save_checkpoint(str(tmp_path / place), 7, 2, variables={"w": rows}, tables=tables, layout="elasticdl")
    assert only(tmp_path / "run").fingerprint == only(tmp_path / "other").fingerprint
    (tmp_path / "run/version-7/variables-1-of-2.ckpt").unlink()
    with pytest.raises(RefusedError, match="its seal names other bytes"):
        mended(tmp_path / "run", tmp_path / "other")
    assert mended(tmp_path / "run", tmp_path / "other", mix=True).forced


def test_another_run_is_refused(run: Path, tmp_path: Path) -> None:
    """A version of the same number and shape with other values is no copy, and nothing is changed."""
    shutil.rmtree(tmp_path / "whole")
    ids = np.arange(400)
    tables = {"user": Table(ids, np.ones((400, 4), np.float32))}
    save_checkpoint(str(tmp_path / "whole"), 7, 4, variables={}, tables=tables, layout="elasticdl")
    before = shards_of(run)
    with pytest.raises(RefusedError, match="its seal names other bytes") as caught:
        repair_version(only(run), only(tmp_path / "whole"))
    assert "--mix" in str(caught.value.hint)
    assert shards_of(run) == before


def test_a_mixture_that_is_no_version(run: Path, tmp_path: Path) -> None:
    """`mix` with shards whose headers contradict the rest ends with 5, and nothing is changed."""
    shutil.rmtree(tmp_path / "whole")
    save_checkpoint(str(tmp_path / "whole"), 8, 4, variables={}, tables={}, layout="elasticdl")
    before = shards_of(run)
    with pytest.raises(CorruptError, match="this shard has version 7, shard 0 has version 8"):
        repair_version(only(run), only(tmp_path / "whole"), mix=True)
    assert shards_of(run) == before


def test_a_mixture_that_verify_refuses(run: Path, tmp_path: Path) -> None:
    """What only ids show is found at the end: the error says where the damaged files are, and no seal matches."""
    shutil.rmtree(tmp_path / "whole")
    save_varied(tmp_path / "whole", 4)
    place = tmp_path / "whole/version-7"
    for one, two in (("0", "2"), ("2", "3")):
        (place / f"variables-{one}-of-4.ckpt").write_bytes((place / f"variables-{two}-of-4.ckpt").read_bytes())
    drop_seal(tmp_path / "whole", 7)
    with pytest.raises(CorruptError):
        repair_version(only(run), only(tmp_path / "whole"), mix=True)
    assert not only(run).fingerprint


@pytest.mark.parametrize("layout", ["design", "elasticdl"])
def test_another_layout(tmp_path: Path, layout: LayoutName) -> None:
    """A copy in another layout has other names for the same files."""
    ids = np.arange(50)
    tables = {"t": Table(ids, np.ones((50, 2), np.float32))}
    other: LayoutName = "design" if layout == "elasticdl" else "elasticdl"
    for place, name in (("run", layout), ("other", other)):
        save_checkpoint(str(tmp_path / place), 7, 3, variables={}, tables=tables, layout=name)
    path = Path(only(tmp_path / "run").shards[1].path)
    data = path.read_bytes()
    path.unlink()
    mended(tmp_path / "run", tmp_path / "other")
    assert path.read_bytes() == data


def test_another_number_of_shards(run: Path, tmp_path: Path) -> None:
    """Shards of another number of servers fit nowhere."""
    reshard_version(only(tmp_path / "whole"), 3)
    with pytest.raises(RefusedError, match="another number of shards"):
        repair_version(only(run), only(tmp_path / "whole"), mix=True)


def test_itself(run: Path) -> None:
    """A version cannot be repaired from itself."""
    with pytest.raises(UsageError, match="from itself"):
        repair_version(only(run), only(run))


def test_a_damaged_copy(run: Path, tmp_path: Path) -> None:
    """A copy that does not match its own seal is never a source; with the same damage it mends nothing."""
    before = shards_of(run)
    shutil.copyfile(run / FLIPPED, tmp_path / "whole" / FLIPPED)
    with pytest.raises(CorruptError, match=r"the file changed while it was read.* \(at byte \d+\)$"):
        repair_version(only(run), only(tmp_path / "whole"), mix=True)
    (tmp_path / "whole" / CUT).unlink()
    save_varied(tmp_path / "other", 4)
    (tmp_path / "other" / CUT).write_bytes(b"")
    with pytest.raises(CorruptError) as caught:
        repair_version(only(run), only(tmp_path / "other"))
    assert "repairs no other" in str(caught.value.hint)
    assert shards_of(run) == before


def test_killed_between_two_files(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was put in place stays, what was damaged is in the trash, and the same repair brings the rest."""
    place, calls = ShardOutput.take_place, list[str]()

    def failing(self: ShardOutput, kept: str) -> str:
        calls.append(kept)
        if len(calls) == 2:
            raise OSError("pulled the plug")
        return place(self, kept)

    with monkeypatch.context() as patch:
        patch.setattr(ShardOutput, "take_place", failing)
        with pytest.raises(OSError, match="plug"):
            repair_version(only(run), only(tmp_path / "whole"))
    assert (run / GONE).read_bytes() == (tmp_path / "whole" / GONE).read_bytes()
    assert [one.shard for one in mended(run, tmp_path / "whole").replaced] == [2, 3]


@pytest.mark.parametrize("links", [True, False])
def test_killed_while_a_file_takes_its_place(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, links: bool
) -> None:
    """With a second name for the damaged file, no moment has a version without it; where there is none, one has."""
    rename = Directory.rename

    def failing(self: Directory, name: str, to: Directory, new: str) -> None:
        if (name, to.path) == ((run / CUT).name, str((run / CUT).parent)):
            raise OSError("pulled the plug")
        rename(self, name, to, new)

    with monkeypatch.context() as patch:
        patch.setattr(Directory, "rename", failing)
        if not links:
            patch.setattr(Directory, "link", lambda *_: False)
        with pytest.raises(OSError, match="plug"):
            repair_version(only(run), only(tmp_path / "whole"))
    assert (run / CUT).exists() == links
    assert [one.shard for one in mended(run, tmp_path / "whole").replaced] == [2, 3]


def test_a_damaged_file_that_cannot_be_kept(
    s3: Bucket, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the copy for the trash fails, no upload is left open."""
    s3.upload(run)
    finish = Upload.finish

    def failing(self: Upload) -> None:
        if "/trash-0/" in self.path:
            raise CorruptError("unreadable", path=self.path)
        finish(self)

    monkeypatch.setattr(Upload, "finish", failing)
    with pytest.raises(CorruptError, match="unreadable"):
        repair_version(only(s3.url), only(tmp_path / "whole"))
    assert s3.open_uploads() == []


def test_changed_meanwhile(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A version that a job changes while the copies are compared stays as the job leaves it."""
    compare = check_trust

    def slow(*words: Any, **options: Any) -> Trust:
        (run / GONE).write_bytes(b"")
        return compare(*words, **options)

    monkeypatch.setattr(repair, "check_trust", slow)
    with pytest.raises(LockedError, match="changed before its repair"):
        repair_version(only(run), only(tmp_path / "whole"))
    assert (run / GONE).read_bytes() == b""


def test_a_write_that_lies(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A staged file that reads back differently never takes a place."""
    before = shards_of(run)
    written = DiskShard.written

    def damaging(self: DiskShard) -> None:
        self._file.write(0, b"\xff\xff")
        written(self)

    monkeypatch.setattr(DiskShard, "written", damaging)
    with pytest.raises(EdlCkptError, match="reads back differently"):
        repair_version(only(run), only(tmp_path / "whole"))
    assert shards_of(run) == before


def test_values_that_were_saved_so(tmp_path: Path) -> None:
    """NaN in a shard is no damage: only the missing shard is replaced."""
    ids, rows = np.arange(40), np.full((40, 2), np.nan, np.float32)
    save_checkpoint(str(tmp_path / "run"), 7, 2, variables={}, tables={"t": Table(ids, rows)}, layout="elasticdl")
    shutil.copytree(tmp_path / "run", tmp_path / "other")
    (tmp_path / "run/version-7/variables-1-of-2.ckpt").unlink()
    result = repair_version(only(tmp_path / "run"), only(tmp_path / "other"))
    assert [one.shard for one in result.replaced] == [1]


def test_tags_and_notes_stay(run: Path, tmp_path: Path) -> None:
    """What is recorded of a version is not touched."""
    from edl_ckpt.core import add_tag

    add_tag(only(run), "serving", force=True)
    mended(run, tmp_path / "whole")
    assert only(run).tags == ("serving",)


def _lose(path: Path) -> None:
    path.unlink()


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


FOREIGN = {
    "dcp": ("dcp/dtensor", 1, "step_1/__2_0.distcp"),
    "safetensors": ("safetensors", 200, "checkpoint-200/model-00002-of-00003.safetensors"),
    "tfra": ("tfra", 3, "step_3/TFRADynamicEmbedding/scope_user_3_mht_2of4_rank0_size1-values"),
    "dynamicemb": ("dynamicemb", 2, "step_2/dynamicemb/model.ebc/user_emb_keys.rank_1.world_size_3"),
    "bundle": ("bundle/sharded", 40, "model.ckpt-40.data-00001-of-00002"),
}


@pytest.mark.parametrize("hurt", [_lose, _cut])
@pytest.mark.parametrize("system", FOREIGN)
def test_other_systems(tmp_path: Path, system: str, hurt: Callable[[Path], None]) -> None:
    """Files of other systems are replaced in the same way, also those that lie side by side in a location."""
    source, number, name = FOREIGN[system]
    for place in ("run", "other"):
        shutil.copytree(DATA / "systems" / source, tmp_path / place)
    path = tmp_path / "run" / name
    hurt(path)
    versions = [
        next(v for v in list_versions(str(tmp_path / p)).versions if v.version == number) for p in ("run", "other")
    ]
    result = repair_version(*versions)
    assert [one.path for one in result.replaced] == [str(path)]
    assert path.read_bytes() == (tmp_path / "other" / name).read_bytes()
    assert verify_version(at(tmp_path / "run", number), level="deep").ok


@pytest.mark.parametrize("way", ["from S3", "to S3", "on S3"])
def test_s3(s3: Bucket, run: Path, tmp_path: Path, way: str) -> None:
    """Either copy may be on S3; there a damaged object is copied away before it is replaced, and no upload is left."""
    if way != "from S3":
        s3.upload(run)
    if way != "to S3":
        s3.upload(tmp_path / "whole", "whole")
    here = str(run) if way == "from S3" else s3.url
    result = mended(here, str(tmp_path / "whole") if way == "to S3" else f"s3://{s3.name}/whole")
    assert len(result.replaced) == 3
    assert s3.open_uploads() == []
    if way != "from S3":
        for name, data in shards_of(tmp_path / "whole").items():
            assert s3.get(f"run/{name}") == data
        kept = next(one.kept for one in result.replaced if one.shard == 2)
        assert s3.get(f"run/{kept}") == (run / CUT).read_bytes()


def test_golden_damage(tmp_path: Path) -> None:
    """A shard that is missing in a version that nobody sealed comes from a copy of it."""
    shutil.copytree(GOLDEN / "bad/missing-shard", tmp_path / "run")
    version: Version = only(tmp_path / "run")
    with pytest.raises(EdlCkptError):
        repair_version(version, only(GOLDEN / "bad/missing-shard"))
