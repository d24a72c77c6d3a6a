"""Names, durations and trees of journals agree with slow and obvious versions, and round trip."""

from __future__ import annotations

import posixpath
import re
import unicodedata
from typing import cast

from google.protobuf.duration_pb2 import Duration
from hypothesis import given, settings
from hypothesis import strategies as st

from gazette_spark.errors import ProtocolError
from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.protocol.durations import format_duration, parse_duration
from gazette_spark.protocol.journal_specs import journal_spec, validate_journal_name
from gazette_spark.protocol.journal_yaml import format_journal_yaml, parse_journal_yaml
from gazette_spark.protocol.labels import label_set
from tests.rig.examples import examples

NEAR_NAMES = st.one_of(
    st.text("ab/.;=% é", max_size=12),
    st.lists(st.sampled_from(["a", "bc", ".", "..", "...", "", "é", "x" * 250]), max_size=6).map("/".join),
    st.text(max_size=12),
)
"""Texts that are valid journal names, or nearly so."""


def is_clean_path(text: str, least: int) -> bool:
    """Return whether a text is, by the letter of the rules, a path of ``least`` to 512 bytes."""
    for character in text:
        if unicodedata.category(character)[0] not in "LN" and character not in "-_+/.=%":
            return False
    if not least <= len(text.encode()) <= 512:
        return False
    dots = text == ".." or text.startswith("../")
    return posixpath.normpath(text) == text and not text.startswith("/") and not dots and text != "."


@settings(max_examples=examples(100), deadline=None)
@given(NEAR_NAMES)
def test_names(text: str) -> None:
    """A name is valid if it is a clean path, and so is everything after its first semicolon."""
    journal, semicolon, meta = text.partition(";")
    expected = is_clean_path(journal, 4) and (not semicolon or is_clean_path(meta, 1))
    try:
        validate_journal_name(text, allow_meta=True)
        accepted = True
    except ProtocolError:
        accepted = False
    assert accepted == expected


@settings(deadline=None)
@given(st.integers(-(2**63), 2**63 - 1))
def test_durations_round_trip(nanoseconds: int) -> None:
    duration = Duration()
    duration.FromNanoseconds(nanoseconds)
    text = format_duration(duration)
    assert parse_duration(text) == duration
    assert re.fullmatch(r"-?[0-9.]+[a-z\u00b5]+([0-9]+m)?([0-9.]+s)?", text)


PARTS = st.sampled_from(["aaa", "aaa-b", "aaab", "b.c", "ünï", "007", "true"])
TREE_NAMES = (
    st.lists(PARTS, min_size=1, max_size=4).map("/".join).filter(lambda name: len(name.encode()) >= 4)
)
LABELS = st.dictionaries(
    st.sampled_from(["app", "tag", "zone"]),
    st.one_of(st.just([""]), st.lists(st.sampled_from(["yes", "1e3", "007", "x/y=z"]), min_size=1)),
)


@st.composite
def changes(draw: st.DrawFn, name: str) -> pb.ApplyRequest.Change:
    """Draw a valid change of a journal, out of few values so that journals share them."""
    if draw(st.integers(0, 9)) == 0:
        return pb.ApplyRequest.Change(delete=name, expect_mod_revision=draw(st.sampled_from([-1, 7])))
    spec = journal_spec(
        name,
        labels=label_set(draw(LABELS)),
        replication=draw(st.sampled_from([1, 3])),
        length=draw(st.sampled_from([1024, 2**34])),
        codec=draw(st.sampled_from(["NONE", "GZIP"])),
        stores=draw(st.sampled_from([(), ("s3://bucket/",), ("s3://bucket/", "file:///x/")])),
        refresh_interval_s=draw(st.sampled_from([1, 1.5, 3661])),
        flush_interval_s=draw(st.sampled_from([0, 60])),
        retention_s=draw(st.sampled_from([0, -1, 720 * 3600])),
        path_postfix_template=draw(st.sampled_from(["", 'd={{ .Spool.FirstAppendTime.Format "15" }}'])),
        flags=draw(st.sampled_from([0, 1, 2, 4])),
        max_append_rate=draw(st.sampled_from([0, 1 << 40])),
    )
    if draw(st.booleans()):
        level = draw(st.sampled_from(pb.JournalSpec.Suspend.Level.values()))
        spec.suspend.level = cast(pb.JournalSpec.Suspend.Level, level)
        spec.suspend.offset = draw(st.integers(1, 2**63 - 1))
    return pb.ApplyRequest.Change(upsert=spec, expect_mod_revision=draw(st.sampled_from([-1, 0, 12])))


@settings(deadline=None)
@given(st.data(), st.sets(TREE_NAMES, min_size=1, max_size=8))
def test_trees_round_trip(data: st.DataObject, names: set[str]) -> None:
    asked = [data.draw(changes(name)) for name in names]
    in_order = sorted(asked, key=lambda change: change.delete or change.upsert.name)
    assert parse_journal_yaml(format_journal_yaml(asked)) == in_order
