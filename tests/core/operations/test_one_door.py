"""One table of inputs, fed to every writer of versions, with one answer from each.

A writer that an input cannot reach is in the table with the reason in place of a source.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import elasticdl_rules
from builders import message, write_unchecked
from checkpoints import files_of, only
from edl_ckpt.core import (
    CheckpointSaver,
    export_version,
    import_arrays,
    open_checkpoint,
    partition,
    reshard_version,
    save_checkpoint,
    verify_version,
)
from edl_ckpt.core.base.errors import CorruptError, EdlCkptError, UnsupportedError, UsageError
from edl_ckpt.core.model.versions import Version
from edl_ckpt.core.operations.copy.execute import execute_copy
from edl_ckpt.core.operations.copy.plan import plan_copy
from edl_ckpt.core.operations.importing import NameMap, import_checkpoint
from edl_ckpt.core.operations.save import Table
from edl_ckpt.core.proof import duplicates, repeated_ids
from edl_ckpt.proto import model_v4_pb2
from reporters import Recorder

ROWS = np.arange(12, dtype=np.float32).reshape(6, 2)
NO_SURROGATES = "a shard with such a name is malformed: protobuf cannot parse it (test_names_that_are_not_utf8)"
NO_JSON = "a lone surrogate is no text of JSON: the header is corrupt (test_a_text_that_is_not_unicode)"
OWN_NUMBER = "it keeps the number of its source, which no directory can spell"
OWN_SHARDS = "it has no choice of servers"
NOT_READ = "no reader knows the dtype: the shard is corrupt (test_dtypes_that_no_reader_knows)"


@dataclass(frozen=True)
class Input:
    """What a writer is fed: arrays, and the number and the servers that it shall give them."""

    variables: Mapping[str, Any]
    tables: Mapping[str, Table]
    version: int = 7
    ps_num: int = 2


GOOD = Input({"w": np.ones(3, np.float32)}, {"t": Table(np.arange(6), ROWS, "zeros")})


def table(ids: list[int], initializer: str = "zeros", dtype: str = "float32") -> dict[str, Table]:
    """Return one table of some ids."""
    return {"t": Table(np.array(ids, np.int64), ROWS[: len(ids)].astype(dtype), initializer)}


# The writers: each takes an input, a place for its source, and the location to write to.


def save(given: Input, source: Path, target: Path, reporter: Recorder) -> None:
    """Write with the library."""
    save_checkpoint(
        str(target),
        given.version,
        given.ps_num,
        variables=given.variables,
        tables=given.tables,
        layout="elasticdl",
        reporter=reporter,
    )


def import_npz(given: Input, source: Path, target: Path, reporter: Recorder) -> None:
    """Import an .npz whose arrays get their names from a map."""
    arrays = dict(enumerate(given.variables.values()))
    tables = {
        name: {"ids": f"ids{k}", "vectors": f"vectors{k}", "initializer": each.initializer}
        for k, (name, each) in enumerate(given.tables.items())
    }
    parts: dict[str, Any] = {f"ids{k}": each.ids for k, each in enumerate(given.tables.values())}
    parts |= {f"vectors{k}": each.vectors for k, each in enumerate(given.tables.values())}
    np.savez(source / "m.npz", **{f"v{k}": array for k, array in arrays.items()}, **parts)
    names = NameMap({f"v{k}": name for k, name in enumerate(given.variables)}, tables)
    import_arrays(
        str(source / "m.npz"),
        str(target),
        given.version,
        given.ps_num,
        names=names,
        layout="elasticdl",
        reporter=reporter,
    )


def import_safetensors(given: Input, source: Path, target: Path, reporter: Recorder) -> None:
    """Import a .safetensors file that names and describes everything itself, written byte by byte."""
    arrays = {**given.variables}
    for name, each in given.tables.items():
        arrays |= {f"{name}.ids": each.ids, f"{name}.vectors": each.vectors}
    kinds = {"float32": "F32", "float16": "F16", "int64": "I64", "complex64": "C64"}
    entries: dict[str, Any] = {}
    data = b""
    for name, array in arrays.items():
        span = [len(data), len(data) + array.nbytes]
        entries[name] = {"dtype": kinds[array.dtype.name], "shape": list(array.shape), "data_offsets": span}
        data += array.tobytes()
    notes = {
        name: {"ids": f"{name}.ids", "vectors": f"{name}.vectors", "initializer": each.initializer}
        for name, each in given.tables.items()
    }
    text = json.dumps({"__metadata__": {"tables": json.dumps(notes)}, **entries}).encode()
    (source / "m.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
    import_arrays(
        str(source / "m.safetensors"),
        str(target),
        given.version,
        given.ps_num,
        layout="elasticdl",
        reporter=reporter,
    )


def save_shards(given: Input, source: Path, target: Path, reporter: Recorder) -> None:
    """Let each server save its own shard; those that have variables first."""
    parts = partition(given.variables, given.tables, given.ps_num)
    options: dict[str, Any] = {"ps_num": given.ps_num, "run": "a run", "layout": "elasticdl", "reporter": reporter}
    for ps_id, part in sorted(enumerate(parts), key=lambda each: not each[1].dense):
        with CheckpointSaver(target, ps_id=ps_id, **options) as saver:
            saver.save(given.version, part.dense, part.tables)


def stored(given: Input, source: Path, number: int | None = None) -> Version:
    """Return the tables of an input as a version that another program has written."""
    write_unchecked(source / "run", given.version if number is None else number, 2, given.tables, number=7)
    return only(source / "run")


def import_stored(given: Input, source: Path, target: Path, reporter: Recorder) -> None:
    """Import a checkpoint."""
    import_checkpoint(
        stored(given, source, 7), str(target), given.version, given.ps_num, layout="elasticdl", reporter=reporter
    )


def reshard(given: Input, source: Path, target: Path, reporter: Recorder) -> None:
    """Reshard to another location; the command line prints the warnings of its plan."""
    version = stored(given, source)
    reshard_version(version, given.ps_num, output=str(target), layout="elasticdl", reporter=reporter)


def reshard_renumbered(given: Input, source: Path, target: Path, reporter: Recorder) -> None:
    """Reshard to another number."""
    version = stored(given, source, 7)
    reshard_version(version, given.ps_num, output=str(target), number=given.version, reporter=reporter)


def reshard_in_place(given: Input, source: Path, target: Path, reporter: Recorder) -> None:
    """Reshard in place."""
    reshard_version(stored(given, source), given.ps_num, reporter=reporter)


def copy(given: Input, source: Path, target: Path, reporter: Recorder) -> None:
    """Copy to another location."""
    execute_copy(plan_copy([stored(given, source)], str(target)), reporter=reporter)


def export(given: Input, source: Path, target: Path, reporter: Recorder) -> None:
    """Export as one merged checkpoint."""
    export_version(stored(given, source), str(target), format_name="checkpoint", reporter=reporter)


WRITERS = (
    save,
    import_npz,
    import_safetensors,
    save_shards,
    import_stored,
    reshard,
    reshard_renumbered,
    reshard_in_place,
    copy,
    export,
)


def unreached(reason: str, *writers: Callable[..., None]) -> dict[Callable[..., None], str]:
    """Return writers that an input cannot reach, with the reason."""
    return dict.fromkeys(writers, reason)


BAD: dict[str, tuple[Input, type[EdlCkptError], int, str, dict[Callable[..., None], str]]] = {
    "version -1": (
        replace(GOOD, version=-1),
        UsageError,
        2,
        "a version must be 0 to 2147483647, got -1",
        unreached(OWN_NUMBER, reshard, reshard_in_place, copy, export),
    ),
    "version 2**31": (
        replace(GOOD, version=1 << 31),
        UsageError,
        2,
        "a version must be 0 to 2147483647, got 2147483648",
        unreached("the shards keep their number and the directory its name, both made by others", reshard_in_place),
    ),
    "no servers": (
        replace(GOOD, ps_num=0),
        UsageError,
        2,
        "the number of parameter servers must be 1 to 65535, got 0",
        unreached(OWN_SHARDS, copy, export),
    ),
    "too many servers": (
        replace(GOOD, ps_num=1 << 16),
        UsageError,
        2,
        "the number of parameter servers must be 1 to 65535, got 65536",
        unreached(OWN_SHARDS, copy, export),
    ),
    "an id twice": (
        replace(GOOD, tables=table([4, 9, 2, 4])),
        CorruptError,
        5,
        "table 't': id 4 occurs twice",
        {},
    ),
    "ids twice, ascending": (
        replace(GOOD, tables=table([-8, -8, 1, 1, 1])),
        CorruptError,
        5,
        "table 't': id -8 occurs twice",
        {},
    ),
    "a variable with a surrogate": (
        replace(GOOD, variables={"w\ud800": np.ones(1, np.float32)}),
        UsageError,
        2,
        "variable 'w\\ud800': the name is not valid Unicode, so UTF-8 cannot express it",
        {**unreached(NO_SURROGATES, *WRITERS[4:]), **unreached(NO_JSON, import_safetensors)},
    ),
    "a table with a surrogate": (
        replace(GOOD, tables={"\udcff": GOOD.tables["t"]}),
        UsageError,
        2,
        "table '\\udcff': the name is not valid Unicode, so UTF-8 cannot express it",
        {**unreached(NO_SURROGATES, *WRITERS[4:]), **unreached(NO_JSON, import_safetensors)},
    ),
    "an initializer with a surrogate": (
        replace(GOOD, tables=table([1], "\ud800")),
        UsageError,
        2,
        "table 't': the initializer '\\ud800' is not valid Unicode, so UTF-8 cannot express it",
        {**unreached(NO_SURROGATES, *WRITERS[4:]), **unreached(NO_JSON, import_safetensors)},
    ),
    "a name without end": (
        replace(GOOD, tables={"x" * ((1 << 19) + 1): GOOD.tables["t"]}),
        UsageError,
        2,
        "... has 524289 bytes, the limit is 524288",
        {},
    ),
    "a variable of complex numbers": (
        replace(GOOD, variables={"w": np.ones(1, np.complex64)}),
        UnsupportedError,
        15,
        "a checkpoint of ElasticDL cannot hold",
        unreached(NOT_READ, *WRITERS[4:]),
    ),
    "a table of complex numbers": (
        replace(GOOD, tables=table([1], dtype="complex64")),
        UnsupportedError,
        15,
        "a checkpoint of ElasticDL cannot hold",
        unreached(NOT_READ, *WRITERS[4:]),
    ),
}


def tree(place: Path) -> dict[str, bytes | None]:
    """Return every file and every directory below a place."""
    return {str(p): p.read_bytes() if p.is_file() else None for p in sorted(place.rglob("*"))}


@pytest.mark.parametrize("writer", WRITERS, ids=lambda writer: writer.__name__)
@pytest.mark.parametrize("case", BAD)
def test_refused(case: str, writer: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each writer gives the same error, with the same words and exit code, and leaves nothing behind."""
    given, error, code, words, not_reached = BAD[case]
    if writer in not_reached:
        assert not_reached[writer]
        return
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir()
    made: list[dict[str, bytes | None]] = []
    for name in ("import_arrays", "import_checkpoint", "reshard_version", "execute_copy", "export_version"):
        function = globals()[name]

        def spied(*args: Any, function: Callable[..., Any] = function, **more: Any) -> Any:
            made.append(tree(tmp_path))  # the source is written by now, and nothing else
            return function(*args, **more)

        monkeypatch.setitem(globals(), name, spied)
    with pytest.raises(error) as caught:
        writer(given, source, target, Recorder())
    assert words in caught.value.message
    assert caught.value.exit_code == code
    assert type(caught.value) is error
    assert tree(tmp_path) == (made[-1] if made else tree(tmp_path))
    assert not target.exists()


