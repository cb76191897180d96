from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Tensor(_message.Message):
    __slots__ = ("name", "dim", "content", "indices", "dtype")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DIM_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    INDICES_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    name: str
    dim: _containers.RepeatedScalarFieldContainer[int]
    content: bytes
    indices: _containers.RepeatedScalarFieldContainer[int]
    dtype: int
    def __init__(self, name: _Optional[str] = ..., dim: _Optional[_Iterable[int]] = ..., content: _Optional[bytes] = ..., indices: _Optional[_Iterable[int]] = ..., dtype: _Optional[int] = ...) -> None: ...

class EmbeddingTableInfo(_message.Message):
    __slots__ = ("name", "dim", "initializer", "dtype")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DIM_FIELD_NUMBER: _ClassVar[int]
    INITIALIZER_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    name: str
    dim: int
    initializer: str
    dtype: int
    def __init__(self, name: _Optional[str] = ..., dim: _Optional[int] = ..., initializer: _Optional[str] = ..., dtype: _Optional[int] = ...) -> None: ...

class Model(_message.Message):
    __slots__ = ("version", "param", "embedding_table_info")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    PARAM_FIELD_NUMBER: _ClassVar[int]
    EMBEDDING_TABLE_INFO_FIELD_NUMBER: _ClassVar[int]
    version: int
    param: _containers.RepeatedCompositeFieldContainer[Tensor]
    embedding_table_info: _containers.RepeatedCompositeFieldContainer[EmbeddingTableInfo]
    def __init__(self, version: _Optional[int] = ..., param: _Optional[_Iterable[_Union[Tensor, _Mapping]]] = ..., embedding_table_info: _Optional[_Iterable[_Union[EmbeddingTableInfo, _Mapping]]] = ...) -> None: ...
