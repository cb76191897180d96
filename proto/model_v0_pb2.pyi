from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Tensor(_message.Message):
    __slots__ = ("dim", "content", "dtype")
    DIM_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    dim: _containers.RepeatedScalarFieldContainer[int]
    content: bytes
    dtype: int
    def __init__(self, dim: _Optional[_Iterable[int]] = ..., content: _Optional[bytes] = ..., dtype: _Optional[int] = ...) -> None: ...

class Model(_message.Message):
    __slots__ = ("version", "param")
    class ParamEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Tensor
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Tensor, _Mapping]] = ...) -> None: ...
    VERSION_FIELD_NUMBER: _ClassVar[int]
    PARAM_FIELD_NUMBER: _ClassVar[int]
    version: int
    param: _containers.MessageMap[str, Tensor]
    def __init__(self, version: _Optional[int] = ..., param: _Optional[_Mapping[str, Tensor]] = ...) -> None: ...
