"""The statuses a consumer answers with: one class each, named as on the wire."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from gazette_spark.errors.base import GazetteError


@dataclass(eq=False)
class ShardStatusError(GazetteError):
    """A consumer answered with a status other than OK. Each status has its own subclass below."""

    status: ClassVar[str] = ""
    """Name of the status on the wire."""
    advice: ClassVar[str] = ""

    shard: str
    """Id of the shard, or of several, separated by commas."""

    def __str__(self) -> str:
        advice = f". {self.advice}" if self.advice else ""
        return f"shard {self.shard!r}: {self.status}{advice}"


class ShardNotFoundError(ShardStatusError):
    """No such shard, or the caller's token does not cover it."""

    status = "SHARD_NOT_FOUND"
    advice = "Check the id; a token that does not cover the shard gets the same answer"


class NoShardPrimaryError(ShardStatusError):
    """The shard has no primary at the moment, or is disabled."""

    status = "NO_SHARD_PRIMARY"
    retryable = True


class NotShardPrimaryError(ShardStatusError):
    """The consumer asked is not the shard's primary and did not pass the call on."""

    status = "NOT_SHARD_PRIMARY"
    retryable = True


class ShardTransactionFailedError(ShardStatusError):
    """A spec, or an assignment, changed since it was read; nothing was applied."""

    status = "ETCD_TRANSACTION_FAILED"
    advice = "List the shards again and repeat with their present revisions"


class ShardStoppedError(ShardStatusError):
    """The shard failed, or its assignment ended, before the call was answered."""

    status = "SHARD_STOPPED"
    advice = "`gazette-spark shards list` shows why; after `unassign` it starts again"


def shard_status_errors() -> dict[str, type[ShardStatusError]]:
    """Return the error class of each status name."""
    return {cls.status: cls for cls in ShardStatusError.__subclasses__()}