WARNED = {
    "float16": (replace(GOOD, tables=table([1, 2, 3], dtype="float16")), "ElasticDL cannot read values of float16"),
    "unknown initializer": (
        replace(GOOD, tables=table([1, 2, 3], "0.0")),
        "ElasticDL does not know the initializer of 't' ('0.0')",
    ),
    "no initializer": (
        replace(GOOD, tables=table([1, 2, 3], "")),
        "ElasticDL does not know the initializer of 't' ('')",
    ),
}


@pytest.mark.parametrize("writer", WRITERS, ids=lambda writer: writer.__name__)
@pytest.mark.parametrize("case", WARNED)
def test_warned_of(case: str, writer: Callable[..., None], tmp_path: Path) -> None:
    """What edl-ckpt can read and ElasticDL cannot is written by each writer, with the same warning.

    `verify` finds the same in the result.
    """
    given, words = WARNED[case]
    reporter = Recorder()
    (tmp_path / "source").mkdir()
    writer(given, tmp_path / "source", tmp_path / "target", reporter)
    assert [text for text in reporter.warnings if text.endswith(f"{words}: its restore fails")], reporter.warnings
    place = tmp_path / ("source/run" if writer is reshard_in_place else "target")
    codes = {f.code for f in verify_version(only(place)).findings if f.severity == "error"}
    assert codes == {"unsupported-dtype" if case == "float16" else "unknown-initializer"}


