"""The small messages of a shard by protobuf itself, which reads each form of them, and whose import takes 20 ms."""

from __future__ import annotations

from google.protobuf.message import DecodeError

from edl_ckpt.core.base.numbers import MalformedError
from edl_ckpt.proto import tensor_pb2


def info_of(data: bytes) -> tuple[str, int, str, int]:
    """Return the name, dim, initializer and dtype in an EmbeddingTableInfo; MalformedError for other bytes."""
    try:
        info = tensor_pb2.EmbeddingTableInfo.FromString(data)
    except DecodeError as error:
        raise MalformedError("protobuf cannot parse it") from error
    return info.name, info.dim, info.initializer, info.dtype


def shape_of(data: bytes) -> tuple[int, ...]:
    """Return the sizes in a TensorShapeProto; MalformedError for no message."""
    try:
        shape = tensor_pb2.TensorShapeProto.FromString(data)
    except DecodeError as error:
        raise MalformedError("protobuf cannot parse it") from error
    return tuple(dim.size for dim in shape.dim)
