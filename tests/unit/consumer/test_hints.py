"""Tests that hints survive their store, rotate, and are refused if they are of another kind."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gazette_spark.consumer.recoverylog.hints import (
    FileHints,
    hints_from_bytes,
    hints_to_json,
    keep_recovered_hints,
    pick_hints,
)
from gazette_spark.errors import StoreFormatError
from gazette_spark.protocol import consumer_pb2 as pc
from gazette_spark.protocol import recoverylog_pb2 as pr

LOG = "recovery/log"
HINTS = pr.FSMHints(
    log=LOG,
    live_nodes=[
        pr.FnodeSegments(
            fnode=1 << 40,
            segments=[
                pr.Segment(
                    author=(1 << 32) - 1,
                    first_seq_no=1 << 40,
                    first_offset=1 << 60,
                    first_checksum=(1 << 32) - 1,
                    last_seq_no=1 << 41,
                )
            ],
        )
    ],
    properties=[pr.Property(path="/IDENTITY", content="one")],
)
AS_GO_WRITES_IT = (
    '{"log":"recovery/log","live_nodes":[{"fnode":1099511627776,"segments":[{"author":4294967295,'
    '"first_seq_no":1099511627776,"first_offset":1152921504606846976,"first_checksum":4294967295,'
    '"last_seq_no":2199023255552}]}],"properties":[{"path":"/IDENTITY","content":"one"}]}'
)


def numbered(number: int) -> pr.FSMHints:
    return pr.FSMHints(log=f"recovery/log/{number}")


def test_the_json_is_gos() -> None:
    """The JSON is that of Go's encoder, and both of Gazette's forms are read."""
    assert hints_to_json(HINTS).decode() == AS_GO_WRITES_IT
    assert hints_from_bytes(AS_GO_WRITES_IT.encode(), "key") == HINTS
    assert hints_from_bytes(HINTS.SerializeToString(), "key") == HINTS
    empty = b'{"log":"recovery/log","live_nodes":null,"properties":null}'
    assert hints_from_bytes(empty, "key") == pr.FSMHints(log=LOG)


@pytest.mark.parametrize(
    "value", [b"{", b"[]", b"", b'{"log":5}', b'{"live_nodes":[]}', b"\xff\xff"], ids=repr
)
def test_what_is_no_hints_is_refused(value: bytes) -> None:
    with pytest.raises(StoreFormatError, match="some/key: it contains no hints"):
        hints_from_bytes(value, "some/key")


def test_a_folder_keeps_hints(tmp_path: Path) -> None:
    """Another process never sees a partly written file."""
    kept = FileHints(tmp_path / "hints")
    assert kept.get("/gazette/hints/a/shard.primary") is None
    assert len(kept) == 0
    kept["/gazette/hints/a/shard.primary"] = HINTS
    kept["/gazette/hints/a/shard.backup.0"] = numbered(0)
    again = FileHints(tmp_path / "hints")
    assert dict(again) == {
        "/gazette/hints/a/shard.primary": HINTS,
        "/gazette/hints/a/shard.backup.0": numbered(0),
    }
    long = "/gazette/hints/" + "\U00010400" * 120 + ".primary"
    kept[long] = HINTS
    assert (again[long], long in list(again)) == (HINTS, True)
    del again["/gazette/hints/a/shard.primary"], again[long]
    assert "/gazette/hints/a/shard.primary" not in kept
    with pytest.raises(KeyError):
        del kept["/gazette/hints/a/shard.primary"]
    stored = (tmp_path / "hints/gazette/hints/a/shard.backup.0").read_text()
    assert json.loads(stored.partition("\n")[2])["log"] == "recovery/log/0"


def test_damaged_hints_are_left_aside(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    kept = FileHints(tmp_path)
    kept["/a.primary"], kept["/a.backup.0"] = HINTS, numbered(0)
    (tmp_path / "a.primary").write_bytes((tmp_path / "a.primary").read_bytes().replace(b"511", b"512"))
    assert kept.get("/a.primary") is None
    assert kept["/a.backup.0"] == numbered(0)
    assert "hints.damaged key=/a.primary" in caplog.text


@pytest.mark.parametrize("key", ["/../outside", "", "/"], ids=repr)
def test_keys_stay_in_the_folder(tmp_path: Path, key: str) -> None:
    with pytest.raises(ValueError, match="expected a key of hints"):
        FileHints(tmp_path / "hints")[key] = HINTS


def test_backups_move_up() -> None:
    """The newest recovery becomes the first backup, and only the oldest one is dropped."""
    keys = ["0", "1", "2"]
    kept: dict[str, pr.FSMHints] = {"unrelated": HINTS}
    for number in range(5):
        keep_recovered_hints(kept, keys, numbered(number))
    assert [kept[key] for key in keys] == [numbered(4), numbered(3), numbered(2)]
    del kept["1"]
    keep_recovered_hints(kept, keys, numbered(5))
    # The gap is filled, and later backups stay in place.
    assert [kept[key] for key in keys] == [numbered(5), numbered(4), numbered(2)]
    keep_recovered_hints(kept, [], numbered(6))
    assert kept["unrelated"] == HINTS


def test_the_primarys_hints_come_first() -> None:
    stored = pc.GetHintsResponse(backup_hints=[{}, {"hints": {"log": LOG}}])
    assert pick_hints(pc.GetHintsResponse(backup_hints=[{}]), LOG) == pr.FSMHints(log=LOG)
    assert pick_hints(stored, LOG) == pr.FSMHints(log=LOG)
    stored.primary_hints.hints.CopyFrom(HINTS)
    assert pick_hints(stored, LOG) == HINTS
    with pytest.raises(StoreFormatError, match="the shard's is 'other/log'"):
        pick_hints(stored, "other/log")