ACCEPTED = {
    "plain": GOOD,
    "version 0": replace(GOOD, version=0),
    "the highest version": replace(GOOD, version=(1 << 31) - 1),
    "empty names": replace(GOOD, variables={"": np.ones(2)}, tables={"": GOOD.tables["t"]}),
    "names with NUL and others": replace(
        GOOD, variables={"a\0b": np.ones(2), "\U0001f680/../": np.ones(1, np.int8)}, tables={"\0": GOOD.tables["t"]}
    ),
    "long names": replace(GOOD, variables={"é" * 200_000: np.ones(1)}, tables={"x" * (1 << 19): GOOD.tables["t"]}),
    "extreme ids": replace(GOOD, tables=table([2**63 - 1, -(2**63), -1, 0, 1])),
    "no rows": replace(GOOD, tables=table([])),
    "nothing": replace(GOOD, variables={}, tables={}),
}


@pytest.mark.parametrize("case", ACCEPTED)
@pytest.mark.parametrize("writer", [save, import_npz, save_shards], ids=lambda writer: writer.__name__)
def test_accepted(case: str, writer: Callable[..., None], tmp_path: Path) -> None:
    """ElasticDL's scan finds what is accepted, the protobuf library reads it, verify finds no error."""
    given = ACCEPTED[case]
    if case == "nothing" and writer is import_npz:
        pytest.skip("no array of another tool is no checkpoint: an input without arrays is not found")
    (tmp_path / "source").mkdir()
    writer(given, tmp_path / "source", tmp_path / "target", Recorder())
    target = tmp_path / "target"
    assert elasticdl_rules.latest_valid(target) == f"version-{given.version}"
    assert elasticdl_rules.visible(target) == {f"version-{given.version}"}
    assert [f for f in verify_version(only(target)).findings if f.severity == "error"] == []
    shards = [model_v4_pb2.Model.FromString(p.read_bytes()) for p in (target / f"version-{given.version}").iterdir()]
    assert [shard.version for shard in shards] == [given.version] * 2
    read = {name: tensor for shard in shards for name, tensor in shard.dense_parameters.items()}
    assert {n: t.tensor_content for n, t in read.items()} == {n: v.tobytes() for n, v in given.variables.items()}
    for name, expected in given.tables.items():
        ids = [i for shard in shards for i in shard.embedding_tables[name].ids]
        assert sorted(ids) == sorted(np.asarray(expected.ids).tolist())


