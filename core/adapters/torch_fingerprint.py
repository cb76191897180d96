"""The fingerprint of a state_dict inside a job of PyTorch: each rank sums its own bytes, and one all-reduce adds them.

The result is what `verify --deep` says of the checkpoint that the job saves, for every placement of the tensors:
DTensors on meshes of one or more dimensions, replicas, parts of different sizes, strided shards, and ShardedTensors.
Before that, ranks tell each other which boxes they have: one gather of names and numbers, without values.
"""

from __future__ import annotations

import hashlib
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Self

import numpy as np

from edl_ckpt.core.base.errors import EdlCkptError, MismatchError, UnsupportedError, UsageError
from edl_ckpt.core.base.libraries import library
from edl_ckpt.core.base.names import name_bytes
from edl_ckpt.core.kernel import bulk
from edl_ckpt.core.model.dtypes import DTYPES, TENSOR_DTYPES, item_type
from edl_ckpt.core.proof.box_sketch import ArrayForm, add_box, whole_sketch
from edl_ckpt.core.proof.fingerprint import ContentSketch, Fingerprint, Forms
from edl_ckpt.core.sources.dcp.metadata import SavedBox
from edl_ckpt.core.sources.dcp.table_names import has_raw_ids, owners_of
from edl_ckpt.core.sources.dcp.tiling import untiled
from edl_ckpt.core.sources.steps.content import INITIALIZER

SYSTEMS: Final = ("dcp", "safetensors")
"""The systems in whose view a state has a fingerprint."""
_VALUE: Final = "value"
_CHECK_WORDS: Final = 4
"""Words that say whether the replicas of a tensor are equal: on all ranks together they are zero then."""
_CPU_BACKENDS: Final = ("gloo", "mpi", "fake")


@dataclass(frozen=True, slots=True, repr=False)
class JobFingerprint(Fingerprint):
    """The fingerprint of what all ranks of a job have, the same on every rank."""

    unequal: tuple[str, ...] = ()
    """Tensors whose replicas differ between ranks: the digest is that of the lowest rank that has each part."""


