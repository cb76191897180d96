"""What makes ElasticDL's restore raise an exception, or lose a variable, is an error: shards made byte by byte."""

from __future__ import annotations

from pathlib import Path

import pytest

from builders import message, write_checkpoint
from checkpoints import only
from edl_ckpt.core import export_version, import_arrays, open_checkpoint, reshard_version, verify_version
from edl_ckpt.core.base.errors import CorruptError
from edl_ckpt.core.model.versions import Version
from edl_ckpt.core.operations.importing import NameMap
from edl_ckpt.core.operations.verify.findings import Finding
from edl_ckpt.core.sources.elasticdl.checks import KERAS_INITIALIZERS
from edl_ckpt.proto import model_v4_pb2
from oracle import Model, Table

VERSION = b"\x08\x07"
FLOAT = b"\x08\x01"
EMPTY_TABLE = message(1, FLOAT, message(2, message(2, b"\x08\x00"), message(2, b"\x08\x02")))
NO_TENSOR = "the entry has no tensor: ElasticDL's restore raises an exception"
ONE_NUMBER = FLOAT + message(2, message(2, b"\x08\x01")) + message(4, b"abcd")


def info(initializer: bytes, dtype: bytes = b"\x20\x01") -> bytes:
    """The info of a table "t" of dim 2."""
    return message(2, message(1, b"t"), b"\x10\x02", message(3, initializer) if initializer else b"", dtype)


def table(value: bytes) -> bytes:
    """An entry of the table "t"."""
    return message(4, message(1, b"t"), value)


def variable(tag: int, name: bytes = b"w") -> bytes:
    """An entry of one number, whose name has a tag of our choice: the right one is 1."""
    return message(3, message(tag, name), message(2, ONE_NUMBER))


def place(directory: Path, *shards: bytes) -> Version:
    """Write shards of version 7 and return it."""
    target = directory / "version-7"
    target.mkdir(parents=True)
    for ps_id, data in enumerate(shards):
        (target / f"variables-{ps_id}-of-{len(shards)}.ckpt").write_bytes(VERSION + data)
    return only(directory)


def the_error(version: Version) -> Finding:
    """Return the one finding of verify, at the quickest level."""
    (found,) = verify_version(version, level="quick").findings
    assert (found.severity, found.shard) == ("error", 0)
    return found


@pytest.mark.parametrize("name", ["", "Uniform", "0.0", "None", "glorot", "uniform "])
def test_unknown_initializer(name: str, tmp_path: Path) -> None:
    """An initializer that Keras lacks is an error with its place; the version can still be resharded."""
    version = place(tmp_path / "run", info(name.encode()) + table(message(2, EMPTY_TABLE)))
    found = the_error(version)
    assert (found.code, found.subject, found.offset) == ("unknown-initializer", "t", len(VERSION))
    assert found.message == f"Keras has no initializer {name!r}: ElasticDL's Python restore raises ValueError"
    assert "edl-ckpt export" in found.hint
    reshard_version(version, 2, output=str(tmp_path / "new"))
    assert [f.code for f in verify_version(only(tmp_path / "new")).findings] == ["unknown-initializer"] * 2


@pytest.mark.parametrize("name", sorted(KERAS_INITIALIZERS))
def test_known_initializer(name: str, tmp_path: Path) -> None:
    """Every name that Keras knows is right."""
    version = place(tmp_path, info(name.encode()) + table(message(2, EMPTY_TABLE)))
    assert verify_version(version).findings == ()


def test_hint_for_an_unknown_initializer(tmp_path: Path) -> None:
    """Exported, and imported with a map that names another initializer, the version has no finding."""
    version = place(tmp_path / "run", info(b"0.0") + table(message(2, EMPTY_TABLE)))
    export_version(version, str(tmp_path / "m.npz"))
    names = NameMap(tables={"t": {"ids": "t.ids", "vectors": "t.vectors", "initializer": "zeros"}})
    import_arrays(str(tmp_path / "m.npz"), str(tmp_path / "new"), 7, 2, names=names)
    assert verify_version(only(tmp_path / "new")).findings == ()


@pytest.mark.parametrize(
    ("value", "code", "message_"),
    [
        (b"", "malformed", NO_TENSOR),
        (message(2), "malformed", NO_TENSOR),
        (
            message(2, message(2, b"\x05")),
            "malformed",
            NO_TENSOR,
        ),
        (message(2, message(1)), "unsupported-dtype", "dtype number 0 is not supported in a checkpoint"),
        (message(2, message(1, FLOAT)), "content-size-mismatch", "float32 [] needs 4 bytes, the values have 0"),
    ],
    ids=["no value", "empty value", "ids alone", "empty tensor", "no shape"],
)
def test_table_without_a_tensor(value: bytes, code: str, message_: str, tmp_path: Path) -> None:
    """An entry of a table without a tensor is an error, and nothing is made from such a version."""
    version = place(tmp_path, info(b"uniform") + table(value))
    found = the_error(version)
    at = len(VERSION) + len(info(b"uniform"))
    assert (found.code, found.subject, found.message) == (code, "t", message_)
    assert found.offset is not None
    assert found.offset >= at
    with pytest.raises(CorruptError) as caught:
        open_checkpoint(version)
    assert caught.value.code == code


@pytest.mark.parametrize("tag", [3, 5, 9, 17])
def test_damaged_tag_of_a_name(tag: int, tmp_path: Path) -> None:
    """A variable whose name has a damaged tag is dropped by protobuf: an error, never the name ''."""
    data = VERSION + variable(tag)
    assert list(model_v4_pb2.Model.FromString(data).dense_parameters) != ["w"]
    version = place(tmp_path, variable(1, b"v") + variable(tag))
    found = the_error(version)
    at = len(VERSION) + len(variable(1, b"v")) + 2
    assert (found.code, found.offset) == ("malformed", at)
    assert found.message == (f"an entry has field {tag}, expected 1 (its name) and 2 (its value): its name may be lost")
    with pytest.raises(CorruptError):
        open_checkpoint(version)


def test_damaged_tag_of_a_table_name(tmp_path: Path) -> None:
    """A table whose name has a damaged tag is an error too: all of its rows would be lost."""
    entry = message(4, message(5, b"t"), message(2, EMPTY_TABLE))
    found = the_error(place(tmp_path, info(b"uniform") + entry))
    assert (found.code, found.offset) == ("malformed", len(VERSION) + len(info(b"uniform")) + 2)


def test_dtype_that_elasticdl_cannot_read(tmp_path: Path) -> None:
    """float16 is read, copied and resharded, and is an error of verify: ElasticDL's restore raises ValueError."""
    tables = {"t": Table(2, "zeros", "float16", {i: bytes(4) for i in range(4)})}
    write_checkpoint(tmp_path, Model(7, {"w": ("float16", (3,), bytes(6))}, tables), 1)
    version = only(tmp_path)
    result = verify_version(version, level="deep")
    assert [(f.severity, f.code, f.subject) for f in result.findings] == [
        ("error", "unsupported-dtype", "w"),
        ("error", "unsupported-dtype", "t"),
    ]
    assert {f.message.partition(": ")[2] for f in result.findings} == {"ElasticDL's Python restore raises ValueError"}
    assert result.fingerprint == reshard_version(version, 2).fingerprint
