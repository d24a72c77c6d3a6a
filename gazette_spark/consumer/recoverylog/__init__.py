"""Recovery logs: the files of a shard's store, kept in a journal, so that they move between hosts.

A host plays the log of a shard with a :class:`Player`, hands it over to itself, and continues with a
:class:`Recorder`. The format is Gazette's: logs, hints and stores are shared with consumers in Go.

What is promised, and why it holds:

- *A recorded operation is replayed, or none after it is.* Operations form a chain by sequence number and
  checksum (:mod:`gazette_spark.consumer.recoverylog.fsm`). Appends that are retried repeat operations, and a
  repetition does not fit the chain.
- *One recorder.* Each append checks the register ``author``, and a hand-off changes it
  (:mod:`gazette_spark.consumer.recoverylog.player`).
- *Lost bytes are noticed.* Hints are compared with the log's write head before anything is read.
"""

from gazette_spark.consumer.recoverylog.fsm import FSM as FSM
from gazette_spark.consumer.recoverylog.fsm import Segment as Segment
from gazette_spark.consumer.recoverylog.fsm import Verdict as Verdict
from gazette_spark.consumer.recoverylog.fsm import add_segment as add_segment
from gazette_spark.consumer.recoverylog.fsm import live_log_segments as live_log_segments
from gazette_spark.consumer.recoverylog.operations import fence_of as fence_of
from gazette_spark.consumer.recoverylog.operations import new_author as new_author
from gazette_spark.consumer.recoverylog.player import Player as Player
from gazette_spark.consumer.recoverylog.player import Recovered as Recovered
from gazette_spark.consumer.recoverylog.recorder import Operations as Operations
from gazette_spark.consumer.recoverylog.recorder import RecordedFile as RecordedFile
from gazette_spark.consumer.recoverylog.recorder import RecordedFiles as RecordedFiles
from gazette_spark.consumer.recoverylog.recorder import Recorder as Recorder