class _Box(NamedTuple):
    """A part of a tensor: its first element, and its size in each dimension."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]


class _Form(NamedTuple):
    """What a rank says to the others of a name: dtype, shape, and the boxes that it has; of a value its bytes."""

    dtype: str
    shape: tuple[int, ...]
    boxes: tuple[_Box, ...]


class _Own(NamedTuple):
    """What this rank has of a name: its form, and a tensor on any device, or bytes, for each of its boxes."""

    form: _Form
    parts: Sequence[Any]


def fingerprint(state_dict: Mapping[Any, Any], group: Any = None, *, system: str = "dcp") -> JobFingerprint:
    """Return the fingerprint of a state_dict and the digest of each name, as the checkpoint of it will have them.

    All ranks of `group`, a process group, call this together; None is the default group, or this process alone.
    `system` is what the state will be saved as: with 'dcp' nested names are joined by dots, tables are those of
    TorchRec, and values that are no tensors count as `dcp.save` stores them; with 'safetensors' the state is a flat
    dict of tensors. No tensor is gathered. A rank needs memory for its own part of one tensor, where that is on a GPU,
    and 64 KiB for each name.

    Raises UnsupportedError for a tensor that no checkpoint has (sparse, Partial), MismatchError where ranks have
    other shapes of one name, and UsageError where the parts of all ranks are not the whole tensor: on every rank.
    """
    torch = library("torch", "torch")
    if system not in SYSTEMS:
        raise UsageError(f"no system {system!r}; expected one of {', '.join(SYSTEMS)}")
    ranks = _Ranks.of(torch, group)
    own: dict[str, _Own] = {}
    fault = ""
    try:
        own = _own(torch, state_dict, system)
    except EdlCkptError as error:  # the other ranks wait for this one
        fault = error.message
    everywhere = ranks.gather(({name: each.form for name, each in own.items()}, fault))
    for number, (_, found) in enumerate(everywhere):
        if found:
            raise UnsupportedError(found if ranks.size == 1 else f"rank {number}: {found}")
    forms = _merged([forms for forms, _ in everywhere])
    sums = _Sums.of(forms, system)
    for name, (form, parts) in own.items():
        owners = _owners(name, [forms for forms, _ in everywhere])
        for box, part in zip(form.boxes, parts, strict=True):
            having = owners.get(box, [])
            if ranks.number in having:
                sums.add(name, box, _bytes(torch, part), having.index(ranks.number), len(having))
    ranks.add_up(sums.total)
    return sums.fingerprint(forms)


@dataclass(slots=True)
class _Ranks:
    """The processes of a group; `number` is that of this one."""

    torch: Any
    group: Any = None
    number: int = 0
    size: int = 1

    @classmethod
    def of(cls, torch: Any, group: Any) -> Self:
        """Return those of a process group; one process where torch.distributed is not in use."""
        distributed = torch.distributed
        if not (distributed.is_available() and distributed.is_initialized()):
            return cls(torch)
        number = distributed.get_rank(group)
        if number < 0:
            raise UsageError("this process is not in the group")
        return cls(torch, group, number, distributed.get_world_size(group))

    def gather(self, value: Any) -> list[Any]:
        """Return what each rank gave."""
        found = [value] * self.size
        if self.size > 1:
            self.torch.distributed.all_gather_object(found, value, group=self.group)
        return found

    def add_up(self, sums: bulk.U32) -> None:
        """Replace sums by those of all ranks, modulo 2**32: an int32 wraps around in every backend."""
        if self.size < 2:
            return
        distributed = self.torch.distributed
        tensor = self.torch.from_numpy(sums.view(np.int32))
        if any(name in str(distributed.get_backend(self.group)) for name in _CPU_BACKENDS):
            distributed.all_reduce(tensor, group=self.group)
            return
        far = tensor.to(self.torch.accelerator.current_accelerator())
        distributed.all_reduce(far, group=self.group)
        tensor.copy_(far.cpu())


def _own(torch: Any, state_dict: Mapping[Any, Any], system: str) -> dict[str, _Own]:
    """Return what this process has of each name, as the system names it."""
    own: dict[str, _Own] = {}
    for name, value in _flat(state_dict, system).items():
        if isinstance(value, torch.Tensor):
            own[name] = _tensor(torch, name, value)
        elif system == "dcp":
            stored = io.BytesIO()
            torch.save(value, stored)  # as the planner of torch does
            data = np.frombuffer(stored.getbuffer(), np.uint8)
            own[name] = _Own(_Form(_VALUE, (len(data),), (_Box((0,), (len(data),)),)), [data])
        else:
            raise UnsupportedError(f"{name!r} is no tensor, and {system} files have only tensors")
    return own


def _flat(state_dict: Mapping[Any, Any], system: str) -> Mapping[str, Any]:
    """Return a state without nesting, with the names that a save by torch gives."""
    if system != "dcp":
        return {str(name): value for name, value in state_dict.items()}
    nested = library("torch.distributed.checkpoint._nested_dict", "torch")
    stateful = library("torch.distributed.checkpoint.stateful", "torch").Stateful
    plain = {name: value.state_dict() if isinstance(value, stateful) else value for name, value in state_dict.items()}
    try:
        flat: Mapping[str, Any] = nested.flatten_state_dict(plain)[0]
    except ValueError as error:
        raise UnsupportedError(str(error)) from None
    return flat


def _tensor(torch: Any, name: str, value: Any) -> _Own:
    """Return the boxes of a tensor that this process has, by torch's own rules of saving."""
    dtype = str(value.dtype).removeprefix("torch.")
    shape: tuple[int, ...] = tuple(value.shape)
    boxes, parts = [_Box((0,) * len(shape), shape)], [value]
    if (shards := _shards(torch, value)) is not None:
        boxes = [_Box(tuple(s.metadata.shard_offsets), tuple(s.metadata.shard_sizes)) for s in shards]
        parts = [shard.tensor for shard in shards]
    elif hasattr(value, "__create_chunk_list__"):  # torch's protocol for saving: a DTensor, or one of several shards
        index = library("torch.distributed.checkpoint.metadata", "torch").MetadataIndex
        try:
            chunks = value.__create_chunk_list__()
        except (RuntimeError, ValueError) as error:  # Partial: the value is a sum that nobody has
            raise UnsupportedError(f"{name!r}: {error}") from None
        boxes = [_Box(tuple(chunk.offsets), tuple(chunk.sizes)) for chunk in chunks]
        parts = [value.__get_tensor_shard__(index(name, chunk.offsets, n)) for n, chunk in enumerate(chunks)]
    for box, part in zip(boxes, parts, strict=True):
        if dtype not in TENSOR_DTYPES or part.layout is not torch.strided or part.is_meta:
            raise UnsupportedError(f"{name!r} is no tensor that checkpoints have: {dtype}, {part.layout}")
        if tuple(part.shape) != box.sizes and 0 not in box.sizes:
            raise UnsupportedError(f"{name!r}: a part of {list(part.shape)} is at a box of {list(box.sizes)}")
    return _Own(_Form(dtype, shape, tuple(boxes)), parts)


