# mypy: ignore-errors
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class LogEntry(_message.Message):
    uuid: bytes
    entry: bytes
    checkpoint: Checkpoint
    earliestOffset: int
    version: int
    def __init__(self, uuid: _Optional[bytes] = ..., entry: _Optional[bytes] = ..., checkpoint: _Optional[_Union[Checkpoint, _Mapping]] = ..., earliestOffset: _Optional[int] = ..., version: _Optional[int] = ...) -> None: ...

class Checkpoint(_message.Message):
    lastEntryOffset: int
    nextEntryOffset: int
    def __init__(self, lastEntryOffset: _Optional[int] = ..., nextEntryOffset: _Optional[int] = ...) -> None: ...
