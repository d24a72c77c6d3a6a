"""A client of Gazette brokers: :class:`Client`, its readers and appenders. Loads gRPC."""

from gazette_spark.client.appending.append import Appender, AppendOptions, AppendResult
from gazette_spark.client.appending.async_append import AsyncAppend
from gazette_spark.client.appending.service import AppendService
from gazette_spark.client.client import Client
from gazette_spark.client.connection.credentials import TlsOptions
from gazette_spark.client.listing.listings import ListedFragment, StoreHealth
from gazette_spark.client.listing.snapshots import Listing, ListingChange
from gazette_spark.client.listing.watch import PolledList, WatchedList
from gazette_spark.client.reading.chunks import Chunk
from gazette_spark.client.reading.fragment_urls import open_fragment_url
from gazette_spark.client.reading.fragments import FragmentReader
from gazette_spark.client.reading.gaps import FragmentGap
from gazette_spark.client.reading.reader import Reader
from gazette_spark.client.reading.retry_reader import RetryReader

__all__ = [
    "AppendOptions",
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