def test_equal_ids_in_several_shards(tmp_path: Path) -> None:
    """An id that two shards have, one of them wrongly, is refused by a reshard and a copy."""
    for ps_id in (0, 1):
        write_unchecked(tmp_path / f"part{ps_id}", 7, 1, table([3, 5, 7]))
    run = tmp_path / "run/version-7"
    run.mkdir(parents=True)
    for ps_id in (0, 1):
        shard = tmp_path / f"part{ps_id}/version-7/variables-0-of-1.ckpt"
        shard.rename(run / f"variables-{ps_id}-of-2.ckpt")
    before = files_of(tmp_path)
    version = only(tmp_path / "run")
    with pytest.raises(CorruptError, match="id 3 occurs twice \\(and 2 more\\)"):
        reshard_version(version, 3)
    with pytest.raises(CorruptError, match="id 3 occurs twice \\(and 2 more\\)"):
        execute_copy(plan_copy([version], str(tmp_path / "copy")))
    assert files_of(tmp_path) == before


def test_numbers_in_shards(tmp_path: Path) -> None:
    """Shards of version -1 are not made anew, whatever their directory is called."""
    write_unchecked(tmp_path / "run", 7, 2, GOOD.tables, number=-1)
    version = only(tmp_path / "run")
    for write in (
        lambda: reshard_version(version, 3),
        lambda: execute_copy(plan_copy([version], str(tmp_path / "copy"))),
    ):
        with pytest.raises(UsageError, match="a version must be 0 to 2147483647, got -1"):
            write()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["run"]
    assert [p.name for p in (tmp_path / "run").iterdir()] == ["version-7"]


