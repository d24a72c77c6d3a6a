"""Records that may stop a reader or kill its process, read in a child process through a pipe.

A crash of native code ends the child and not the tests. The child responds once for each case, so the first
case without a response is the one that killed it.
"""

from __future__ import annotations

import json
import os
import pickle
import selectors
import signal
import subprocess
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any, BinaryIO, Self

import pyarrow as pa
from google.protobuf import descriptor_pb2, timestamp_pb2

JOURNAL = "poison/records"
MODES = ("PERMISSIVE", "DROPMALFORMED", "FAILFAST")
HANG_S = 60
"""Maximum seconds for one case; the slowest takes a second."""

_ITEM = pa.field("element", pa.decimal128(10, 2))
_VARIANT = pa.struct(
    [
        pa.field("value", pa.binary(), nullable=False),
        pa.field("metadata", pa.binary(), nullable=False, metadata={"variant": "true"}),
    ]
)
SCALARS: dict[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "decimal(10,2)": pa.decimal128(10, 2),
    "decimal(38,0)": pa.decimal128(38, 0),
    "decimal(38,38)": pa.decimal128(38, 38),
    "decimal(1,1)": pa.decimal128(1, 1),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}
NESTED: dict[str, pa.DataType] = {
    "variant": _VARIANT,
    "array<decimal>": pa.list_(_ITEM),
    "array<timestamp>": pa.list_(pa.field("element", pa.timestamp("us", "UTC"))),
    "struct<x:decimal,y:date>": pa.struct([("x", pa.decimal128(10, 2)), ("y", pa.date32())]),
    "struct<x:bigint,y:timestamp>": pa.struct([("x", pa.int64()), ("y", pa.timestamp("us", "UTC"))]),
    "map<string,decimal>": pa.map_(pa.string(), pa.decimal128(10, 2)),
    "map<string,map<string,double>>": pa.map_(pa.string(), pa.map_(pa.string(), pa.float64())),
}
TYPES = SCALARS | NESTED
"""Every type that a column can have, by its name in Spark, and some nested types."""

ROW_FORMS = ("json", "rescued", "csv", "csv_patterns", "proto2", "proto3")
OTHER_FORMS = ("raw", "inference", "messages")
FORMS = (*ROW_FORMS, *OTHER_FORMS)
"""Forms of one record; the form ``decoded`` has lines, and its type is one of :data:`DECODINGS`."""
PROTOBUF = ("proto2", "proto3")
FRAMINGS = {"csv": "csv", "csv_patterns": "csv", "proto2": "fixed", "proto3": "fixed"}
"""Framing of each form; lines for forms that are missing here."""


@dataclass(frozen=True, slots=True)
class Case:
    form: str
    record: bytes
    type: str = "string"
    """Type of the column ``v``; unused by protobuf, whose messages have a field of each kind."""

    def __str__(self) -> str:
        shown = self.record if len(self.record) < 300 else self.record[:150] + b"..." + self.record[-150:]
        return f"{self.form} {self.type} {shown!r} ({len(self.record)} bytes)"


class Child:
    """Runs cases in a child process, and replaces it when it dies. A context manager."""

    def __enter__(self) -> Self:
        self._start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    def problems(self, cases: Sequence[Case]) -> list[str]:
        """Return problems with their cases; none if each case gave rows, nulls or a malformed record."""
        found: list[str] = []
        left = list(cases)
        while left:
            self._to.write(pickle.dumps(left))
            self._to.flush()
            answers = list(self._answers(len(left)))
            found += [f"{case}: {answer}" for case, answer in zip(left, answers, strict=False) if answer]
            if len(answers) < len(left):
                status = self._stop()
                how = signal.Signals(-status).name if status < 0 else f"status {status}"
                found.append(f"{left[len(answers)]}: the process ended with {how}")
                self._start()
            left = left[len(answers) + 1 :]
        return found

    def _answers(self, count: int) -> Iterator[str]:
        with selectors.DefaultSelector() as ready:
            ready.register(self._from, selectors.EVENT_READ)
            for _ in range(count):
                if not self._from.peek(1) and not ready.select(HANG_S):  # type: ignore[attr-defined]  # Popen makes a buffered reader.
                    self._process.kill()  # It hangs; the exit status will show this kill.
                line = self._from.readline()
                if not line.endswith(b"\n"):
                    return
                yield json.loads(line)

    def _start(self) -> None:
        # The child's errors appear as the test's.
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._to: BinaryIO = self._process.stdin  # type: ignore[assignment]  # Never None: it is a pipe.
        self._from: BinaryIO = self._process.stdout  # type: ignore[assignment]  # Never None: it is a pipe.

    def _stop(self) -> int:
        self._to.close()
        self._from.close()
        return self._process.wait()


