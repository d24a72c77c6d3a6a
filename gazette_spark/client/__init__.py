"""Reads, lists and appends to journals through Gazette brokers, with :class:`Client`. Imports gRPC."""

from gazette_spark.client._append.append import Appender as Appender
from gazette_spark.client._append.append import AppendOptions as AppendOptions
from gazette_spark.client._append.append import AppendResult as AppendResult
from gazette_spark.client._append.service import AppendService as AppendService
from gazette_spark.client._append.service import AsyncAppend as AsyncAppend
from gazette_spark.client._list.listing import ListedFragment as ListedFragment
from gazette_spark.client._list.listing import Listing as Listing
from gazette_spark.client._list.listing import ListingChange as ListingChange
from gazette_spark.client._list.listing import StoreHealth as StoreHealth
from gazette_spark.client._list.watch import PolledList as PolledList
from gazette_spark.client._list.watch import WatchedList as WatchedList
from gazette_spark.client._read.chunks import Chunk as Chunk
from gazette_spark.client._read.fragment import FragmentReader as FragmentReader
from gazette_spark.client._read.fragment_urls import open_fragment_url as open_fragment_url
from gazette_spark.client._read.gaps import FragmentGap as FragmentGap
from gazette_spark.client._read.reader import Reader as Reader
from gazette_spark.client._read.reader import RetryReader as RetryReader
from gazette_spark.client._transport.credentials import TlsOptions as TlsOptions
from gazette_spark.client.client import Client as Client
from gazette_spark.protocol.journal_specs import journal_spec as journal_spec
from gazette_spark.protocol.labels import parse_selector as parse_selector
from gazette_spark.protocol.tokens import Capability as Capability
from gazette_spark.protocol.tokens import Claims as Claims
from gazette_spark.protocol.tokens import KeySet as KeySet
