"""Inputs that lie or are damaged: each ends with an error of its own, and takes no more memory than its file has."""

from __future__ import annotations

import io
import json
import os
import resource
import shutil
import struct
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from checkpoints import only
from edl_ckpt.core import open_checkpoint, verify_version
from edl_ckpt.core.base.errors import CorruptError, EdlCkptError, UnsupportedError
from edl_ckpt.core.operations.importing import import_arrays
from forked import run_forked
from frameworks import need

FREE_BYTES = 256 << 20
"""What an import of a small file may take beside what the process has already."""
CODES = {2, 5, 10, 15, 16}
SEED = 25


def npy(shape: str, descr: str = "<f4", data: bytes = b"", *, fortran: bool = False) -> bytes:
    """Return an .npy file with any shape in its header."""
    text = f"{{'descr': {descr!r}, 'fortran_order': {fortran}, 'shape': {shape}, }}".encode()
    head = text.ljust(-(-(len(text) + 13) // 64) * 64 - 13) + b"\n"
    return b"\x93NUMPY\x02\x00" + struct.pack("<I", len(head)) + head + data


def npz(members: Mapping[str, bytes]) -> bytes:
    """Return an archive of files by their names."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return file.getvalue()


def safetensors(header: str | dict[str, Any], data: bytes) -> bytes:
    """Return a safetensors file with any header."""
    text = (header if isinstance(header, str) else json.dumps(header)).encode()
    return struct.pack("<Q", len(text)) + text + data


def span(start: int, stop: int, **more: Any) -> dict[str, Any]:
    """Return the entry of a float32 tensor in a header."""
    return {"dtype": "F32", "shape": [(stop - start) // 4], "data_offsets": [start, stop], **more}


def table(dim: int) -> bytes:
    """Return an archive with a table without rows."""
    return npz({"t.ids.npy": npy("(0,)", "<i8"), "t.vectors.npy": npy(f"(0, {dim})")})


NO_ARRAYS = {
    "a dimension of 2**62": npz({"v.npy": npy(f"(0, {1 << 62})")}),
    "vectors with a dimension of 2**62": npz(
        {"t.ids.npy": npy("(0,)", "<i8"), "t.vectors.npy": npy(f"(0, {1 << 62})")}
    ),
    "vectors with a dimension of 2**40": npz(
        {"t.ids.npy": npy("(0,)", "<i8"), "t.vectors.npy": npy(f"(0, {1 << 40})")}
    ),
    "a dimension of 400 digits": npz({"v.npy": npy(f"(0, 1{'0' * 400})")}),
    "negative dimensions": npz({"v.npy": npy("(-1, -1)", data=b"1234")}),
    "a truth value as a dimension": npz({"v.npy": npy("(True, 1)", data=b"1234")}),
    "100,000 dimensions": npz({"v.npy": npy(f"({'1, ' * 100_000})", data=b"1234")}),
    "300 dimensions": npz({"v.npy": npy(f"({'1, ' * 300})", data=b"1234")}),
}
NO_TENSORS = {
    "a name twice": safetensors(f'{{"a": {json.dumps(span(0, 4))}, "a": {json.dumps(span(4, 8))}}}', b"8 bytes."),
    "a key twice": safetensors(
        '{"a": {"dtype": "F32", "dtype": "I32", "shape": [1], "data_offsets": [0, 4]}}', b"4 b."
    ),
    "a hole": safetensors({"a": span(0, 4), "b": span(8, 12)}, b"12 bytes...."),
    "a hole at the begin": safetensors({"a": span(4, 8)}, b"8 bytes."),
    "bytes at the end": safetensors({"a": span(0, 4)}, b"8 bytes."),
    "an overlap": safetensors({"a": span(0, 8), "b": span(4, 8)}, b"8 bytes."),
    "a dimension of 2**62 - 1": safetensors({"a": span(0, 0, shape=[0, (1 << 62) - 1])}, b""),
    "100,000 dimensions": safetensors({"a": span(0, 4, shape=[1] * 100_000)}, b"4 b."),
}


def refuse(path: Path) -> EdlCkptError:
    """Return the error of an import, which leaves nothing at the target."""
    target = path.parent / "run"
    with pytest.raises((CorruptError, UnsupportedError)) as caught:
        import_arrays(str(path), str(target), 1, 2)
    assert not target.exists()
    return caught.value


@pytest.mark.parametrize("case", NO_ARRAYS)
def test_npz(tmp_path: Path, case: str) -> None:
    """A header of numpy that no array can have ends with 5 or 15, in an archive and in a directory."""
    (tmp_path / "m.npz").write_bytes(NO_ARRAYS[case])
    refuse(tmp_path / "m.npz")
    with zipfile.ZipFile(tmp_path / "m.npz") as archive:
        archive.extractall(tmp_path / "arrays")
    refuse(tmp_path / "arrays")


@pytest.mark.parametrize("case", NO_TENSORS)
def test_safetensors(tmp_path: Path, case: str) -> None:
    """What the safetensors library refuses is refused here, and so is what it takes for one of two tensors."""
    path = tmp_path / "m.safetensors"
    path.write_bytes(NO_TENSORS[case])
    refuse(path)
    if "twice" not in case and "dimension" not in case:
        with pytest.raises(Exception, match=r"(?i)header|metadata|offset"):
            load_file(path)


@pytest.mark.parametrize("count", [1000, pytest.param(70_000, marks=pytest.mark.hours)])
def test_an_archive_of_many_members(tmp_path: Path, count: int) -> None:
    """Members, also more than a zip archive counts in 16 bits, need one temporary file and not one for each."""
    (tmp_path / "m.npz").write_bytes(npz({f"v{number}.npy": npy("()", data=b"1234") for number in range(count)}))
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, limit[1]))
    try:
        import_arrays(str(tmp_path / "m.npz"), str(tmp_path / "run"), 1, 1)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limit)
    with open_checkpoint(only(tmp_path / "run")) as checkpoint:
        assert len(checkpoint.variable_names) == count
    assert verify_version(only(tmp_path / "run"), level="quick").ok


def test_a_damaged_directory_of_an_archive(tmp_path: Path) -> None:
    """A central directory with any byte changed leads to an array, to no array at all, or to 5."""
    whole = npz({"v.npy": npy("(2,)", data=b"8 bytes.")})
    for at in range(whole.index(b"PK\1\2"), len(whole), 2):
        for value in {(0, 255)[at // 2 % 2], whole[at] ^ 128} - {whole[at]}:
            (tmp_path / "m.npz").write_bytes(whole[:at] + bytes([value]) + whole[at + 1 :])
            problem = fault_of(tmp_path / "m.npz", tmp_path / "run")
            assert not problem, f"byte {at} as {value}: {problem}"


def fault_of(path: Path, target: Path) -> str:
    """Import a file; return what is wrong with how that ended, '' for a version or an error of an input."""
    try:
        import_arrays(str(path), str(target), 1, 2)
        shutil.rmtree(target)
    except EdlCkptError as error:
        left = "; it left something" if target.exists() else ""
        return "" if error.exit_code in CODES and not left else f"{error.exit_code} {error}{left}"
    except Exception as error:  # noqa: BLE001 - whatever it is, it is a finding
        return f"{type(error).__name__}: {error}"
    return ""


# PyTorch


def write_torch(torch: Any, case: str, path: Path) -> None:
    """Write a file of PyTorch that is no plain state_dict."""
    tensors: Mapping[str, Callable[[], Any]] = {
        "a view of stride 0": lambda: torch.zeros(1).expand(800_000_000),
        "4 TiB of one value": lambda: torch.zeros(1).expand(1 << 20, 1 << 20),
        "a sparse tensor": lambda: torch.sparse_coo_tensor([[0], [1]], [1.0], (1 << 30, 1 << 10)),
        "a sparse tensor by rows": lambda: torch.sparse_csr_tensor([0, 1], [0], [1.0], (1, 1)),
        "a tensor without values": lambda: torch.zeros(3, device="meta"),
        "complex numbers": lambda: torch.zeros(3, dtype=torch.complex64),
        "windows": lambda: torch.zeros(100).as_strided((50, 50), (1, 1)),
    }
    torch.save({"v": tensors[case]()}, path)


@pytest.mark.frameworks
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(
    "case",
    [
        "a view of stride 0", "4 TiB of one value", "a sparse tensor", "a sparse tensor by rows",
        "a tensor without values", "complex numbers", "windows",
    ],
)  # fmt: skip
def test_torch(tmp_path: Path, case: str) -> None:
    """A tensor that is more than its file, or that is not dense, ends with 15, and its values are never made."""
    torch = need("torch")
    path = tmp_path / "m.pt"
    write_torch(torch, case, path)
    assert path.stat().st_size < 4096

    def act() -> None:
        limit_memory()
        assert isinstance(refuse(path), UnsupportedError)

    assert run_forked(act) == 0


@pytest.mark.frameworks
def test_a_claim_of_a_large_storage(tmp_path: Path) -> None:
    """A storage that claims more bytes than its file has is refused."""
    torch = need("torch")
    torch.save({"v": torch.zeros(300)}, tmp_path / "good.pt")
    data = bytearray((tmp_path / "good.pt").read_bytes())
    at = data.index(b"M,\x01")  # 300 as a number of two bytes
    with zipfile.ZipFile(tmp_path / "good.pt") as archive, zipfile.ZipFile(tmp_path / "m.pt", "w") as changed:
        for name in archive.namelist():
            changed.writestr(name, archive.read(name).replace(b"M,\x01", b"J\x00\x00\x00\x7f"))
    assert at
    refuse(tmp_path / "m.pt")


def limit_memory() -> None:
    """Let this process take no more than `FREE_BYTES` beside what it has."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (used + FREE_BYTES, used + FREE_BYTES))


# Mutants


def seeds(kind: str, place: Path) -> bytes:
    """Return a small file of a kind, with a table and a variable."""
    path = place / f"seed.{kind}"
    ids, vectors, bias = np.arange(20), np.ones((20, 4), np.float32), np.ones(3, np.float32)
    if kind == "npz":
        arrays: dict[str, Any] = {"t.ids": ids, "t.vectors": vectors, "bias": bias}
        np.savez(path, **arrays)
    elif kind == "safetensors":
        from safetensors.numpy import save_file

        save_file({"t.ids": ids, "t.vectors": vectors, "bias": bias}, path)
    elif kind == "npy":
        file = io.BytesIO()
        np.save(file, np.asfortranarray(vectors).astype(">f4"))
        return file.getvalue()
    elif kind == "pt":
        torch = need("torch")
        torch.save({"t.ids": torch.from_numpy(ids), "t.vectors": torch.from_numpy(vectors)}, path)
    else:
        parquet, arrow = need("pyarrow.parquet"), need("pyarrow")
        parquet.write_table(arrow.table({"id": ids, "vector": list(vectors)}), path)
    return path.read_bytes()


def mutant(whole: bytes, number: int) -> bytes:
    """Return a file with some changes, mostly near its begin and its end, where the formats describe what they have."""
    random, data = Random(number * 1000 + SEED), bytearray(whole)
    for _ in range(random.choice((1, 1, 2, 5))):
        edge = min(len(data), 600)
        at = random.choice(
            (random.randrange(len(data)), random.randrange(edge), len(data) - 1 - random.randrange(edge))
        )
        size = random.choice((1, 2, 4, 8, 100))
        new = {
            0: bytes([data[at] ^ 1 << random.randrange(8)]),
            1: random.choice((b"\0", b"\xff", b"\x7f\xff\xff\xff", b"\xff" * 8)),
            2: bytes(data[at : at + size]) * 2,
            3: b"",
        }[random.randrange(4)]
        data[at : at + (len(new) if random.random() < 0.7 else size)] = new
        if random.random() < 0.05:
            del data[at:]
        data = data or bytearray(b"\0")
    return bytes(data)


def try_mutants(kind: str, place: Path, numbers: range) -> None:
    """Import mutants in a process with little memory; AssertionError for those that end otherwise than they may."""
    whole = seeds(kind, place)
    path = place / ("arrays/v.npy" if kind == "npy" else f"m.{kind}")
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(whole)
    source = path.parent if kind == "npy" else path
    assert not fault_of(source, place / "run")  # imports the libraries, too
    (place / "now").touch()

    def act() -> None:
        limit_memory()
        for number in numbers:
            (place / "now").write_text(str(number))
            path.write_bytes(mutant(whole, number))
            problem = fault_of(source, place / "run")
            if problem:
                with (place / "problems").open("a") as file:
                    file.write(f"{number}: {problem}\n")

    code = run_forked(act)
    problems = (place / "problems").read_text() if (place / "problems").exists() else ""
    assert (code, problems) == (0, ""), f"{kind} {(place / 'now').read_text()}: {code}\n{problems}"


@pytest.mark.parametrize("kind", ["npy", "npz", "safetensors"])
def test_mutants(tmp_path: Path, kind: str) -> None:
    """A mutant of a file becomes a version or ends with the error of an input; nothing is half done."""
    try_mutants(kind, tmp_path, range(15))


@pytest.mark.frameworks
@pytest.mark.parametrize("kind", ["pt", "parquet"])
def test_mutants_of_frameworks(tmp_path: Path, kind: str) -> None:
    """The same of files that a framework's library reads."""
    try_mutants(kind, tmp_path, range(30))


@pytest.mark.hours
@pytest.mark.parametrize("kind", ["npy", "npz", "safetensors", "pt", "parquet"])
def test_many_mutants(tmp_path: Path, kind: str) -> None:
    """The same of 20,000 mutants of each kind."""
    try_mutants(kind, tmp_path, range(30, 20_030))
