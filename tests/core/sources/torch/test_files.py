"""Files of torch.save: what they contain, by offsets, and what their zips and pickles may not do."""

from __future__ import annotations

import contextlib
import random
import struct
import tracemalloc
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edl_ckpt.core import diff_versions, export_version, open_checkpoint, verify_version
from edl_ckpt.core.base.errors import CorruptError, EdlCkptError, IncompleteError, UnsupportedError
from edl_ckpt.core.sources.torch.files import open_file
from edl_ckpt.core.storage.local import LocalReader
from torch_files import Call, Name, Tensor, save, save_legacy


def names_in(path: Path) -> dict[str, str]:
    """Return the variables and the items of a file, with their dtypes or kinds and shapes."""
    with open_checkpoint(str(path)) as checkpoint:
        entries = [entry for shard in checkpoint.shards for entry in shard.variables]
        return {entry.name: f"{entry.dtype.name}{list(entry.shape)}" for entry in entries}


def values_in(path: Path) -> dict[str, Any]:
    """Return the variables of a file as arrays."""
    with open_checkpoint(str(path)) as checkpoint:
        return {name: np.array(checkpoint.variable(name)) for name in checkpoint.variable_names}


def test_nested_values_have_paths(tmp_path: Path) -> None:
    """Tensors are variables by their paths; numbers, texts and lists in the pickle are items."""
    value = {
        "state_dict": {"layer.weight": np.arange(6, dtype=np.float32).reshape(2, 3)},
        "optimizer_states": [{"param_groups": [{"lr": 0.1, "betas": (0.9, 0.99), "params": list(range(40))}]}],
        "epoch": 3,
        "none": {},
    }
    save(tmp_path / "x.ckpt", value)
    assert names_in(tmp_path / "x.ckpt") == {
        "state_dict.layer.weight": "float32[2, 3]",
        "optimizer_states.0.param_groups.0.lr": "value[]",
        "optimizer_states.0.param_groups.0.betas.0": "value[]",
        "optimizer_states.0.param_groups.0.betas.1": "value[]",
        "optimizer_states.0.param_groups.0.params": "value[40]",
        "epoch": "value[]",
        "none": "value[0]",
    }


def test_views_and_ties_share_bytes(tmp_path: Path) -> None:
    """Views of one storage are variables with their own values: a tie, a slice, a transposed and an expanded one."""
    base = np.arange(12, dtype=np.float32)
    storage = {"9": base.tobytes()}
    save(
        tmp_path / "v.pt",
        {
            "whole": Tensor("9", "float32", 12, 0, (3, 4), (4, 1)),
            "tied": Tensor("9", "float32", 12, 0, (3, 4), (4, 1)),
            "slice": Tensor("9", "float32", 12, 5, (2, 2), (4, 1)),
            "transposed": Tensor("9", "float32", 12, 0, (4, 3), (1, 4)),
            "expanded": Tensor("9", "float32", 12, 2, (3, 5), (1, 0)),
            "scalar": Tensor("9", "float32", 12, 11, (), ()),
            "empty": Tensor("9", "float32", 12, 0, (0, 4), (4, 1)),
        },
        storages=storage,
    )
    found = values_in(tmp_path / "v.pt")
    wanted = {
        "whole": base.reshape(3, 4),
        "tied": base.reshape(3, 4),
        "slice": np.array([[5, 6], [9, 10]], np.float32),
        "transposed": base.reshape(3, 4).T,
        "expanded": np.repeat(base[2:5, None], 5, axis=1),
        "scalar": base[11].reshape(()),
        "empty": np.zeros((0, 4), np.float32),
    }
    assert found.keys() == wanted.keys()
    for name, values in wanted.items():
        np.testing.assert_array_equal(found[name], values, err_msg=name)
    assert not verify_version(str(tmp_path / "v.pt"), level="deep").findings


def test_legacy_files_are_read_by_offset(tmp_path: Path) -> None:
    """A file from before torch 1.6 has the same values; nothing in it has a checksum."""
    value = {"w": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.ones(4, np.float32), "n": 7}
    save_legacy(tmp_path / "old.pt", value)
    found = values_in(tmp_path / "old.pt")
    np.testing.assert_array_equal(found["w"], value["w"])
    np.testing.assert_array_equal(found["b"], value["b"])
    data = (tmp_path / "old.pt").read_bytes()
    (tmp_path / "cut.pt").write_bytes(data[:-5])
    with pytest.raises(EdlCkptError, match="the file ends at byte"):
        values_in(tmp_path / "cut.pt")


