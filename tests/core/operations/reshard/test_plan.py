"""The plan of a reshard is arithmetic on a survey: no file is opened here."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from builders import models
from edl_ckpt.core.catalog.target import Target
from edl_ckpt.core.kernel import bulk
from edl_ckpt.core.model.dtypes import DTYPES
from edl_ckpt.core.model.tables import TableInfo
from edl_ckpt.core.model.versions import ShardFile, State, Version
from edl_ckpt.core.moving.input import PieceCounts, SurveyedTable
from edl_ckpt.core.moving.plan import row_marks
from edl_ckpt.core.operations.reshard.execute import ReshardPlan, Survey, plan_reshard
from edl_ckpt.core.sources.elasticdl.checks import LARGE_SHARD_BYTES
from edl_ckpt.core.sources.elasticdl.names import DESIGN, ELASTICDL
from edl_ckpt.core.sources.elasticdl.shard_layout import PlacedVariable
from edl_ckpt.core.storage import Location, open_store
from oracle import Model, Table, add_shard, variable_owner

PAIRS = [(8, 4), (4, 8), (3, 4), (4, 3), (1, 5), (5, 1), (4, 4)]
TARGET = Target(open_store("out"), DESIGN, 100, "out/version_100")


def source(ps_num: int) -> Version:
    """Return version 7 of so many servers, which is nowhere."""
    shards = tuple(ShardFile(i, ps_num, f"run/version-7/{i}", 1, 0.0) for i in range(ps_num))
    return Version(Location("run"), 7, "run/version-7", ELASTICDL, State.COMPLETE, ps_num, shards)


def pieces_of(table: Table, from_ps: int) -> list[list[int]]:
    """Return the ids of a table as a survey meets them: by source shard, in pieces of at most three."""
    by_shard = [[i for i in table.rows if i % from_ps == ps_id] for ps_id in range(from_ps)]
    return [ids[k : k + 3] for ids in by_shard for k in range(0, len(ids), 3)]


def id_sizes(ids: Sequence[int]) -> bulk.I64:
    """Return the bytes of each id as a varint: int64 [n]."""
    return np.array([max((i % (1 << 64)).bit_length() + 6, 7) // 7 for i in ids], np.int64)


def count(name: str, ids: Sequence[int], to_ps: int) -> PieceCounts:
    """Count the rows and id bytes of a piece for each target, one by one."""
    rows, id_bytes = np.zeros(to_ps, np.int64), np.zeros(to_ps, np.int64)
    for value, size in zip(ids, id_sizes(ids).tolist(), strict=True):
        rows[value % to_ps] += 1
        id_bytes[value % to_ps] += size
    return PieceCounts(name, rows, id_bytes)


def survey_of(model: Model, from_ps: int, to_ps: int) -> Survey:
    """Return what a survey of a model would find."""
    return Survey(
        source=source(from_ps),
        to_ps=to_ps,
        number=model.version,
        variables=tuple(PlacedVariable(n, DTYPES[d], shape, len(data)) for n, (d, shape, data) in model.dense.items()),
        tables=tuple(
            SurveyedTable(TableInfo(n, t.dim, t.initializer), DTYPES[t.dtype] if t.rows else None)
            for n, t in model.tables.items()
        ),
        counts=tuple(
            count(name, ids, to_ps) for name, table in model.tables.items() for ids in pieces_of(table, from_ps)
        ),
        stretches=(),
        small=(),
        bytes_read=0,
    )


class Shard:
    """A target shard in memory, which refuses a byte that is written twice."""

    def __init__(self, size_bytes: int) -> None:
        self.data = bytearray(size_bytes)
        self.written = bytearray(size_bytes)

    def write(self, offset: int, data: bytes) -> None:
        """Write at an offset."""
        assert 0 <= offset <= offset + len(data) <= len(self.data)
        assert not any(self.written[offset : offset + len(data)])
        self.data[offset : offset + len(data)] = data
        self.written[offset : offset + len(data)] = b"\1" * len(data)


def carried_out(plan: ReshardPlan, model: Model, from_ps: int) -> list[bytes]:
    """Return the bytes of every target shard, written where the plan says and nowhere else."""
    shards = [Shard(size) for size in plan.layouts.size_bytes.tolist()]
    for ps_id, shard in enumerate(shards):
        for offset, some in plan.layouts.literals(ps_id):
            shard.write(offset, bytes(some))
    for name, (_, _, data) in model.dense.items():
        owner = variable_owner(name, plan.to_ps)
        shards[owner].write(plan.layouts.dense_at(name)[1], data)
    pieces = [(table, ids) for table in model.tables.values() for ids in pieces_of(table, from_ps)]
    for (table, ids), route in zip(pieces, plan.routes, strict=True):
        values_at, ids_at = route.values_at.copy(), route.ids_at.copy()
        for value in ids:
            owner = value % plan.to_ps
            varint = bulk.encode_varints(np.array([value], np.int64)).tobytes()
            shards[owner].write(int(ids_at[owner]), varint)
            shards[owner].write(int(values_at[owner]), table.rows[value])
            ids_at[owner] += len(varint)
            values_at[owner] += len(table.rows[value])
    assert all(all(shard.written) for shard in shards)
    check_layouts(plan)
    return [bytes(shard.data) for shard in shards]


def check_marks(plan: ReshardPlan, model: Model, from_ps: int) -> None:
    """Check that marks are the first row of each piece in each target, found by putting down row after row."""
    expected: dict[str, list[tuple[int, int, int]]] = {}
    for name, table in model.tables.items():
        at, row = plan.layouts.ids_at(name).tolist(), [0] * plan.to_ps
        for ids in pieces_of(table, from_ps):
            begun = set[int]()
            for value, size in zip(ids, id_sizes(ids).tolist(), strict=True):
                owner = value % plan.to_ps
                if owner not in begun:
                    expected.setdefault(name, []).append((owner, at[owner], row[owner]))
                begun.add(owner)
                at[owner] += size
                row[owner] += 1
    found = {
        name: list(zip(*(part.tolist() for part in marks), strict=True)) for name, marks in row_marks(plan).items()
    }
    assert found == {name: sorted(marks) for name, marks in expected.items()}


def check_layouts(plan: ReshardPlan) -> None:
    """Check that what stands before each table begins where the offsets of all shards together say."""
    layouts = plan.layouts
    for ps_id in range(plan.to_ps):
        for name in layouts.names:
            first, *_ = layouts.heads(ps_id, [name])
            assert layouts.tables_at[layouts.number(name), ps_id] == first[0]
            assert layouts.values_at(name)[ps_id] == first[0] + len(first[1])
        between = [*layouts.front(ps_id), *layouts.heads(ps_id, layouts.names)]
        assert between == [(at, bytes(data)) for at, data in layouts.literals(ps_id)]


def by_row(model: Model) -> tuple[object, ...]:
    """Return the content of a model as plain values."""
    tables = {name: (t.dim, t.initializer, t.rows) for name, t in model.tables.items()}
    return model.version, model.dense, tables


@given(models(), st.one_of(st.sampled_from(PAIRS), st.tuples(st.integers(1, 40), st.integers(1, 40))))
@example(Model(3, {}, {}), (4, 8))
@example(Model(3, {}, {"t": Table(4, "zeros", "float32", {})}), (3, 4))
@example(Model(3, {}, {"t": Table(1, "zeros", "int8", {-1: b"x"})}), (4, 3))
def test_every_byte_once(model: Model, counts: tuple[int, int]) -> None:
    """Every byte of each target is written exactly once, and protobuf reads the model that was surveyed.

    The marks, by which other processes find rows, are where these rows are.
    """
    from_ps, to_ps = counts
    plan = plan_reshard(survey_of(model, from_ps, to_ps), TARGET)
    found = Model()
    for ps_id, data in enumerate(carried_out(plan, model, from_ps)):
        part = Model()
        add_shard(part, data, "v4")
        add_shard(found, data, "v4")
        assert all(variable_owner(name, to_ps) == ps_id for name in part.dense)
        assert all(i % to_ps == ps_id for table in part.tables.values() for i in table.rows)
        assert plan.shards[ps_id].size_bytes == len(data)
        assert plan.shards[ps_id].rows == sum(len(table.rows) for table in part.tables.values())
        assert plan.shards[ps_id].variables == len(part.dense)
    assert by_row(found) == by_row(model)
    check_marks(plan, model, from_ps)
    assert plan.rows == sum(len(table.rows) for table in model.tables.values())


@pytest.mark.parametrize(("from_ps", "to_ps"), PAIRS)
def test_rows_keep_their_order(from_ps: int, to_ps: int) -> None:
    """In a target the rows of a table stand in the order of the source's shards, then of its rows, without a gap."""
    model = Model(7, {}, {"t": Table(2, "uniform", "float32", {i: bytes(8) for i in range(24)})})
    plan = plan_reshard(survey_of(model, from_ps, to_ps), TARGET)
    counts = [count("t", ids, to_ps) for ids in pieces_of(model.tables["t"], from_ps)]
    assert [shard.rows for shard in plan.shards] == [len(range(i, 24, to_ps)) for i in range(to_ps)]
    values_at, ids_at = plan.layouts.values_at("t").copy(), plan.layouts.ids_at("t").copy()
    for route, piece in zip(plan.routes, counts, strict=True):
        used = np.flatnonzero(piece.rows)
        assert route.values_at[used].tolist() == values_at[used].tolist()
        assert route.ids_at[used].tolist() == ids_at[used].tolist()
        values_at += 8 * piece.rows
        ids_at += piece.id_bytes


