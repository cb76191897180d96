"""dynamicemb's files: what its own functions wrote is read as its loader reads it, and damage is named."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from edl_ckpt.core import UnsupportedError, open_checkpoint, verify_version
from edl_ckpt.core.model.layouts import Placement
from edl_ckpt.core.model.tables import TableInfo
from edl_ckpt.core.model.versions import State
from foreign import SYSTEMS, assert_rows, copied, step, truth

TABLE = "dynamicemb/model.ebc/user"
FOLDER = "dynamicemb/model.ebc"


@pytest.mark.parametrize("number", [1, 2, 3])
def test_rows_are_what_the_loader_reads(number: int) -> None:
    """Ids, values, scores and optimizer state equal what dynamicemb's loader reads, and `verify` finds no error."""
    version, expected = step(SYSTEMS / "dynamicemb", number), truth("dynamicemb", number)
    assert (version.layout.system, version.state, version.ps_num) == ("dynamicemb", State.COMPLETE, number + 1)
    with open_checkpoint(version) as checkpoint:
        names = {TABLE: "vectors", f"{TABLE}_emb_scores": "scores", f"{TABLE}_emb_opt_values": "opt_values"}
        assert set(checkpoint.table_names) == {name for name, kind in names.items() if kind in expected}
        for name in checkpoint.table_names:
            assert_rows(checkpoint, name, expected["ids"], expected[names[name]])
    assert verify_version(version, level="deep").ok


def test_companions_name_their_table() -> None:
    """Scores and optimizer state are companions of their table."""
    with open_checkpoint(step(SYSTEMS / "dynamicemb", 1)) as checkpoint:
        infos = {info.name: info for info in checkpoint.shards[0].infos}
    assert infos[f"{TABLE}_emb_scores"].companion_of == infos[f"{TABLE}_emb_opt_values"].companion_of == TABLE
    assert {info.slot for info in infos.values()} == {"", "scores", "opt_values"}
    assert infos[TABLE] == TableInfo(TABLE, infos[TABLE].dim, "uniform")


@pytest.mark.parametrize(
    ("rule", "placement"),
    [("roundrobin", Placement.UNSIGNED_MOD), ("hash_roundrobin", Placement.FMIX64_MOD), ("continuous", Placement.NONE)],
)
def test_the_router_names_the_placement(tmp_path: Path, rule: str, placement: Placement) -> None:
    """The rule of the router is in the table's arguments; without them, or with damaged ones, there is none."""
    folder = copied("dynamicemb", 2, tmp_path) / FOLDER
    args = folder / "user_opt_args.json"
    for text, expected in ((f'{{"dist_type": "{rule}"}}', placement), ("{", Placement.NONE), (None, Placement.NONE)):
        args.write_text(text) if text else args.unlink()
        with open_checkpoint(step(tmp_path, 2)) as checkpoint:
            assert {table.placement for shard in checkpoint.shards for table in shard.tables} == {expected}


def test_an_admission_counter_is_a_table(tmp_path: Path) -> None:
    """The keys of a counter are others than those of its table, so it is a table and no companion."""
    folder = copied("dynamicemb", 1, tmp_path) / FOLDER
    for rank in (0, 1):
        (folder / f"user_counter_keys.rank_{rank}.world_size_2").write_bytes(bytes([rank, *bytes(7)]))
        (folder / f"user_counter_frequencies.rank_{rank}.world_size_2").write_bytes(b"\5" + bytes(7))
    with open_checkpoint(step(tmp_path, 1)) as checkpoint:
        rows = checkpoint.table(f"{TABLE}_counter").to_numpy()
        assert (rows.ids.tolist(), rows.vectors.tolist()) == ([0, 1], [[5], [5]])
        assert not next(i for i in checkpoint.shards[0].infos if i.name == f"{TABLE}_counter").companion_of


