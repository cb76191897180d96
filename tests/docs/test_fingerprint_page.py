"""The page on the fingerprint is a specification: its reference gives its vectors, and so does the engine."""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np
import pytest

from edl_ckpt.core.kernel import bulk
from edl_ckpt.core.model.dtypes import TENSOR_DTYPES, item_type
from edl_ckpt.core.proof.fingerprint import ContentSketch, Fingerprint, Forms
from places import TOP

PAGE = TOP / "docs" / "fingerprint.md"
VECTORS = json.loads((TOP / "docs" / "fingerprint-vectors.json").read_text(encoding="utf-8"))["vectors"]


def reference() -> dict[str, Any]:
    """What the code on the page defines."""
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)[:1]
    assert len(code.splitlines()) <= 80
    found: dict[str, Any] = {}
    exec(compile(code, str(PAGE), "exec"), found)
    return found


def data_of(entry: Any) -> bytes:
    """The bytes of an entry of a vector."""
    stored = entry["bytes"]
    if isinstance(stored, str):
        return bytes.fromhex(stored)
    return bytes(k * stored["times"] % 256 for k in range(stored["count"]))


def of_engine(vector: Any) -> Fingerprint:
    """What the engine says of the content of a vector."""
    forms, sketch = Forms(), ContentSketch()
    for entry in vector["variables"]:
        data = np.frombuffer(data_of(entry), np.uint8)
        dtype = TENSOR_DTYPES.get(entry["dtype"]) or item_type(entry["dtype"])
        forms.add_variable(entry["name"], dtype, tuple(entry["shape"]))
        sketch.add_dense(entry["name"], len(data), 0, data)
    for entry in vector["tables"]:
        ids, dtype = [row["id"] for row in entry["rows"]], TENSOR_DTYPES[entry["dtype"]]
        forms.add_table(entry["name"], dim=entry["dim"], rows=len(ids), dtype=dtype, initializer=entry["initializer"])
        if ids:
            rows = np.frombuffer(b"".join(map(data_of, entry["rows"])), np.uint8).reshape(len(ids), -1)
            sketch.add_rows(entry["name"], np.array(ids, np.int64), rows)
    return forms.fingerprint(sketch)


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["content"].replace(" ", "-"))
def test_vectors(vector: Any, either_kernel: str) -> None:
    """The reference on the page and the engine give the fingerprint and the digests of each vector."""
    variables = [(v["name"], v["dtype"], v["shape"], data_of(v)) for v in vector["variables"]]
    tables = [
        (t["name"], t["dim"], t["dtype"], [(row["id"], data_of(row)) for row in t["rows"]], t["initializer"])
        for t in vector["tables"]
    ]
    assert reference()["fingerprint"](variables, tables) == (vector["fingerprint"], vector["digests"])
    found = of_engine(vector)
    assert found.text == vector["fingerprint"]
    assert {name: each.hex() for name, each in (found.variables | found.tables).items()} == vector["digests"]


def test_vectors_have_every_case() -> None:
    """The vectors have what is easily forgotten: no bytes, odd bytes, chunks, negative ids, a plus."""
    names = [vector["content"] for vector in VECTORS]
    assert len(names) == len(set(names)) >= 13
    sizes = {len(data_of(entry)) for vector in VECTORS for entry in vector["variables"]}
    assert 0 in sizes
    assert max(sizes) > bulk.CHUNK_BYTES
    assert any(size % 2 for size in sizes)
    assert any(row["id"] < 0 for vector in VECTORS for table in vector["tables"] for row in table["rows"])
    assert any("+" in vector["fingerprint"] for vector in VECTORS)
