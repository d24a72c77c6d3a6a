"""Tests that servers share their calls among clients, and end with their program."""

from __future__ import annotations

import subprocess
import sys
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import NoReturn, cast

import grpc
import pytest

from gazette_spark._server.serving import CallPlaces


class Refused(Exception):  # noqa: N818 - what gRPC raises in a handler has no public name
    """A call was ended."""


class Caller:
    """The part of a servicer context that ``CallPlaces`` uses."""

    def __init__(self, peer: str) -> None:
        self._peer = peer

    def peer(self) -> str:
        return self._peer

    def abort(self, code: grpc.StatusCode, details: str) -> NoReturn:
        raise Refused(code, details)


PORTS = count(40_000)


def caller(address: str) -> grpc.ServicerContext:
    return cast(grpc.ServicerContext, Caller(f"{address}:{next(PORTS)}"))


def test_a_client_gets_three_quarters_of_the_calls() -> None:
    places = CallPlaces(8, "calls")
    with ExitStack() as held:
        for _ in range(6):
            held.enter_context(places.hold(caller("ipv4:10.0.0.1")))
        with pytest.raises(Refused) as caught:
            held.enter_context(places.hold(caller("ipv4:10.0.0.1")))
        text = "at most 8 calls are served at a time, 6 of a client; try again"
        assert caught.value.args == (grpc.StatusCode.UNAVAILABLE, text)
        for _ in range(2):
            held.enter_context(places.hold(caller("ipv4:10.0.0.2")))
        with pytest.raises(Refused):
            held.enter_context(places.hold(caller("ipv4:10.0.0.3")))
    for _ in range(9):
        with places.hold(caller("ipv4:10.0.0.1")):
            pass


def test_a_network_of_ipv6_is_one_client() -> None:
    """A host can use any address of its /64 network."""
    places = CallPlaces(4, "calls")
    with ExitStack() as held:
        for last in (1, 2, 3):
            held.enter_context(places.hold(caller(f"ipv6:%5B2001:db8::{last}%5D")))
        with pytest.raises(Refused):
            held.enter_context(places.hold(caller("ipv6:%5B2001:db8::4%5D")))
        held.enter_context(places.hold(caller("ipv6:%5B2001:db8:0:1::1%5D")))


READING = """
client = Client(server.endpoint, timeout_s=1e6, idle_timeout_s=1e6)
client.create_journals(journal_spec("shop/orders"))
client.append("shop/orders", b"one")
reader = iter(client.read("shop/orders", block=True))
next(reader)
"""

FORGOTTEN = {
    "broker": "server = EmbeddedBroker.start(root)" + READING,
    "cluster": "server = EmbeddedBroker.start(root, replicas=3)" + READING,
    "consumer": """
server = ShardServer()
server.start(StillHost(server.endpoint))
client = ShardClient(server.endpoint, timeout_s=1e6)
client.apply([pc.ApplyRequest.Change(upsert=shard_spec("orders", ["shop/orders"]))])
stat = pc.StatRequest(shard="orders", read_through={"shop/orders": 10})
channel = grpc.insecure_channel(server.endpoint.removeprefix("http://"))
call = pc_grpc.ShardStub(channel).Stat.future(stat)
client.stat("orders")
""",
}
"""A program that does not stop its server, by server. A call of each program waits for an event."""


@pytest.mark.parametrize("kind", FORGOTTEN)
def test_a_program_ends_without_stopping_its_server(kind: str, tmp_path: Path) -> None:
    program = f"""
import grpc
from gazette_spark.broker import EmbeddedBroker
from gazette_spark.client import Client, journal_spec
from gazette_spark.consumer import ShardServer, shard_spec
from gazette_spark.consumer.client import ShardClient
from gazette_spark.protocol import consumer_pb2 as pc, consumer_pb2_grpc as pc_grpc
from tests.rig.still_host import StillHost
root = {str(tmp_path)!r}
{FORGOTTEN[kind]}
raise SystemExit("forgotten")
"""
    command = [sys.executable, "-c", program]
    ended = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stderr) == (1, "forgotten\n")
