"""The error tree.

Everything the package raises on purpose is a :class:`GazetteError`. An error holds its values as
attributes, survives pickling (Spark carries errors from executors to the driver), and says in its
text what happened, the values that show it, and the way out. Texts never hold a token, a key or a
signed URL: Spark shows them in full.
"""

from gazette_spark.errors.base import ClosedError as ClosedError
from gazette_spark.errors.base import DamagedFileError as DamagedFileError
from gazette_spark.errors.base import GazetteError as GazetteError
from gazette_spark.errors.base import InputError as InputError
from gazette_spark.errors.base import JsonError as JsonError
from gazette_spark.errors.base import MissingModuleError as MissingModuleError
from gazette_spark.errors.base import MissingPackageError as MissingPackageError
from gazette_spark.errors.base import MissingZonesError as MissingZonesError
from gazette_spark.errors.base import OptionError as OptionError
from gazette_spark.errors.base import ProtocolError as ProtocolError
from gazette_spark.errors.base import WatchUnsupportedError as WatchUnsupportedError
from gazette_spark.errors.broker_errors import AppendWaitError as AppendWaitError
from gazette_spark.errors.broker_errors import AuthError as AuthError
from gazette_spark.errors.broker_errors import BacklogError as BacklogError
from gazette_spark.errors.broker_errors import BrokerError as BrokerError
from gazette_spark.errors.broker_errors import BrokerRootError as BrokerRootError
from gazette_spark.errors.broker_errors import DependencyError as DependencyError
from gazette_spark.errors.broker_errors import FlowControlError as FlowControlError
from gazette_spark.errors.broker_errors import PartialApplyError as PartialApplyError
from gazette_spark.errors.broker_errors import TlsError as TlsError
from gazette_spark.errors.broker_errors import TokenError as TokenError
from gazette_spark.errors.broker_errors import UnavailableError as UnavailableError
from gazette_spark.errors.consumer_errors import ShardFailedError as ShardFailedError
from gazette_spark.errors.consumer_errors import SourceLossError as SourceLossError
from gazette_spark.errors.consumer_errors import TransactionOrderError as TransactionOrderError
from gazette_spark.errors.journal_errors import CorruptFragmentError as CorruptFragmentError
from gazette_spark.errors.journal_errors import DataLossError as DataLossError
from gazette_spark.errors.journal_errors import DirectReadError as DirectReadError
from gazette_spark.errors.journal_errors import EmptyListingError as EmptyListingError
from gazette_spark.errors.journal_errors import FragmentConflictError as FragmentConflictError
from gazette_spark.errors.journal_errors import FragmentStoreError as FragmentStoreError
from gazette_spark.errors.journal_errors import FragmentTooLongError as FragmentTooLongError
from gazette_spark.errors.journal_errors import FragmentTooShortError as FragmentTooShortError
from gazette_spark.errors.journal_errors import JournalRecreatedError as JournalRecreatedError
from gazette_spark.errors.journal_errors import MessageError as MessageError
from gazette_spark.errors.journal_errors import OffsetBeyondHeadError as OffsetBeyondHeadError
from gazette_spark.errors.journal_errors import OffsetError as OffsetError
from gazette_spark.errors.journal_errors import OffsetJumpError as OffsetJumpError
from gazette_spark.errors.journal_errors import OtherJournalsError as OtherJournalsError
from gazette_spark.errors.journal_errors import RecordError as RecordError
from gazette_spark.errors.journal_errors import RowError as RowError
from gazette_spark.errors.journal_errors import SeekRequiresNewReaderError as SeekRequiresNewReaderError
from gazette_spark.errors.journal_errors import SequencerError as SequencerError
from gazette_spark.errors.journal_errors import TransactionError as TransactionError
from gazette_spark.errors.log_errors import CheckpointStateError as CheckpointStateError
from gazette_spark.errors.log_errors import FetchCancelledError as FetchCancelledError
from gazette_spark.errors.log_errors import FetchTimeoutError as FetchTimeoutError
from gazette_spark.errors.log_errors import InvalidVersionError as InvalidVersionError
from gazette_spark.errors.log_errors import LogDataLossError as LogDataLossError
from gazette_spark.errors.log_errors import LogFencedError as LogFencedError
from gazette_spark.errors.log_errors import NoMoreMessageError as NoMoreMessageError
from gazette_spark.errors.log_errors import PendingEntryError as PendingEntryError
from gazette_spark.errors.recovery_errors import RecorderFencedError as RecorderFencedError
from gazette_spark.errors.recovery_errors import RecoveryLogLossError as RecoveryLogLossError
from gazette_spark.errors.recovery_errors import StoreFencedError as StoreFencedError
from gazette_spark.errors.recovery_errors import StoreFormatError as StoreFormatError
from gazette_spark.errors.shard_statuses import NoShardPrimaryError as NoShardPrimaryError
from gazette_spark.errors.shard_statuses import NotShardPrimaryError as NotShardPrimaryError
from gazette_spark.errors.shard_statuses import ShardNotFoundError as ShardNotFoundError
from gazette_spark.errors.shard_statuses import ShardStatusError as ShardStatusError
from gazette_spark.errors.shard_statuses import ShardStoppedError as ShardStoppedError
from gazette_spark.errors.shard_statuses import ShardTransactionFailedError as ShardTransactionFailedError
from gazette_spark.errors.shard_statuses import shard_status_errors as shard_status_errors
from gazette_spark.errors.sink_errors import BadRowError as BadRowError
from gazette_spark.errors.sink_errors import BatchMismatchError as BatchMismatchError
from gazette_spark.errors.sink_errors import ColumnProblem as ColumnProblem
from gazette_spark.errors.sink_errors import DeadLetterError as DeadLetterError
from gazette_spark.errors.sink_errors import FencedError as FencedError
from gazette_spark.errors.sink_errors import GapError as GapError
from gazette_spark.errors.sink_errors import LedgerFormatError as LedgerFormatError
from gazette_spark.errors.sink_errors import LedgerLostError as LedgerLostError
from gazette_spark.errors.sink_errors import Mismatch as Mismatch
from gazette_spark.errors.sink_errors import NoSpaceError as NoSpaceError
from gazette_spark.errors.sink_errors import OverlapError as OverlapError
from gazette_spark.errors.sink_errors import QueryCheckpointError as QueryCheckpointError
from gazette_spark.errors.sink_errors import RestoredError as RestoredError
from gazette_spark.errors.sink_errors import SchemaMismatchError as SchemaMismatchError
from gazette_spark.errors.sink_errors import SinkError as SinkError
from gazette_spark.errors.sink_errors import TableRefusedError as TableRefusedError
from gazette_spark.errors.sink_errors import TrimError as TrimError
from gazette_spark.errors.sink_errors import UpsertError as UpsertError
from gazette_spark.errors.statuses import EtcdTransactionFailedError as EtcdTransactionFailedError
from gazette_spark.errors.statuses import FragmentStoreUnhealthyError as FragmentStoreUnhealthyError
from gazette_spark.errors.statuses import IndexHasGreaterOffsetError as IndexHasGreaterOffsetError
from gazette_spark.errors.statuses import InsufficientJournalBrokersError as InsufficientJournalBrokersError
from gazette_spark.errors.statuses import JournalNotFoundError as JournalNotFoundError
from gazette_spark.errors.statuses import NoJournalPrimaryBrokerError as NoJournalPrimaryBrokerError
from gazette_spark.errors.statuses import NotAllowedError as NotAllowedError
from gazette_spark.errors.statuses import NotJournalBrokerError as NotJournalBrokerError
from gazette_spark.errors.statuses import NotJournalPrimaryBrokerError as NotJournalPrimaryBrokerError
from gazette_spark.errors.statuses import OffsetNotYetAvailableError as OffsetNotYetAvailableError
from gazette_spark.errors.statuses import ProposalMismatchError as ProposalMismatchError
from gazette_spark.errors.statuses import RegisterMismatchError as RegisterMismatchError
from gazette_spark.errors.statuses import StatusError as StatusError
from gazette_spark.errors.statuses import SuspendedError as SuspendedError
from gazette_spark.errors.statuses import WrongAppendOffsetError as WrongAppendOffsetError
from gazette_spark.errors.statuses import WrongRouteError as WrongRouteError
from gazette_spark.errors.statuses import status_errors as status_errors

