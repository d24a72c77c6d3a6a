"""A client of Gazette brokers: :class:`Client`, its readers and appenders. Loads gRPC."""

from gazette_spark.client.append import Appender, AppendResult
from gazette_spark.client.append_service import AppendService, AsyncAppend
from gazette_spark.client.client import Client
from gazette_spark.client.credentials import TlsOptions
from gazette_spark.client.fragments import Chunk
from gazette_spark.client.list import ListedFragment, StoreHealth
from gazette_spark.client.retry_reader import RetryReader
from gazette_spark.client.snapshots import Listing, ListingChange
from gazette_spark.client.watch import PolledList, WatchedList

__all__ = [
    "AppendResult",
    "AppendService",
    "Appender",
    "AsyncAppend",
    "Chunk",
    "Client",
    "ListedFragment",
    "Listing",
    "ListingChange",
    "PolledList",
    "RetryReader",
    "StoreHealth",
    "TlsOptions",
    "WatchedList",
]