def problem(case: Case) -> str:
    """Run a case in this process; return the problem, or an empty string."""
    try:
        match case.form:
            case "raw":
                _raw(case)
            case "inference":
                _inference(case)
            case "messages":
                _messages(case)
            case "decoded":
                _decoded(case)
            case "kill":
                os.kill(os.getpid(), signal.SIGSEGV)
            case _:
                _rows(case)
    except Exception:  # noqa: BLE001  # Whatever it is, no record may raise it.
        return traceback.format_exc(limit=-2)
    return ""


def _rows(case: Case) -> None:
    from gazette_spark.errors import RecordError

    good = _good(case)
    rows, malformed = _read(case, [good, case.record, good], "PERMISSIVE")
    blocks = _blocks(case.form, [good, case.record, good])
    offsets = [int(at) for block in blocks for at in block.offsets]
    assert rows.column("_offset").to_pylist() == offsets, "a record gave no row, or two"
    bad = rows.column("_corrupt_record").is_valid().to_pylist()
    assert sum(bad) == malformed, f"{malformed} malformed records, and {sum(bad)} texts of such"
    if FRAMINGS.get(case.form) != "csv":  # An open quote includes the next record.
        alone = _alone(case.form, case.type)
        for at in (0, 2):
            row = rows.slice(at, 1).select(alone.schema.names)
            assert row.equals(alone), "a neighbour's row changed"
    # Each of these costs as much as the first, and adds little.
    if len(case.record) % 4 == 0:
        left, _ = _read(case, [good, case.record, good], "DROPMALFORMED")
        assert left.num_rows == len(offsets) - malformed
    if len(case.record) % 4 != 1:
        return
    error = None
    try:
        _read(case, [good, case.record, good], "FAILFAST")
    except RecordError as raised:
        error = raised.journal, raised.offset
    assert error == ((JOURNAL, offsets[bad.index(True)]) if malformed else None), "FAILFAST"


def _read(case: Case, records: Sequence[bytes], mode: str) -> tuple[pa.Table, int]:
    from gazette_spark._formats.registry import row_parser

    form = "protobuf" if case.form in PROTOBUF else "csv" if "csv" in case.form else "json"
    fields = list(_MESSAGE_COLUMNS) if form == "protobuf" else [("v", TYPES[case.type]), ("w", pa.string())]
    rest = [("rest", pa.string())] if case.form == "rescued" else []
    schema = pa.schema([("_offset", pa.int64()), *fields, *rest, ("_corrupt_record", pa.string())])
    descriptors = descriptor_set(case.form) if form == "protobuf" else b""
    parser = row_parser(form, _options(case.form, mode), schema, descriptors=descriptors)
    batches = list(parser.record_batches(_blocks(case.form, records)))
    for batch in batches:
        batch.validate(full=True)
    return pa.Table.from_batches(batches, schema), parser.malformed


@cache
def _alone(form: str, kind: str) -> pa.Table:
    case = Case(form, b"", kind)
    return _read(case, [_good(case)], "PERMISSIVE")[0].drop_columns(["_offset"])