@pytest.mark.parametrize(
    ("name", "size", "words"),
    [
        ("user_emb_values.rank_1.world_size_3", 100, "ends at byte 100 of "),
        ("user_emb_keys.rank_1.world_size_3", 9, "ends inside an id, after 1 id"),
        ("user_emb_scores.rank_2.world_size_3", 8, "ends at byte 8 of "),
        ("user_emb_values.rank_1.world_size_3", None, "has no file of values beside it"),
        ("user_emb_keys.rank_1.world_size_3", None, "has no file of ids beside it"),
        ("user_emb_scores.rank_1.world_size_3", None, "has no file of scores beside it"),
    ],
)
def test_torn_files(tmp_path: Path, name: str, size: int | None, words: str) -> None:
    """A step with a file that is cut off or missing is incomplete, and says why; its other shards can be checked."""
    file = copied("dynamicemb", 2, tmp_path) / FOLDER / name
    data = file.read_bytes()
    file.unlink()
    if size is not None:
        file.write_bytes(data[:size])
    version = step(tmp_path, 2)
    assert version.state in {State.INCOMPLETE, State.WRITING}
    assert any(words in fault for fault in version.lacks), version.lacks
    assert "truncated" in {finding.code for finding in verify_version(version).findings}


def test_a_rank_is_missing(tmp_path: Path) -> None:
    """A rank without files makes the step incomplete, however many its world is said to have."""
    folder = copied("dynamicemb", 2, tmp_path) / FOLDER
    for file in folder.glob("*.rank_1.*"):
        file.unlink()
    assert step(tmp_path, 2).lacks == (f"{TABLE}: shard 1 of 3 (numbered 0 to 2) is missing",)
    for file in folder.glob("*world_size_3"):
        file.rename(f"{file}00000000"[:-2])
    assert "shards 1, 3 to 2999999 of 3000000" in step(tmp_path, 2).lacks[0].replace(", 2", "", 1)


def test_files_of_an_older_save(tmp_path: Path) -> None:
    """Files of another world size that an older job left are a warning, and are not read."""
    folder = copied("dynamicemb", 2, tmp_path) / FOLDER
    for kind in ("keys", "values"):
        (folder / f"user_emb_{kind}.rank_0.world_size_1").write_bytes(bytes(8))
    expected = truth("dynamicemb", 2)
    for file in folder.glob("*world_size_1"):
        os.utime(file, (1, 1))
    version = step(tmp_path, 2)
    with open_checkpoint(version) as checkpoint:
        assert_rows(checkpoint, TABLE, expected["ids"], expected["vectors"])
    (finding,) = (f for f in verify_version(version).findings if f.code == "mixed-ps-num")
    assert finding.severity == "warning"


def test_a_row_of_another_rank(tmp_path: Path) -> None:
    """A key that the router would send to another rank is found, by the rule of its arguments."""
    folder = copied("dynamicemb", 2, tmp_path) / FOLDER
    keys = folder / "user_emb_keys.rank_1.world_size_3"
    data = keys.read_bytes()
    keys.write_bytes((int.from_bytes(data[:8], "little") + 1).to_bytes(8, "little") + data[8:])
    assert "misplaced-row" in {finding.code for finding in verify_version(step(tmp_path, 2)).findings}


def test_reading_a_torn_step_is_an_error(tmp_path: Path) -> None:
    """A table whose values are cut off cannot be read, and the error names the file and the byte."""
    folder = copied("dynamicemb", 2, tmp_path) / FOLDER
    values = folder / "user_emb_values.rank_0.world_size_3"
    values.write_bytes(values.read_bytes()[:-1])
    with open_checkpoint(step(tmp_path, 2), partial=True) as checkpoint:
        found = [(lost.shard, lost.path, lost.offset) for lost in checkpoint.lost]
    assert found == [(0, str(values), values.stat().st_size)]


def test_values_of_another_dtype_are_unsupported(tmp_path: Path) -> None:
    """Where the arguments name a dtype that the sizes do not tell, nothing is read as float32."""
    args = copied("dynamicemb", 2, tmp_path) / FOLDER / "user_opt_args.json"
    args.write_text('{"value_dtype": "torch.bfloat16"}')
    with pytest.raises(UnsupportedError, match="bfloat16"), open_checkpoint(step(tmp_path, 2)):
        pass
    args.write_text('{"value_dtype": "torch.float32", "key_dtype": "int64"}')
    open_checkpoint(step(tmp_path, 2)).close()