def test_the_same_survey_gives_the_same_plan() -> None:
    """Neither the order of variables and tables nor a second call changes a plan."""
    model = Model(
        7,
        {name: ("float32", (2,), bytes(8)) for name in ("z", "a", "m")},
        {name: Table(1, "", "int8", {3: b"x"}) for name in ("t2", "t1")},
    )
    turned = Model(7, dict(reversed(model.dense.items())), dict(reversed(model.tables.items())))
    plans = [plan_reshard(survey_of(each, 4, 3), TARGET) for each in (model, model, turned)]
    literals = [[(at, bytes(data)) for k in range(3) for at, data in plan.layouts.literals(k)] for plan in plans]
    assert literals[0] == literals[1] == literals[2]
    assert plans[0].shards == plans[1].shards == plans[2].shards


def test_numbers_and_names() -> None:
    """Shards are named after the target; they contain the source's number, or, renumbered, the target's."""
    survey = survey_of(Model(7, {}, {}), 8, 2)
    for renumber, number in ((False, 7), (True, 100)):
        plan = plan_reshard(survey, TARGET, renumber=renumber)
        found = Model()
        add_shard(found, carried_out(plan, Model(), 8)[0], "v4")
        assert found.version == number
    names = [shard.path for shard in plan.shards]
    assert names == ["out/version_100/variables-0-of-2.chkpt", "out/version_100/variables-1-of-2.chkpt"]
    assert (plan.ref, plan.from_ps, plan.to_ps) == ("run@7", 8, 2)


