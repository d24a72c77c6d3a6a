# mypy: ignore-errors
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class FSMHints(_message.Message):
    log: str
    live_nodes: _containers.RepeatedCompositeFieldContainer[FnodeSegments]
    properties: _containers.RepeatedCompositeFieldContainer[Property]
    def __init__(self, log: _Optional[str] = ..., live_nodes: _Optional[_Iterable[_Union[FnodeSegments, _Mapping]]] = ..., properties: _Optional[_Iterable[_Union[Property, _Mapping]]] = ...) -> None: ...

class FnodeSegments(_message.Message):
    fnode: int
    segments: _containers.RepeatedCompositeFieldContainer[Segment]
    def __init__(self, fnode: _Optional[int] = ..., segments: _Optional[_Iterable[_Union[Segment, _Mapping]]] = ...) -> None: ...

class Segment(_message.Message):
    author: int
    first_seq_no: int
    first_offset: int
    first_checksum: int
    last_seq_no: int
    last_offset: int
    log: str
    def __init__(self, author: _Optional[int] = ..., first_seq_no: _Optional[int] = ..., first_offset: _Optional[int] = ..., first_checksum: _Optional[int] = ..., last_seq_no: _Optional[int] = ..., last_offset: _Optional[int] = ..., log: _Optional[str] = ...) -> None: ...

class Property(_message.Message):
    path: str
    content: str
    def __init__(self, path: _Optional[str] = ..., content: _Optional[str] = ...) -> None: ...

class RecordedOp(_message.Message):
    class Create(_message.Message):
        path: str
        def __init__(self, path: _Optional[str] = ...) -> None: ...
    class Link(_message.Message):
        fnode: int
        path: str
        def __init__(self, fnode: _Optional[int] = ..., path: _Optional[str] = ...) -> None: ...
    class Write(_message.Message):
        fnode: int
        offset: int
        length: int
        def __init__(self, fnode: _Optional[int] = ..., offset: _Optional[int] = ..., length: _Optional[int] = ...) -> None: ...
    seq_no: int
    checksum: int
    author: int
    create: RecordedOp.Create
    link: RecordedOp.Link
    unlink: RecordedOp.Link
    write: RecordedOp.Write
    property: Property
    first_offset: int
    last_offset: int
    log: str
    def __init__(self, seq_no: _Optional[int] = ..., checksum: _Optional[int] = ..., author: _Optional[int] = ..., create: _Optional[_Union[RecordedOp.Create, _Mapping]] = ..., link: _Optional[_Union[RecordedOp.Link, _Mapping]] = ..., unlink: _Optional[_Union[RecordedOp.Link, _Mapping]] = ..., write: _Optional[_Union[RecordedOp.Write, _Mapping]] = ..., property: _Optional[_Union[Property, _Mapping]] = ..., first_offset: _Optional[int] = ..., last_offset: _Optional[int] = ..., log: _Optional[str] = ...) -> None: ...
