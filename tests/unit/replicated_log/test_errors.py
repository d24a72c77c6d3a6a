"""Tests that the log's errors say what to do and survive pickling."""

from __future__ import annotations

import pickle

import pytest

from gazette_spark import errors

ERRORS = {
    "another version": (errors.InvalidVersionError("a/log", 1, 2), r"at version 2, not 1: .*take_over\("),
    "another author": (errors.LogFencedError("a/log", "b2"), "writer b2 has .*make a new Writer"),
    "no author": (errors.LogFencedError("a/log", ""), "brokers were lost.*that one primary is left"),
    "pending": (
        errors.PendingEntryError("a/log", 1.5, "it is pending"),
        "waited 1.5 s without success: it is pending",
    ),
    "out of order": (errors.CheckpointStateError("a/log", "no"), "no. `with writer.checkpointing"),
    "the end": (errors.NoMoreMessageError("a/log", 9), "the log ends at offset 9"),
    "nothing in time": (errors.FetchTimeoutError("a/log", 9, 0.5), "no entry at offset 9 within 0.5 s"),
    "cancelled": (errors.FetchCancelledError("a/log", 9), "the fetch at offset 9 was cancelled"),
    "a gap": (errors.LogDataLossError("a/log", 3, 7), "at offset 3 are gone; .* at 7.*set_offset"),
    "a log cut short": (
        errors.LogDataLossError("a/log", 7, 3),
        "up to offset 7, but it ends at 3. The journal's primary confirms it",
    ),
    "a log that may be cut short": (
        errors.LogDataLossError("a/log", 7, 3, "no token"),
        "ends at 3. This is not confirmed: no token. A failover of brokers can cause it",
    ),
}


@pytest.mark.parametrize(("error", "text"), ERRORS.values(), ids=list(ERRORS))
def test_an_error_survives_pickling(error: errors.GazetteError, text: str) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert str(copy) == str(error)
    with pytest.raises(errors.GazetteError, match=f"journal 'a/log': .*{text}"):
        raise copy


@pytest.mark.parametrize("name", ["pending", "nothing in time"])
def test_timeouts_are_timeouts(name: str) -> None:
    """Callers may catch Python's own TimeoutError."""
    with pytest.raises(TimeoutError):
        raise ERRORS[name][0]