def test_modules_have_the_names_of_their_state(tmp_path: Path) -> None:
    """A module that was pickled whole is an item of its class, which is named, and its tensors have the usual names."""
    parts = {"_parameters": {"weight": np.ones((2, 2), np.float32)}, "_buffers": {}, "_modules": {}}
    inner = Call("torch.nn.modules.linear.Linear", (), parts, is_object=True)
    outer = Call("mine.Net", (), {"_parameters": {}, "_buffers": {}, "_modules": {"fc": inner}}, is_object=True)
    save(tmp_path / "net.pt", outer)
    assert names_in(tmp_path / "net.pt") == {"fc.weight": "float32[2, 2]", "net": "value[]"}
    report = verify_version(str(tmp_path / "net.pt"), level="deep")
    assert any(f.code == "unknown-class" and "mine.Net" in f.message for f in report.findings)


def test_verify_finds_a_flipped_bit_by_crc(tmp_path: Path) -> None:
    """Each storage and the pickle have a CRC-32: one bit of a value, or of a learning rate, is found without a seal."""
    path = tmp_path / "m.pt"
    save(path, {"w": np.full(100, 1.5, np.float32), "lr": 0.125})
    whole = path.read_bytes()
    for old in (struct.pack("<f", 1.5) * 3, struct.pack(">d", 0.125)):
        at = whole.index(old)
        damaged = bytearray(whole)
        damaged[at + 1] ^= 4
        path.write_bytes(damaged)
        report = verify_version(str(path), level="deep")
        assert [f.code for f in report.findings if f.severity == "error"] == ["checksum-mismatch"]
        assert path.read_bytes() == damaged


def test_compared_with_safetensors(tmp_path: Path) -> None:
    """A file of torch.save and the safetensors exported of it have one fingerprint."""
    save(tmp_path / "a.pt", {"w": np.arange(8, dtype=np.float32), "u": np.arange(3, dtype=np.int64)})
    export_version(str(tmp_path / "a.pt"), str(tmp_path / "a.safetensors"))
    assert diff_versions(str(tmp_path / "a.pt"), str(tmp_path / "a.safetensors")).equal


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"w": Tensor("0", "float32", 4, 0, (5,), (1,))}, "does not fit"),
        ({"w": Tensor("0", "float32", 4, 2, (2, 2), (2, 1))}, "does not fit"),
        ({"w": Tensor("0", "float32", 400, 0, (4,), (1,))}, "does not fit"),
        ({"w": Tensor("0", "float32", 4, 0, (4, 1 << 40), (1, 0))}, "elements share bytes"),
        ({"w": Tensor("7", "float32", 4, 0, (4,), (1,))}, "no data/7"),
    ],
)
def test_tensors_stay_inside_their_storage(tmp_path: Path, value: object, words: str) -> None:
    """A shape, an offset or strides that leave the storage are a finding of that tensor; nothing is read for them."""
    save(tmp_path / "x.pt", {**value, "good": np.ones(3, np.float32)}, storages={"0": bytes(16)})  # type: ignore[dict-item]
    with LocalReader(str(tmp_path / "x.pt")) as reader:
        contents = open_file(reader)
    assert [".".join(tensor.path) for tensor in contents.tensors] == ["good"]
    assert words in contents.unread[0].error.message


def rewritten(path: Path, change: Any) -> None:
    """Change the bytes of a file."""
    data = bytearray(path.read_bytes())
    change(data)
    path.write_bytes(data)


def test_hostile_zips_are_typed_errors(tmp_path: Path) -> None:
    """Members that overlap or are there twice, sizes that lie, compression and an absent end are typed errors."""
    path = tmp_path / "x.pt"

    def directory(data: bytearray) -> int:
        return data.index(b"PK\1\2")

    def overlapping(data: bytearray) -> None:
        struct.pack_into("<I", data, directory(data) + 20, 1 << 20)
        struct.pack_into("<I", data, directory(data) + 24, 1 << 20)

    def wide(data: bytearray) -> None:
        struct.pack_into("<I", data, directory(data) + 24, 0xFFFFFFFF)

    def moved(data: bytearray) -> None:
        struct.pack_into("<I", data, len(data) - 6, 5)

    def many(data: bytearray) -> None:
        struct.pack_into("<H", data, len(data) - 12, 9000)

    for change in (overlapping, wide, moved, many, lambda data: data.__delitem__(slice(-30, None))):
        save(path, {"w": np.ones(4, np.float32)})
        rewritten(path, change)
        with pytest.raises((CorruptError, IncompleteError)):
            values_in(path)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a/data.pkl", b"\x80\x02}." + bytes(500))
    with pytest.raises(UnsupportedError, match="compressed"):
        values_in(path)
    save(path, {"w": np.ones(4, np.float32)})
    with pytest.warns(UserWarning, match="Duplicate"), zipfile.ZipFile(path, "a") as archive:
        archive.writestr("archive/data/0", bytes(16))
    with pytest.raises(CorruptError, match="twice"):
        values_in(path)


