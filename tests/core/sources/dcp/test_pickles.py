"""Pickles that attack: none runs code, makes an object that is not ours, or costs more than its bytes."""

from __future__ import annotations

import io
import os
import pickle
import pickletools
import time
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest

from edl_ckpt.core.base.errors import CorruptError, UnsupportedError
from edl_ckpt.core.sources.dcp import format as dcp
from edl_ckpt.core.sources.dcp import metadata, pickles
from edl_ckpt.core.sources.dcp.pickles import INDEX_NAMES, Pickled, load, pairs
from edl_ckpt.core.storage.interface import BytesReader
from torch_checkpoints import SAVED

PICKLES = sorted(SAVED.glob("*/*/.metadata"))


class Calls:
    """Calls a function when it is unpickled."""

    def __init__(self, function: Callable[..., Any], *args: object) -> None:
        self.call = (function, args)

    def __reduce__(self) -> Any:
        return self.call


class Builds:
    """Gives its state to `__setstate__` of what a function returns."""

    def __reduce__(self) -> Any:
        return dict, (), {"__class__": "x"}


class Named(dict[str, int]):
    """A subclass of dict, which a pickle names as a global."""


def text(value: str) -> bytes:
    """Return the opcode that pushes a text."""
    return b"\x8c" + bytes([len(value)]) + value.encode()


def nested_keys(levels: int) -> bytes:
    """Return a dict whose key is a tuple of twice a tuple of twice a tuple..., of some levels; proto 4."""
    level = b"".join(b"h%ch%c\x86\x94" % (n, n) for n in range(levels))
    return b"\x80\x04}K\x01\x85\x94" + level + b"K\x01s."


METADATA = text("torch.distributed.checkpoint.metadata") + text("Metadata") + b"\x93"
SIZE = text("torch") + text("Size") + b"\x93"
EXPLOITS = {
    "os.system": pickle.dumps(Calls(os.system, "touch /tmp/edl-ckpt-was-run")),
    "builtins.eval": pickle.dumps(Calls(eval, "__import__('os').system('true')")),
    "builtins.getattr": pickle.dumps(Calls(getattr, 1, "__class__")),
    "a chain of REDUCE": b"\x80\x04" + METADATA + b")R" + b")R)R)R.",
    "REDUCE of a text": b"\x80\x04" + text("os") + text("x") + b"\x85R.",
    "a dotted name": b"\x80\x04" + text("torch") + text("Size.__init__.__globals__") + b"\x93.",
    "a dotted module": b"\x80\x04"
    + text("torch.distributed.checkpoint.metadata.Metadata")
    + text("__init__")
    + b"\x93.",
    "STACK_GLOBAL of numbers": b"\x80\x04K\x01K\x02\x93.",
    "STACK_GLOBAL of records": b"\x80\x04" + SIZE + b")\x81" + SIZE + b")\x81\x93.",
    "nested tuples as a key": nested_keys(60),
    "a tuple as a key of a deep tuple": b"\x80\x04}" + b")" + b"\x85" * 300_000 + b"K\x01s.",
    "a deep list": b"\x80\x04" + b"]" * 300_000 + b"a" * 299_999 + b".",
    "a huge memo index": b"\x80\x04Nr\xff\xff\xff\x7f.",
    "a memo index that is not there": b"\x80\x04j\xff\xff\xff\x7f.",
    "a text of 4 GiB": b"\x80\x04X\xff\xff\xff\xffabc.",
    "a text of 2**62 bytes": b"\x80\x04\x8d" + (1 << 62).to_bytes(8, "little") + b"abc.",
    "bytes of 2**62 bytes": b"\x80\x04\x8e" + (1 << 62).to_bytes(8, "little") + b"abc.",
    "a bytearray of 2**62 bytes": b"\x80\x05\x96" + (1 << 62).to_bytes(8, "little") + b"abc.",
    "a frame of 2**62 bytes": b"\x80\x04\x95" + (1 << 62).to_bytes(8, "little") + b"N.",
    "a whole number of 2 GiB": b"\x80\x04\x8b\xff\xff\xff\x7f1.",
    "a decimal number": b"I" + b"9" * 100_000 + b"\n.",
    "a persistent id": b"\x80\x04" + text("0") + b"Q.",
    "a persistent id as text": b"P0\n.",
    "an extension": b"\x80\x04\x82\x01.",
    "INST": b"(S'true'\nios\nsystem\n.",
    "OBJ": b"\x80\x04(" + METADATA + b"o.",
    "NEWOBJ of a text": b"\x80\x04" + text("x") + b")\x81.",
    "NEWOBJ_EX": b"\x80\x04" + METADATA + b")}\x92.",
    "BUILD of a class": b"\x80\x04" + METADATA + b"}(" + text("__setstate__") + b"Nub.",
    "BUILD with slots": b"\x80\x04" + METADATA + b")\x81N}(" + text("__class__") + METADATA + b"u\x86b.",
    "BUILD of a text": b"\x80\x04" + text("x") + b"}(" + text("y") + b"K\x01ub.",
    "a subclass of dict": pickle.dumps(Named(a=1)),
    "BUILD of a dict": pickle.dumps(Builds()),
    "a set": pickle.dumps({1, 2}),
    "a frozenset": pickle.dumps(frozenset({1})),
    "many tops": b"\x80\x04N" + b"2" * 100_000 + b".",
    "a list that contains itself": b"\x80\x04]\x94h\x00h\x00e.",
    "many values without an end": b"\x80\x04" + b"N" * 300_000,
    "many values before garbage": b"N" * 100_000 + b"\xff" * 100_000,
    "many lists": b"\x80\x04" + b"]" * 300_000 + b".",
    "nothing": b"",
    "no end": b"\x80\x04N",
    "an empty stack": b"\x80\x04.",
    "no mark": b"\x80\x04Nt.",
}


