"""Hangs a broker: calls are accepted and get no response until it is released."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import grpc


class FreezeInterceptor(grpc.ServerInterceptor):  # type: ignore[type-arg]  # it is generic in the stubs only
    """Every call passes it at the start, and at each message. Any thread may open and shut it."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._is_shut = False

    def __repr__(self) -> str:
        return f"FreezeInterceptor(shut={self._is_shut})"

    @property
    def is_shut(self) -> bool:
        return self._is_shut

    def shut(self) -> None:
        """Hold every call where it is."""
        with self._changed:
            self._is_shut = True

    def open(self) -> None:
        with self._changed:
            self._is_shut = False
            self._changed.notify_all()

    def intercept_service(self, continuation: Callable[..., Any], details: Any) -> Any:
        """Wrap a call's handler with the freezer."""
        handler = continuation(details)
        if handler is None:
            return None
        coders = handler.request_deserializer, handler.response_serializer
        if handler.request_streaming and handler.response_streaming:
            return grpc.stream_stream_rpc_method_handler(self._stream_stream(handler.stream_stream), *coders)
        if handler.request_streaming:
            return grpc.stream_unary_rpc_method_handler(self._stream_unary(handler.stream_unary), *coders)
        if handler.response_streaming:
            return grpc.unary_stream_rpc_method_handler(self._unary_stream(handler.unary_stream), *coders)
        return grpc.unary_unary_rpc_method_handler(self._unary_unary(handler.unary_unary), *coders)

    def _pass(self, context: grpc.ServicerContext) -> None:
        if not self._is_shut:
            return
        context.add_callback(self._wake)
        with self._changed:
            self._changed.wait_for(lambda: not self._is_shut or not context.is_active())

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _through(self, messages: Iterator[Any], context: grpc.ServicerContext) -> Iterator[Any]:
        for message in messages:
            self._pass(context)
            yield message
        self._pass(context)

    def _unary_unary(self, handle: Callable[..., Any]) -> Callable[..., Any]:
        def gated(request: Any, context: grpc.ServicerContext) -> Any:
            self._pass(context)
            response = handle(request, context)
            self._pass(context)
            return response

        return gated

    def _unary_stream(self, handle: Callable[..., Any]) -> Callable[..., Iterator[Any]]:
        def gated(request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
            self._pass(context)
            yield from self._through(handle(request, context), context)

        return gated

    def _stream_unary(self, handle: Callable[..., Any]) -> Callable[..., Any]:
        def gated(requests: Iterator[Any], context: grpc.ServicerContext) -> Any:
            self._pass(context)
            response = handle(self._through(requests, context), context)
            self._pass(context)
            return response

        return gated

    def _stream_stream(self, handle: Callable[..., Any]) -> Callable[..., Iterator[Any]]:
        def gated(requests: Iterator[Any], context: grpc.ServicerContext) -> Iterator[Any]:
            self._pass(context)
            yield from self._through(handle(self._through(requests, context), context), context)

        return gated
