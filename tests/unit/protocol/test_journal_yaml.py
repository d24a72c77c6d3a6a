"""Tests that journal YAML is read and written as by gazctl.

In ``tests/golden/protocol_journals``, ``NAME.txtpb`` is the request that gazctl sends to apply ``NAME.yaml``,
and ``NAME.listed.yaml`` is its listing of the journals afterwards.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from google.protobuf import text_format

from gazette_spark.errors import ProtocolError
from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.protocol.journal_specs import journal_spec
from gazette_spark.protocol.journal_yaml import changes_of_journals, format_journal_yaml, parse_journal_yaml

GOLDEN = Path(__file__).parents[2] / "golden" / "protocol_journals"

SPEC = "replication: 1, fragment: {length: 1024, compression_codec: GZIP, refresh_interval: 1m}"
"""Required fields of a journal besides its name."""


def gazctl_changes(name: str) -> list[pb.ApplyRequest.Change]:
    """Return the changes of a golden file, including the empty messages that its text omits."""
    request = text_format.Parse((GOLDEN / f"{name}.txtpb").read_text("utf-8"), pb.ApplyRequest())
    for change in request.changes:
        if not change.delete:
            change.upsert.labels.SetInParent()
            for duration in ("refresh_interval", "retention", "flush_interval"):
                getattr(change.upsert.fragment, duration).SetInParent()
    return list(request.changes)


@pytest.mark.parametrize("name", ["inherited", "no_root", "one"])
def test_parse(name: str) -> None:
    assert parse_journal_yaml((GOLDEN / f"{name}.yaml").read_text("utf-8")) == gazctl_changes(name)


@pytest.mark.parametrize("name", ["inherited", "no_root", "one"])
def test_format(name: str) -> None:
    kept = [change for change in gazctl_changes(name) if not change.delete]
    listed = (GOLDEN / f"{name}.listed.yaml").read_text("utf-8")
    assert yaml.safe_load(format_journal_yaml(reversed(kept))) == yaml.safe_load(listed)
    assert parse_journal_yaml(listed) == kept


def test_deletions_survive() -> None:
    """A deletion has no spec, and must not stop the others from sharing fields."""
    changes = [
        pb.ApplyRequest.Change(upsert=journal_spec("shop/a")),
        pb.ApplyRequest.Change(delete="shop/b", expect_mod_revision=7),
        pb.ApplyRequest.Change(upsert=journal_spec("shop/c"), expect_mod_revision=-1),
    ]
    text = format_journal_yaml(changes)
    assert yaml.safe_load(text)["replication"] == 1
    assert parse_journal_yaml(text) == changes


def test_listed_journals_are_left_as_they_are() -> None:
    """The changes expect the current revisions."""
    listed = [pb.ListResponse.Journal(spec=journal_spec("a/journal"), mod_revision=12)]
    assert parse_journal_yaml(format_journal_yaml(changes_of_journals(listed))) == [
        pb.ApplyRequest.Change(upsert=journal_spec("a/journal", stores=["file:///"]), expect_mod_revision=12)
    ]


@pytest.mark.parametrize("changes", [[], ["a/journal", "a/journal"]], ids=["none", "one twice"])
def test_format_needs_distinct_journals(changes: list[str]) -> None:
    with pytest.raises(ProtocolError, match="one or more journals, each once"):
        format_journal_yaml(pb.ApplyRequest.Change(upsert=journal_spec(name)) for name in changes)


@pytest.mark.parametrize(
    ("text", "where", "problem"),
    [
        pytest.param("{", "", "cannot be read as YAML", id="not YAML"),
        pytest.param("name: a/bc\nname: a/bd", "", "keys occur twice: ['name']", id="key twice"),
        pytest.param("", "", "the YAML is empty", id="nothing"),
        pytest.param("[]", "", "must be a mapping", id="list"),
        pytest.param("nme: a/bc", "", "unknown key 'nme'", id="unknown key"),
        pytest.param(
            "{name: a/bc, fragment: {codec: GZIP}}", ".fragment", "unknown key 'codec'", id="inner key"
        ),
        pytest.param("{name: a/bc, labels: [{nme: x}]}", ".labels[0]", "unknown key 'nme'", id="label key"),
        pytest.param("{name: a/bc, labels: {x: y}}", ".labels", "must be a list", id="labels not a list"),
        pytest.param(
            "{name: a/bc, labels: [{name: zz}, {name: aa}]}", ".labels[1]", "sorted", id="label order"
        ),
        pytest.param(
            f"{{name: a/, {SPEC}}}",
            ".children",
            "the name of a journal does not end in",
            id="childless directory",
        ),
        pytest.param(
            f"{{name: a/, {SPEC}, children: [{{name: b/cd}}]}}",
            ".children[0].name",
            "must begin with its parent's 'a/'",
            id="foreign child",
        ),
        pytest.param(
            f"{{name: a/, {SPEC}, children: [{{name: a/cc}}, {{name: a/bb}}]}}",
            ".children",
            "must ascend by name",
            id="child order",
        ),
        pytest.param(
            f"{{name: a/bc, {SPEC}, children: [{{name: a/bcd}}]}}",
            "",
            "cannot have children",
            id="journal's child",
        ),
        pytest.param(
            f"{{name: a/, revision: 1, {SPEC}, children: [{{name: a/bc}}]}}",
            "",
            "cannot have a revision or suspend",
            id="directory's revision",
        ),
        pytest.param(
            f"{{name: a/, suspend: {{level: FULL}}, {SPEC}, children: [{{name: a/bc}}]}}",
            "",
            "cannot have a revision or suspend",
            id="directory's suspend",
        ),
        pytest.param(f"{{name: a/bc, {SPEC}, revision: -2}}", ".revision", "at least -1", id="revision"),
        pytest.param(f"{{name: a/bc, {SPEC}, revision: x}}", ".revision", "must be an integer", id="number"),
        pytest.param(
            f"{{name: a/bc, {SPEC}, max_append_rate: {2**63}}}", ".max_append_rate", "64 bits", id="size"
        ),
        pytest.param(
            f"{{name: a/bc, {SPEC}, flags: O_WR}}", ".flags", "is not one of NOT_SPECIFIED", id="enum"
        ),
        pytest.param(f"{{name: a/bc, {SPEC}, delete: maybe}}", ".delete", "true or false", id="boolean"),
        pytest.param("{name: a/bc, delete: true}", ".revision", "must be above 0, or -1", id="delete what"),
        pytest.param("{name: a/b, delete: true, revision: 1}", ".name", "4 to 512", id="delete a bad name"),
        pytest.param(
            "{name: a/bc, replication: 1}",
            "",
            "journal 'a/bc' lacks fragment.length, fragment.compression_codec, fragment.refresh_interval, "
            "for which brokers have no default. Add to it, or to a directory above it: "
            "fragment: {length: 67108864, compression_codec: SNAPPY, refresh_interval: 1m0s}",
            id="no fragment",
        ),
        pytest.param(
            "{name: a/, fragment: {length: 4096}, children: "
            "[{name: a/bc, fragment: {refresh_interval: 1s}}]}",
            ".children[0]",
            "'a/bc' lacks replication, fragment.compression_codec, for which brokers have no default. Add to "
            "it, or to a directory above it: replication: 1; fragment: {compression_codec: SNAPPY}",
            id="values of two levels are not enough",
        ),
        pytest.param(
            "{name: a/bc, replication: 9, fragment: {length: 4096, compression_codec: NONE, "
            "refresh_interval: 1s}}",
            ".replication",
            "from 1 to 5",
            id="out of range",
        ),
        pytest.param("{name: [a], replication: 1}", ".name", "must be text", id="name not text"),
        pytest.param(
            "{name: a/bc, fragment: {refresh_interval: 60}}",
            ".fragment.refresh_interval",
            "not a duration",
            id="unit",
        ),
        pytest.param("{name: a/bc, replication: [1]}", ".replication", "must be text", id="number not text"),
        pytest.param(
            "{name: a/, children: [{name: a/bc}, {name: [a]}]}",
            ".children[1].name",
            "text",
            id="name of a child",
        ),
        pytest.param('name: "\\ud800"', ".name", "not text in UTF-8", id="half a character"),
        pytest.param("&top\nname: a/\nchildren: [*top]", None, "alias of a node above", id="its own child"),
        pytest.param("name: &top [*top]", None, "alias of a node above", id="its own value"),
        pytest.param("{name: a/, children: [" * 2_000, None, "levels deep", id="deep mappings"),
        pytest.param("[" * 5_000, None, "levels deep", id="deep lists"),
    ],
)
def test_errors_name_the_place(text: str, where: str | None, problem: str) -> None:
    with pytest.raises(ProtocolError) as caught:
        parse_journal_yaml(text)
    assert problem in caught.value.problem
    assert where is None or caught.value.where == f"journals{where}"


def alias_bomb(item: str, times: int, levels: int) -> str:
    """Return a few lines whose aliases expand to ``times ** levels`` items."""
    aliases = (", ".join([f"*a{level}"] * times) for level in range(levels))
    lists = (f"- &a{level} [{above}]" for level, above in enumerate(aliases, 1))
    return "\n".join([f"- &a0 {item}", *lists])


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        pytest.param(f"labels:\n{alias_bomb('x', 10, 5)}", "must be a mapping", id="ten thousand aliases"),
        pytest.param(f"labels:\n{alias_bomb('x', 10, 40)}", "aliases expand to", id="many more"),
        pytest.param(alias_bomb("{x: y}", 10, 40), "aliases expand to", id="of the top"),
        pytest.param(
            "\n".join(
                [
                    "a0: &a0 {x: y}",
                    *(f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 9)}]}}" for n in range(1, 40)),
                ]
            ),
            "aliases expand to",
            id="merges",
        ),
        pytest.param(f"name: [{'x, ' * 5_000}]", "must be text", id="long list"),
        pytest.param(f"{{name: a/bc, replication: {'x' * 100_000}}}", "an integer", id="long text"),
        pytest.param(f"name: a/bc\n? {'x' * 100_000}\n: 1", "unknown key", id="long key"),
    ],
)
def test_errors_are_short(text: str, problem: str) -> None:
    """An error has a few hundred characters, however far aliases expand or long values are."""
    with pytest.raises(ProtocolError) as caught:
        parse_journal_yaml(text)
    assert problem in caught.value.problem
    assert len(str(caught.value)) < 1_000


def test_scalars_are_text() -> None:
    """YAML would turn these values into numbers, booleans or dates."""
    labels = "[{name: bool, value: yes}, {name: date, value: 2026-11-21}, {name: hex, value: 0x1F}]"
    (change,) = parse_journal_yaml(f"{{name: a/bc, {SPEC}, labels: {labels}}}")
    assert [label.value for label in change.upsert.labels.labels] == ["yes", "2026-11-21", "0x1F"]


@pytest.mark.parametrize("delete", ["true", "True", "yes", "on"])
def test_booleans(delete: str) -> None:
    (change,) = parse_journal_yaml(f"{{name: a/bc, revision: -1, delete: {delete}}}")
    assert change.delete == "a/bc"


def test_anchors_and_merges() -> None:
    text = f"children:\n- &one {{name: a/bc, {SPEC}}}\n- {{<<: *one, name: a/bd}}"
    assert [change.upsert.name for change in parse_journal_yaml(text)] == ["a/bc", "a/bd"]
