"""docs/evidence/parity.md has every exported name of the Go packages, and its statements are correct."""

from __future__ import annotations

import importlib
import inspect
import re
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "evidence" / "parity.md"


def words(text: str) -> list[str]:
    return text.split()


GO_CLIENT = words(
    """
Append ApplyJournals ApplyJournalsInBatches GetJournal InstallFileTransport ListAllFragments ListAllJournals
AppendService NewAppendService AppendService.PendingExcept AppendService.StartAppend Appender NewAppender
Appender.Abort Appender.Close Appender.Reset Appender.Write Appender.Request Appender.Response AsyncAppend
AsyncAppend.Done AsyncAppend.Err AsyncAppend.Release AsyncAppend.Request AsyncAppend.Require
AsyncAppend.Response AsyncAppend.Writer AsyncJournalClient AsyncOperation NewAsyncOperation
AsyncOperation.Done AsyncOperation.Err AsyncOperation.Resolve FragmentReader NewFragmentReader
OpenFragmentURL FragmentReader.Close FragmentReader.Read FragmentReader.Fragment FragmentReader.Offset
OpFuture FinishedOperation OpFutures OpFutures.IsSubsetOf PolledList NewPolledList PolledList.List
PolledList.UpdateCh Reader NewReader Reader.AdjustedOffset Reader.Read Reader.Seek Reader.Request
Reader.Response RetryReader NewRetryReader RetryReader.AdjustedOffset RetryReader.AdjustedSeek
RetryReader.Cancel RetryReader.Client RetryReader.Context RetryReader.Journal RetryReader.Offset
RetryReader.Read RetryReader.Reader RetryReader.Restart RetryReader.Seek RouteCache NewRouteCache
RouteCache.IsNoopRouter RouteCache.Route RouteCache.UpdateRoute ErrNotJournalBroker
ErrNotJournalPrimaryBroker ErrOffsetNotYetAvailable ErrRegisterMismatch ErrWrongAppendOffset
ErrInsufficientJournalBrokers ErrOffsetJump ErrSeekRequiresNewReader ErrDidNotReadExpectedEOF
"""
)
"""Exports of package broker/client in v0.89, including fields."""

GO_CLIENT_SINCE = words(
    """
WatchedList NewWatchedList WatchedList.List WatchedList.UpdateCh ReadListResponse FragmentStoreHealth
ErrJournalNotFound ErrNoJournalPrimaryBroker ErrSuspended ErrIndexHasGreaterOffset ErrNotAllowed
ErrFragmentStoreUnhealthy
"""
)
"""Additional exports of package broker/client in v0.103."""

GO_BROKER = words(
    """
MaxAppendRate MinAppendRate ErrFlowControlUnderflow JournalIsConsistent JournalRouteMatchesAssignments
NewKeySpace SetSharedPersister Service NewService Service.Append Service.Apply Service.IsNoopRouter
Service.List Service.ListFragments Service.QueueTasks Service.Read Service.Replicate Service.Route
Service.UpdateRoute
"""
)
"""Exports of package broker in v0.89."""

BROKER_SINCE = ["Service.FragmentStoreHealth"]

