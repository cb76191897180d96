from edl_ckpt.proto import tensor_pb2 as _tensor_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union
from edl_ckpt.proto.tensor_pb2 import TensorShapeProto as TensorShapeProto
from edl_ckpt.proto.tensor_pb2 import TensorProto as TensorProto
from edl_ckpt.proto.tensor_pb2 import IndexedSlicesProto as IndexedSlicesProto
from edl_ckpt.proto.tensor_pb2 import EmbeddingTableInfo as EmbeddingTableInfo

DESCRIPTOR: _descriptor.FileDescriptor

class Model(_message.Message):
    __slots__ = ("version", "embedding_table_infos", "dense_parameters", "embedding_tables")
    class DenseParametersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: _tensor_pb2.TensorProto
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[_tensor_pb2.TensorProto, _Mapping]] = ...) -> None: ...
    class EmbeddingTablesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: _tensor_pb2.IndexedSlicesProto
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[_tensor_pb2.IndexedSlicesProto, _Mapping]] = ...) -> None: ...
    VERSION_FIELD_NUMBER: _ClassVar[int]
    EMBEDDING_TABLE_INFOS_FIELD_NUMBER: _ClassVar[int]
    DENSE_PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    EMBEDDING_TABLES_FIELD_NUMBER: _ClassVar[int]
    version: int
    embedding_table_infos: _containers.RepeatedCompositeFieldContainer[_tensor_pb2.EmbeddingTableInfo]
    dense_parameters: _containers.MessageMap[str, _tensor_pb2.TensorProto]
    embedding_tables: _containers.MessageMap[str, _tensor_pb2.IndexedSlicesProto]
    def __init__(self, version: _Optional[int] = ..., embedding_table_infos: _Optional[_Iterable[_Union[_tensor_pb2.EmbeddingTableInfo, _Mapping]]] = ..., dense_parameters: _Optional[_Mapping[str, _tensor_pb2.TensorProto]] = ..., embedding_tables: _Optional[_Mapping[str, _tensor_pb2.IndexedSlicesProto]] = ...) -> None: ...
