"""Tests that journal names and specs follow Gazette's rules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gazette_spark.errors import ProtocolError
from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.protocol.journal_specs import (
    journal_spec,
    split_meta,
    validate_journal_name,
    validate_journal_spec,
    validate_store,
)


@pytest.mark.parametrize(
    "name",
    ["abcd", "a/journal", "é/é", "a/b=1/c=%41", "日本/part-00", "x" * 512, "..a/b..c/..."],
    ids=["shortest", "plain", "bytes count", "path symbols", "letters", "longest", "dots in names"],
)
def test_names(name: str) -> None:
    validate_journal_name(name)
    assert journal_spec(name).name == name


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        pytest.param("abc", "4 to 512 bytes, got 3", id="too short"),
        pytest.param("é" * 257, "4 to 512 bytes, got 514", id="too long in bytes"),
        pytest.param("a b/c", "' ' in", id="space"),
        pytest.param("a/j#1", "'#' in", id="key separator"),
        pytest.param("a/\x00bc", r"'\\x00' in", id="control character"),
        pytest.param("a/\ud800bc", "in 'a/", id="lone surrogate"),
        pytest.param("a/a\u0301bc", "in 'a/", id="combining mark"),
        pytest.param("/a/b", "cannot begin with '/'", id="rooted"),
        pytest.param("a//bc", "clean path", id="empty part"),
        pytest.param("abcd/", "clean path", id="trailing slash"),
        pytest.param("a/./b", "clean path", id="dot"),
        pytest.param("a/../b", "clean path", id="inner dots"),
        pytest.param("../abc", "clean path", id="leading dots"),
        pytest.param("abc/..", "clean path", id="trailing dots"),
        pytest.param("....;..", "metadata suffix", id="suffix"),
    ],
)
def test_name_rules(name: str, problem: str) -> None:
    with pytest.raises(ProtocolError, match=problem) as caught:
        validate_journal_name(name)
    assert caught.value.where == "Journal"


@pytest.mark.parametrize("meta", ["m", "a/b=1", "m" * 512])
def test_meta_suffix(meta: str) -> None:
    validate_journal_name(f"a/journal;{meta}", allow_meta=True)
    assert split_meta(f"a/journal;{meta}") == ("a/journal", f";{meta}")


def test_name_without_meta_suffix() -> None:
    assert split_meta("a/journal") == ("a/journal", "")


@pytest.mark.parametrize("meta", ["", "/m", "m/", "m//n", "m;n", "../m", "m" * 513])
def test_meta_suffix_rules(meta: str) -> None:
    with pytest.raises(ProtocolError) as caught:
        validate_journal_name(f"a/journal;{meta}", allow_meta=True)
    assert caught.value.where == "Journal.Meta"


def test_defaults_are_a_valid_spec() -> None:
    spec = journal_spec("a/journal")
    validate_journal_spec(spec)
    assert spec.replication == 1
    assert spec.fragment.length == 16 * 1024 * 1024
    assert spec.fragment.compression_codec == pb.SNAPPY
    assert list(spec.fragment.stores) == ["file:///"]
    assert spec.fragment.refresh_interval.seconds == 60
    assert spec.HasField("labels")
    assert spec.fragment.HasField("flush_interval")
    assert not spec.HasField("suspend")


def test_every_argument_reaches_the_spec() -> None:
    spec = journal_spec(
        "a/journal",
        labels={"app": ["b", "a"]},
        replication=3,
        length=1024,
        codec="GZIP",
        stores=["s3://bucket/"],
        refresh_interval_s=1.5,
        flush_interval_s=60,
        retention_s=7200,
        path_postfix_template="x={{ . }}",
        flags=pb.JournalSpec.O_RDONLY,
        max_append_rate=7,
    )
    assert [label.value for label in spec.labels.labels] == ["a", "b"]
    assert (spec.replication, spec.flags, spec.max_append_rate) == (3, 1, 7)
    fragment = spec.fragment
    assert (fragment.length, fragment.compression_codec, list(fragment.stores)) == (
        1024,
        pb.GZIP,
        ["s3://bucket/"],
    )
    assert (fragment.refresh_interval.seconds, fragment.refresh_interval.nanos) == (1, 500_000_000)
    assert (fragment.flush_interval.seconds, fragment.retention.seconds) == (60, 7200)
    assert fragment.path_postfix_template == "x={{ . }}"


def change(field: str, value: object) -> Callable[[pb.JournalSpec], None]:
    """Return a function that sets a field of a spec, given by its dotted path."""

    def apply(spec: pb.JournalSpec) -> None:
        *parents, name = field.split(".")
        message: object = spec
        for parent in parents:
            message = getattr(message, parent)
        if isinstance(value, list):
            del getattr(message, name)[:]
            getattr(message, name).extend(value)
        else:
            setattr(message, name, value)

    return apply


@pytest.mark.parametrize(
    ("field", "value", "where"),
    [
        ("name", "a/journal;meta", "name"),
        ("replication", 0, "replication"),
        ("replication", 6, "replication"),
        ("fragment.length", 1023, "fragment.length"),
        ("fragment.length", 2**34 + 1, "fragment.length"),
        ("fragment.compression_codec", 0, "fragment.compression_codec"),
        ("fragment.compression_codec", 6, "fragment.compression_codec"),
        ("fragment.compression_codec", pb.GZIP_OFFLOAD_DECOMPRESSION, "fragment.compression_codec"),
        ("fragment.stores", ["s3://bucket/", "file:///x"], "fragment.stores[1]"),
        ("fragment.refresh_interval.seconds", 0, "fragment.refresh_interval"),
        ("fragment.refresh_interval.seconds", 24 * 3600 + 1, "fragment.refresh_interval"),
        ("fragment.flush_interval.seconds", 59, "fragment.flush_interval"),
        ("fragment.flush_interval.seconds", -60, "fragment.flush_interval"),
        ("fragment.path_postfix_template", "{{ .x", "fragment.path_postfix_template"),
        ("flags", 3, "flags"),
        ("flags", 5, "flags"),
        ("max_append_rate", -1, "max_append_rate"),
        ("suspend.level", 3, "suspend.level"),
        ("suspend.offset", -1, "suspend.offset"),
        ("labels.labels", [pb.Label(name="name", value="x")], "labels"),
    ],
)
def test_spec_rules(field: str, value: object, where: str) -> None:
    spec = journal_spec("a/journal")
    change(field, value)(spec)
    with pytest.raises(ProtocolError) as caught:
        validate_journal_spec(spec)
    assert caught.value.where == f"JournalSpec.{where}"


@pytest.mark.parametrize(
    ("arguments", "where"),
    [
        ({"length": 1}, "length"),
        ({"codec": "LZ4"}, "codec"),
        ({"stores": ["file:///x"]}, "stores[0]"),
        ({"refresh_interval_s": 0}, "refresh_interval_s"),
        ({"flush_interval_s": 1}, "flush_interval_s"),
        ({"labels": {"x": "y"}}, "labels[0].name"),
    ],
)
def test_an_argument_that_breaks_a_rule_is_named(arguments: dict[str, Any], where: str) -> None:
    """The error names the caller's argument, not the field of a message."""
    with pytest.raises(ProtocolError) as caught:
        journal_spec("a/journal", **arguments)
    assert caught.value.where == where


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("replication", 5),
        ("fragment.length", 1024),
        ("fragment.length", 2**34),
        ("fragment.stores", []),
        ("fragment.refresh_interval.seconds", 1),
        ("fragment.refresh_interval.seconds", 24 * 3600),
        ("fragment.flush_interval.seconds", 60),
        ("fragment.retention.seconds", -1),
        ("flags", 4),
        ("suspend.level", pb.JournalSpec.Suspend.FULL),
    ],
)
def test_spec_bounds(field: str, value: object) -> None:
    spec = journal_spec("a/journal")
    change(field, value)(spec)
    validate_journal_spec(spec)