GO_MESSAGE = words(
    """
AckIntent BuildUUID CSVFrameable CSVRecord Clock Clock.AsTime Clock.Tick Clock.Update
EncodeFixedProtoFrame Envelope ErrDesyncDetected ErrEmptyListResponse FixedFrameHeaderLength
FixedFrameWord Flag_ACK_TXN Flag_CONTINUE_TXN Flag_OUTSIDE_TXN Flags Flags.String Frameable Framing
FramingByContentType GetClock GetFlags GetProducerID Iterator IteratorFunc IteratorFunc.Next
JSONMarshalerTo JournalProducer Mappable MappingFunc MappingKeyFunc Message ModuloMapping NewClock
NewMessageFunc NewProducerID NewPublisher NewReadCommittedIter NewReadUncommittedIter NewSequencer
PartitionsFunc ProducerID ProducerState ProtoFrameable Publisher Publisher.BuildAckIntents
Publisher.ProducerID Publisher.PublishCommitted Publisher.PublishUncommitted QueueAckCommitReplay
QueueAckCommitRing QueueAckEmpty QueueAckRollback QueueContinueAlreadyAcked QueueContinueBeginSpan
QueueContinueExtendSpan QueueContinueTxnClockLarger QueueOutcome QueueOutcome.String
QueueOutsideAlreadyAcked QueueOutsideCommit RandomMapping ReadCommittedIter ReadCommittedIter.Next
ReadUncommittedIter ReadUncommittedIter.Next RegisterFraming RendezvousMapping Sequencer
Sequencer.Checkpoint Sequencer.Dequeued Sequencer.HasPending Sequencer.QueueUncommitted
Sequencer.ReplayRange Sequencer.StartReplay Sequencer.Step UUID UnmarshalFunc UnpackFixedFrame UnpackLine
Validator
"""
)
"""Exports of package message in v0.103."""

GO_LOG = words(
    """
File_journal_proto NewZKEventCancelContext Checkpoint Checkpoint.Descriptor Checkpoint.GetLastEntryOffset
Checkpoint.GetNextEntryOffset Checkpoint.ProtoMessage Checkpoint.ProtoReflect Checkpoint.Reset
Checkpoint.String InvalidVersionError NewInvalidVersionError InvalidVersionError.Error NoMoreMessageError
NoMoreMessageError.Error Receiver NewReceiver Receiver.FetchEntry Receiver.SetOffset Receiver.TryFetchEntry
Writer NewWriter Writer.Checkpoint Writer.CommitEntry Writer.ExitCheckpoint Writer.PrepareCheckpoint
"""
)
"""Exports of the package for a log on Kafka that ``replicated_log`` replaces."""

GO_CONSUMER = [
    f"consumer.{name}"
    for name in words(
        """
Application Application.ConsumeMessage Application.FinalizeTxn Application.NewMessage Application.NewStore
ApplyRequest ApplyRequest.Validate ApplyRequest_Change ApplyRequest_Change.Validate ApplyResponse
ApplyResponse.Validate ApplyShards ApplyShardsInBatches BeginFinisher BeginFinisher.BeginTxn
BeginFinisher.FinishTxn ConsumerSpec ConsumerSpec.ItemLimit ConsumerSpec.MarshalString ConsumerSpec.Validate
ConsumerSpec.ZeroLimit ErrDeferToNextTransaction ErrIntOverflowConsumer ErrInvalidLengthConsumer
ExtractShardSpecMetaLabels FetchHints JSONFileStore.FetchJournalOffsets JSONFileStore.Flush
JSONFileStore.Recorder JSONFileStore.State ListRequest ListRequest.Validate ListResponse
ListResponse.Validate ListResponse_Shard ListResponse_Shard.Validate ListShards MessageProducer NewKeySpace
NewReplica NewResolver NewRocksDBStore NewRoutedShardClient NewService NewShardClient RegisterShardServer
Replica Replica.Assignment Replica.Context Replica.JournalClient Replica.Spec ReplicaStatus
ReplicaStatus.MarshalString ReplicaStatus.Reduce ReplicaStatus.Validate ReplicaStatus_BACKFILL
ReplicaStatus_Code ReplicaStatus_Code.Validate ReplicaStatus_Code_name ReplicaStatus_Code_value
ReplicaStatus_FAILED ReplicaStatus_IDLE ReplicaStatus_PRIMARY ReplicaStatus_TAILING Resolution
Resolution.Done Resolution.Header Resolution.Shard Resolution.Spec Resolution.Status Resolution.Store
ResolveArgs ResolveArgs.Context ResolveArgs.MayProxy ResolveArgs.ProxyHeader ResolveArgs.ShardID Resolver
Resolver.Resolve Resolver.ShardsWithSource Resolver.WaitForLocalReplicas RocksDBStore RocksDBStore.Cache
RocksDBStore.DB RocksDBStore.Destroy RocksDBStore.Env RocksDBStore.FetchJournalOffsets RocksDBStore.Flush
RocksDBStore.Open RocksDBStore.Options RocksDBStore.ReadOptions RocksDBStore.Recorder
RocksDBStore.WriteBatch RocksDBStore.WriteOptions RoutedShardClient Service Service.Apply Service.GetHints
Service.Journals Service.List Service.Loopback Service.Resolver Service.Stat Service.State Service.Unassign
Shard Shard.Assignment Shard.Context Shard.FQN Shard.JournalClient Shard.PrimaryLoop Shard.Progress
Shard.Spec ShardClient ShardClient.Apply ShardClient.List ShardClient.Stat ShardID ShardID.Validate
ShardServer ShardServer.Apply ShardServer.List ShardServer.Stat ShardSpec ShardSpec.DesiredReplication
ShardSpec.IsConsistent ShardSpec.MarshalString ShardSpec.Validate ShardSpec_Source ShardSpec_Source.Validate
StatRequest StatRequest.Validate StatResponse StatResponse.Validate StatShard Status Status.Validate
Status_ETCD_TRANSACTION_FAILED Status_NOT_SHARD_PRIMARY Status_NO_SHARD_PRIMARY Status_OK
Status_SHARD_NOT_FOUND Status_SHARD_STOPPED Status_name Status_value Store Store.Destroy
Store.FetchJournalOffsets Store.Flush Store.Recorder Store.RestoreCheckpoint Store.StartCommit
VerifyReferencedJournals
"""
    )
]
"""Exports of package consumer in v2.0 and v0.103, including fields, except those in the next two lists."""

