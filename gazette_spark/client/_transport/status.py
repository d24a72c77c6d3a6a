"""Converts the statuses in brokers' responses to errors."""

from __future__ import annotations

from gazette_spark import errors
from gazette_spark.errors import OffsetNotYetAvailableError, ProtocolError, StatusError
from gazette_spark.protocol import protocol_pb2 as pb

_CLASSES = errors.status_errors()


def status_error(status: int, journal: str, detail: str = "") -> StatusError | ProtocolError:
    """Return the error of a status other than OK; a ProtocolError if the status is unknown."""
    if status not in pb.Status.values():
        return ProtocolError(f"journal {journal!r}", f"the broker answered with unknown status {status}")
    return _CLASSES[pb.Status.Name(pb.Status.ValueType(status))](journal, detail)


def check_status(status: int, journal: str, detail: str = "") -> None:
    """Raise an error if ``status`` is not OK."""
    if status != pb.OK:
        raise status_error(status, journal, detail)


def read_status_error(response: pb.ReadResponse, journal: str) -> StatusError | ProtocolError:
    """Return the error of a read response whose status is not OK."""
    if response.status == pb.OFFSET_NOT_YET_AVAILABLE:
        return OffsetNotYetAvailableError(journal, "", response.offset, response.write_head)
    return status_error(response.status, journal)
