"""Write heads of many journals in one event loop.

A question for a head has one answer, so it can be a call of gRPC's asyncio kind, which takes 0.2 ms of a
processor where a call on a thread takes 0.45. The loop, its thread and its connections live for one round of
questions: they cost some milliseconds, so nothing is kept, and a caller's loop is not disturbed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial

import grpc

from gazette_spark.client._transport.channel import Connection
from gazette_spark.errors import GazetteError, UnavailableError
from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.protocol.tokens import Capability, journal_claims

Ask = grpc.aio.UnaryUnaryMultiCallable[pb.ReadRequest, pb.ReadResponse | None]

READ = "/protocol.Journal/Read"


def ask_many(
    dial: Callable[[str], Connection],
    journals: Sequence[str],
    request: Callable[[str], pb.ReadRequest],
    head_of: Callable[[Connection, str, pb.ReadResponse], int],
    *,
    in_flight: int,
    timeout_s: float,
) -> Mapping[str, int]:
    """Return the write heads of the journals whose calls succeed.

    Args:
        dial: gives each journal's connection, when its turn comes.
        journals: without a repetition.
        request: returns the question about a journal.
        head_of: returns the head in an answer, or raises the answer's error.
        in_flight: calls open at a time.
        timeout_s: deadline of each call.
    """
    rounds = _Round(dial, request, head_of, in_flight, timeout_s)
    with ThreadPoolExecutor(1, thread_name_prefix="gazette-heads") as thread:
        return thread.submit(asyncio.run, rounds.run(journals)).result()


@dataclass(eq=False, slots=True)
class _Round:
    """Questions under way in one event loop."""

    dial: Callable[[str], Connection]
    request: Callable[[str], pb.ReadRequest]
    head_of: Callable[[Connection, str, pb.ReadResponse], int]
    in_flight: int
    timeout_s: float
    asks: dict[Connection, Ask] = field(default_factory=dict)
    heads: dict[str, int] = field(default_factory=dict)

    async def run(self, journals: Sequence[str]) -> Mapping[str, int]:
        """Ask for all, each asker taking the next one when it has an answer."""
        left = iter(journals)
        async with AsyncExitStack() as channels:
            askers = [self._ask_next(left, channels) for _ in range(min(self.in_flight, len(journals)))]
            await asyncio.gather(*askers)
        return self.heads

    async def _ask_next(self, left: Iterator[str], channels: AsyncExitStack) -> None:
        for journal in left:
            try:
                self.heads[journal] = await self._head(journal, channels)
            except GazetteError:
                continue  # The caller asks again, for as long as it takes.

    async def _head(self, journal: str, channels: AsyncExitStack) -> int:
        connection = self.dial(journal)
        ask = await self._asker(connection, channels)
        metadata = connection.metadata(partial(journal_claims, Capability.READ, journal))
        with connection.errors():
            answer = await ask(self.request(journal), timeout=self.timeout_s, metadata=metadata)
        if answer is None:
            problem = f"journal {journal!r}: the stream ended with no answer"
            raise UnavailableError(connection.endpoint.text, problem)
        return self.head_of(connection, journal, answer)

    async def _asker(self, connection: Connection, channels: AsyncExitStack) -> Ask:
        if (ask := self.asks.get(connection)) is None:
            channel = await channels.enter_async_context(connection.new_async_channel())
            ask = self.asks[connection] = channel.unary_unary(
                READ,
                request_serializer=pb.ReadRequest.SerializeToString,
                response_deserializer=_parsed,
            )
        return ask


def _parsed(data: bytes | None) -> pb.ReadResponse | None:
    """Parse an answer. A broker that stops ends its streams without one and without an error.

    gRPC passes that on as None, and would log the traceback of a parser that does not take it.
    """
    return None if data is None else pb.ReadResponse.FromString(data)
