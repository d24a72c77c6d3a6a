"""Replicates a primary to secondary nodes with a log on a journal.

The primary commits entries with a :class:`Writer`, and secondaries fetch them with a :class:`Receiver`, each
once and in the log's order. From time to time the primary writes a checkpoint, at which a node with a
snapshot can start. When a primary is gone, a secondary takes over the log: after that the old primary can
no longer append, even if it still runs.

The guarantees, and their reasons:

- *An acknowledged entry stays, and is fetched once.* Appends are retried until the broker answers, so an
  entry may be in the journal more than once. Each has a UUID whose clock increases along the log: a record
  whose clock is not above all earlier clocks of its writer is a repetition.
- *There is one primary.* Each append checks the journal's register ``author``, and a takeover changes it.
- *There is one history of checkpoints.* A checkpoint's append checks the register ``version`` and sets the
  next one.
- *The end of the log is known.* The receiver requests it from the journal's primary with an append without
  bytes, which no earlier append can overtake.
"""

from gazette_spark.errors import InvalidVersionError as InvalidVersionError
from gazette_spark.errors import NoMoreMessageError as NoMoreMessageError
from gazette_spark.protocol.replicated_log_pb2 import Checkpoint as Checkpoint
from gazette_spark.replicated_log._entries import MAX_ENTRY_BYTES as MAX_ENTRY_BYTES
from gazette_spark.replicated_log._receiver import Receiver as Receiver
from gazette_spark.replicated_log._receiver import cancel_on as cancel_on
from gazette_spark.replicated_log._writer import Writer as Writer
