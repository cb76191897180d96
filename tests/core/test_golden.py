"""Everything ElasticDL itself wrote is read with the content that `expected.json` gives."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

import elasticdl_rules
from edl_ckpt.core import (
    Checkpoint,
    execute_reshard,
    list_versions,
    open_checkpoint,
    parse_ref,
    plan_reshard,
    resolve,
    verify_version,
)
from oracle import Model, combined, expected_model, read_model, without_slots
from oracle import Table as OracleTable
from places import GOLDEN

CURRENT = ["ps1", "ps2", "ps3", "ps4"]
LEGACY = {"v0d": "v0", "v1": "v1", "v1c": "v1", "v1c-slots": "v1", "v1s": "v1", "v2": "v2", "v3": "v3", "v4a": "v4"}
ALL = [f"current/{name}" for name in CURRENT] + [f"legacy/{name}" for name in LEGACY]


def section_of(expected: Any, case: str) -> Any:
    kind, name = case.split("/")
    return expected[kind] if kind == "current" else expected[kind][name]


def shard_files(location: Path) -> list[Path]:
    return [p for p in location.rglob("*") if p.is_file() and p.suffix in {".ckpt", ".chkpt"}]


def engine_model(checkpoint: Checkpoint) -> Model:
    """Everything the engine reads, as the oracle's plain value."""
    model = Model(checkpoint.shards[0].version)
    for name in checkpoint.variable_names:
        value = checkpoint.variable(name)
        model.dense[name] = (value.dtype.name, value.shape, value.tobytes())
    for name in checkpoint.table_names:
        info, dtype = checkpoint.infos[name], checkpoint.table_dtype(name)
        table = OracleTable(info.dim, info.initializer, dtype.name if dtype else "")
        for ids, vectors in checkpoint.table(name, batch_rows=3):
            table.rows |= {int(i): row.tobytes() for i, row in zip(ids, vectors, strict=True)}
        model.tables[name] = table
    return model


@pytest.mark.parametrize("case", ALL)
def test_oracle_reads_golden(case: str, expected: Any) -> None:
    """The oracle itself, which judges the engine, agrees with expected.json."""
    section = section_of(expected, case)
    generation = LEGACY.get(case.split("/")[1], "v4")
    model = without_slots(read_model(shard_files(GOLDEN / case), generation))
    assert combined(model) == section["combined"] == combined(expected_model(section))


@pytest.mark.parametrize("case", ALL)
def test_engine_reads_golden(case: str, expected: Any, either_kernel: str) -> None:
    """The engine reads every variable, row, dtype, shape and info of every golden checkpoint as expected."""
    with open_checkpoint(str(GOLDEN / case)) as checkpoint:
        model = without_slots(engine_model(checkpoint))
        assert checkpoint.generation == LEGACY.get(case.split("/")[1], "v4")
    section = section_of(expected, case)
    assert combined(model) == section["combined"]
    assert model.version == section["version"]


@pytest.mark.parametrize("ps_num", [1, 2, 3, 4, 5, 8, 31, 32, 33])
@pytest.mark.parametrize("case", ALL)
def test_reshard_golden(case: str, ps_num: int, expected: Any, tmp_path: Path) -> None:
    """Resharded to any count, the oracle finds the expected content, verify no error, the placement is the rule."""
    version = resolve(parse_ref(str(GOLDEN / case)))
    result = execute_reshard(plan_reshard(version, ps_num, output=str(tmp_path)))
    files = shard_files(tmp_path)
    assert len(files) == ps_num
    assert combined(without_slots(read_model(files))) == section_of(expected, case)["combined"]
    written = resolve(parse_ref(str(tmp_path)))
    check = verify_version(written, level="deep")
    assert check.fingerprint == result.fingerprint
    bad = {f.code for f in check.findings if f.severity == "error"}
    assert bad <= {"nan", "inf", "huge-value"}
    assert elasticdl_rules.visible(tmp_path) == {Path(written.path).name}


def test_fingerprint_ignores_shards_and_generation() -> None:
    """One content has one fingerprint, whatever its shard count and wire generation."""
    seen: dict[str, set[str | None]] = {}
    for case in ALL:
        result = verify_version(resolve(parse_ref(str(GOLDEN / case))), level="deep")
        content = combined(read_model(shard_files(GOLDEN / case), LEGACY.get(case.split("/")[1], "v4")))
        seen.setdefault(content, set()).add(result.fingerprint)
    assert all(len(fingerprints) == 1 and None not in fingerprints for fingerprints in seen.values())
    assert len(set.union(*seen.values())) == len(seen)