def test_what_is_left_of_a_cut_file(tmp_path: Path) -> None:
    """Wherever a file is cut behind its pickle, the tensors before the cut are read, and the others are named."""
    path = tmp_path / "x.pt"
    whole = {f"w{n}": np.full(50, n, np.float32) for n in range(6)}
    save(path, whole)
    data = path.read_bytes()
    seen = set[int]()
    for size in range(0, len(data) - 1, 37):
        path.write_bytes(data[:size])
        with LocalReader(str(path)) as reader:
            try:
                contents = open_file(reader)
            except (CorruptError, UnsupportedError):
                continue
            left = {tensor.path[0]: reader.read(tensor.values.first, 200) for tensor in contents.tensors}
        assert left == {name: whole[name].tobytes() for name in left}
        assert left.keys() | {unread.path[0] for unread in contents.unread} == whole.keys()
        assert all(f"ends at byte {size:,}" in unread.error.message for unread in contents.unread)
        seen.add(len(left))
    assert seen == set(range(7))
    path.write_bytes(data[:1500])
    with pytest.raises(IncompleteError, match="has no end"):
        values_in(path)


def test_a_pickle_that_repeats_itself_ends(tmp_path: Path) -> None:
    """A pickle that doubles itself with each few bytes is refused: memory and time are bounded by its bytes."""
    doubled = b"\x80\x02]q\x00" + b"".join(
        b"](h" + bytes([n]) + b"h" + bytes([n]) + b"eq" + bytes([n + 1]) for n in range(60)
    )
    with zipfile.ZipFile(tmp_path / "x.pt", "w") as archive:
        archive.writestr("archive/data.pkl", doubled + b".")
    with pytest.raises(UnsupportedError, match="repeats itself"):
        values_in(tmp_path / "x.pt")


def test_nothing_is_called(tmp_path: Path) -> None:
    """A name of any function in a pickle stays a name: it is an item, and its class is named."""
    save(tmp_path / "x.pt", {"a": Call("os.system", (f"touch {tmp_path}/gone",)), "w": np.ones(2, np.float32)})
    assert names_in(tmp_path / "x.pt") == {"a": "value[]", "w": "float32[2]"}
    assert not (tmp_path / "gone").exists()
    save(tmp_path / "y.pt", {"kind": Name("posix.system"), "w": np.ones(2, np.float32)})
    assert names_in(tmp_path / "y.pt") == {"kind": "value[]", "w": "float32[2]"}


def mutants(path: Path, count: int, seed: int) -> None:
    """Read damaged copies of a file: each is read, or a typed error; never anything else, and in bounded memory."""
    rng = random.Random(seed)
    whole = path.read_bytes()
    target = path.with_name("mutant.pt")
    tracemalloc.start()
    for _ in range(count):
        data = bytearray(whole)
        for _ in range(rng.randint(1, 4)):
            at = rng.randrange(len(data))
            match rng.randrange(4):
                case 0:
                    data[at] = rng.randrange(256)
                case 1:
                    del data[at : at + rng.randint(1, 20)]
                case 2:
                    data[at : at + 4] = rng.choice([b"\xff\xff\xff\xff", b"\0\0\0\0", b"\x01\0\0\x80"])
                case _:
                    data[at:at] = data[max(at - 9, 0) : at]
            if not data:
                data = bytearray(whole)
        target.write_bytes(data)
        with LocalReader(str(target)) as reader, contextlib.suppress(EdlCkptError):
            open_file(reader)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 100 * len(whole) + (8 << 20)