def broken_shard(place: Path, *parts: bytes) -> Version:
    """Write a shard byte by byte and return its version."""
    directory = place / "run/version-7"
    directory.mkdir(parents=True)
    (directory / "variables-0-of-1.ckpt").write_bytes(b"\x08\x07" + b"".join(parts))
    return only(place / "run")


@pytest.mark.parametrize("name", [b"w\xff", b"\xed\xa0\x80"], ids=["no UTF-8", "surrogate"])
def test_names_that_are_not_utf8(name: bytes, tmp_path: Path) -> None:
    """Names that protobuf refuses never reach a writer: the reader refuses the shard (5)."""
    tensor = b"\x08\x01" + message(2, message(2, b"\x08\x01")) + message(4, bytes(4))
    data = message(3, message(1, name), message(2, tensor))
    with pytest.raises(Exception, match=r"UTF-8|parsing"):
        model_v4_pb2.Model.FromString(data)
    version = broken_shard(tmp_path, data)
    with pytest.raises(CorruptError) as caught:
        open_checkpoint(version)
    assert caught.value.offset is not None


@pytest.mark.parametrize("case", [case for case in BAD if "surrogate" in case])
def test_a_text_that_is_not_unicode(case: str, tmp_path: Path) -> None:
    """Texts that UTF-8 cannot express never reach a writer from a .safetensors file: the reader refuses it (5)."""
    (tmp_path / "source").mkdir()
    with pytest.raises(CorruptError, match="has a text that is not valid Unicode") as caught:
        import_safetensors(BAD[case][0], tmp_path / "source", tmp_path / "target", Recorder())
    assert str(caught.value.path).startswith(str(tmp_path / "source/m.safetensors"))
    assert [*files_of(tmp_path)] == ["source/m.safetensors"]
    assert not (tmp_path / "target").exists()


def test_dtypes_that_no_reader_knows(tmp_path: Path) -> None:
    """Dtypes that no checkpoint can contain never reach a writer: the reader refuses the shard (5)."""
    tensor = b"\x08\x08" + message(2, message(2, b"\x08\x01")) + message(4, bytes(8))  # DT_COMPLEX64
    version = broken_shard(tmp_path, message(3, message(1, b"w"), message(2, tensor)))
    with pytest.raises(CorruptError) as caught:
        open_checkpoint(version)
    assert caught.value.code == "unsupported-dtype"


def test_numbers_of_other_types(tmp_path: Path) -> None:
    """A version of numpy's, as a training loop has it, is a number; a fraction is none."""
    version = save_checkpoint(str(tmp_path / "run"), np.int64(7), np.uint8(2), variables={}, tables=GOOD.tables)  # type: ignore[arg-type]
    assert (version.version, version.ps_num) == (7, 2)
    assert only(tmp_path / "run").fingerprint
    for wrong in (7.0, "7"):
        with pytest.raises(UsageError, match="must be a whole number"):
            save_checkpoint(str(tmp_path / "run"), wrong, 2, variables={}, tables={})  # type: ignore[arg-type]


@pytest.mark.parametrize("max_memory_bytes", [None, 3_000_000])
def test_duplicates_among_many_ids(
    max_memory_bytes: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One repeated id among 300,000 in any order is found in bounded memory, in turns; without it, none."""
    ids = np.random.default_rng(4).permutation(
        np.unique(np.random.default_rng(5).integers(-(2**63), 2**63 - 1, 300_000))
    )
    if max_memory_bytes is None:
        monkeypatch.setattr(duplicates, "SORTED_AT_ONCE", 10_000)
        monkeypatch.setattr(repeated_ids, "SORTED_AT_ONCE", 10_000)
    for place, repeated in (("good", 0), ("bad", 1)):
        every = np.concatenate([ids, ids[7 : 7 + repeated]])
        tables = {"t": Table(every, np.zeros((len(every), 1), np.int8), "zeros")}
        write_unchecked(tmp_path / place, 7, 2, tables)
    reshard = partial(reshard_version, max_memory_bytes=max_memory_bytes)
    reshard(only(tmp_path / "good"), 3, output=str(tmp_path / "out"))
    with pytest.raises(CorruptError, match=rf"id {ids[7]} occurs twice\n"):
        reshard(only(tmp_path / "bad"), 3, output=str(tmp_path / "none"))
    assert not (tmp_path / "none").exists()
