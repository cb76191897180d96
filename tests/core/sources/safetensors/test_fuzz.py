"""Mutants of safetensors files: a header that tiles its file, or a typed error; no traceback, and not much memory."""

from __future__ import annotations

import json
import tracemalloc
from random import Random
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save

from edl_ckpt.core.base.errors import CorruptError
from edl_ckpt.core.sources.safetensors.indexing import Header, read_header
from foreign import SYSTEMS
from mutants import MemoryReader

CORPUS = (
    (SYSTEMS / "safetensors/checkpoint-100/model.safetensors").read_bytes(),
    (SYSTEMS / "safetensors/checkpoint-200/model-00003-of-00003.safetensors").read_bytes(),
    save({"a": np.arange(3), "b": np.zeros((0, 2), np.float32), "c": np.ones(1, np.int8)}, {"tables": "{}"}),
    save({}),
)
NUMBERS: tuple[Any, ...] = (-1, 0, 1, 2, 8, 2**31, 2**32, 2**62, 2**63, 2**64, 10**4000, 1.5, True, None, "8", [], {})
TEXTS = ("F32", "I64", "F4", "F8_E4M3", "BOOL", "NONE", "", "\ud800", "../a", "\0", 7, None)
PEAK_BYTES, PEAK_BYTES_PER_BYTE = 1 << 20, 200


def mutant(number: int) -> bytes:
    """Return a file by its number: bytes that are changed anywhere, or an entry of the header that lies."""
    chance = Random(number)
    data = chance.choice(CORPUS)
    if chance.random() < 0.4:
        return changed(chance, data)
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    for _ in range(chance.randint(1, 3)):
        chance.choice((lie_about_size, lie_about_kind, add, remove, nest))(chance, header)
    text = json.dumps(header).encode("utf-8", "surrogatepass")
    if chance.random() < 0.1:
        text = text.replace(b'"shape"', b'"dtype"')
    length = chance.choice((len(text),) * 8 + (0, len(text) + 1, 2**31, 2**64 - 1))
    return length.to_bytes(8, "little") + text + data[8 + size :]


def changed(chance: Random, data: bytes) -> bytes:
    """Flip bits, cut, repeat or overwrite, mostly in the header."""
    copy = bytearray(data)
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(min(len(copy), chance.choice((9, 200, len(copy) + 1))) or 1)
        kind = chance.randrange(4)
        if kind == 0 and copy:
            copy[at] ^= 1 << chance.randrange(8)
        elif kind == 1:
            del copy[at : at + chance.choice((1, 8, len(copy)))]
        elif kind == 2:
            copy[at:at] = copy[at : at + chance.choice((1, 8, 64))]
        else:
            copy[at : at + 1] = bytes([chance.randrange(256)])
    return bytes(copy)


def entry(chance: Random, header: dict[str, Any]) -> dict[str, Any]:
    """Return an entry of a tensor, a new one where the header has none."""
    entries = [value for value in header.values() if isinstance(value, dict)]
    return chance.choice(entries) if entries else header.setdefault("new", {})


def lie_about_size(chance: Random, header: dict[str, Any]) -> None:
    one, key = entry(chance, header), chance.choice(("shape", "data_offsets"))
    numbers = one.get(key)
    if isinstance(numbers, list) and numbers and chance.random() < 0.8:
        numbers[chance.randrange(len(numbers))] = chance.choice(NUMBERS)
    else:
        one[key] = chance.choice((NUMBERS[:3], [2**61] * 400, [1] * 5000, [], *NUMBERS))


def lie_about_kind(chance: Random, header: dict[str, Any]) -> None:
    entry(chance, header)["dtype"] = chance.choice(TEXTS)


def add(chance: Random, header: dict[str, Any]) -> None:
    name = str(chance.choice(TEXTS))
    header[name] = chance.choice((dict(entry(chance, header)), {}, [], 3, None))


def remove(chance: Random, header: dict[str, Any]) -> None:
    if header:
        del header[chance.choice(list(header))]


