"""Runs Gazette's consumer applications in Python: shards, stores, transactions.

An :class:`~gazette_spark.consumer.application.Application` consumes the committed messages of journals, keeps
state in a store, and publishes messages to other journals. Each input message counts once in the state and in
the published messages, regardless of failures. Three hosts run the same application: ``LocalHost`` in one
process, the members of a cluster in Etcd, and a query on Spark.

Names are imported on first use, so that importing the package imports neither gRPC nor Spark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gazette_spark._exports import lazy_exports

if TYPE_CHECKING:
    from gazette_spark.consumer.application import Application as Application
    from gazette_spark.consumer.application import BeginFinisher as BeginFinisher
    from gazette_spark.consumer.application import DeferToNextTransaction as DeferToNextTransaction
    from gazette_spark.consumer.application import JsonMessage as JsonMessage
    from gazette_spark.consumer.application import JsonStore as JsonStore
    from gazette_spark.consumer.application import KeyedApplication as KeyedApplication
    from gazette_spark.consumer.application import Progress as Progress
    from gazette_spark.consumer.application import Resolution as Resolution
    from gazette_spark.consumer.application import ResolveArgs as ResolveArgs
    from gazette_spark.consumer.application import Shard as Shard
    from gazette_spark.consumer.application import ShardHost as ShardHost
    from gazette_spark.consumer.application import ShardListing as ShardListing
    from gazette_spark.consumer.application import Store as Store
    from gazette_spark.consumer.assignments import RestartPolicy as RestartPolicy
    from gazette_spark.consumer.local import LocalHost as LocalHost
    from gazette_spark.consumer.service import ShardServer as ShardServer
    from gazette_spark.consumer.spark import SparkHost as SparkHost
    from gazette_spark.consumer.spark import start as start
    from gazette_spark.consumer.specs import shard_spec as shard_spec

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        "application": (
            "Application",
            "BeginFinisher",
            "DeferToNextTransaction",
            "JsonMessage",
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
        "assignments": ("RestartPolicy",),
        "service": ("ShardServer",),
        "spark": ("SparkHost", "start"),
        "specs": ("shard_spec",),
    },
)