GO_STORES = words("JSONFileStore JSONFileStore.Destroy NewJSONFileStore SQLStore")
"""Stores of package consumer, whose rows are beside those of recovery logs."""

GO_CONSUMER_MESSAGES = [
    f"consumer.Message.{name}"
    for name in words(
        """
Marshal MarshalTo Unmarshal Reset String Descriptor ProtoSize XXX_Marshal XXX_Merge XXX_Size
XXX_Unmarshal XXX_DiscardUnknown ProtoMessage EnumDescriptor
"""
    )
]
"""Methods of each message and enum of package consumer."""

GO_BURROW = [
    f"burrow.{name}"
    for name in words(
        """
ApplicationContext ConsumerGroupStatus ConsumerOffset ConsumerPartition ConsumerPartitions ConsumerTopics
Coordinator EvaluatorRequest Module PartitionStatus StatusConstant StatusConstant.MarshalJSON
StatusConstant.MarshalText StatusConstant.String StatusError StatusNotFound StatusOK StatusRewind StatusStall
StatusStop StatusWarning StorageClearConsumerOwners StorageFetchClusters StorageFetchConsumer
StorageFetchConsumers StorageFetchConsumersForTopic StorageFetchTopic StorageFetchTopics StorageRequest
StorageRequestConstant StorageRequestConstant.MarshalJSON StorageRequestConstant.MarshalText
StorageRequestConstant.String StorageSetBrokerOffset StorageSetConsumerOffset StorageSetConsumerOwner
StorageSetDeleteGroup StorageSetDeleteTopic ZookeeperClient ZookeeperLock
"""
    )
]
"""Exports of package protocol in Burrow v1.0."""

WORKS, PARTLY, MISSING = "works", "partly", "missing"
"""Coverage by a counterpart: full, partial or none."""

LEAST_REASON = 20
"""Minimum characters of a row that explains why a counterpart is missing and what to use instead."""


@dataclass(frozen=True)
class Row:
    """A line of a table: a Go name, its counterpart, the degree of parity, and the proof or the reason."""

    go: str
    state: str
    counterpart: str
    """Cell with the names of the counterpart."""
    python: tuple[str, ...]
    tests: tuple[str, ...]
    text: str


