"""Reads the columns and keys of Estuary Flow's collections from their specifications.

The option ``collection`` reads a collection's journals. :class:`FlowCollection` adds the structure of the
documents::

    orders = FlowCollection.from_spec("acmeCo/orders", json.load(open("orders.json")))
    rows = (
        spark.readStream.format("gazette").schema(orders.schema)
        .option("collection", orders.name).option("auth.tokenFile", "/run/secrets/estuary")
        .option("stateLocation", "/checkpoints/orders-state").option("startingOffsets", "earliest")
        .load()
    )
    sink = DeltaSink("orders", table="orders", upsert=orders.upsert)
    sink.start(orders.rows(rows), checkpoint="/checkpoints/orders")
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark program uses
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DoubleType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from gazette_spark._delta.upsert import Upsert
from gazette_spark.errors import InputError
from gazette_spark.strict_json import unescaped_pointer

ORIGIN = {"_journal": StringType(), "_ack_offset": LongType(), "_offset": LongType()}
"""Columns that determine which of a key's rows is the last one."""

DELETED = "_deleted"
"""Column that :meth:`FlowCollection.rows` adds, which says whether the document deletes its key."""

MAX_TYPES = 10_000
"""Maximum number of columns and fields."""

WORDS: dict[str, DataType] = {"boolean": BooleanType(), "integer": LongType(), "number": DoubleType()}
"""Spark types of the JSON schema types that have exactly one."""

TEXT_FORMATS: dict[str, DataType] = {"date-time": TimestampType(), "date": DateType()}
"""Spark types of string formats with a separate type."""


@dataclass(frozen=True, slots=True)
class FlowCollection:
    """The structure of a collection's documents in Spark."""

    name: str
    """Name of the collection, for the option ``collection``."""
    schema: StructType
    """Columns of the documents, all of them nullable, and of their position in the journals."""
    key: tuple[str, ...]
    """The collection's key, as JSON pointers such as "/id"."""

    @classmethod
    def from_spec(cls, name: str, spec: Mapping[str, Any]) -> FlowCollection:
        """Read a collection's specification.

        Args:
            name: Name of the collection.
            spec: The collection's specification as Estuary's tools print it, with ``key``, and with
                ``schema`` or with ``readSchema`` and ``writeSchema``. References to other files must be
                inlined.

        Raises:
            InputError: the specification has no key or no schema, or a part of it is malformed.
        """
        key = spec.get("key")
        pointers = [part for part in key if isinstance(part, str)] if isinstance(key, list) else []
        if not pointers or pointers != key or not all(part.startswith("/") for part in pointers):
            raise InputError(f"collection {name!r}: its key is not a list of JSON pointers, such as ['/id']")
        read_schema = spec.get("readSchema", spec.get("schema", spec.get("writeSchema")))
        if not isinstance(read_schema, dict):
            raise InputError(f"collection {name!r}: it has neither schema nor readSchema")
        try:
            document = _Schemas(name, read_schema, spec.get("writeSchema")).type_of([read_schema])
        except RecursionError:
            raise InputError(f"collection {name!r}: its schema is nested too deeply") from None
        if not isinstance(document, StructType):
            raise InputError(f"collection {name!r}: its documents are not objects with properties")
        origin = [StructField(column, kind) for column, kind in ORIGIN.items()]
        collection = cls(name, StructType([*document.fields, *origin]), tuple(pointers))
        for pointer in pointers:
            collection._path_of(pointer)
        return collection

    @property
    def upsert(self) -> Upsert:
        """Setting with which :class:`~gazette_spark.DeltaSink` keeps the last document of each key.

        It is for the rows of :meth:`rows`. Documents with the operation ``d`` in ``/_meta/op`` delete their
        key.
        """
        return Upsert(
            [_key_column(pointer) for pointer in self.key],
            delete_when=DELETED if self._has_operations else None,
            leave_out=tuple(ORIGIN),
        )

    def rows(self, df: DataFrame) -> DataFrame:
        """Return documents with the columns that :attr:`upsert` needs.

        Args:
            df: Rows with the columns of :attr:`schema`.

        Returns:
            The same rows, with a column for each key inside an object, named by its path such as
            "customer/id", and with ``_deleted`` if documents name their operation.
        """
        for pointer in self.key:
            column = _key_column(pointer)
            if column not in df.columns:
                path = (f"`{part.replace('`', '``')}`" for part in self._path_of(pointer))
                df = df.withColumn(column, F.col(".".join(path)))
        if self._has_operations:
            df = df.withColumn(DELETED, F.coalesce(F.col("`_meta`.`op`") == "d", F.lit(False)))  # noqa: FBT003
        return df

    @property
    def _has_operations(self) -> bool:
        meta = self.schema["_meta"].dataType if "_meta" in self.schema.names else None
        return isinstance(meta, StructType) and "op" in meta.names

    def _path_of(self, pointer: str) -> list[str]:
        """Return the names that lead to a part of the key."""
        kind: DataType = self.schema
        parts = [unescaped_pointer(part) for part in pointer[1:].split("/")]
        for part in parts:
            if not isinstance(kind, StructType) or part not in kind.names:
                raise InputError(f"collection {self.name!r}: its schema lacks {pointer}, a part of its key")
            kind = kind[part].dataType
        return parts


