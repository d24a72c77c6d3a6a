"""Records the files of a shard's store in a journal, a recovery log, so that they can move between hosts.

A host plays the log of a shard with a :class:`Player`, hands the log over to itself, and continues with a
:class:`Recorder`. The format is Gazette's, so logs, hints and stores can be shared with consumers in Go.

The guarantees, and their reasons:

- *If a recorded operation is not replayed, no later operation is.* Operations form a chain by sequence number
  and checksum (:mod:`gazette_spark.consumer.recoverylog.fsm`). Appends that are retried repeat operations,
  and a repetition does not fit the chain.
- *There is one recorder.* Each append checks the register ``author``, and a hand-off changes it
  (:mod:`gazette_spark.consumer.recoverylog.player`).
- *Lost bytes are detected.* Hints are compared with the log's write head before anything is read.
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