def test_warnings() -> None:
    """A plan warns of large shards, servers without variables, and what ElasticDL cannot restore."""
    huge = PieceCounts("t", np.array([1, LARGE_SHARD_BYTES]), np.array([1, LARGE_SHARD_BYTES]))
    table = SurveyedTable(TableInfo("t", 1, "zeros"), DTYPES["int8"])
    survey = Survey(source=source(4), to_ps=2, number=7, variables=(), tables=(table,), counts=(huge,), stretches=())
    (warning,) = plan_reshard(survey, TARGET).warnings
    assert warning.startswith("1 of 2 target shards is larger than 2 GiB (shard 1)")
    variables = tuple(PlacedVariable(name, DTYPES["uint8"], (), 1) for name in "ab")
    crowded, odd = plan_reshard(
        Survey(source=source(4), to_ps=32, number=7, variables=variables, tables=(), counts=(), stretches=()), TARGET
    ).warnings
    assert "only 16 can have dense variables" in crowded
    assert odd == "ElasticDL cannot read values of uint8: its restore fails"
    tables = tuple(SurveyedTable(TableInfo(f"t{k}", 1, "0.0" * k), DTYPES["float16"]) for k in range(4))
    odd, unknown = plan_reshard(
        Survey(source=source(4), to_ps=2, number=7, variables=(), tables=tables, counts=(), stretches=()), TARGET
    ).warnings
    assert odd == "ElasticDL cannot read values of float16: its restore fails"
    first = "'t0' (''), 't1' ('0.0'), 't2' ('0.00.0')"
    assert unknown == f"ElasticDL does not know the initializer of {first} and 1 more: its restore fails"
    assert plan_reshard(survey_of(Model(), 4, 8), TARGET).warnings == ()
