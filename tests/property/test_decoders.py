"""Whatever a decoder reads, it returns a value or raises a GazetteError, and no other error.

A new decoder is a line in ``DECODERS``, with a text that it decodes. Each value and each key of a JSON text
is replaced by values that have broken decoders before, and each text is changed at random.
"""

from __future__ import annotations

import base64
import hmac
import json
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gazette_spark._data_files.target import FileTarget
from gazette_spark._ledger.entry import parse_entry
from gazette_spark._ledger.history import HistoryRow, app_ids
from gazette_spark._ledger.query_checkpoint import parse_offsets, parse_planned_ms, parse_query_id
from gazette_spark._options.query_range import parse_starting_offsets, parse_timestamps
from gazette_spark._options.schema_hints import parse_hints
from gazette_spark._planning.inference import parse_fields
from gazette_spark._write.transactions import TransactionRecord
from gazette_spark.broker.http.gateway import read_request
from gazette_spark.broker.registry import JOURNALS
from gazette_spark.broker.storage import commit_log
from gazette_spark.broker.storage.state import catalog_from_json
from gazette_spark.consumer.application import JsonMessage
from gazette_spark.consumer.examples.stream_sum import StreamChunk, Sum
from gazette_spark.consumer.recoverylog.hints import hints_from_bytes
from gazette_spark.consumer.shard_yaml import parse_shard_yaml
from gazette_spark.consumer.stores.delta import document_of
from gazette_spark.consumer.stores.json_file import parse_state_file
from gazette_spark.errors import GazetteError
from gazette_spark.lag.api import JournalFilter
from gazette_spark.lag.burrow_json import parse_recording
from gazette_spark.offsets import JournalOffsets
from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.protocol.durations import parse_duration
from gazette_spark.protocol.fragments import parse_content_path
from gazette_spark.protocol.journal_yaml import parse_journal_yaml
from gazette_spark.protocol.labels import parse_selector
from gazette_spark.protocol.tokens import KeySet
from gazette_spark.query_progress import query_lag
from gazette_spark.replicated_log._entries import parse_record
from gazette_spark.seal import seal, seal_line

GOLDEN = Path(__file__).parents[1] / "golden"
KEY = b"secret"
NOW = 1_700_000_000.0


def _signed(payload: str) -> str:
    parts = [b'{"alg":"HS256","typ":"JWT"}', payload.encode("utf-8", "surrogatepass")]
    signed = b".".join(base64.urlsafe_b64encode(part).rstrip(b"=") for part in parts)
    digest = base64.urlsafe_b64encode(hmac.digest(KEY, signed, "sha256")).rstrip(b"=")
    return f"{signed.decode()}.{digest.decode()}"


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _sealed_state(text: str) -> bytes:
    content = b" " + _bytes(text)
    return content + seal_line(content)


def _log_line(text: str) -> bytes:
    body = _bytes(text).replace(b"\n", b" ")
    return b"%08x %s\n" % (zlib.crc32(body), body)


HEADER = '{"format_version":1,"journal":"a","begin":0,"codec":1,"registers":[["a","b"]]}'
COMMIT = json.dumps({"end": 9, "sum": "00" * 20, "at": 1.5, "registers": [["a", "b"]]})


def _state_file(checkpoint: str) -> Any:
    return parse_state_file(_sealed_state(f'{{"a/b":3}}\n{{"n":1}}\n{checkpoint}\n'), "file")


def _state_documents(documents: str) -> Any:
    return parse_state_file(_bytes(documents), "file")


POSITION = (GOLDEN / "offsets/v1-starts.json").read_text()
GAPS = (GOLDEN / "offsets/v1-gaps.json").read_text()
WINDOW = json.dumps(
    {
        "cluster": "c",
        "group": "g",
        "now_ms": 5,
        "allowed_lag": 1,
        "minimum_complete": 0.5,
        "partitions": [
            {
                "topic": "t",
                "partition": 1,
                "owner": "o",
                "client_id": "i",
                "current_lag": 3,
                "broker_offsets": [3],
                "offsets": [{"offset": 1, "timestamp": 2, "observedAt": 3, "lag": 4}],
            }
        ],
    }
)
PROGRESS = json.dumps(
    {
        "id": "q",
        "runId": "r",
        "name": None,
        "batchId": 3,
        "timestamp": "2024-01-01T00:00:00.000Z",
        "observedMetrics": {"gazette": {"malformed": 3}},
        "sources": [
            {
                "description": "gazette",
                "startOffset": {"format_version": 1, "journals": {"a": 1}},
                "endOffset": json.loads(GAPS),
                "latestOffset": {
                    "format_version": 1,
                    "journals": {"a": 9},
                    "transactions": {
                        "a": {"at": 9, "count": 1, "oldest": {"3": {"producer": "00", "newest_ms": 5}}}
                    },
                },
            }
        ],
    }
)
CHECKPOINT = (
    '{"sources":{"a":{"read_through":5,"producers":[{"id":"AAECAwQF","state":{"last_ack":9,"begin":-1}}]}},'
    '"ack_intents":{"b":"/wA="}}'
)
HINTS = (
    '{"log":"a/log","live_nodes":[{"fnode":1,"segments":[{"author":5,"first_seq_no":1,"first_offset":2,'
    '"first_checksum":3,"last_seq_no":4}]}],"properties":[{"path":"/p","content":"one"}]}'
)
STATE = (
    '{"format_version":1,"cluster_id":5,"revision":3,"retired":["b"],"journals":[{"create_revision":2,'
    '"mod_revision":3,"spec":{"name":"a/b","replication":1,"labels":{"labels":[{"name":"a","value":"b"}]}}}]}'
)
SPEC_YAML = json.dumps(
    {
        "name": "test/",
        "replication": 1,
        "fragment": {"length": 1024, "compression_codec": "GZIP", "refresh_interval": "1m"},
        "labels": [{"name": "aa", "value": "bb"}],
        "children": [{"name": "test/one", "max_append_rate": 5}],
    }
)
CLAIMS = json.dumps(
    {
        "cap": 2,
        "exp": NOW + 60,
        "iat": NOW,
        "nbf": NOW,
        "sel": {
            "include": {"labels": [{"name": "aa", "value": "bb", "prefix": True}]},
            "exclude": {"labels": None},
        },
    }
)
TARGET = FileTarget(
    "t", "/t", '{"type":"struct","fields":[]}', '{"type":"struct","fields":[]}', ("a",)
).to_json()
SCHEMA = (GOLDEN / "inferred_schema/v1.json").read_text().partition("\n")[2]


