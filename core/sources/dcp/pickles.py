"""Pickles of torch, read without torch: names on a literal list stand for records of ours, and nothing else is made.

Before the unpickler runs, one regular expression reads all of the bytes. It knows the opcodes that pickles of torch
have, and no others. It also turns each dict into a list of keys and values. So the unpickler never hashes anything,
which could take exponential time, and BUILD has no dict that it could write into an object.
"""

from __future__ import annotations

import functools
import gc
import io
import pickle
import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import accumulate, chain
from typing import Any, Final

from edl_ckpt.core.base.errors import CorruptError, UnsupportedError

_SHORT_TEXT: Final = 256
_LONG_TEXT: Final = 2048
"""No name in a checkpoint has so many bytes."""
_AS_LISTS: Final = {b"}": b"]", b"u": b"e", b"s": b"\x86a", b"]": b"]", b".": b"."}
"""What makes a list instead of a dict: one item alone becomes a pair in the list."""
_LEAST_BYTES: Final = 8
_SMALL_BYTES: Final = 1024
"""A pickle of torch has at least so many bytes for each list and dict, beside some for a small one."""
WINDOW_BYTES: Final = 256 << 10
_LONGEST_OPCODE: Final = 4 << 10
_MANY_BYTES: Final = 4 << 20
_DAMAGE: Final = (
    *(ArithmeticError, AttributeError, EOFError, LookupError, MemoryError, RecursionError, TypeError, ValueError),
    pickle.UnpicklingError,
)
"""What the unpickler raises for bytes that are no pickle, and records for arguments that they cannot have."""


class Pickled:
    """An object in a pickle: the arguments that it is made with, and its state, both as they were stored."""

    __slots__ = ("args", "state")
    args: tuple[Any, ...]
    state: object

    def __init__(self, *args: object) -> None:
        self.args = args

    @property
    def given(self) -> tuple[Any, ...]:
        """Return its arguments; () for one that was made without a call, as most are."""
        try:
            return self.args
        except AttributeError:
            return ()

    def __setstate__(self, state: object) -> None:
        self.state = state


_DTYPES: Final = """
    float32 float64 float16 bfloat16 int8 int16 int32 int64 uint8 uint16 uint32 uint64 bool complex32 complex64
    complex128 float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz float8_e8m0fnu float4_e2m1fn_x2
    qint8 quint8 qint32 quint4x2
    """


def _stand_ins(names: str) -> Mapping[str, object]:
    """Return what stands for each name of a list.

    Lines have a module, then names with a class of its kind each, or a dtype: its text stands for a storage of it.
    """
    known: dict[str, object] = {f"torch {dtype}": dtype for dtype in _DTYPES.split()}
    for line in names.strip().splitlines():
        module, *listed = line.split()
        for name, _, kind in (one.partition("=") for one in listed):
            known[f"{module} {name}"] = _KINDS.get(kind, kind)
    return known


def _numbers(*args: object) -> object:
    """Return the numbers of a torch.Size, which is made for each box: an object more would be a tenth of all memory."""
    return args[0] if args else ()


_KINDS: Final[Mapping[str, object]] = {
    kind: type(kind, (Pickled,), {"__slots__": ()})
    for kind in ("Index", "Tensor", "Value", "Box", "Key", "Properties", "Item", "Rest")
} | {"Size": _numbers}
INDEX_NAMES: Final = _stand_ins(
    """
    torch.distributed.checkpoint.metadata Metadata=Index TensorStorageMetadata=Tensor BytesStorageMetadata=Value
    torch.distributed.checkpoint.metadata ChunkStorageMetadata=Box MetadataIndex=Key TensorProperties=Properties
    torch.distributed.checkpoint.metadata StorageMeta=Rest _MEM_FORMAT_ENCODING=Rest
    torch.distributed.checkpoint.filesystem _StorageInfo=Item
    torch.distributed._shard.sharded_tensor.metadata TensorProperties=Properties MEM_FORMAT_ENCODING=Rest
    megatron.core.dist_checkpointing.strategies.torch MCoreMetadata=Index
    torch.serialization _get_layout=Rest
    torch Size=Size
    collections OrderedDict=Rest
    pathlib PosixPath=Rest WindowsPath=Rest
    pathlib._local PosixPath=Rest WindowsPath=Rest
    """
)
"""Every name that the `.metadata` of torch and Megatron may have, each with the kind of object that it stands for."""
TENSOR_NAMES: Final = _stand_ins(
    """
    torch._utils _rebuild_tensor_v2=Tensor _rebuild_tensor_v3=Tensor
    torch.storage UntypedStorage=untyped
    torch Size=Size FloatStorage=float32 DoubleStorage=float64 HalfStorage=float16 BFloat16Storage=bfloat16
    torch CharStorage=int8 ShortStorage=int16 IntStorage=int32 LongStorage=int64 ByteStorage=uint8 BoolStorage=bool
    torch ComplexFloatStorage=complex64 ComplexDoubleStorage=complex128
    collections OrderedDict=Rest
    """
)
"""Every name that the pickle of a tensor may have."""


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, names: Mapping[str, object]) -> None:
        super().__init__(file)
        self._names = names

    def find_class(self, module: str, name: str, /) -> Any:
        try:
            return self._names[f"{module} {name}"]
        except KeyError:
            raise UnsupportedError(f"the pickle has a name that no checkpoint of torch has: {module}.{name}") from None

    def persistent_load(self, pid: Any, /) -> Any:
        return Pickled(pid)