@pytest.mark.parametrize("name", EXPLOITS)
def test_attacks_are_refused(name: str) -> None:
    """Each attack is a typed error, at once, from the reader of pickles and from the format."""
    began = time.process_time()
    with pytest.raises((CorruptError, UnsupportedError)):
        dcp.digest(BytesReader(EXPLOITS[name], ".metadata"))
    with pytest.raises((CorruptError, UnsupportedError)):
        metadata.ends(metadata.read(BytesReader(EXPLOITS[name], ".metadata")))
    assert time.process_time() - began < 5
    assert not os.path.exists("/tmp/edl-ckpt-was-run")


def test_unknown_names_are_unsupported_by_name() -> None:
    """A name that is not on the list says so, and is never imported."""
    with pytest.raises(UnsupportedError, match=r"antigravity\.fly"):
        load(b"\x80\x04" + text("antigravity") + text("fly") + b"\x93.", INDEX_NAMES)


@pytest.mark.parametrize("path", PICKLES, ids=lambda path: path.parts[-3])
def test_real_pickles_have_only_known_opcodes(path: Any) -> None:
    """What the guard reads of a real pickle is what Python reads, with a list for each dict."""
    data = path.read_bytes()
    root = load(data, INDEX_NAMES)
    names = {arg for op, arg, _ in pickletools.genops(data) if op.name == "SHORT_BINUNICODE"}
    assert {name for name, _ in pairs(root.state)} <= names


def test_long_names_are_read() -> None:
    """A text of more than 255 bytes, which has another opcode, is read; a huge one is none of torch."""
    value = {"x" * 300: ["y" * 2047]}
    assert list(pairs(load(pickle.dumps(value), {}))) == list(value.items())
    with pytest.raises(CorruptError):
        load(pickle.dumps("x" * 3000), {})


def test_dicts_of_any_size_are_pairs() -> None:
    """Python writes dicts in batches of a thousand, and one item in another way; all of them are read."""
    for size in (0, 1, 2, 999, 1000, 1001, 2001):
        value = {f"k{n}": n for n in range(size)}
        for protocol in (2, 4, 5):
            buffer = io.BytesIO()
            pickler = pickle.Pickler(buffer, protocol)
            pickler.fast = size > 100 and protocol == 2  # else the memo needs an opcode that torch never needs
            pickler.dump(value)
            assert dict(pairs(load(buffer.getvalue(), {}))) == value


def test_records_keep_what_was_stored() -> None:
    """An object on the list is a record of its arguments and its state, whatever these are."""
    rest = text("collections") + text("OrderedDict") + b"\x93"
    for made, given in ((b"R", (1, "x")), (b"\x81", ())):
        record = load(b"\x80\x04" + rest + b"(K\x01" + text("x") + b"t" + made + b".", INDEX_NAMES)
        assert isinstance(record, Pickled)
        assert record.given == given


@pytest.mark.parametrize("more", [b".", b"N.", b"\xff", bytes(1 << 20), b"garbage" * 1000])
def test_what_follows_a_pickle_is_not_looked_at(more: bytes) -> None:
    """A pickle ends where it says so, as in torch: what an older, longer file has left behind it costs nothing."""
    data = (SAVED / "torchrec/step_2/.metadata").read_bytes()
    assert ends_of(data + more) == ends_of(data)


def test_bytes_behind_a_pickle_take_no_memory() -> None:
    """64 MiB of zeros behind an index take their own memory and no more, and no time."""
    data = (SAVED / "torchrec/step_2/.metadata").read_bytes() + bytes(64 << 20)
    began = time.process_time()
    ends_of(data)
    assert time.process_time() - began < 2
    tracemalloc.start()
    try:
        ends_of(data)
        assert tracemalloc.get_traced_memory()[1] < 2 * len(data)
    finally:
        tracemalloc.stop()


def test_windows_cut_no_opcode(monkeypatch: pytest.MonkeyPatch) -> None:
    """An index is read alike whatever the size of the windows, which cut it anywhere."""
    data = (SAVED / "mch/step_6/.metadata").read_bytes()
    whole = ends_of(data)
    for window in (5000, 6001, 9999, len(data) - 1, len(data), len(data) + 1):
        monkeypatch.setattr(pickles, "WINDOW_BYTES", window)
        assert ends_of(data) == whole
        for cut in range(0, len(data), 997):
            with pytest.raises(CorruptError):
                ends_of(data[:cut])


def ends_of(data: bytes) -> dict[str, int]:
    """Return where the last item in each file of an index ends."""
    return metadata.ends(metadata.read(BytesReader(data, ".metadata")))