def _metadata_row(text: str) -> list[HistoryRow]:
    return [HistoryRow(1, "WRITE", user_metadata=text)]


DECODERS: dict[str, tuple[Callable[[str], object], list[str]]] = {
    "position": (JournalOffsets.from_json, [POSITION, GAPS]),
    "starting offsets": (
        lambda text: parse_starting_offsets("startingOffsets", text),
        [POSITION, '{"a/bc":-2}'],
    ),
    "timestamps": (lambda text: parse_timestamps("startingTimestamps", text), ['{"a/bc":5}']),
    "schema hints": (lambda text: parse_hints("schemaHints", text), ["a.b STRUCT<c: DECIMAL(3, 2)>"]),
    "ledger entry": (
        lambda text: parse_entry(text, "orders"),
        [
            (GOLDEN / f"ledger/{name}.json").read_text()
            for name in ("entry-1-audit", "entry-1-gaps", "entry-2-moved")
        ],
    ),
    "app ids": (lambda text: app_ids(_metadata_row(text)), [(GOLDEN / "ledger/entry-1.json").read_text()]),
    "query offsets": (lambda text: parse_offsets(f"v1\n{{}}\n{text}\n-\n", "f"), [POSITION]),
    "query offsets file": (lambda text: parse_offsets(text, "f"), [f"v1\n{{}}\n{POSITION}\n-"]),
    "planned time": (lambda text: parse_planned_ms(f"v1\n{text}\n-", "f"), ['{"batchTimestampMs":5}']),
    "query id": (lambda text: parse_query_id(text, "f"), ['{"id":"q"}']),
    "transaction": (
        lambda text: TransactionRecord.from_json(_bytes(text), "a"),
        [(GOLDEN / "transactions/record_v1.json").read_text()],
    ),
    "token claims": (lambda text: KeySet((KEY,)).verify(_signed(text), now=NOW), [CLAIMS]),
    "token": (lambda text: KeySet((KEY,)).verify(text, now=NOW), [_signed(CLAIMS)]),
    "hints": (lambda text: hints_from_bytes(_bytes(text), "f"), [HINTS]),
    "checkpoint of a JSON store": (_state_file, [CHECKPOINT]),
    "documents of a JSON store": (_state_documents, [f'{{"a":5}}\n"state"\n{CHECKPOINT}']),
    "offsets of a JSON store": (lambda text: _state_documents(f'{text} "state"'), ['{"a":5}']),
    "rows of a state table": (lambda text: document_of({("state", "k"): text}, {}), ['{"a":[1]}']),
    "remembered schema": (lambda text: parse_fields(seal(_bytes(text)), "f"), [SCHEMA]),
    "file target": (FileTarget.from_json, [TARGET]),
    "catalog": (lambda text: catalog_from_json(JOURNALS, text, "root"), [STATE]),
    "header of a commit log": (lambda text: commit_log.parse_log(_log_line(text)), [HEADER]),
    "commit of a commit log": (
        lambda text: commit_log.parse_log(_log_line(HEADER) + _log_line(text)),
        [COMMIT],
    ),
    "recording": (parse_recording, [WINDOW]),
    "progress": (query_lag, [PROGRESS]),
    "JSON message": (
        lambda text: JsonMessage.parse(pb.JournalSpec(name="a"), _bytes(text)),
        ['{"_meta":{"uuid":"00000000-0000-1000-8000-000000000000"},"a":1}'],
    ),
    "chunk": (
        lambda text: StreamChunk.parse(pb.JournalSpec(name="a"), _bytes(text)),
        ['{"UUID":"00000000-0000-1000-8000-000000000000","ID":[1],"SeqNo":1,"Data":"AA=="}'],
    ),
    "sum": (
        lambda text: Sum.parse(pb.JournalSpec(name="a"), _bytes(text)),
        ['{"UUID":"00000000-0000-1000-8000-000000000000","ID":[1],"SeqNo":1,"Value":5}'],
    ),
    "log record": (
        lambda text: parse_record("a", 0, 9, text.encode("latin-1", "replace")),
        ["\n\x10" + "u" * 16],
    ),
    "journal YAML": (parse_journal_yaml, [SPEC_YAML]),
    "shard YAML": (
        parse_shard_yaml,
        ['{"common":{"max_txn_duration":"1s"},"shards":[{"id":"shard","sources":[{"journal":"a/bc"}]}]}'],
    ),
    "duration": (parse_duration, ["1h2m3.5s"]),
    "selector": (parse_selector, ["name:prefix=a/,!test,region in (eu,us)"]),
    "content path": (
        lambda text: parse_content_path("a/bc", text),
        [f"p=1/{0:016x}-{9:016x}-{'ab' * 20}.gz"],
    ),
    "keys": (KeySet.parse, ["c2VjcmV0,AA=="]),
    "gateway request": (
        lambda text: read_request("/a/b", text.encode("ascii", "replace").decode()),
        ["offset=5&block=true"],
    ),
    "lag page": (JournalFilter.parse, ["match=a&ok=no&limit=5"]),
}

