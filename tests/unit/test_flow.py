"""Specifications of Estuary's collections become columns, keys and deletions. Hostile ones are refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gazette_spark import FlowCollection, Upsert
from gazette_spark.errors import InputError

ORIGIN = ",_journal:string,_ack_offset:bigint,_offset:bigint>"


def columns(schema: dict[str, Any], **more: Any) -> str:
    text = FlowCollection.from_spec("acmeCo/orders", {"key": ["/id"], "schema": schema, **more}).schema
    return text.simpleString().removeprefix("struct<").removesuffix(ORIGIN)


def of(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"id": {"type": "integer"}, **properties}}


@pytest.mark.parametrize(
    ("schema", "kind"),
    [
        ({"type": "string"}, "string"),
        ({"type": ["string", "null"], "format": "date-time"}, "timestamp"),
        ({"type": "string", "format": "date"}, "date"),
        ({"type": "string", "contentEncoding": "base64"}, "binary"),
        ({"type": "number"}, "double"),
        ({"type": ["integer", "number", "null"]}, "double"),
        ({"type": "boolean"}, "boolean"),
        ({"type": ["integer", "string"]}, "string"),
        ({}, "string"),
        (True, "string"),
        ({"type": "object"}, "string"),
        ({"type": "object", "additionalProperties": {"type": "integer"}}, "map<string,bigint>"),
        ({"properties": {"a": {"type": "integer"}}}, "struct<a:bigint>"),
        ({"type": "array", "items": {"type": "number"}}, "array<double>"),
        ({"type": "array"}, "array<string>"),
        ({"type": 7}, "string"),
        ({"type": [["string"]], "format": ["date"]}, "string"),
        ({"type": "string", "format": ["date"]}, "string"),
        ({"allOf": [{"type": ["integer", "string"]}, {"type": ["integer", "null"]}]}, "bigint"),
        ({"$ref": "#/$defs/money"}, "struct<amount:double>"),
    ],
)
def test_types(schema: object, kind: str) -> None:
    document = of(x=schema) | {"$defs": {"money": {"properties": {"amount": {"type": "number"}}}}}
    assert columns(document) == f"id:bigint,x:{kind}"


def test_a_read_schema_is_composed() -> None:
    """Estuary composes it from the write schema and what was inferred from documents."""
    composed = {
        "$defs": {"flow://inferred-schema": of(extra={"type": "string"})},
        "allOf": [{"$ref": "flow://write-schema"}, {"$ref": "flow://inferred-schema"}],
    }
    spec = {"key": ["/id"], "readSchema": composed, "writeSchema": of(at={"type": "string"})}
    collection = FlowCollection.from_spec("acmeCo/orders", spec)
    assert collection.schema.names == ["id", "at", "extra", "_journal", "_ack_offset", "_offset"]


def test_keys_and_deletions() -> None:
    meta = {"type": "object", "properties": {"op": {"enum": ["c", "u", "d"], "type": "string"}}}
    document = of(customer={"properties": {"a/b": {"type": "integer"}}}, _meta=meta)
    collection = FlowCollection.from_spec("a/b", {"key": ["/id", "/customer/a~1b"], "schema": document})
    origin = ("_journal", "_ack_offset", "_offset")
    assert collection.upsert == Upsert(("id", "customer/a/b"), delete_when="_deleted", leave_out=origin)
    without = FlowCollection.from_spec("a/b", {"key": ["/id"], "schema": of()})
    assert without.upsert == Upsert(("id",), leave_out=origin)


def _forks() -> dict[str, Any]:
    """Return a schema of about a page that expands to 4 to the power of 30 columns."""
    two = {"properties": {"a": {"$ref": "#/$defs/n"}, "b": {"$ref": "#/$defs/n"}}}
    levels = {f"l{level}": json.loads(json.dumps(two).replace("/n", f"/l{level + 1}")) for level in range(30)}
    return of(x={"$ref": "#/$defs/l0"}) | {"$defs": levels | {"l30": {"type": "string"}}}


def _deep() -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(5000):
        schema = {"properties": {"a": schema}}
    return of(x=schema)


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        ({}, "its key is not a list of JSON pointers"),
        ({"key": ["id"], "schema": of()}, "its key is not a list of JSON pointers"),
        ({"key": ["/id"]}, "it has neither schema nor readSchema"),
        ({"key": ["/id"], "schema": {"type": "string"}}, "its documents are not objects"),
        ({"key": ["/no"], "schema": of()}, "its schema lacks /no, a part of its key"),
        ({"key": ["/id/x"], "schema": of()}, "its schema lacks /id/x, a part of its key"),
        (
            {"key": ["/id"], "schema": of(x={"$ref": "other.yaml"})},
            "its schema refers to 'other.yaml'",
        ),
        ({"key": ["/id"], "schema": of(x={"$ref": {}})}, r"its schema has a \$ref that is not text"),
        ({"key": ["/id"], "schema": of(x=7)}, "a part of its schema is not an object: '7'"),
        ({"key": ["/id"], "schema": _forks()}, "its schema describes more than 10000 columns"),
        ({"key": ["/id"], "schema": _deep()}, "its schema is nested too deeply"),
    ],
)
def test_what_is_no_specification_is_refused(spec: dict[str, Any], problem: str) -> None:
    with pytest.raises(InputError, match=f"collection 'acmeCo/orders': {problem}"):
        FlowCollection.from_spec("acmeCo/orders", spec)


def test_a_tree_is_text() -> None:
    """A schema that refers to itself has no end, so it becomes text."""
    node = {"properties": {"left": {"$ref": "#/$defs/node"}, "n": {"type": "integer"}}}
    document = of(tree={"$ref": "#/$defs/node"}) | {"$defs": {"node": node}}
    assert columns(document) == "id:bigint,tree:struct<left:string,n:bigint>"
