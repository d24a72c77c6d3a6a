"""Gazette's consumer applications in Python: shards, stores, transactions.

An :class:`~gazette_spark.consumer.application.Application` consumes the committed messages of journals, keeps
state in a store, and publishes messages to other journals: each input counts once in the state and in what is
published, whatever fails. Two hosts run the same application: ``LocalHost`` in one process, and a query on
Spark.

Names are loaded when they are asked for, so that importing the package loads neither gRPC nor Spark.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gazette_spark.consumer.application import (
        Application,
        BeginFinisher,
        DeferToNextTransaction,
        JsonStore,
        KeyedApplication,
        Progress,
        Resolution,
        ResolveArgs,
        Shard,
        ShardHost,
        ShardListing,
        Store,
    )
    from gazette_spark.consumer.local import LocalHost

__all__ = [
    "Application",
    "BeginFinisher",
    "DeferToNextTransaction",
    "JsonStore",
    "KeyedApplication",
    "LocalHost",
    "Progress",
    "Resolution",
    "ResolveArgs",
    "Shard",
    "ShardHost",
    "ShardListing",
    "Store",
]

_MODULES = {
    "application": (
        "Application",
        "BeginFinisher",
        "DeferToNextTransaction",
        "JsonStore",
        "KeyedApplication",
        "Progress",
        "Resolution",
        "ResolveArgs",
        "Shard",
        "ShardHost",
        "ShardListing",
        "Store",
    ),
    "local": ("LocalHost",),
}
_HOME = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
