"""The client and server classes of a service, made from its descriptor.

grpcio-tools writes the same as code, thirty lines for each method. The types are in ``*_pb2_grpc.pyi``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import grpc
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message_factory import GetMessageClass


def service_classes(service: ServiceDescriptor) -> tuple[type, type, Callable[[Any, grpc.Server], None]]:
    """Return the stub, the base of servicers, and the function that adds a servicer to a server."""
    methods = list(service.methods)

    def dial(self: object, channel: grpc.Channel) -> None:
        for method in methods:
            request, response = _messages(method)
            call = getattr(channel, _arity(method))(
                f"/{service.full_name}/{method.name}",
                request_serializer=request.SerializeToString,
                response_deserializer=response.FromString,
                _registered_method=True,
            )
            setattr(self, method.name, call)

    def add_to_server(servicer: object, server: Any) -> None:  # noqa: ANN401 - grpc's types lack a method
        handlers = {}
        for method in methods:
            request, response = _messages(method)
            handlers[method.name] = getattr(grpc, f"{_arity(method)}_rpc_method_handler")(
                getattr(servicer, method.name),
                request_deserializer=request.FromString,
                response_serializer=response.SerializeToString,
            )
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service.full_name, handlers),))
        server.add_registered_method_handlers(service.full_name, handlers)

    stub = type(f"{service.name}Stub", (), {"__init__": dial})
    servicer = type(f"{service.name}Servicer", (), {method.name: _unimplemented for method in methods})
    return stub, servicer, add_to_server


def _messages(method: MethodDescriptor) -> tuple[type[Any], type[Any]]:
    return GetMessageClass(method.input_type), GetMessageClass(method.output_type)


def _arity(method: MethodDescriptor) -> str:
    request, response = (
        "stream" if many else "unary" for many in (method.client_streaming, method.server_streaming)
    )
    return f"{request}_{response}"


def _unimplemented(_self: object, _request: object, context: grpc.ServicerContext) -> NoReturn:
    context.set_code(grpc.StatusCode.UNIMPLEMENTED)
    context.set_details("Method not implemented!")
    raise NotImplementedError("Method not implemented!")
