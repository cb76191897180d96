"""Every byte is content: tensors of each dtype, texts and values of Python, in each system and through each verb."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bundle_files import HEADER, block, entry, masked, table, varint
from checkpoints import at
from edl_ckpt.core import (
    Changes,
    Version,
    convert_version,
    diff_versions,
    execute_copy,
    export_version,
    fingerprint_checkpoint,
    list_versions,
    open_checkpoint,
    plan_copy,
    repair_version,
    seal_version,
    summarize,
    verify_version,
)
from edl_ckpt.core.base.choices import FormatName
from edl_ckpt.core.base.errors import CorruptError, RefusedError, UnsupportedError, UsageError
from edl_ckpt.core.kernel.checksums import crc32c
from edl_ckpt.core.kernel.checksums import masked as masked_value
from edl_ckpt.core.model.tables import DenseEntry
from edl_ckpt.core.operations.export import Selection
from edl_ckpt.core.operations.verify.check import verify_and_seal
from edl_ckpt.core.reading.reader import Checkpoint
from edl_ckpt.core.state.seal import read_seal
from edl_ckpt.core.storage import Location, open_store
from foreign import SYSTEMS
from program import document, edl
from reporters import Recorder

TAGS = (
    "F8_E4M3",
    "F8_E5M2",
    "F8_E8M0",
    "F8_E4M3FNUZ",
    "F8_E5M2FNUZ",
    "F4",
    "F6_E2M3",
    "F6_E3M2",
    "C64",
    "BF16",
    "BOOL",
)
BITS = {"F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "C64": 64, "BF16": 16}


VARIANT = b"-\n\x16tensorflow::TensorList\x12\x13\x03\x00\x01\x02\x01" + b"\xff" * 9 + b"\x01\x12\x02\x08\x02y\xde<="
VARIANT_CRC = 0xDFF09D7.to_bytes(4, "little")
"""A list of three tensors, and its checksum in the index, as TensorFlow 2.16 wrote them."""


def write_dcp(run: Path) -> None:
    """Take the step that torch saved."""
    shutil.copytree(SYSTEMS / "dcp/everything/step_3", run / "step_3")


def write_safetensors(run: Path) -> None:
    """Write a file with a tensor of each dtype of the format, and float4 with an odd last dimension."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt", "made by": "a test"}}
    data, rng = bytearray(), np.random.default_rng(1)
    for name, tag, shape in [*((tag, tag, [4, 4]) for tag in TAGS), ("odd", "F4", [2, 3]), ("w", "F32", [8])]:
        size = int(np.prod(shape)) * BITS.get(tag, 32 if tag == "F32" else 8) // 8
        header[name] = {"dtype": tag, "shape": shape, "data_offsets": [len(data), len(data) + size]}
        data += rng.integers(0, 2, size, np.uint8).tobytes()
    text = json.dumps(header).encode()
    (run / "checkpoint-3").mkdir(parents=True)
    (run / "checkpoint-3/model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + data)


def texts(*some: bytes) -> tuple[bytes, bytes]:
    """Return the bytes of texts as TensorFlow stores them, and their checksum in the index."""
    summed = 0
    for one in some:
        summed = crc32c(len(one).to_bytes(4, "little"), summed)
    check = masked_value(summed).to_bytes(4, "little")
    joined = b"".join(some)
    crc = masked_value(crc32c(joined, crc32c(check, summed)))
    return b"".join(varint(len(one)) for one in some) + check + joined, crc.to_bytes(4, "little")


def write_bundle(run: Path) -> None:
    """Write a bundle with complex, quantised and float8 tensors, texts, and a resource."""
    rng, pairs, data = np.random.default_rng(2), [(b"", HEADER)], bytearray()
    plain = [("c64", 8, 8), ("e4m3", 25, 1), ("e5m2", 24, 1), ("q32", 13, 4), ("q8", 11, 1), ("w", 1, 4)]
    stored: list[tuple[str, int, tuple[int, ...], bytes, bytes]]
    stored = [(name, number, (3, 2), rng.bytes(6 * size), b"") for name, number, size in plain]
    words, many = texts(b"graph"), texts(b"a", b"", b"three")
    stored += [("graph", 7, (), *words), ("many", 7, (3,), *many), ("z-resource", 20, (), b"handle", bytes(4))]
    stored += [("listed", 21, (), VARIANT, VARIANT_CRC), ("nibbles", 29, (3, 2), rng.bytes(6), b"")]
    for name, number, shape, octets, crc in sorted(stored):
        pairs.append((name.encode(), entry(number, shape, len(data), len(octets), crc=crc or masked(octets))))
        data += octets
    run.mkdir(parents=True)
    (run / "ckpt-3.data-00000-of-00001").write_bytes(data)
    (run / "ckpt-3.index").write_bytes(table([block(pairs)]))


WRITERS: dict[str, Callable[[Path], None]] = {
    "dcp": write_dcp,
    "safetensors": write_safetensors,
    "tensorflow": write_bundle,
}


@pytest.fixture(params=WRITERS)
def version(request: pytest.FixtureRequest, tmp_path: Path) -> Version:
    """A version of each system with everything in it."""
    WRITERS[request.param](tmp_path / "run")
    return at(tmp_path / "run", 3)


def entries_of(checkpoint: Checkpoint) -> Iterator[tuple[DenseEntry, bytes]]:
    """Yield all variables and items with their bytes."""
    for shard in checkpoint.shards:
        for one in shard.variables:
            yield one, bytes(checkpoint.reader(shard, one.values).read(one.values.start, one.size_bytes))


def content(version: Version) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    """Return the dtype, the shape and the bytes of all that a version has, by name."""
    with open_checkpoint(version) as checkpoint:
        return {one.name: (one.dtype.name, one.shape, data) for one, data in entries_of(checkpoint)}


def others(version: Version) -> list[str]:
    """Return the names of all that no table could be."""
    with open_checkpoint(version) as checkpoint:
        return sorted(one.name for one, _ in entries_of(checkpoint) if not one.dtype.is_ours)


def copied(version: Version, to: Path) -> None:
    """Copy a version to a location."""
    to.mkdir(exist_ok=True)
    execute_copy(plan_copy([version], to))


def test_a_step_written_anew_has_every_byte(version: Version, tmp_path: Path) -> None:
    """A reshard and a copy have each tensor and each item, with dtype, shape and bytes, and the same fingerprint."""
    assert len(others(version)) >= 8
    again = convert_version(version, 3, output=tmp_path / "again")
    assert content(at(tmp_path / "again", 3)) == content(version)
    with open_checkpoint(version) as checkpoint:
        text = fingerprint_checkpoint(checkpoint).text
    assert again.fingerprint == text
    assert "+" in text
    copied(version, tmp_path / "copy")
    assert content(at(tmp_path / "copy", 3)) == content(version)
    assert diff_versions(version, at(tmp_path / "copy", 3)).equal
    assert diff_versions(version, at(tmp_path / "again", 3)).equal


def test_an_edit_drops_and_renames_each(version: Version, tmp_path: Path) -> None:
    """Each name can be dropped and renamed: what is left has the bytes that it had."""
    before = content(version)
    first, second, *rest = others(version)
    changes = Changes(drop=(first,), rename=((second, "renamed"),))
    convert_version(version, output=tmp_path / "edited", changes=changes)
    after = content(at(tmp_path / "edited", 3))
    assert after == {name: before[name] for name in before if name not in {first, second}} | {"renamed": before[second]}
    assert rest


def flipped(version: Version, to: Path, name: str) -> Version:
    """Return a copy in which one bit in the middle of what has a name is another one."""
    with open_checkpoint(version) as checkpoint:
        shard, one = checkpoint.find_variable(name)
        path, place = shard.path(one.values), one.values.start + one.size_bytes // 2
    shutil.copytree(version.location.local_path or "", to)
    copied = to / Path(path).relative_to(version.location.local_path or "")
    data = bytearray(copied.read_bytes())
    data[place] ^= 1
    copied.write_bytes(data)
    return at(to, 3)


def check_flips(version: Version, to: Path, names: list[str]) -> None:
    """Assert that one flipped bit in each is found by diff, and by verify with a seal, by its name."""
    verify_and_seal(version)
    for number, name in enumerate(names):
        other = flipped(version, to / str(number), name)
        found = diff_versions(version, other)
        assert not found.equal
        states = [*((v.name, v.status) for v in found.variables), *((i.name, i.status) for i in found.items)]
        assert [of for of, status in states if status != "equal"] == [name]
        findings = verify_version(other, level="deep").findings
        assert name in {finding.subject for finding in findings if finding.severity == "error"}, (name, findings)


def test_a_flipped_bit_is_found(version: Version, tmp_path: Path) -> None:
    """A flipped bit in what no table could be is found by diff, and named by verify."""
    names = others(version)
    check_flips(version, tmp_path, [names[0], names[-1]])


@pytest.mark.slow
def test_a_flipped_bit_in_each_is_found(version: Version, tmp_path: Path) -> None:
    """A flipped bit in anything is found by diff, and named by verify."""
    check_flips(version, tmp_path, sorted(content(version)))


@pytest.mark.parametrize("system", ["dcp", "tensorflow"])
def test_a_flipped_bit_needs_no_seal(system: str, tmp_path: Path) -> None:
    """The checksums in the files tell of a flipped bit in a value, and in texts, without a seal."""
    WRITERS[system](tmp_path / "run")
    for name in {
        "dcp": ("lr", "odd.qint8", "odd.float8_e5m2"),
        "tensorflow": ("graph", "many", "listed", "nibbles", "e4m3"),
    }[system]:
        other = flipped(at(tmp_path / "run", 3), tmp_path / name, name)
        found = [f.subject for f in verify_version(other, level="deep").findings if f.code == "checksum-mismatch"]
        assert found == [name]


OF_SUMS = [("dcp", name) for name in ("lr", "odd.qint8")] + [("tensorflow", name) for name in ("graph", "many")]


@pytest.mark.parametrize(("system", "name"), OF_SUMS)
def test_a_flipped_bit_in_an_item_ends_each_way_out(system: str, name: str, tmp_path: Path) -> None:
    """Values and texts get no new seal before their own checksum is compared; force goes on, and the seal says so."""
    WRITERS[system](tmp_path / "run")
    other = flipped(at(tmp_path / "run", 3), tmp_path / "other", name)

    def copy(force: bool) -> str | None:
        return execute_copy(plan_copy([other], tmp_path / "copy", force=force)).copied[0].forced

    def write(force: bool) -> str | None:
        return convert_version(other, 2, output=tmp_path / "new", force=force).forced

    def replace(force: bool) -> str | None:
        return convert_version(other, 2, force=force).forced

    is_replaced = system == "dcp"  # a bundle lies beside other files
    for way in (copy, write, replace) if is_replaced else (copy, write):
        with pytest.raises(CorruptError, match=re.escape(repr(name)) + " in shard [0-9]: ") as raised:
            way(False)
        assert raised.value.code == "checksum-mismatch"
        assert repr(name) in str(way(True))
    for place in ("copy", "new", "other") if is_replaced else ("copy", "new"):
        seal = read_seal(open_store(Location.of(str(tmp_path / place))), 3)
        assert seal is not None
        assert [repr(name) in one.why for one in seal.history] == [True]


def test_a_damaged_item_that_is_left_out(tmp_path: Path) -> None:
    """An edit drops a damaged value without a word about it, and counts it as not compared."""
    write_dcp(tmp_path / "run")
    other = flipped(at(tmp_path / "run", 3), tmp_path / "other", "lr")
    done = convert_version(other, output=tmp_path / "new", changes=Changes(drop=("lr",)))
    assert (done.forced, done.checksums.not_compared) == (None, 1)


FORMATS: tuple[FormatName, ...] = ("safetensors", "npz", "npy", "torch", "tensorflow", "dcp", "tfra", "checkpoint")


@pytest.mark.parametrize("format_name", FORMATS)
def test_an_export_has_each_or_says_so(version: Version, tmp_path: Path, format_name: FormatName) -> None:
    """An export has every tensor, refuses before it writes, or names each item that it leaves out."""
    reporter, out = Recorder(), tmp_path / "out"
    try:
        result = export_version(version, out, format_name=format_name, reporter=reporter)
    except (UnsupportedError, UsageError):
        assert not out.exists()
        return
    with open_checkpoint(version) as checkpoint:
        items, variables = set(checkpoint.item_names), len(checkpoint.variable_names)
    gone = {one.name for one in result.left_out}
    assert result.variables + len(gone - items) == variables
    if format_name != version.layout.system:
        assert items <= gone or format_name == "checkpoint"
        assert all(name in " ".join(reporter.warnings) for name in items)


TENSORS_OF_NO_OTHER = {"dcp": "odd.qint8", "safetensors": "F6_E2M3", "tensorflow": "nibbles"}
"""A tensor of each system whose elements are not whole bytes, or have a scale: no other system has a place for it."""


@pytest.mark.parametrize("format_name", ["safetensors", "npz", "torch", "tensorflow", "dcp", "checkpoint"])
def test_a_tensor_without_a_place_is_refused_by_name(version: Version, tmp_path: Path, format_name: FormatName) -> None:
    """A quantised tensor, and one of int4 or float6, is no value to leave out: 15 with all names and the way on."""
    system = version.layout.system
    name = TENSORS_OF_NO_OTHER[system]
    if format_name == system:
        return
    if (format_name, system) == ("checkpoint", "dcp"):  # the first of many are named
        name = "odd.float8_e5m2"
    with pytest.raises(UnsupportedError, match=f"cannot hold .*'{name}'") as raised:
        export_version(version, tmp_path / "out", format_name=format_name)
    assert not (tmp_path / "out").exists()
    assert f"--drop '{name}'" in (raised.value.hint or "")
    drops = re.findall(r"--drop '([^']*)'", raised.value.hint or "")
    convert_version(version, output=tmp_path / "less", changes=Changes(drop=tuple(drops)))
    assert drops
    assert set(drops).isdisjoint(content(at(tmp_path / "less", 3)))


@pytest.mark.parametrize("name", ["F8_E4M3FNUZ", "F8_E5M2FNUZ"])
def test_new_bundles_have_what_tensorflow_lists(tmp_path: Path, name: str) -> None:
    """TensorFlow 2.16 lists nothing of a bundle that has a dtype of a later release: none goes into a new one."""
    write_safetensors(tmp_path / "run")
    chosen = Selection(variables=(name,))
    with pytest.raises(UnsupportedError, match=f"cannot hold '{name}'"):
        export_version(at(tmp_path / "run", 3), tmp_path / "out", format_name="tensorflow", selection=chosen)


def test_a_cast_of_an_item_says_that_it_has_no_floats(version: Version, tmp_path: Path) -> None:
    """A cast finds an item by its name, as inspect shows it, and refuses it."""
    name = TENSORS_OF_NO_OTHER[version.layout.system]
    with pytest.raises(UsageError, match=f"nothing that '{name}' names has floats"):
        convert_version(version, output=tmp_path / "out", changes=Changes(cast=((name, "float16"),)))


def test_old_seals_stay_valid(version: Version) -> None:
    """A seal of before, whose fingerprint ends before the plus, agrees; one with other digits behind it does not."""
    result = verify_version(version, level="deep")
    old, _, _ = (result.fingerprint or "").partition("+")
    seal_version(version, old)
    assert [f.code for f in verify_version(version, level="deep").findings if f.code == "fingerprint-mismatch"] == []
    seal_version(version, f"{old}+{'0' * 32}", force=True)
    codes = [finding.code for finding in verify_version(version, level="deep").findings]
    assert "fingerprint-mismatch" in codes


def test_only_the_sums_of_files_prove_files(tmp_path: Path) -> None:
    """Of two steps that differ in items alone, none repairs the other, and a copy of one is none of the other."""
    write_dcp(tmp_path / "a")
    other = flipped(at(tmp_path / "a", 3), tmp_path / "b", "lr")
    (one,) = list_versions(tmp_path / "a").versions
    for version in (one, other):
        with open_checkpoint(version) as checkpoint:
            seal_version(version, fingerprint_checkpoint(checkpoint).text.partition("+")[0])
    copied(one, tmp_path / "there")
    with pytest.raises(RefusedError):
        copied(at(tmp_path / "b", 3), tmp_path / "there")
    (tmp_path / "a/step_3/__0_0.distcp").unlink()
    with pytest.raises(RefusedError, match="its seal names other bytes"):
        repair_version(f"{tmp_path}/a@3", f"{tmp_path}/b@3")


def test_files_beside_a_model_are_looked_at(tmp_path: Path) -> None:
    """A cut optimizer.pt and an empty .pth are findings by name, and are not sealed; other files are named."""
    write_dcp(tmp_path / "run")
    step, data = tmp_path / "run/step_3", (SYSTEMS / "dcp/everything/step_3/__0_0.distcp").read_bytes()
    (step / "trainer_state.json").write_text("{}")
    with open_checkpoint(at(tmp_path / "run", 3)) as checkpoint:
        _, one = checkpoint.find_variable("lr")
    (step / "optimizer.pt").write_bytes(data[one.values.start : one.values.end])  # a zip, as torch.save writes it
    result = verify_version(f"{tmp_path}/run@3", level="deep")
    assert (result.ok, result.unread_files, result.uncompared) == (True, ("trainer_state.json",), ())
    (step / "optimizer.pt").write_bytes(data[one.values.start : one.values.end - 100])
    (step / "rng_state.pth").write_bytes(b"")
    result = verify_and_seal(f"{tmp_path}/run@3", reporter=Recorder())
    assert {(f.code, f.subject) for f in result.findings} == {
        ("checksum-mismatch", "optimizer.pt"),
        ("empty-file", "rng_state.pth"),
    }
    assert not result.sealed


def test_the_metadata_of_files_is_shown_compared_and_kept(tmp_path: Path) -> None:
    """What files of safetensors and an index say of themselves is shown, compared, and kept by a reshard."""
    write_safetensors(tmp_path / "run")
    version = at(tmp_path / "run", 3)
    convert_version(version, output=tmp_path / "set", most_file_bytes=64)
    place = tmp_path / "set/checkpoint-3/model.safetensors.index.json"
    document = json.loads(place.read_text())
    document["metadata"] |= {"total_parameters": 1, "made": [1, 2]}
    place.write_text(json.dumps(document))
    found = diff_versions(version, at(tmp_path / "set", 3))
    assert (found.equal, found.metadata) == (True, ("made", "total_parameters"))
    convert_version(at(tmp_path / "set", 3), output=tmp_path / "again", most_file_bytes=128, force=True)
    after = json.loads((tmp_path / "again/checkpoint-3/model.safetensors.index.json").read_text())["metadata"]
    with open_checkpoint(version) as checkpoint:
        elements = sum(one.elements for one, _ in entries_of(checkpoint))
    assert (after["made"], after["total_parameters"]) == ([1, 2], elements)
    with open_checkpoint(at(tmp_path / "again", 3)) as checkpoint:
        shown = summarize(checkpoint.version, checkpoint.shards).file_metadata
    assert len(shown) > 2
    assert all(notes.get("made by", "a test") == "a test" for notes in shown.values())


def test_an_export_keeps_the_metadata_of_files(tmp_path: Path) -> None:
    """Exports to safetensors have what the files said; others name it. `diff` names what one file alone says."""
    write_safetensors(tmp_path / "run")
    version, reporter = at(tmp_path / "run", 3), Recorder()
    convert_version(version, output=tmp_path / "w", changes=Changes(variables=("w",)))
    plain = at(tmp_path / "w", 3)
    export_version(plain, tmp_path / "a.safetensors", reporter=reporter)
    assert diff_versions(plain, tmp_path / "a.safetensors").metadata == ()
    assert reporter.warnings == []
    export_version(plain, tmp_path / "a.npz", reporter=reporter)
    assert reporter.warnings == ["left out: made by (1 metadata key; not in npz)"]
    data = (tmp_path / "a.safetensors").read_bytes()
    size = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:size])
    del header["__metadata__"]
    text = json.dumps(header).encode()
    (tmp_path / "bare.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + data[size:])
    found = diff_versions(plain, tmp_path / "bare.safetensors")
    assert (found.equal, found.metadata) == (True, ("format", "made by"))


def test_every_verb_counts_items_alike(tmp_path: Path) -> None:
    """What is proved, what is carried as bytes and what is left out are three numbers in each result, and names."""
    shutil.copytree(SYSTEMS / "bundle/objects", tmp_path / "in")
    (version,) = list_versions(tmp_path / "in").versions
    ref = version.ref
    with open_checkpoint(version) as checkpoint:
        tensors = len(checkpoint.variable_names) + len(checkpoint.table_names)
        items, name = len(checkpoint.item_names), checkpoint.variable_names[0]
    assert items
    whole = {"proved": tensors, "carried": items, "left_out": 0}
    apart = {"proved": tensors, "carried": 0, "left_out": items}
    found = {
        "reshard": document("reshard", ref, "--ranks", "2", "--output", tmp_path / "a"),
        "export in its system": document("export", ref, tmp_path / "b", "--format", "tensorflow", "--ranks", "2"),
        "copy": document("copy", ref, tmp_path / "c")["copied"][0],
        "export": document("export", ref, tmp_path / "d.npz"),
        "import": document("import", ref, f"{tmp_path / 'e'}@1", "--ps", "2", "--layout", "elasticdl"),
        "reshard to ElasticDL": document("export", ref, tmp_path / "f", "--format", "checkpoint"),
    }
    counts = {way: result["items"] for way, result in found.items()}
    assert counts == {
        "reshard": whole,
        "export in its system": whole,
        "copy": whole,
        "export": apart,
        "import": apart,
        "reshard to ElasticDL": apart,
    }
    for way in ("export", "import", "reshard to ElasticDL"):
        assert len(found[way]["left_out"]) == items, way
    edited = document("edit", ref, "--drop", name, "--output", tmp_path / "g")
    assert edited["items"] == {"proved": tensors - 1, "carried": items, "left_out": 1}
    assert [one["name"] for one in edited["left_out"]] == [name]
    planned = document("import", ref, f"{tmp_path / 'h'}@1", "--ps", "2", "--dry-run")
    assert planned["items"] == {"proved": 0, "carried": 0, "left_out": items}
    copied(version, tmp_path / "copy")
    whole_one = at(tmp_path / "copy", version.version)
    data = Path(whole_one.shards[0].path)
    before = data.read_bytes()
    data.write_bytes(before[:-1] + bytes([before[-1] ^ 1]))
    repaired = document("repair", whole_one.ref, "--from", ref)
    assert repaired["items"] == whole


def test_an_export_under_other_names_says_its_proof(tmp_path: Path) -> None:
    """Where no fingerprint can be the same, the values were read back all the same, and the last line says so."""
    shutil.copytree(SYSTEMS / "dcp/torchrec/step_2", tmp_path / "in/step_2")
    out = edl("export", f"{tmp_path / 'in'}@2", tmp_path / "out", "--format", "dcp", "--rename", "user=member").stdout
    assert "items: 6 proved, 1 carried as bytes" in out
    assert "proved: the new files were read back and compared with the source" in out
