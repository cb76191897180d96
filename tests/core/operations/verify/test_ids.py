"""Rows that repeat an id, and rows of another shard."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest

from builders import write_unchecked
from edl_ckpt.core import list_versions, parse_ref, resolve, save_checkpoint, verify_version
from edl_ckpt.core.base.choices import Level
from edl_ckpt.core.base.errors import UnavailableError
from edl_ckpt.core.operations.save import Table
from edl_ckpt.core.proof import duplicates, id_pass, repeated_ids
from edl_ckpt.core.reading import kept_ids
from edl_ckpt.core.storage.local import LocalReader
from places import GOLDEN


def test_duplicate_and_misplaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A repeated id and a row of another shard are found with the ids, also when sorted in several turns.

    In large tables repeated ids are looked for beside the values; that too belongs to the check of ids.
    """
    ids = np.array([*range(0, 4000, 2), 8, 10, 8], np.int64)
    rows = np.zeros((len(ids), 2), np.float32)
    directory = write_unchecked(tmp_path, 5, 2, {"t": Table(ids, rows)})
    for kept, limit, level in product((id_pass.KEPT_ROWS, 0), (1 << 20, 300), get_args(Level)[1:]):
        monkeypatch.setattr(id_pass, "KEPT_ROWS", kept)
        monkeypatch.setattr(duplicates, "SORTED_AT_ONCE", limit)
        monkeypatch.setattr(repeated_ids, "SORTED_AT_ONCE", limit)
        (finding,) = verify_version(resolve(parse_ref(str(tmp_path))), level=level).findings
        assert (finding.code, finding.check, finding.shard, finding.subject) == ("duplicate-id", "ids", 0, "t")
        assert finding.message == "3 rows repeat an id: 8, 10; ElasticDL restores only one row per id"
    first, second = (directory / f"variables-{i}-of-2.ckpt" for i in (0, 1))
    first.rename(tmp_path / "x")
    second.rename(first)
    (tmp_path / "x").rename(second)
    found = {f.code: f for f in verify_version(list_versions(str(tmp_path)).versions[0]).findings}
    assert found.keys() == {"misplaced-row", "duplicate-id"}
    places = ", ".join(f"id {i} to shard 0" for i in (0, 2, 4))
    assert found["misplaced-row"].message == f"2003 rows belong to other shards: {places}"


def test_an_id_in_two_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, client: Any) -> None:
    """An id in its own shard and in another one is misplaced, and is there twice: both are said, here and elsewhere.

    An id that one wrong shard has twice is not in several.
    """
    (tmp_path / "run" / "version-5").mkdir(parents=True)
    for number, ids in enumerate(([0, 2, 4, 8, *range(100, 900, 2)], [1, 4, 3, 8, 5, 6, 6])):
        alone = write_unchecked(
            tmp_path / f"{number}", 5, 1, {"t": Table(np.array(ids), np.zeros((len(ids), 2), "f4"))}
        )
        (shard,) = alone.iterdir()
        shard.rename(tmp_path / "run" / "version-5" / f"variables-{number}-of-2.ckpt")
    for limit, executor in product((1 << 20, 300), (None, client)):
        monkeypatch.setattr(duplicates, "SORTED_AT_ONCE", limit)
        monkeypatch.setattr(repeated_ids, "SORTED_AT_ONCE", limit)
        found = verify_version(resolve(parse_ref(str(tmp_path / "run"))), executor=executor).findings
        assert [(f.code, f.shard, f.subject, f.message.partition(";")[0]) for f in found] == [
            ("duplicate-id", 1, "t", "1 row repeats an id: 6"),
            (
                "misplaced-row",
                1,
                "t",
                "4 rows belong to other shards: " + ", ".join(f"id {i} to shard 0" for i in (4, 6, 8)),
            ),
            ("duplicate-id", None, "t", "2 ids are in several shards: 4, 8"),
        ]


def test_one_of_each(tmp_path: Path) -> None:
    """A single row or value has the singular in its message."""
    ids, rows = np.array([4, -4, 4], np.int64), np.array([[1.0], [np.nan], [2.0]], np.float32)
    write_unchecked(tmp_path, 5, 1, {"t": Table(ids, rows)})
    found = {f.code: f.message for f in verify_version(resolve(parse_ref(str(tmp_path))), level="deep").findings}
    assert found == {
        "negative-id": "the table has 1 negative id in this shard: -4",
        "duplicate-id": "1 row repeats an id: 4; ElasticDL restores only one row per id",
        "nan": "1 of the table's values in this shard is NaN; first id: -4",
    }


def outcome(path: Path) -> tuple[object, ...]:
    """Return what a deep verification finds."""
    found = verify_version(list_versions(str(path)).versions[0], level="deep")
    return found.findings, found.fingerprint, found.ids_read, [check.name for check in found.checks]


@pytest.mark.parametrize("kept", [1 << 16, 0])
def test_far_storage_has_the_same_findings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: int) -> None:
    """Where ids are checked while values are read, as of far storage, nothing else is found than one after the other.

    That holds for all damaged golden checkpoints, repeated, misplaced and negative ids, and without room to keep ids.
    """
    ids = np.array([*range(0, 40_000, 2), 8, 10, 8, -4], np.int64)
    write_unchecked(tmp_path / "bad", 5, 2, {t: Table(ids, np.zeros((len(ids), 2), np.float32)) for t in "tuv"})
    save_checkpoint(
        tmp_path / "good", 5, 3, variables={"w": np.arange(9.0)}, tables={"t": Table(ids[:99], ids[:99, None])}
    )
    paths = [tmp_path / "bad", tmp_path / "good", *(GOLDEN / "bad").iterdir(), *(GOLDEN / "current").iterdir()]
    monkeypatch.setattr(id_pass, "KEPT_ROWS", kept)
    near = [outcome(path) for path in paths]
    assert sum(fingerprint is not None for _, fingerprint, *_ in near) > 1
    if not kept:
        monkeypatch.setattr(kept_ids, "KEPT_BYTES", 0)
    monkeypatch.setattr(LocalReader, "block_bytes", 4096)
    monkeypatch.setattr(LocalReader, "view", lambda *_: None)
    assert [outcome(path) for path in paths] == near


def test_an_error_of_far_ids_ends_the_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error of the storage while ids are checked beside the values is that of the verification, and soon."""
    ids = np.arange(40_000)
    save_checkpoint(tmp_path, 5, 2, variables={}, tables={t: Table(ids, ids[:, None]) for t in "tu"})
    monkeypatch.setattr(LocalReader, "block_bytes", 4096)
    monkeypatch.setattr(kept_ids, "KEPT_BYTES", 0)

    def fail(*_: object) -> None:
        raise UnavailableError("S3 does not answer")

    monkeypatch.setattr(id_pass, "read_piece", fail)
    with pytest.raises(UnavailableError, match="does not answer"):
        verify_version(resolve(parse_ref(str(tmp_path))), level="deep")