__all__ = [
    "AppendWaitError",
    "AuthError",
    "BacklogError",
    "BadRowError",
    "BatchMismatchError",
    "BrokerError",
    "BrokerRootError",
    "CheckpointStateError",
    "ClosedError",
    "ColumnProblem",
    "CorruptFragmentError",
    "DamagedFileError",
    "DataLossError",
    "DeadLetterError",
    "DependencyError",
    "DirectReadError",
    "EmptyListingError",
    "EtcdTransactionFailedError",
    "FencedError",
    "FetchCancelledError",
    "FetchTimeoutError",
    "FlowControlError",
    "FragmentConflictError",
    "FragmentStoreError",
    "FragmentStoreUnhealthyError",
    "FragmentTooLongError",
    "FragmentTooShortError",
    "GapError",
    "GazetteError",
    "IndexHasGreaterOffsetError",
    "InputError",
    "InsufficientJournalBrokersError",
    "InvalidVersionError",
    "JournalNotFoundError",
    "JournalRecreatedError",
    "JsonError",
    "LedgerFormatError",
    "LedgerLostError",
    "LogDataLossError",
    "LogFencedError",
    "MessageError",
    "Mismatch",
    "MissingModuleError",
    "MissingPackageError",
    "MissingZonesError",
    "NoJournalPrimaryBrokerError",
    "NoMoreMessageError",
    "NoShardPrimaryError",
    "NoSpaceError",
    "NotAllowedError",
    "NotJournalBrokerError",
    "NotJournalPrimaryBrokerError",
    "NotShardPrimaryError",
    "OffsetBeyondHeadError",
    "OffsetError",
    "OffsetJumpError",
    "OffsetNotYetAvailableError",
    "OptionError",
    "OtherJournalsError",
    "OverlapError",
    "PartialApplyError",
    "PendingEntryError",
    "ProposalMismatchError",
    "ProtocolError",
    "QueryCheckpointError",
    "RecordError",
    "RecorderFencedError",
    "RecoveryLogLossError",
    "RegisterMismatchError",
    "RestoredError",
    "RowError",
    "SchemaMismatchError",
    "SeekRequiresNewReaderError",
    "SequencerError",
    "ShardFailedError",
    "ShardNotFoundError",
    "ShardStatusError",
    "ShardStoppedError",
    "ShardTransactionFailedError",
    "SinkError",
    "SourceLossError",
    "StatusError",
    "StoreFencedError",
    "StoreFormatError",
    "SuspendedError",
    "TableRefusedError",
    "TlsError",
    "TokenError",
    "TransactionError",
    "TransactionOrderError",
    "TrimError",
    "UnavailableError",
    "UpsertError",
    "WatchUnsupportedError",
    "WrongAppendOffsetError",
    "WrongRouteError",
    "shard_status_errors",
    "status_errors",
]
