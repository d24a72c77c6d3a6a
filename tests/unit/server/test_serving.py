"""Tests that a server shares its concurrent calls among its clients."""

from __future__ import annotations

from contextlib import ExitStack
from itertools import count
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