def _shards(torch: Any, value: Any) -> Sequence[Any] | None:
    """Return the shards of a ShardedTensor in this process; None for another tensor."""
    if not torch.distributed.is_available():
        return None
    kind = library("torch.distributed._shard.sharded_tensor", "torch").ShardedTensor
    return value.local_shards() if isinstance(value, kind) else None


def _bytes(torch: Any, part: Any) -> bulk.U8:
    """Return the bytes of a part in C order."""
    if isinstance(part, np.ndarray):
        return part
    plain = part.detach().resolve_conj().resolve_neg().cpu().contiguous()
    data: bulk.U8 = plain.reshape(-1).view(torch.uint8).numpy()
    return data


def _merged(everywhere: Sequence[Mapping[str, _Form]]) -> dict[str, _Form]:
    """Return the form of each name with the boxes of all ranks, each box once; of a value that of the lowest rank."""
    found: dict[str, _Form] = {}
    for number, forms in enumerate(everywhere):
        for name, form in forms.items():
            first = found.setdefault(name, form)
            if first.dtype == form.dtype == _VALUE:
                continue
            if first[:2] != form[:2]:
                words = (f"{list(each.shape)} of {each.dtype}" for each in (form, first))
                raise MismatchError(f"{name!r}: rank {number} has {' and a lower rank '.join(words)}")
            if first is not form:
                found[name] = form._replace(boxes=tuple(dict.fromkeys((*first.boxes, *form.boxes))))
    for name, form in found.items():
        boxes = [SavedBox(*box) for box in form.boxes if 0 not in box.sizes]
        if 0 not in form.shape and (fault := untiled(form.shape, boxes)):
            raise UsageError(f"{name!r}: {fault}", hint="the group must have all ranks of the job")
    return {name: found[name] for name in sorted(found, key=name_bytes)}


def _owners(name: str, everywhere: Sequence[Mapping[str, _Form]]) -> dict[_Box, list[int]]:
    """Return the ranks that have each box of a tensor, the lowest first; of a value the lowest rank alone."""
    found: dict[_Box, list[int]] = {}
    for number, forms in enumerate(everywhere):
        form = forms.get(name)
        for box in form.boxes if form else ():
            found.setdefault(box, []).append(number)
        if form and form.dtype == _VALUE:
            break
    return found


