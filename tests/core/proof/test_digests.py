"""A file of digests comes back as it was written, and any other file is an error that says what it should have been."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from edl_ckpt.core.base.errors import CorruptError, NotFoundError, RefusedError, UnsupportedError
from edl_ckpt.core.proof.digests import digests_document, read_digests, save_digests
from edl_ckpt.core.proof.fingerprint import Fingerprint

ONE = Fingerprint("edl1:" + "0" * 64 + "+" + "1" * 32, {"w": bytes(32), "ä": b"\1" * 32}, {"t": b"\2" * 32})


def test_comes_back(tmp_path: Path) -> None:
    """What was saved is read, and a second save replaces it."""
    path = tmp_path / "digests.json"
    for _ in range(2):
        save_digests(str(path), ONE)
    found = read_digests(str(path))
    assert (found.fingerprint, found.tables) == (ONE.text, {"t": "02" * 32})
    assert found.variables == {"w": "00" * 32, "ä": "01" * 32}
    assert [entry.name for entry in tmp_path.iterdir()] == ["digests.json"]
    with pytest.raises(RefusedError):
        save_digests("/dev/null", ONE)


@pytest.mark.parametrize(
    "change",
    [
        lambda document: document.pop("schema"),
        lambda document: document.update(schema="edl-ckpt/seal/2"),
        lambda document: document.update(fingerprint="edl1:00"),
        lambda document: document.update(fingerprint=None),
        lambda document: document.pop("tables"),
        lambda document: document["variables"].update(w="zz"),
        lambda document: document["variables"].update(w=5),
        lambda document: document.update(variables=[]),
    ],
)
def test_another_document(change: object, tmp_path: Path) -> None:
    """A document that is none of digests is damaged, with the way to make one."""
    document = digests_document(ONE)
    change(document)  # type: ignore[operator]
    path = tmp_path / "digests.json"
    path.write_text(json.dumps(document))
    with pytest.raises(CorruptError, match="no file of digests") as caught:
        read_digests(str(path))
    assert "--digests" in (caught.value.hint or "")


def test_other_files(tmp_path: Path) -> None:
    """Bytes that are no JSON, a newer schema and no file are errors of their kinds."""
    path = tmp_path / "digests.json"
    with pytest.raises(NotFoundError):
        read_digests(str(path))
    path.write_bytes(b"\x80PK")
    with pytest.raises(CorruptError):
        read_digests(str(path))
    path.write_text(json.dumps({"schema": "edl-ckpt/digests/2"}))
    with pytest.raises(UnsupportedError):
        read_digests(str(path))


def test_without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where PyTorch is not installed, the module is there, and its function names the extra."""
    import edl_ckpt.torch

    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(UnsupportedError) as caught:
        edl_ckpt.torch.fingerprint({})
    assert "torch" in str(caught.value.hint)