def _good(case: Case) -> bytes:
    if case.form in PROTOBUF:
        return b"\x0a\x01x"
    return b',"good"' if "csv" in case.form else b'{"w":"good"}'


@cache
def _options(form: str, mode: str) -> Any:
    from gazette_spark._options.source import parse_options

    more = {"journals": JOURNAL, "brokerAddress": "http://127.0.0.1:1", "mode": mode}
    if form == "rescued":
        more |= {"format": "json", "rescuedDataColumn": "rest"}
    elif form == "csv_patterns":
        more |= {"format": "csv", "sep": ";", "nullValue": "NULL", "emptyValue": "EMPTY"}
        more |= {"dateFormat": "d/M/y", "timestampFormat": "yyyy-MM-dd HH:mm:ss[.SSSSSS][XXX]"}
        more |= {"timestampNTZFormat": "MMM d, yyyy h:mm:ss a", "timeZone": "Europe/Paris"}
    elif form in PROTOBUF:
        more |= {"format": "protobuf", "messageName": "poison.M", "descriptorFile": "in-memory"}
    else:
        more |= {"format": form} if form in ("json", "csv", "raw") else {"format": "json"}
    return parse_options(more)


def _blocks(form: str, records: Sequence[bytes]) -> list[Any]:
    from gazette_spark._formats.fixed import frame
    from gazette_spark._formats.registry import framing_named
    from gazette_spark._planning.cutter import PieceScan
    from gazette_spark._planning.pieces import Piece

    framing = FRAMINGS.get(form, "lines")
    if framing == "lines":
        records = [record.replace(b"\n", b"") for record in records]
    content = b"".join(frame(record) if framing == "fixed" else record + b"\n" for record in records)
    end = 1000 + len(content)
    piece = Piece(JOURNAL, 1000, end, end, starts_on_record=True, framing=framing, content=content)
    found = framing_named(framing, 64 << 20, ";" if form == "csv_patterns" else ",")
    try:
        return list(PieceScan(None, piece, fail_on_data_loss=False, framing=found))
    except Exception as error:
        from gazette_spark.errors import RecordError

        if isinstance(error, RecordError) and framing == "csv":
            return []  # An open quote hides the last record.
        raise


def _raw(case: Case) -> None:
    """Check that any bytes in any framing are read unchanged, or cause an error of ours with the position."""
    from gazette_spark._formats.arrays import binary_array
    from gazette_spark._formats.encode import encoded
    from gazette_spark._formats.registry import framing_named
    from gazette_spark._planning.cutter import PieceScan, raw_record_batches
    from gazette_spark._planning.pieces import Piece
    from gazette_spark.errors import GazetteError

    for name in ("lines", "csv", "fixed", "none"):
        framing = framing_named(name, 64 << 20)
        framing.first_boundary(case.record, 10)
        framing.last_boundary(case.record, 1 << 10)
        framing.may_begin(case.record[:8], case.record[8:])
        end = 10 + len(case.record)
        piece = Piece(JOURNAL, 10, end, end, starts_on_record=True, framing=name, content=case.record)
        with suppress(GazetteError):
            scan = PieceScan(None, piece, fail_on_data_loss=False, framing=framing)
            for batch in raw_record_batches(scan, framing=framing):
                batch.validate(full=True)
        encoded(binary_array([case.record]), framing_named(name, 64 << 20))


def _inference(case: Case) -> None:
    from pyspark.sql.pandas.types import from_arrow_schema
    from pyspark.sql.types import StructType

    from gazette_spark._formats.json import JsonFormat, JsonParser
    from gazette_spark._formats.json_infer import infer

    blocks = _blocks("json", [_good(case), case.record])
    schema = infer(blocks)
    assert "w" in schema.names, "the other record's column is missing"
    StructType.fromJson(from_arrow_schema(schema).jsonValue())
    for batch in JsonParser(JsonFormat(schema)).record_batches(blocks):
        batch.validate(full=True)
        batch.serialize()  # As for Spark, with a lower limit of nesting levels than Arrow's.