def rows() -> list[Row]:
    found = []
    for line in PAGE.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 4 and (name := re.fullmatch(r"`([\w.]+)`", cells[0])):
            python = tuple(re.findall(r"`([\w.]+)`", cells[2]))
            tests = tuple(re.findall(r"`([\w/]+\.py)`", cells[3]))
            found.append(Row(name[1], cells[1], cells[2], python, tests, cells[3]))
    return found


ROWS = rows()


def resolve(name: str) -> object:
    """Return the object of a dotted name below ``gazette_spark``; an attribute of instances counts."""
    parts = name.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            found: object = importlib.import_module(".".join(["gazette_spark", *parts[:cut]]))
        except ModuleNotFoundError:
            continue
        for attribute in parts[cut:]:
            if not hasattr(found, attribute) and is_set_by_constructor(found, attribute):
                return found
            found = getattr(found, attribute)
        return found
    raise AttributeError(name)


def is_set_by_constructor(owner: object, attribute: str) -> bool:
    """Return whether a class's own source assigns an attribute of its instances."""
    if not inspect.isclass(owner):
        return False
    fields = getattr(owner, "__dataclass_fields__", {})
    return (
        attribute in fields or re.search(rf"self\.{attribute}\b.* = ", inspect.getsource(owner)) is not None
    )


@pytest.mark.parametrize(
    "expected",
    [
        GO_CLIENT,
        GO_CLIENT_SINCE,
        GO_BROKER,
        BROKER_SINCE,
        GO_MESSAGE,
        GO_LOG,
        GO_CONSUMER,
        GO_STORES,
        GO_CONSUMER_MESSAGES,
        GO_BURROW,
    ],
    ids=[
        "client",
        "client-since",
        "broker",
        "broker-since",
        "message",
        "replicated-log",
        "consumer",
        "stores",
        "consumer-messages",
        "burrow",
    ],
)
def test_every_go_name_has_a_row(expected: list[str]) -> None:
    assert sorted(set(expected) - {row.go for row in ROWS}) == []


def test_no_name_has_two_rows() -> None:
    names = [row.go for row in ROWS]
    assert sorted({name for name in names if names.count(name) > 1}) == []


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.go)
def test_a_row_is_true(row: Row) -> None:
    if row.state == MISSING:
        assert not row.python
        assert len(row.text) >= LEAST_REASON
        return
    assert row.state in (WORKS, PARTLY)
    assert row.python
    # A limit is named in brackets, or after the names.
    assert row.state == WORKS or re.search(r"[(,]", row.counterpart)
    for name in row.python:
        resolve(name)
    assert row.tests
    for path in row.tests:
        assert (ROOT / path).is_file(), path


@cache
def uses_in_package() -> Counter[str]:
    """Return how often each word occurs in the package, without generated modules."""
    paths = [path for path in (ROOT / "gazette_spark").rglob("*.py") if "_pb2" not in path.name]
    return Counter(word for path in paths for word in re.findall(r"\w+", path.read_text()))


def is_reached(name: str, public: Collection[str]) -> bool:
    """Return whether users reach a name: it is public or generated, or the package uses it or its class."""
    *_, owner, last = name.split(".")
    words_of = [last, owner] if owner[:1].isupper() else [last]
    return name.startswith("protocol.") or any(
        word in public or uses_in_package()[word] > 1 for word in words_of
    )


def test_no_row_is_for_what_only_tests_call() -> None:
    """A function that only tests call is not a counterpart."""
    public = set(re.findall(r"\w+", (ROOT / "docs" / "reference" / "public_names.txt").read_text()))
    names = {name for row in ROWS for name in row.python}
    assert sorted(name for name in names if not is_reached(name, public)) == []
    assert not is_reached("client.nobody_calls_this", public)


def test_a_wrong_row_would_be_found() -> None:
    for name in ("client.nowhere", "client.Client.nowhere", "nowhere"):
        with pytest.raises(AttributeError):
            resolve(name)
    resolve("client.Client.endpoint")
