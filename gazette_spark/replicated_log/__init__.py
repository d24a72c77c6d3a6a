"""A log by which secondary nodes replicate a primary, on a journal.

The primary commits entries with a :class:`Writer`, and secondaries fetch them with a :class:`Receiver`, each
once and in the log's order. From time to time the primary writes a checkpoint, where a node can start that
has a snapshot. When a primary is gone, a secondary takes the log over: from then on the old one, should it
still run, cannot append any more.

What is promised, and why it holds:

- *An acknowledged entry stays, and is fetched once.* Appends are retried until the broker answers, so an
  entry may be in the journal more than once. Each has a UUID whose clock grows along the log: a record whose
  clock is not above all before it, of its writer, is a repeat.
- *One primary.* Each append checks the journal's register ``author``, and a take-over changes it.
- *One history of checkpoints.* A checkpoint's append checks the register ``version`` and sets the next one.
- *The end of the log is known.* The receiver asks the journal's primary by an append without bytes, which no
  earlier append can overtake.
"""

from gazette_spark.errors import InvalidVersionError as InvalidVersionError
from gazette_spark.errors import NoMoreMessageError as NoMoreMessageError
from gazette_spark.protocol.replicated_log_pb2 import Checkpoint as Checkpoint
from gazette_spark.replicated_log._entries import MAX_ENTRY_BYTES as MAX_ENTRY_BYTES
from gazette_spark.replicated_log._receiver import Receiver as Receiver
from gazette_spark.replicated_log._receiver import cancel_on as cancel_on
from gazette_spark.replicated_log._writer import Writer as Writer