def _texts_below(longest: int, *, size_bytes: int) -> bytes:
    """Return what matches a text of fewer bytes behind its size, which has so many bytes itself."""
    return b"|".join(re.escape(size.to_bytes(size_bytes, "little")) + b".{%d}" % size for size in range(longest))


@functools.cache
def _opcodes(longest: int) -> re.Pattern[bytes]:
    """Return what matches opcodes that change nothing in a list or a dict, and then one more byte.

    No byte is matched twice, so it reads any bytes in linear time. Numbers in opcodes are sizes of what follows, or
    places in the memo, of which each byte of a pickle adds one at most; so no LONG_BINPUT, which names a place by
    itself. Texts are shorter than `longest`.
    """
    short = _texts_below(_SHORT_TEXT, size_bytes=1)
    long = _texts_below(longest, size_bytes=4)
    plain = rb"[N()Rbaet\x81\x85-\x89\x93\x94Q]++|[Khq\x80].|M..|[Jj].{4}|[G\x95].{8}|c[\w.]{1,99}+\n\w{1,99}+\n"
    whole = b"|".join(b"%c.{%d}" % (size, size) for size in range(9))
    return re.compile(rb"(?s)((?:%b|\x8c(?:%b)|X(?:%b)|\x8a(?:%b))*+)(.|\Z)" % (plain, short, long, whole))


def _without_dicts(data: bytes) -> io.BytesIO:
    """Return a pickle with lists instead of dicts; CorruptError for one with other opcodes than those of torch."""
    for longest in (_SHORT_TEXT, _LONG_TEXT):  # the larger expression takes 0.1 s to compile
        file = io.BytesIO()
        wrong = _rewrite(data, _opcodes(longest), file)
        if wrong is None:
            file.seek(0)
            return file
    message = "the pickle is damaged, or has something that no checkpoint of torch has"
    raise CorruptError(message, offset=wrong)


def _rewrite(data: bytes, opcodes: re.Pattern[bytes], file: io.BytesIO) -> int | None:
    """Write a pickle without dicts to a file, up to its end; return the offset of what is wrong, None for nothing.

    It takes the memory of a window, whatever the bytes are. As in torch, no byte behind the end of a pickle matters.
    """
    done, dicts, window = 0, 0, WINDOW_BYTES
    while True:
        is_last = done + window >= len(data)
        pieces = opcodes.split(data[done : done + window])
        found = pieces[2::3]
        sure = len(found)
        if not is_last:  # an opcode that the end of the window cuts begins in its last bytes
            ends = [*accumulate(map(len, pieces))][2::3]
            sure = bisect_right(ends, window - _LONGEST_OPCODE)
        is_end = b"." in found[:sure]
        count = found.index(b".") + 1 if is_end else sure
        known = found[:count]
        if not _AS_LISTS.keys() >= {*known}:
            count = next(n for n, opcode in enumerate(known) if opcode not in _AS_LISTS)
            return done + sum(map(len, pieces[: 3 * count + 3]))
        dicts += count
        done = len(data) if is_last else done + sum(map(len, pieces[: 3 * count]))
        if dicts * _LEAST_BYTES >= done + _SMALL_BYTES:
            return done
        pieces[2 : 3 * count : 3] = [_AS_LISTS[opcode] for opcode in known]
        file.writelines(pieces[: 3 * count])  # to join so many would take ten times the memory
        if is_end:
            return None
        window *= 1 if count else 2


def load(data: bytes, names: Mapping[str, object]) -> Any:
    """Return the object in a pickle: `Record`, lists, tuples, texts and numbers; dicts are lists, see `pairs`.

    Raises CorruptError for data that are not a pickle of torch, UnsupportedError for a name that is not among `names`.
    """
    size_bytes, plain = len(data), _without_dicts(data)
    del data  # where the caller keeps it neither, there is one copy of it
    unpickler = _Unpickler(plain, names)
    try:
        if size_bytes < _MANY_BYTES:
            return unpickler.load()
        with uncollected():
            return unpickler.load()
    except _DAMAGE as error:
        raise CorruptError(f"the pickle is damaged: {type(error).__name__}") from None


@contextmanager
def uncollected() -> Iterator[None]:
    """Let no garbage be looked for in the block, which makes many objects: none of them is garbage."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def kind_of(stored: object) -> str:
    """Return the kind of an object in a pickle; '' for what is none."""
    return type(stored).__name__ if isinstance(stored, Pickled) else ""


def pairs(stored: object) -> Iterator[tuple[Any, Any]]:
    """Yield the items of a dict, which is a list of keys and values, or of pairs of them; CorruptError for no such."""
    flat = stored if type(stored) is list else [None]
    if tuple in map(type, flat):
        flat = list(chain.from_iterable(one if type(one) is tuple else (one,) for one in flat))
    if len(flat) % 2:
        raise CorruptError("the pickle has something else instead of a dict")
    return zip(flat[::2], flat[1::2], strict=True)


def fields(stored: object, kind: str) -> dict[str, Any]:
    """Return the state of an object of one kind by names; CorruptError for anything else."""
    if kind_of(stored) != kind:
        raise CorruptError(f"the pickle has something else instead of {kind}")
    state = getattr(stored, "state", [])
    if type(state) is list and len(state) % 2 == 0 and {*map(type, state[::2])} == {str}:  # nothing else is hashed
        return dict(zip(state[::2], state[1::2], strict=True))
    return {name: value for name, value in pairs(state) if type(name) is str}
