"""Servers without a name for their run: a shard that was there before the saver of another one is of an earlier run."""

from __future__ import annotations

import random
from contextlib import suppress
from pathlib import Path

import pytest

from checkpoints import at, only
from edl_ckpt.core import (
    CheckpointSaver,
    SavedShard,
    execute_copy,
    latest,
    list_versions,
    mixed_runs,
    plan_copy,
    recover,
    restore,
    verify_version,
)
from edl_ckpt.core.base.errors import IncompleteError, RefusedError
from edl_ckpt.core.model.versions import State
from program import edl, inside
from reporters import Recorder
from s3_fixtures import Bucket
from s3_proxy import Fault, status
from saving import save_all, save_part, small_parts, values_of

SEVERAL = "its shards are of several runs: shard 0 of 2 of a run without a name, shard 1 of 2 of a later run without"


def savers(place: str | Path, ps_num: int, run: str = "") -> list[CheckpointSaver]:
    """Return the savers of a job that starts now, all made before its first save."""
    return [CheckpointSaver(place, ps_id=i, ps_num=ps_num, run=run, layout="elasticdl") for i in range(ps_num)]


def save_with(saver: CheckpointSaver, version: int, value: float = 1.0) -> SavedShard:
    """Save the part of `small_parts` that is the saver's."""
    part = small_parts(saver.ps_num, value)[saver.ps_id]
    return saver.save(version, part.dense, part.tables)


def test_a_version_that_was_sealed(place: str) -> None:
    """Savers that were all made before the first save seal; a shard that the next run replaces is noticed."""
    first = savers(place, 2)
    assert [save_with(saver, 7).sealed for saver in first] == [False, True]
    second = savers(place, 2)
    assert not save_with(second[0], 7, value=2.0).sealed
    assert "may be of an earlier run" in mixed_runs(only(place))
    assert save_with(second[1], 7, value=2.0).sealed
    assert verify_version(only(place), level="deep").findings == ()


def test_a_version_that_was_never_sealed(place: str) -> None:
    """One server of a run saves and the job dies, the other saves in the next run: no seal, and readers say so."""
    save_all(place, 5, 2)
    save_with(savers(place, 2)[0], 7)
    later = savers(place, 2)
    saved = save_with(later[1], 7, value=2.0)
    assert (saved.complete, saved.sealed) == (True, False)
    listing = list_versions(place)
    assert [SEVERAL in text for text in listing.problems] == [True]
    assert [SEVERAL in version.mixture for version in listing.versions] == [False, True]
    reporter = Recorder()
    assert latest(place, reporter=reporter).version == 5
    assert SEVERAL in reporter.warnings[0]
    for ps_id in range(2):
        with pytest.raises(RefusedError, match="shard 0 of 2 of a run without a name, shard 1 of 2 of a later run"):
            restore(f"{place}@7", ps_id, 2)
    assert save_with(later[0], 7, value=2.0).sealed
    assert restore(f"{place}@7", 0, 2).version == 7
    assert verify_version(at(place, 7), level="deep").findings == ()


def test_several_runs_in_turn(place: str) -> None:
    """Runs that each left a part of a version are all told apart, until one run has saved every shard."""
    for ps_id in (0, 1):
        save_with(savers(place, 3)[ps_id], 7)
    last = savers(place, 3)
    assert [save_with(last[ps_id], 7, value=2.0).sealed for ps_id in (2, 1)] == [False, False]
    assert "several runs: shard 0 of 3" in mixed_runs(only(place))
    assert save_with(last[0], 7, value=2.0).sealed
    assert verify_version(only(place), level="deep").findings == ()


def test_a_server_that_is_ahead_and_restarted(place: str) -> None:
    """A server that saves its own shard again, before others have saved theirs, is of the same run."""
    first = savers(place, 2)
    save_with(first[0], 7)
    assert save_with(savers(place, 2)[0], 7).replaced
    assert save_with(first[1], 7).sealed
    assert verify_version(only(place), level="deep").findings == ()


def test_the_list_says_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The row of a mixture has a remark, its JSON a key with the servers; the copy that the hint names is a way on."""
    for ps_id in (0, 1):
        save_part(tmp_path / "run", 7, ps_id, 2, run="")
    (version,) = inside(capsys, "list", tmp_path / "run")["locations"][0]["versions"]
    assert (version["state"], SEVERAL in version["mixture"]) == ("complete", True)
    (row,) = (line for line in edl("list", tmp_path / "run").stdout.splitlines() if "may have shards" in line)
    assert "latest" not in row
    refused_tag = edl("tag", "add", tmp_path / "run", "good")
    assert (refused_tag.returncode, "Warning" in refused_tag.stderr) == (2, False)
    with pytest.raises(RefusedError) as refused:
        restore(f"{tmp_path}/run@7", 0, 2)
    assert f"copy {tmp_path}/run@7 NEW_LOCATION --force" in str(refused.value.hint)
    execute_copy(plan_copy([only(tmp_path / "run")], tmp_path / "out", force=True))
    assert restore(f"{tmp_path}/out@7", 0, 2).version == 7
    assert verify_version(only(tmp_path / "out"), level="deep").findings == ()


def test_a_storage_that_fails_when_the_saver_is_made(s3: Bucket) -> None:
    """A saver that could not look when it was made looks at its first save: what is there is of an earlier run."""
    first = savers(s3.url, 2)
    s3.proxy.fail(Fault(status(403, "AccessDenied"), operation="list", times=None))
    late = savers(s3.url, 2)[1]
    s3.proxy.heal()
    save_with(first[0], 7)
    assert not save_with(late, 7).sealed
    assert "several runs" in mixed_runs(only(s3.url))
    assert save_with(first[1], 7).sealed
    assert verify_version(only(s3.url), level="deep").findings == ()


def test_a_run_with_a_name_does_not_look(s3: Bucket) -> None:
    """A saver whose run has a name, and one that is alone, makes no request when it is made."""
    s3.proxy.reset()
    savers(s3.url, 2, run="one")
    savers(s3.url, 1)
    assert s3.proxy.count() == 0


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.hours) for seed in range(1, 40))])
def test_no_whole_version_mixes_runs(tmp_path: Path, seed: int) -> None:
    """Epochs of a job that each end in a kill: what is sealed or passes for one run has values of one epoch."""
    chance, mixtures = random.Random(seed), 0
    for epoch in range(12):
        start = max((v.version for v in list_versions(tmp_path).versions if v.fingerprint), default=0) + 1
        running, next_version = savers(tmp_path, 3), [start] * 3
        for _ in range(chance.randrange(1, 9)):
            ps_id = chance.randrange(3)
            save_with(running[ps_id], next_version[ps_id], float(epoch))
            next_version[ps_id] += 1
        for version in list_versions(tmp_path).versions:
            if version.state is State.COMPLETE:
                values = set[float]().union(*values_of(Path(version.path)).values())
                assert bool(version.mixture) == bool(mixed_runs(version)) == (len(values) > 1)
                assert bool(version.fingerprint) == (len(values) == 1)
                mixtures += len(values) > 1
        with suppress(IncompleteError):
            assert verify_version(latest(tmp_path), level="deep").findings == ()
    assert mixtures
    recover(tmp_path)
