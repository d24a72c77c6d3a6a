"""A recovery log keeps what any hints refer to, and all behind it."""

from __future__ import annotations

import pytest

from gazette_spark.consumer.pruning import LiveSegments, is_live, live_segments
from gazette_spark.errors import ProtocolError
from gazette_spark.protocol import consumer_pb2 as pc
from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.protocol import recoverylog_pb2 as pr
from gazette_spark.protocol.fragments import Fragment

LOG, FORK = "logs/shard-1", "logs/shard-2"

Segments = list[tuple[int, int, int]]
"""First sequence number, first offset and last offset of segments, each of one operation and one author."""


def hints(segments: Segments, log: str = LOG, before: Segments = (), author: int = 1) -> pr.FSMHints:  # type: ignore[assignment]
    """Return hints of a log, with a file for each segment; those before are of ``LOG``."""
    nodes = [
        pr.FnodeSegments(
            fnode=number,
            segments=[
                pr.Segment(
                    author=author,
                    first_seq_no=number,
                    last_seq_no=number,
                    first_offset=first,
                    last_offset=last,
                    log="" if where == log else where,
                )
            ],
        )
        for where, each in ((LOG, before), (log, segments))
        for number, first, last in each
    ]
    return pr.FSMHints(log=log, live_nodes=nodes)


def response(primary: pr.FSMHints | None, *backups: pr.FSMHints | None) -> pc.GetHintsResponse:
    """Return the hints of a shard."""
    return pc.GetHintsResponse(
        primary_hints={"hints": primary}, backup_hints=[{"hints": each} for each in backups]
    )


def dead(live: LiveSegments, log: str = LOG) -> list[int]:
    """Return the begins of fragments of ten bytes, up to 100, that may go."""
    digest = bytes(20)
    fragments = [Fragment(log, at, at + 10, digest, pb.NONE, "file:///", 1) for at in range(0, 100, 10)]
    return [each.begin for each in fragments if not is_live(each, live.segments[log])]


def test_what_hints_refer_to_is_kept() -> None:
    """Fragments before, and between, live segments go; all from the last one on stay."""
    live = LiveSegments()
    live.add(LOG, response(hints([(3, 25, 31), (7, 60, 65)])))
    assert live.prunable() == [LOG]
    assert dead(live) == [0, 10, 40, 50]


def test_backups_keep_more() -> None:
    """What only the hints of an earlier recovery refer to stays, too."""
    live = LiveSegments()
    live.add(LOG, response(hints([(9, 80, 85)]), hints([(7, 55, 0)]), hints([(5, 40, 45)])))
    assert dead(live) == [0, 10, 20, 30]


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        pytest.param(response(None, hints([(1, 0, 5)])), "has not written all its hints", id="no primary"),
        pytest.param(response(hints([(1, 0, 5)]), None), "has not written all its hints", id="no backup"),
        pytest.param(response(hints([])), "no live files", id="no files"),
    ],
)
def test_a_log_with_hints_missing_is_left_alone(found: pc.GetHintsResponse, reason: str) -> None:
    """Whatever other hints say."""
    live = LiveSegments()
    live.add(LOG, found)
    assert live.prunable() == []
    assert reason in live.skipped[LOG]


def test_a_fork_keeps_its_origin() -> None:
    """A log goes on in another one: hints of that one refer to both."""
    live = LiveSegments()
    live.add(LOG, response(hints([(9, 80, 85)])))
    live.add(FORK, response(hints([(5, 10, 15)], FORK, before=[(3, 20, 29)])))
    assert dead(live) == [0, 10, 30, 40, 50, 60, 70]
    assert dead(live, FORK) == [0]


def test_contradicting_hints_are_refused() -> None:
    """Nothing is concluded from hints that cannot be true."""
    with pytest.raises(ProtocolError):
        live_segments(hints([(3, 25, 31), (7, 20, 22)]))
