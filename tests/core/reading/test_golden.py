"""Everything ElasticDL itself wrote is read with the content that `expected.json` gives."""

from __future__ import annotations

from typing import Any

import pytest

import elasticdl_rules
from edl_ckpt.core import Checkpoint, list_versions, open_checkpoint, parse_ref, resolve, verify_version
from golden_cases import ALL, LEGACY, section_of, shard_files
from oracle import Model, Table, add_part, combined, expected_model, read_model, without_slots
from places import GOLDEN


def engine_model(checkpoint: Checkpoint) -> Model:
    """Everything the engine reads, as the oracle's plain value."""
    model = Model(checkpoint.shards[0].version)
    for name in checkpoint.variable_names:
        value = checkpoint.variable(name)
        model.dense[name] = (value.dtype.name, value.shape, value.tobytes())
    for name in checkpoint.table_names:
        info, dtype = checkpoint.infos[name], checkpoint.table_dtype(name)
        table = Table(info.dim, info.initializer, dtype.name if dtype else "")
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


def test_fingerprint_ignores_shards_and_generation() -> None:
    """One content has one fingerprint, whatever its shard count and wire generation."""
    seen: dict[str, set[str | None]] = {}
    for case in ALL:
        result = verify_version(resolve(parse_ref(str(GOLDEN / case))), level="deep")
        content = combined(read_model(shard_files(GOLDEN / case), LEGACY.get(case.split("/")[1], "v4")))
        seen.setdefault(content, set()).add(result.fingerprint)
    assert all(len(fingerprints) == 1 and None not in fingerprints for fingerprints in seen.values())
    assert len(set.union(*seen.values())) == len(seen)


def test_multi(expected: Any) -> None:
    """The newest complete version is ElasticDL's own latest valid one, by number and not by name."""
    listing = list_versions(str(GOLDEN / "multi"))
    assert [v.version for v in listing.versions] == [9, 20, 100]
    assert resolve(parse_ref(str(GOLDEN / "multi"))).version == 20
    assert elasticdl_rules.latest_valid(GOLDEN / "multi") == expected["multi"]["latest"]


@pytest.mark.parametrize("ps_num", [1, 2, 3, 4])
def test_placement_is_elasticdls(ps_num: int, expected: Any) -> None:
    """Variables and rows lie where ElasticDL's own savers put them."""
    placement = expected["current"]["placement"][str(ps_num)]
    with open_checkpoint(str(GOLDEN / "current" / f"ps{ps_num}")) as checkpoint:
        placed = {v.name: s.file.ps_id for s in checkpoint.shards for v in s.variables}
        rows = {n: [0] * ps_num for n in checkpoint.table_names}
        for shard in checkpoint.shards:
            for table in shard.tables:
                rows[table.name][shard.file.ps_id] = table.rows
    assert placed == placement["dense"]
    assert rows == placement["table_rows"]


@pytest.mark.parametrize("ps_num", [1, 3, 7])
def test_restore_part(ps_num: int, expected: Any) -> None:
    """The parts of all parameter servers of any count are together the whole model, none of it twice."""
    model = Model()
    with open_checkpoint(str(GOLDEN / "current" / "ps4")) as checkpoint:
        for ps_id in range(ps_num):
            add_part(model, checkpoint.restore(ps_id, ps_num), ps_id, ps_num)
    assert combined(model) == expected["current"]["combined"]