def _key_column(pointer: str) -> str:
    return unescaped_pointer(pointer[1:])


class _Schemas:
    """The JSON schema of a collection, and the schemas to which it refers."""

    def __init__(self, name: str, root: Mapping[str, Any], write_schema: object) -> None:
        self._name, self._write_schema = name, write_schema
        self._definitions = root.get("$defs", root.get("definitions", {}))
        self._types = 0

    def type_of(self, schemas: Sequence[object], within: frozenset[str] = frozenset()) -> DataType:
        """Return the Spark type of values that match all schemas; text if there is no other type.

        Args:
            schemas: The schemas.
            within: References that led to the schemas. A reference that leads to itself describes a tree,
                which is stored as text.
        """
        self._types += 1
        if self._types > MAX_TYPES:
            # With repeated references, even a short schema can describe any number of columns.
            raise self._error(f"its schema describes more than {MAX_TYPES} columns and fields")
        references: set[str] = set()
        parts = [part for schema in schemas for part in self._all_of(schema, references)]
        if references & within:
            return StringType()
        inner = within | references
        # The types that all of them allow, without null; none if no schema names a type.
        allowed: set[str] | None = None
        for part in parts:
            kinds = part.get("type")
            if kinds is None and "properties" in part:
                kinds = "object"
            if kinds is not None:
                types = {str(kind) for kind in (kinds if isinstance(kinds, list) else [kinds])}
                allowed = types if allowed is None else allowed & types
        words = (allowed or set()) - {"null"}
        if words == {"object"}:
            return self._object(parts, inner)
        if words == {"array"}:
            items = [part["items"] for part in parts if isinstance(part.get("items"), dict)]
            return ArrayType(self.type_of(items, inner) if items else StringType())
        if words == {"string"}:
            formats = [str(part.get("format")) for part in parts]
            text_type = next((TEXT_FORMATS[name] for name in formats if name in TEXT_FORMATS), StringType())
            is_base64 = any(part.get("contentEncoding") == "base64" for part in parts)
            return BinaryType() if is_base64 else text_type
        if words == {"integer", "number"}:
            return DoubleType()
        return WORDS[words.pop()] if len(words) == 1 and words <= WORDS.keys() else StringType()

    def _object(self, parts: Sequence[Mapping[str, Any]], within: frozenset[str]) -> DataType:
        properties: dict[str, list[object]] = {}
        for part in parts:
            described = part.get("properties", {})
            if not isinstance(described, dict):
                raise self._error("'properties' in its schema is not an object")
            for name, schema in described.items():
                properties.setdefault(name, []).append(schema)
        if properties:
            fields = [(name, self.type_of(schemas, within)) for name, schemas in properties.items()]
            return StructType([StructField(name, kind) for name, kind in fields])
        values = [part["additionalProperties"] for part in parts if "additionalProperties" in part]
        described_values = [schema for schema in values if isinstance(schema, dict)]
        if described_values:
            return MapType(StringType(), self.type_of(described_values, within))
        return StringType()

    def _all_of(self, schema: object, references: set[str]) -> Iterator[Mapping[str, Any]]:
        """Yield a schema and all others that also apply; add the references that led there."""
        if isinstance(schema, bool):
            return
        if not isinstance(schema, dict):
            raise self._error(f"a part of its schema is not an object: {str(schema)[:80]!r}")
        yield schema
        reference = schema.get("$ref")
        if reference is not None and not isinstance(reference, str):
            raise self._error("its schema has a $ref that is not text")
        if reference is not None and reference not in references:
            references.add(reference)
            name = unescaped_pointer(reference.removeprefix("#/$defs/").removeprefix("#/definitions/"))
            if isinstance(self._definitions, dict) and name in self._definitions:
                referred = self._definitions[name]
            elif reference == "flow://write-schema" and self._write_schema is not None:
                referred = self._write_schema
            elif reference.startswith("flow://"):
                referred = {}  # A schema that has not been inferred yet allows any value.
            else:
                raise self._error(f"its schema refers to {reference[:80]!r}, which it does not contain")
            yield from self._all_of(referred, references)
        parts = schema.get("allOf", [])
        for part in parts if isinstance(parts, list) else [parts]:
            yield from self._all_of(part, references)

    def _error(self, problem: str) -> InputError:
        return InputError(f"collection {self._name!r}: {problem}")