def everything(path: Path) -> None:
    """Write a file that has something of all kinds."""
    save(
        path,
        {
            "state_dict": {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.ones(4, np.int64)},
            "groups": [{"lr": 0.1, "params": list(range(30)), "name": "x", "size": Call("torch.Size", ((1, 2),))}],
            "other": Call("mine.Thing", (1,), {"t": np.ones(2, np.float32)}, is_object=True),
        },
    )


def test_mutants(tmp_path: Path) -> None:
    """2,000 damaged files, of which some have damaged pickles in sound zips, are typed errors, or are read."""
    everything(tmp_path / "x.pt")
    mutants(tmp_path / "x.pt", 1400, 1)
    everything(tmp_path / "y.pt")
    mutated_pickles(tmp_path / "y.pt", 600, 2)


def mutated_pickles(path: Path, count: int, seed: int) -> None:
    """Read copies of a file with damaged pickles in sound zips."""
    rng = random.Random(seed)
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    whole = members["archive/data.pkl"]
    for _ in range(count):
        data = bytearray(whole)
        for _ in range(rng.randint(1, 3)):
            at = rng.randrange(len(data))
            data[at] = rng.choice([rng.randrange(256), *b"}](ue.tRbhqX"])
        target = path.with_name("mutant.pt")
        with zipfile.ZipFile(target, "w") as archive:
            for name, content in members.items():
                archive.writestr(name, bytes(data) if name == "archive/data.pkl" else content)
        with LocalReader(str(target)) as reader, contextlib.suppress(EdlCkptError):
            open_file(reader)


@pytest.mark.hours
def test_many_mutants(tmp_path: Path) -> None:
    """100,000 damaged files."""
    everything(tmp_path / "x.pt")
    for seed in range(20):
        mutants(tmp_path / "x.pt", 2500, 100 + seed)
        mutated_pickles(tmp_path / "x.pt", 2500, 200 + seed)


def test_a_file_of_holes_is_inspected_by_few_reads(tmp_path: Path) -> None:
    """Of a file of 20 GiB only the pickle, the directory and the headers before the values are read."""
    path = tmp_path / "large.pt"
    sizes = 20
    with path.open("wb") as file:
        entries = bytearray()
        pickled = b"\x80\x02}("
        body = [("archive/byteorder", b"little", 6)]
        for n in range(sizes):
            elements = 1 << 28
            text = f"w{n}".encode()
            pickled += b"X" + struct.pack("<I", len(text)) + text + b"ctorch._utils\n_rebuild_tensor_v2\n(("
            pickled += b"X\x07\0\0\0storagectorch\nFloatStorage\nX" + struct.pack("<I", len(str(n))) + str(n).encode()
            pickled += b"X\x03\0\0\0cpuJ" + struct.pack("<i", elements) + b"tQK\0J" + struct.pack("<i", elements)
            pickled += b"\x85K\x01\x85\x89ccollections\nOrderedDict\n)RtR"
            body.append((f"archive/data/{n}", b"", elements * 4))
        pickled += b"u."
        for name, content, size in [("archive/data.pkl", pickled, len(pickled)), *body]:
            raw, at = name.encode(), file.tell()
            crc = zlib.crc32(content)
            file.write(b"PK\3\4" + struct.pack("<HHHHHIIIHH", 45, 0, 0, 0, 0, crc, 0, 0, len(raw), 0) + raw + content)
            file.seek(file.tell() - len(content) + size)
            extra = struct.pack("<HHQQQ", 1, 24, size, size, at)
            entries += b"PK\1\2" + struct.pack(
                "<HHHHHHIIIHHHHHII", 45, 45, 0, 0, 0, 0, crc, 0xFFFFFFFF, 0xFFFFFFFF, len(raw), len(extra), 0, 0, 0, 0,
                0xFFFFFFFF,
            ) + raw + extra  # fmt: skip
        start, count = file.tell(), sizes + 2
        file.write(entries)
        end = file.tell()
        file.write(b"PK\6\6" + struct.pack("<QHHIIQQQQ", 44, 45, 45, 0, 0, count, count, len(entries), start))
        file.write(b"PK\6\7" + struct.pack("<IQI", 0, end, 1))
        file.write(b"PK\5\6" + struct.pack("<HHHHIIH", 0, 0, 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0))
    assert path.stat().st_size > 20 << 30
    with LocalReader(str(path)) as reader:
        contents = open_file(reader)
        assert reader.bytes_read < 200_000
    assert len(contents.tensors) == sizes