def _messages(case: Case) -> None:
    from gazette_spark.errors import MessageError
    from gazette_spark.message import NIL_UUID, locator_for
    from gazette_spark.message.interfaces import CONTENT_TYPES
    from gazette_spark.message.uuid_columns import uuid_reader

    places = [("lines", ""), ("lines", "/v/x/y"), ("csv", ""), ("csv", "2"), ("fixed", "1")]
    framing, path = places[len(case.record) % len(places)]
    form = next((form for form, name in FRAMINGS.items() if name == framing), "json")
    place = locator_for(CONTENT_TYPES[framing], path)
    for block in _blocks(form, [case.record, case.record]):
        assert len(uuid_reader(place).uuids(block)) == len(block)
    with suppress(MessageError):
        place.get(case.record)
    with suppress(MessageError):
        place.set(case.record, NIL_UUID)


_EVENT = pa.struct(
    [
        ("a", pa.int64()),
        ("st", pa.string()),
        ("t", pa.timestamp("us", "UTC")),
        ("lo", pa.list_(pa.struct([("q", pa.int32()), ("z", pa.list_(pa.string()))]))),
    ]
)
DECODED = pa.schema(
    [
        ("i8", pa.int64()),
        ("i4", pa.int32()),
        ("i2", pa.int16()),
        ("i1", pa.int8()),
        ("d", pa.float64()),
        ("f", pa.float32()),
        ("b", pa.bool_()),
        ("s", pa.string()),
        ("t", pa.timestamp("us", "UTC")),
        ("n", pa.timestamp("us")),
        ("dt", pa.date32()),
        ("dec", pa.decimal128(18, 2)),
        ("big", pa.decimal128(38, 0)),
        ("o", _EVENT),
        ("l", pa.list_(pa.int64())),
    ]
)
"""Columns of every type that the native decoder supports."""
DECODINGS = ("plain", "few", "rescued", "zone", "strict")
"""Ways to decode the same records."""


def _decoded(case: Case) -> None:
    """Compare the native decoder's rows of some lines with the reference parser's."""
    import numpy as np

    from gazette_spark._formats.json_reference import JsonReferenceParser
    from gazette_spark._formats.native import NativeDecoder
    from gazette_spark._formats.values import JsonDialect

    schema, dialect, rescue = DECODED, JsonDialect(), case.type == "rescued"
    if case.type == "few":
        schema = pa.schema([schema.field(name) for name in ("o", "s", "i8")])
    elif case.type == "zone":
        dialect = JsonDialect("Europe/Paris")
    elif case.type == "strict":
        dialect = JsonDialect(allow_single_quotes=False, allow_non_numeric_numbers=False)
    decoder = NativeDecoder.of(list(schema), extra_fields=not rescue, dialect=dialect)
    if case.type == "mistaken":
        dialect = JsonDialect("Europe/Paris")  # To test this comparison.
    assert decoder is not None, "the native decoder is not there"
    for block in _blocks("json", case.record.split(b"\n")):
        decoded = decoder.decode(block)
        assert decoded is not None, "the block was refused"
        columns, suspects = decoded
        expected = JsonReferenceParser(list(schema), rescue=rescue, dialect=dialect).columns(block)
        accepted = np.setdiff1d(np.arange(len(block)), suspects)
        malformed = (expected.problems.keys() | expected.rescued.keys()) - set(suspects.tolist())
        assert not malformed, f"accepted: {[block.record(at) for at in malformed]}"
        for field, column in zip(schema, columns, strict=True):
            column.validate(full=True)
            assert column.type == field.type
            assert column.take(pa.array(suspects)).null_count == len(suspects), "a suspect left something"
            rows, expected_rows = (
                whole.take(pa.array(accepted)) for whole in (column, expected.values[field.name])
            )
            if _text(rows) != _text(expected_rows):
                for at in range(len(accepted)):
                    record, pair = (
                        block.record(accepted[at]),
                        (_text(rows[at : at + 1]), _text(expected_rows[at : at + 1])),
                    )
                    assert pair[0] == pair[1], f"{field.name} of {record!r}: {pair}"