HOSTILE = (
    "[" * 2_000 + "]" * 2_000,
    '{"a":' * 900 + "1" + "}" * 900,
    "[" * 150 + "]" * 150,
    '"\\ud800"',
    '"\ud800"',
    '"\\u0000"',
    '"a\\nb"',
    '""',
    '"1"',
    "1" * 5_000,
    "-" + "1" * 5_000,
    "1" * 400,
    "1." + "1" * 5_000,
    "1e999999999",
    "1e308",
    "NaN",
    "-Infinity",
    str(2**63),
    str(2**64),
    "-1",
    "0",
    "1.5",
    "true",
    "null",
    "[]",
    "{}",
    "[1]",
    "[null]",
    '{"a":null}',
    '{"a":1,"a":2}',
    '{"":[]}',
    '{"\\ud800":1}',
)
"""Texts in place of a value: some that have broken decoders, and one value of each type."""

HOLE = "\x01hole"


def _with_holes(value: Any) -> Iterator[Any]:
    """Yield a JSON value once for each of its values and keys, with that one replaced by a hole."""
    yield HOLE
    if isinstance(value, dict):
        for key, each in value.items():
            yield {name: other for name, other in value.items() if name != key} | {HOLE: each}
            yield {name: other for name, other in value.items() if name != key}
            for changed in _with_holes(each):
                yield value | {key: changed}
    elif isinstance(value, list):
        for at, each in enumerate(value):
            for changed in _with_holes(each):
                yield [*value[:at], changed, *value[at + 1 :]]


def _escape(decode: Callable[[str], object], text: str) -> str | None:
    """Describe an error that is not a GazetteError, or that cannot be printed; None if there is none."""
    try:
        decode(text)
    except GazetteError as error:
        try:
            str(error).encode()
        except UnicodeEncodeError:  # Neither a log nor a terminal can print it.
            return ascii(f"{error} for {text[:120]}")
    except Exception as error:  # noqa: BLE001 - whatever it is, the test names it
        return ascii(f"{type(error).__name__}: {str(error)[:80]} for {text[:120]}")
    return None


@pytest.mark.parametrize("name", DECODERS)
def test_a_hostile_value_anywhere_is_a_value_or_an_error(name: str) -> None:
    """Deep nesting, lone surrogates, huge numbers and other types are read, or refused with a named error."""
    decode, texts = DECODERS[name]
    found: set[str | None] = set()
    for text in texts:
        decode(text)
        try:
            templates = {json.dumps(each, ensure_ascii=False) for each in _with_holes(json.loads(text))}
        except ValueError:
            templates = {json.dumps(HOLE)}
        # YAML's parser is slow: the first value takes half a second.
        hostile_values = HOSTILE[1::3] if name.endswith("YAML") else HOSTILE
        for template in templates:
            found |= {_escape(decode, template.replace(json.dumps(HOLE), each)) for each in hostile_values}
    assert sorted(each for each in found if each) == []


@pytest.mark.parametrize("name", DECODERS)
@given(data=st.data())
def test_a_text_changed_at_random_is_a_value_or_an_error(name: str, data: st.DataObject) -> None:
    decode, texts = DECODERS[name]
    text = data.draw(st.sampled_from(texts))
    low = data.draw(st.integers(0, len(text)))
    high = data.draw(st.integers(low, min(len(text), low + 20)))
    other = data.draw(st.one_of(st.text(max_size=20), st.sampled_from(HOSTILE[2:])))
    assert _escape(decode, text[:low] + other + text[high:]) is None
