"""A collection of Estuary Flow, read from a stand-in control plane and a broker that requires keys.

A table of the collection is kept by key, and the query outlives its broker tokens. In every run,
``tests/unit/planning/test_collection_tokens.py`` tests the tokens and ``tests/unit/test_flow.py`` the
columns.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from gazette_spark import Client, DeltaSink, EmbeddedBroker, FlowCollection
from gazette_spark.client import AppendService, journal_spec
from gazette_spark.errors import AuthError
from gazette_spark.message import Publisher
from gazette_spark.protocol.labels import CONTENT_TYPE, CONTENT_TYPE_NDJSON
from tests.rig.brokers import DeployedBroker
from tests.rig.control_plane import USER_TOKEN, ControlPlane, running_control_plane
from tests.rig.messages import Document
from tests.rig.secured import KEYS
from tests.spark.source_queries import QUERY_TIMEOUT_S
from tests.waiting import wait_until

pytestmark = pytest.mark.soak

PREFIX = "acmeCo/orders/0f1e2d3c4b5a/"
"""Prefix in Flow's style: the collection, and the publication that created it."""

SPEC = {
    "key": ["/customer/id", "/number"],
    "schema": {
        "type": "object",
        "properties": {
            "customer": {"type": "object", "properties": {"id": {"type": "integer"}}},
            "number": {"type": "integer"},
            "state": {"type": ["string", "null"]},
            "_meta": {"properties": {"op": {"type": "string"}, "uuid": {"type": "string"}}},
        },
    },
}


class Change(Document):
    """A document of a change capture."""

    def __bytes__(self) -> bytes:
        return json.dumps(
            self.fields | {"_meta": {"op": self.fields["_meta"]["op"], "uuid": str(self.stamp)}}
        ).encode()


def change(op: str, customer: int, number: int, state: str) -> Change:
    return Change({"customer": {"id": customer}, "number": number, "state": state, "_meta": {"op": op}})


@dataclass
class Collection:
    """The collection, its location, and access to it."""

    plane: ControlPlane
    client: Client

    def publish(self, *changes: Change) -> None:
        with AppendService(self.client, timeout_s=30) as service:
            publisher = Publisher(service)
            for document in changes:
                publisher.publish_uncommitted(lambda _: (f"{PREFIX}pivot=00", CONTENT_TYPE_NDJSON), document)
            for intent in publisher.build_ack_intents():
                service.append(intent.journal, intent.intent)

    def refuses(self, token: str) -> bool:
        """Return whether the broker no longer accepts a token."""
        with Client(self.client.endpoint, token=token, timeout_s=10) as stranger:
            try:
                stranger.list_journals("name=no/such")
            except AuthError:
                return True
            return False


@pytest.fixture(params=["embedded", pytest.param("deployed", marks=pytest.mark.deployed_broker)])
def collection(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Collection]:
    """Run a broker that requires tokens, and a control plane whose tokens are valid for four seconds."""
    directory = tmp_path / "broker"
    made = EmbeddedBroker(directory, auth_keys=KEYS) if request.param == "embedded" else None
    with (
        made or DeployedBroker(directory, auth_keys=KEYS) as broker,
        Client(broker.endpoint, auth_keys=KEYS, timeout_s=30) as client,
        running_control_plane(broker.endpoint, KEYS, orders=PREFIX) as plane,
    ):
        plane.lifetime_s = 4.0
        labels = {CONTENT_TYPE: CONTENT_TYPE_NDJSON}
        client.create_journals(
            journal_spec(f"{PREFIX}pivot=00", labels=labels),
            journal_spec("acmeCo/orders/eu/1a2b/pivot=00", labels=labels),
        )
        yield Collection(plane, client)


def test_a_collection_becomes_a_table_of_its_keys(
    spark: SparkSession, collection: Collection, tmp_path: Path
) -> None:
    """Only committed documents count: the last one of each key, unless it is deleted."""
    orders = FlowCollection.from_spec("acmeCo/orders", SPEC)
    reader = spark.readStream.format("gazette").schema(orders.schema).option("collection", orders.name)
    reader = reader.option("controlPlane", collection.plane.url).option("auth.token", USER_TOKEN)
    reader = reader.option("stateLocation", str(tmp_path / "states")).option("startingOffsets", "earliest")
    sink = DeltaSink("orders", path=str(tmp_path / "table"), upsert=orders.upsert)

    def table() -> list[tuple[int, int, str]]:
        rows = spark.read.format("delta").load(str(tmp_path / "table"))
        ordered = rows.select("`customer/id`", "number", "state").orderBy("`customer/id`", "number").collect()
        return [tuple(row) for row in ordered]

    collection.publish(change("c", 1, 1, "new"), change("c", 1, 2, "new"), change("u", 1, 1, "paid"))
    query = sink.start(orders.rows(reader.load()), checkpoint=str(tmp_path / "checkpoint"))
    try:

        def committed(count: int) -> bool:
            assert query.isActive, query.exception()
            progress = [one for one in query.recentProgress if one["numInputRows"]]
            return len(progress) >= count

        wait_until("the first batch", lambda: committed(1), QUERY_TIMEOUT_S)
        assert table() == [(1, 1, "paid"), (1, 2, "new")]
        first = collection.plane.tokens[0]
        wait_until("the first token to expire", lambda: collection.refuses(first), QUERY_TIMEOUT_S)
        collection.publish(change("d", 1, 1, "paid"), change("c", 2, 1, "new"))
        wait_until("the second batch", lambda: committed(2), QUERY_TIMEOUT_S)
    finally:
        query.stop()
    assert table() == [(1, 2, "new"), (2, 1, "new")]
    assert set(collection.plane.users) == {f"Bearer {USER_TOKEN}"}
