"""Recovery logs: the files of a shard's store, kept in a journal, so that they move between hosts.

A host plays the log of a shard with a :class:`Player`, hands it over to itself, and goes on with a
:class:`Recorder`. The format is Gazette's: logs, hints and stores are shared with consumers in Go.

What is promised, and why it holds:

- *A recorded operation is replayed, or none after it is.* Operations form a chain by sequence number and
  checksum (:mod:`gazette_spark.consumer.recoverylog.fsm`). Appends that are retried repeat operations, and a
  repetition does not fit the chain.
- *One recorder.* Each append checks the register ``author``, and a hand-off changes it
  (:mod:`gazette_spark.consumer.recoverylog.player`).
- *Lost bytes are noticed.* Hints are compared with the log's write head before anything is read.
"""

from gazette_spark.consumer.recoverylog.files import RecordedFile, RecordedFiles
from gazette_spark.consumer.recoverylog.fsm import FSM, Verdict, live_log_segments
from gazette_spark.consumer.recoverylog.operations import fence_of, new_author
from gazette_spark.consumer.recoverylog.player import Player, Recovered
from gazette_spark.consumer.recoverylog.recorder import Operations, Recorder
from gazette_spark.consumer.recoverylog.segments import Segment, add_segment, intersect

__all__ = [
    "FSM",
    "Operations",
    "Player",
    "RecordedFile",
    "RecordedFiles",
    "Recorder",
    "Recovered",
    "Segment",
    "Verdict",
    "add_segment",
    "fence_of",
    "intersect",
    "live_log_segments",
    "new_author",
]