def _text(column: pa.Array) -> str:
    """Return all values of a column as text, because -0.0 equals 0.0, and NaN differs from itself."""
    return str(column.to_string(window=1 << 20, container_window=1 << 20))


_F = descriptor_pb2.FieldDescriptorProto
_MESSAGE_FIELDS: tuple[tuple[str, int, str, pa.DataType], ...] = (
    ("s", _F.TYPE_STRING, "", pa.string()),
    ("b", _F.TYPE_BYTES, "", pa.binary()),
    ("i", _F.TYPE_INT64, "", pa.int8()),
    ("u", _F.TYPE_UINT64, "", pa.int64()),
    ("t", _F.TYPE_UINT64, "", pa.decimal128(20, 0)),
    ("z", _F.TYPE_SINT32, "", pa.int32()),
    ("x", _F.TYPE_FIXED32, "", pa.int32()),
    ("d", _F.TYPE_DOUBLE, "", pa.float64()),
    ("f", _F.TYPE_FLOAT, "", pa.float32()),
    ("o", _F.TYPE_BOOL, "", pa.bool_()),
    ("e", _F.TYPE_ENUM, ".poison.M.E", pa.string()),
    ("n", _F.TYPE_MESSAGE, ".poison.M.N", pa.struct([("s", pa.string()), ("i", pa.int32())])),
    ("at", _F.TYPE_MESSAGE, ".google.protobuf.Timestamp", pa.timestamp("us", "UTC")),
    ("ls", _F.TYPE_STRING, "repeated", pa.list_(pa.field("element", pa.string()))),
    ("m", _F.TYPE_MESSAGE, ".poison.M.MEntry", pa.map_(pa.string(), pa.string())),
)
"""Name, kind, type name or label, and column type of each field; the field numbers are 1 to 15."""
_MESSAGE_COLUMNS = tuple((name, kind) for name, _, _, kind in _MESSAGE_FIELDS)


@cache
def descriptor_set(syntax: str) -> bytes:
    """Return the message ``poison.M`` with a field of each kind, in ``proto2`` or ``proto3``."""
    file = descriptor_pb2.FileDescriptorProto(name="poison.proto", package="poison", syntax=syntax)
    file.dependency.append("google/protobuf/timestamp.proto")
    message = file.message_type.add(name="M")
    for number, (name, kind, about, _) in enumerate(_MESSAGE_FIELDS, start=1):
        repeated = about == "repeated" or about.endswith("Entry")
        label = _F.LABEL_REPEATED if repeated else _F.LABEL_OPTIONAL
        type_name = about if about.startswith(".") else None
        message.field.add(name=name, number=number, type=kind, label=label, type_name=type_name)
    message.enum_type.add(name="E").value.add(name="ZERO", number=0)
    nested = message.nested_type.add(name="N")
    nested.field.add(name="s", number=1, type=_F.TYPE_STRING, label=_F.LABEL_OPTIONAL)
    nested.field.add(name="i", number=2, type=_F.TYPE_INT32, label=_F.LABEL_OPTIONAL)
    entry = message.nested_type.add(name="MEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=_F.TYPE_STRING, label=_F.LABEL_OPTIONAL)
    entry.field.add(name="value", number=2, type=_F.TYPE_STRING, label=_F.LABEL_OPTIONAL)
    files = descriptor_pb2.FileDescriptorSet(file=[file])
    timestamp_pb2.DESCRIPTOR.CopyToProto(files.file.add())
    return files.SerializeToString()


def main() -> None:
    """Respond to each case of each list on standard input with the problem, or an empty string."""
    while True:
        try:
            cases = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        for case in cases:
            sys.stdout.write(json.dumps(problem(case)) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    # Cases are unpickled as the class under the module's name.
    from tests.rig import poison

    poison.main()