def test_offloading_needs_another_first_store() -> None:
    """A file store does not decompress, so this codec is refused there."""
    spec = journal_spec("a/journal", codec="GZIP_OFFLOAD_DECOMPRESSION", stores=["s3://bucket/", "file:///"])
    assert spec.fragment.compression_codec == pb.GZIP_OFFLOAD_DECOMPRESSION
    with pytest.raises(ProtocolError, match="needs a store that decompresses"):
        journal_spec("a/journal", codec="GZIP_OFFLOAD_DECOMPRESSION")


@pytest.mark.parametrize("codec", ["snappy", "LZ4", "INVALID"])
def test_unknown_codec(codec: str) -> None:
    with pytest.raises(ProtocolError, match=r"^codec: "):
        journal_spec("a/journal", codec=codec)


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("s3:///prefix/", "lacks a bucket"),
        ("azure-ad://tenant/account/", "lacks a tenant, an account or a container"),
        ("file://host/x/", "has no host"),
        ("file:///x", "does not end in '/'"),
        ("ftp://host/", "unknown scheme 'ftp'"),
        ("/abs/", "is not absolute"),
        ("s3://bucket/%zz/", "is not a URL"),
        ("s3://buc\tket/", "is not a URL"),
        ("s3://bucket:port/", "is not a URL"),
    ],
)
def test_store_rules(url: str, problem: str) -> None:
    with pytest.raises(ProtocolError, match=problem):
        validate_store(url)
