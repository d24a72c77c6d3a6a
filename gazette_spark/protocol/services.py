"""Creates the client and server classes of a service from its descriptor.

This replaces the code of grpcio-tools, thirty lines per method. The types are in ``*_pb2_grpc.pyi``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import grpc
from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.message_factory import GetMessageClass


def service_classes(service: ServiceDescriptor) -> tuple[type, type, Callable[[Any, grpc.Server], None]]:
    """Return the stub, the servicers' base class, and the function that adds a servicer to a server."""
    methods = []
    for method in service.methods:
        request, response = (
            "stream" if many else "unary" for many in (method.client_streaming, method.server_streaming)
        )
        classes = GetMessageClass(method.input_type), GetMessageClass(method.output_type)
        methods.append((method.name, f"{request}_{response}", *classes))

    def dial(self: object, channel: grpc.Channel) -> None:
        for name, arity, request, response in methods:
            call = getattr(channel, arity)(
                f"/{service.full_name}/{name}",
                request_serializer=request.SerializeToString,
                response_deserializer=response.FromString,
                # As in generated code: gRPC then looks the method up once per channel instead of per call.
                _registered_method=True,
            )
            setattr(self, name, call)

    def add_to_server(servicer: object, server: Any) -> None:  # noqa: ANN401 - grpc's types lack a method
        handlers = {}
        for name, arity, request, response in methods:
            handlers[name] = getattr(grpc, f"{arity}_rpc_method_handler")(
                getattr(servicer, name),
                request_deserializer=request.FromString,
                response_serializer=response.SerializeToString,
            )
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service.full_name, handlers),))
        server.add_registered_method_handlers(service.full_name, handlers)

    stub = type(f"{service.name}Stub", (), {"__init__": dial})
    servicer = type(f"{service.name}Servicer", (), {name: _unimplemented for name, *_ in methods})
    return stub, servicer, add_to_server


def _unimplemented(_self: object, _request: object, context: grpc.ServicerContext) -> NoReturn:
    context.set_code(grpc.StatusCode.UNIMPLEMENTED)
    context.set_details("Method not implemented!")
    raise NotImplementedError("Method not implemented!")