@dataclass(slots=True)
class _Sums:
    """The sums of all names in one array, in their order, and behind them the words that compare replicas."""

    arrays: dict[str, ArrayForm]
    total: bulk.U32
    sketches: dict[str, bulk.U32] = field(default_factory=dict)
    """By name, uint32 [8, columns + 1]: views of the total."""
    checks: dict[str, bulk.U32] = field(default_factory=dict)

    @classmethod
    def of(cls, forms: Mapping[str, _Form], system: str) -> Self:
        """Return zeros for names; raises UnsupportedError for tables whose rows have ids that other tensors say."""
        tables = _tables(forms) if system == "dcp" else set()
        sizes = {_VALUE: 1, **{name: dtype.itemsize for name, dtype in TENSOR_DTYPES.items()}}
        arrays = {name: ArrayForm(form.shape, sizes[form.dtype], name in tables) for name, form in forms.items()}
        lines = {name: bulk.new_sketch(form.row_bytes).shape[1] for name, form in arrays.items()}
        total = np.zeros(sum(bulk.LIMBS * n for n in lines.values()) + _CHECK_WORDS * len(lines), np.uint32)
        sums, start = cls(arrays, total), 0
        for name, columns in lines.items():
            end = start + bulk.LIMBS * columns
            sums.sketches[name] = total[start:end].reshape(bulk.LIMBS, columns)
            start = end
        for number, name in enumerate(lines):
            sums.checks[name] = total[start + number * _CHECK_WORDS :][:_CHECK_WORDS]
        return sums

    def add(self, name: str, box: _Box, data: bulk.U8, replica: int, replicas: int) -> None:
        """Add a box that so many ranks have, as the replica of a number: the first one counts, and all are compared."""
        if replicas == 1:
            add_box(self.sketches[name], self.arrays[name], box.offsets, box.sizes, data)
            return
        sketch = np.zeros_like(self.sketches[name])
        add_box(sketch, self.arrays[name], box.offsets, box.sizes, data)
        if not replica:
            self.sketches[name] += sketch
        # Numbers times 0, 1, 2 ... but for the first one: where all are equal, the sum over the replicas is zero.
        weight = replica or -(replicas * (replicas - 1) // 2)
        words = np.frombuffer(hashlib.blake2b(sketch.tobytes(), digest_size=4 * _CHECK_WORDS).digest(), "<u4")
        self.checks[name] += words * np.uint32(weight % (1 << 32))

    def fingerprint(self, forms: Mapping[str, _Form]) -> JobFingerprint:
        """Return the fingerprint of the sums of all ranks."""
        said, content = Forms(), ContentSketch()
        for name, form in forms.items():
            array = self.arrays[name]
            sketch = whole_sketch(array)
            if sketch is None:
                sketch = self.sketches[name]
            if array.is_table:
                rows, dim = form.shape[0], math.prod(form.shape[1:])
                said.add_table(name, dim=dim, rows=rows, dtype=DTYPES[form.dtype], initializer=INITIALIZER)
                if rows:
                    content.tables[name] = sketch
                continue
            is_value = form.dtype == _VALUE
            dtype = item_type(_VALUE) if is_value else TENSOR_DTYPES[form.dtype]
            said.add_variable(name, dtype, () if is_value else form.shape)
            content.variables[name] = sketch
        found = said.fingerprint(content)
        unequal = tuple(name for name, words in self.checks.items() if words.any())
        return JobFingerprint(found.text, found.variables, found.tables, unequal)


def _tables(forms: Mapping[str, _Form]) -> set[str]:
    """Return the names that a reader of DCP takes for tables of TorchRec, or for companions of one."""
    shapes = {name: form.shape for name, form in forms.items() if form.dtype in DTYPES}
    owned = {name: owners[0] for name, owners in owners_of(shapes).items() if len(owners) == 1}
    for name, table in owned.items():
        if has_raw_ids(name, forms[name].dtype):
            raise UnsupportedError(
                f"{name!r} has the ids of the rows of {table!r}, and a job's fingerprint knows rows by their numbers",
                hint="leave this table out of the state, or take the fingerprint of its checkpoint: verify --deep",
            )
    return set(owned)
