"""A client of Gazette brokers: :class:`Client`, its readers and appenders. Loads gRPC."""

from gazette_spark.client.append import Appender, AppendResult
from gazette_spark.client.append_service import AppendService
from gazette_spark.client.async_append import AsyncAppend
from gazette_spark.client.chunks import Chunk
from gazette_spark.client.client import Client
from gazette_spark.client.credentials import TlsOptions
from gazette_spark.client.fragment_urls import open_fragment_url
from gazette_spark.client.fragments import FragmentReader
from gazette_spark.client.gaps import FragmentGap
from gazette_spark.client.list import ListedFragment, StoreHealth
from gazette_spark.client.reader import Reader
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
    "FragmentGap",
    "FragmentReader",
    "ListedFragment",
    "Listing",
    "ListingChange",
    "PolledList",
    "Reader",
    "RetryReader",
    "StoreHealth",
    "TlsOptions",
    "WatchedList",
    "open_fragment_url",
]
