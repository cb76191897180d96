"""TFRA's files: what TFRA saved is read as it exports it, and damage is named."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from edl_ckpt.core import open_checkpoint, verify_version
from edl_ckpt.core.model.layouts import Placement
from edl_ckpt.core.model.versions import State
from edl_ckpt.core.sources.tfra.format import file_named
from foreign import SYSTEMS, assert_rows, copied, step, truth

TABLE = "scope_user_3"


def placements(folder: Path, number: int) -> set[Placement | None]:
    """Return the rules of all tables of a step."""
    with open_checkpoint(step(folder, number)) as checkpoint:
        return {table.placement for shard in checkpoint.shards for table in shard.tables}


def test_rows_are_what_tfra_exports() -> None:
    """Ids and values equal those of the table that was saved; keys are where a build for CPUs looks for them."""
    version, expected = step(SYSTEMS / "tfra", 3), truth("tfra", 3)
    assert (version.layout.system, version.state, version.ps_num) == ("tfra", State.COMPLETE, 4)
    with open_checkpoint(version) as checkpoint:
        assert_rows(checkpoint, TABLE, expected["ids"], expected["vectors"])
    assert placements(SYSTEMS / "tfra", 3) == {Placement.MOD}
    assert verify_version(version, level="deep").ok


def test_slots_of_an_optimizer_are_companions() -> None:
    """The slots that a Keras optimizer has made are companions of their embedding, by their names."""
    with open_checkpoint(step(SYSTEMS / "tfra", 900)) as checkpoint:
        infos = {info.slot: info for shard in checkpoint.shards for info in shard.infos}
    assert {slot: info.companion_of for slot, info in infos.items()} == {
        "": "",
        "m": "item-parameter",
        "v": "item-parameter",
    }


def test_a_table_with_other_rows_is_no_companion(tmp_path: Path) -> None:
    """A table whose name ends like that of a slot stands for itself when its rows are others."""
    folder = copied("tfra", 900, tmp_path) / "TFRADynamicEmbedding-1"
    for kind in ("keys", "values"):
        next(folder.glob(f"*_m_mht_2of2*-{kind}")).write_bytes(b"")
    with open_checkpoint(step(tmp_path, 900)) as checkpoint:
        assert {info.slot for shard in checkpoint.shards for info in shard.infos} == {"", "v"}


def test_the_rule_of_a_build_for_gpus(tmp_path: Path) -> None:
    """Keys that lie as a build for GPUs places them are found there; keys that follow no rule have none."""
    folder = tmp_path / "step_1/TFRADynamicEmbedding"
    folder.mkdir(parents=True)
    keys = np.random.default_rng(0).integers(-(2**62), 2**62, 600)
    for rule, owners in {
        Placement.MOD: keys % 3,
        Placement.MASK31_MOD: (keys & 0x7FFFFFFF) % 3,
        Placement.NONE: np.arange(600) % 3,
    }.items():
        for number in range(3):
            own = keys[owners == number]
            own.tofile(folder / f"u_mht_{number + 1}of3_rank0_size1-keys")
            own.astype(np.float32).tofile(folder / f"u_mht_{number + 1}of3_rank0_size1-values")
        assert placements(tmp_path, 1) == {rule}
        assert verify_version(step(tmp_path, 1)).ok


def test_a_late_shard_tells_the_rule(tmp_path: Path) -> None:
    """Where small keys lie as both rules say, the one key that tells them apart counts, whatever its shard."""
    folder = tmp_path / "step_1/TFRADynamicEmbedding"
    folder.mkdir(parents=True)
    for number in range(6):
        large = [4_551_097_868] if number == 4 else []  # 2 by its value, 4 by its lowest 31 bits
        np.array([number, number + 6, *large]).tofile(folder / f"u_mht_{number + 1}of6_rank0_size1-keys")
        np.ones(2 + len(large), np.float32).tofile(folder / f"u_mht_{number + 1}of6_rank0_size1-values")
    assert placements(tmp_path, 1) == {Placement.MASK31_MOD}
    assert verify_version(step(tmp_path, 1)).ok


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("a/user_mht_2of3_rank1_size2-keys", ("user", 4, 6)),
        ("user_mht_1of1-values", ("user", 0, 1)),
        ("a_mht_1of2_mht_2of2-keys", ("a_mht_1of2", 1, 2)),
        ("user_mht_0of3-keys", None),
        ("user_mht_4of3-keys", None),
        ("user_mht_1of3_rank2_size2-keys", None),
        ("user_mht_01of3-keys", None),
        ("user_mht_1of3-keys.tmp", None),
        ("user-keys", None),
        ("user_mht_1of3-keys\n", None),
        (f"user_mht_1of{'9' * 30}-keys", None),
    ],
)
def test_names(path: str, found: tuple[str, int, int] | None) -> None:
    """The name of a file says its table, its shard and the number of shards; other names say nothing."""
    name = file_named(path)
    assert (name and (name.table, name.ps_id, name.ps_num)) == found


@pytest.mark.parametrize(("kind", "size"), [("keys", 12), ("values", 30), ("values", None), ("keys", None)])
def test_torn_files(tmp_path: Path, kind: str, size: int | None) -> None:
    """A step with a file that is cut off or missing is not whole, and `verify` names the file."""
    file = copied("tfra", 3, tmp_path) / f"TFRADynamicEmbedding/{TABLE}_mht_2of4_rank0_size1-{kind}"
    data = file.read_bytes()
    file.unlink()
    if size is not None:
        file.write_bytes(data[:size])
    version = step(tmp_path, 3)
    assert version.state in {State.INCOMPLETE, State.WRITING}
    assert any(f"{TABLE}_mht_2of4_rank0_size1-" in words for words in version.lacks)
    assert any(finding.code == "truncated" and finding.shard == 1 for finding in verify_version(version).findings)


def test_empty_files_are_empty_shards(tmp_path: Path) -> None:
    """A device without a key saves two empty files; its shard has no rows."""
    folder = copied("tfra", 3, tmp_path) / "TFRADynamicEmbedding"
    for kind in ("keys", "values"):
        (folder / f"{TABLE}_mht_2of4_rank0_size1-{kind}").write_bytes(b"")
    version, expected = step(tmp_path, 3), truth("tfra", 3)
    kept = expected["ids"] % 4 != 1
    assert version.state is State.COMPLETE
    with open_checkpoint(version) as checkpoint:
        assert_rows(checkpoint, TABLE, expected["ids"][kept], expected["vectors"][kept])
    assert verify_version(version, level="deep").ok


def test_files_of_an_older_save(tmp_path: Path) -> None:
    """Files of another number of devices that an older save left are a warning: TFRA's loader takes all of them."""
    folder = copied("tfra", 3, tmp_path) / "TFRADynamicEmbedding"
    for kind, size in (("keys", 8), ("values", 52)):
        file = folder / f"{TABLE}_mht_1of1_rank0_size1-{kind}"
        file.write_bytes(bytes(size))
        os.utime(file, (1, 1))
    version = step(tmp_path, 3)
    assert version.ps_num == 4
    assert [f.severity for f in verify_version(version).findings if f.code == "mixed-ps-num"] == ["warning"]
    with open_checkpoint(version) as checkpoint:
        assert_rows(checkpoint, TABLE, truth("tfra", 3)["ids"], truth("tfra", 3)["vectors"])