def nest(chance: Random, header: dict[str, Any]) -> None:
    value: Any = 0
    for _ in range(chance.choice((3, 500))):
        value = [value]
    header[chance.choice(("__metadata__", "deep"))] = value


Result = Header | CorruptError


def read(data: bytes) -> Result:
    """Return the header of a file or its fault, and assert that both say what they must, in bounded memory."""
    reader = MemoryReader(data)
    tracemalloc.start()
    try:
        result: Result = read_header(reader)
    except CorruptError as error:
        result = error
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < PEAK_BYTES + PEAK_BYTES_PER_BYTE * len(data)
    if isinstance(result, CorruptError):
        assert (result.path, result.code in {"malformed", "truncated", "content-size-mismatch"}) == ("mutant", True)
        assert result.offset is not None
        assert 0 <= result.offset <= 2**63
    else:
        ends = [8 + int.from_bytes(data[:8], "little"), *(tensor.end for tensor in result.tensors)]
        assert [tensor.start for tensor in result.tensors] == ends[:-1]
        assert ends[-1] == len(data)
    return result


@pytest.mark.parametrize("part", [pytest.param(n, marks=[pytest.mark.hours] if n else []) for n in range(100)])
def test_mutants(part: int) -> None:
    """1,000 mutants for each part, 100,000 in all: a header that tiles the file, or a typed error with a byte."""
    results = [read(mutant(number)) for number in range(part * 1000, (part + 1) * 1000)]
    assert {type(result) for result in results} == {Header, CorruptError}


@pytest.mark.parametrize("data", CORPUS)
def test_every_truncation(data: bytes) -> None:
    """A file that ends early is damaged, wherever it ends."""
    size = int.from_bytes(data[:8], "little")
    for end in (*range(min(8 + size, len(data))), *range(8 + size, len(data), 97)):
        result = read(data[:end])
        assert isinstance(result, CorruptError)
        assert result.code in {"truncated", "malformed"}


@pytest.mark.parametrize(
    ("header", "words"),
    [
        ('{"a": {"dtype": "I8", "shape": [1], "data_offsets": [0, 1]}, "a": 3}', "the name 'a' twice"),
        ('{"a": {"dtype": "I8", "dtype": "I8", "shape": [1], "data_offsets": [0, 1]}}', "the name 'dtype' twice"),
        ('{"a": {"dtype": "I8", "shape": [-1], "data_offsets": [0, 1]}}', "is damaged"),
        ('{"a": {"dtype": "I8", "shape": [1], "data_offsets": [-1, 0]}}', "is damaged"),
        ('{"a": {"dtype": "I8", "shape": [1], "data_offsets": [1, 0]}}', "is damaged"),
        ('{"a": {"dtype": 9, "shape": [1], "data_offsets": [0, 1]}}', "is damaged"),
        ('{"a": {"dtype": "I16", "shape": [1], "data_offsets": [0, 1]}}', "has 1 byte"),
        ('{"a": {"dtype": "F4", "shape": [3], "data_offsets": [0, 1]}}', "has 1 byte"),
        ('{"a": {"dtype": "I8", "shape": [2], "data_offsets": [0, 2]}}', "ends after "),
        ('{"a": {"dtype": "I8", "shape": [0], "data_offsets": [0, 0]}}', "1 byte at the end belong to no tensor"),
        ('{"a": {"dtype": "I8", "shape": [0], "data_offsets": [1, 1]}}', "leaves a hole"),
        ("[" * 3000, "not a JSON object"),
        ("[]", "not a JSON object"),
        ('{"__metadata__": {"a": 1}}', "metadata in the header"),
        ('{"__metadata__": [1]}', "metadata in the header"),
        ("", "not a JSON object"),
    ],
)
def test_what_is_wrong(header: str, words: str) -> None:
    """A header that lies is an error that says how."""
    with pytest.raises(CorruptError, match=words):
        read_header(MemoryReader(len(header).to_bytes(8, "little") + header.encode() + b"\0"))