BAD = {
    "bak-instead-of-shard": {"extra-file", "missing-shard"},
    "bitflip": set(),
    "bool-dense": set(),
    "dir-version-differs": {"directory-version-mismatch"},
    "extra-file": {"extra-file"},
    "float-val": {"values-outside-content"},
    "missing-shard": {"missing-shard"},
    "mixed-n": {"mixed-ps-num"},
    "more-ids-than-rows": {"id-row-mismatch"},
    "no-table-info": {"missing-table-info"},
    "swapped-shards": {"misplaced-row", "misplaced-variable"},
    "truncated": {"truncated"},
    "unknown-field-1000": {"unknown-field"},
    "version-mismatch": {"version-mismatch"},
    "zero-byte": {"empty-file"},
}


@pytest.mark.parametrize("case", sorted(BAD))
def test_bad_findings(case: str, expected: Any) -> None:
    """Each damaged checkpoint gets exactly its findings at the default level."""
    version = list_versions(str(GOLDEN / "bad" / case)).versions[0]
    result = verify_version(version)
    assert {f.code for f in result.findings} == BAD[case]
    assert result.ok == (BAD[case] <= {"unknown-field"})
    assert set(BAD) == set(expected["bad"])


def test_multi(expected: Any) -> None:
    """The newest complete version is ElasticDL's own latest valid one, by number and not by name."""
    listing = list_versions(str(GOLDEN / "multi"))
    assert [v.version for v in listing.versions] == [9, 20, 100]
    assert resolve(parse_ref(str(GOLDEN / "multi"))).version == 20
    assert elasticdl_rules.latest_valid(GOLDEN / "multi") == expected["multi"]["latest"]


@pytest.mark.parametrize("case", sorted(BAD))
def test_rules_restated_rightly(case: str, expected: Any) -> None:
    """The tests' restatement of ElasticDL's validity rule says what ElasticDL's own code said."""
    directory = next((GOLDEN / "bad" / case).iterdir())
    assert elasticdl_rules.is_valid(directory) == expected["bad"][case]["valid"]


def test_scan_is_undisturbed_in_place(tmp_path: Path) -> None:
    """After an in-place reshard, kept old shards included, ElasticDL's scan finds the same latest version."""
    location = tmp_path / "run"
    shutil.copytree(GOLDEN / "multi", location)
    before = elasticdl_rules.answer(location)
    execute_reshard(plan_reshard(resolve(parse_ref(str(location))), 3), keep_old=True)
    assert elasticdl_rules.answer(location) == before == ("version-20", "version-20")
    assert (location / ".edl-ckpt-0").is_dir()
    execute_reshard(plan_reshard(resolve(parse_ref(f"{location}@9")), 5))
    assert elasticdl_rules.answer(location) == before


@pytest.mark.parametrize("ps_num", [1, 2, 3, 4])
def test_placement_is_elasticdls(ps_num: int, expected: Any) -> None:
    """Variables and rows lie where ElasticDL's own savers put them."""
    placement = expected["current"]["placement"][str(ps_num)]
    with open_checkpoint(str(GOLDEN / "current" / f"ps{ps_num}")) as checkpoint:
        held = {v.name: s.file.ps_id for s in checkpoint.shards for v in s.variables}
        rows = {n: [0] * ps_num for n in checkpoint.table_names}
        for shard in checkpoint.shards:
            for table in shard.tables:
                rows[table.name][shard.file.ps_id] = table.rows
    assert held == placement["dense"]
    assert rows == placement["table_rows"]


@pytest.mark.parametrize("ps_num", [1, 3, 7])
def test_restore_part(ps_num: int, expected: Any) -> None:
    """The parts of all parameter servers of any count are together the whole model, none of it twice."""
    model = Model()
    with open_checkpoint(str(GOLDEN / "current" / "ps4")) as checkpoint:
        for ps_id in range(ps_num):
            part = checkpoint.restore(ps_id, ps_num)
            for name, value in part.variables.items():
                assert name not in model.dense
                model.dense[name] = (value.dtype.name, value.shape, value.tobytes())
            for name, (ids, vectors) in part.tables.items():
                info = part.infos[name]
                table = model.tables.setdefault(name, OracleTable(info.dim, info.initializer))
                assert not table.rows.keys() & set(ids.tolist())
                assert (ids % ps_num == ps_id).all()
                table.rows |= {int(i): row.tobytes() for i, row in zip(ids, vectors, strict=True)}
                table.dtype = vectors.dtype.name if len(ids) else table.dtype
    assert combined(model) == expected["current"]["combined"]
