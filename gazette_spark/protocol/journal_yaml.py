"""Reads and writes journals as gazctl's YAML: a tree in which shared values occur once.

A node whose name is empty or ends in ``/`` is a directory and has children; any other is a journal. Names
are complete: a child's name begins with its parent's, and children are in ascending order. A node inherits a
value that is missing or zero from the nearest node above that has it. Labels are inherited name by name::

    name: shop/
    replication: 1
    fragment: {length: 1048576, compression_codec: SNAPPY, refresh_interval: 1m0s, stores: ["file:///"]}
    children:
      - name: shop/clicks
        labels: [{name: content-type, value: application/x-ndjson}]
      - name: shop/orders
        revision: -1

``revision`` is the expected one; without it, the journal is created, and -1 overwrites it. ``delete: true``
includes the listed children. ``suspend`` is not inherited. Scalars are texts, so ``value: 007`` is ``007``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from gazette_spark.errors import ProtocolError
from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.protocol import spec_values as sv
from gazette_spark.protocol.journal_specs import validate_journal_name, validate_journal_spec
from gazette_spark.protocol.spec_values import Values
from gazette_spark.protocol.yaml_text import dump_yaml, load_yaml

ROOT = "journals"
"""Name of the top of the tree in errors."""

_FORM = sv.SpecForm(
    {
        ("replication",): sv.INT32,
        ("fragment", "length"): sv.INT64,
        ("fragment", "compression_codec"): sv.enum_field(pb.CompressionCodec.items()),
        ("fragment", "stores"): sv.Field(sv.read_texts, list, keeps_empty=True),
        ("fragment", "refresh_interval"): sv.DURATION,
        ("fragment", "retention"): sv.DURATION,
        ("fragment", "flush_interval"): sv.DURATION,
        ("fragment", "path_postfix_template"): sv.TEXT,
        ("flags",): sv.enum_field(pb.JournalSpec.Flag.items()),
        ("max_append_rate",): sv.INT64,
        ("suspend", "level"): sv.enum_field(pb.JournalSpec.Suspend.Level.items()),
        ("suspend", "offset"): sv.INT64,
    },
    labels_after=("replication",),
)

REQUIRED = {
    ("replication",): "replication: 1",
    ("fragment", "length"): "length: 67108864",
    ("fragment", "compression_codec"): "compression_codec: SNAPPY",
    ("fragment", "refresh_interval"): "refresh_interval: 1m0s",
}
"""Values without a default in brokers, each with an example."""

_KEYS = ("name", *_FORM.keys, "revision", "delete", "comment", "children")


def parse_journal_yaml(text: str) -> list[pb.ApplyRequest.Change]:
    """Return the change of each journal of the tree, in ascending order of name.

    Raises:
        ProtocolError: the text is not YAML or not a tree of journals, or a journal's spec is invalid.
    """
    return list(_changes(load_yaml(text, ROOT), ROOT, _Above()))


@dataclass(frozen=True, slots=True)
class _Above:
    """Values that a node inherits from those above it."""

    name: str = ""
    values: Values = field(default_factory=dict)
    delete: bool = False


def _changes(value: object, where: str, above: _Above) -> Iterator[pb.ApplyRequest.Change]:
    node = sv.as_mapping(value, where, _KEYS)
    name = sv.read_text(node.get("name"), f"{where}.name")
    # Names are complete, not relative to the parent. So a search for a journal's name finds its line in the
    # file, and a mistake in nesting is an error.
    if not name.startswith(above.name):
        raise ProtocolError(
            f"{where}.name", f"must begin with its parent's {sv.shown(above.name)}, got {sv.shown(name)}"
        )
    own = _FORM.read(node, where)
    delete = above.delete if node.get("delete") is None else sv.read_bool(node["delete"], f"{where}.delete")
    revision = sv.read_int(node.get("revision"), f"{where}.revision")
    children = sv.as_list(node.get("children"), f"{where}.children")
    here = _Above(name, above.values | own, delete)
    if name and not name.endswith("/"):
        if children:
            raise ProtocolError(
                where, f"journal {sv.shown(name)} cannot have children; a directory's name ends in '/'"
            )
        yield _change(here, revision, where)
        return
    # Brokers manage suspension, which includes an offset in the journal. If it were inherited, it would
    # suspend journals at another journal's offset.
    if revision or any(path[0] == "suspend" for path in own):
        raise ProtocolError(
            where, f"directory {sv.shown(name)} cannot have a revision or suspend; journals can"
        )
    if not children:
        problem = f"directory {sv.shown(name)} needs one or more; the name of a journal does not end in '/'"
        raise ProtocolError(f"{where}.children", problem)
    names = [
        sv.read_text(child.get("name"), f"{where}.children[{at}].name") if isinstance(child, dict) else ""
        for at, child in enumerate(children)
    ]
    for at, child in enumerate(children):
        # gazctl requires this order. The check also refuses a journal that is named twice.
        if at and not names[at - 1] < names[at]:
            problem = f"must ascend by name; {sv.shown(names[at - 1])} precedes {sv.shown(names[at])}"
            raise ProtocolError(f"{where}.children", problem)
        yield from _changes(child, f"{where}.children[{at}]", here)


def _change(node: _Above, revision: int, where: str) -> pb.ApplyRequest.Change:
    if node.delete:
        validate_journal_name(node.name, where=f"{where}.name")
        # A missing revision means creation, so a deletion needs an explicit one.
        if revision <= 0 and revision != -1:
            raise ProtocolError(f"{where}.revision", f"must be above 0, or -1, to delete {node.name!r}")
        return pb.ApplyRequest.Change(expect_mod_revision=revision, delete=node.name)
    if revision < -1:
        raise ProtocolError(f"{where}.revision", f"must be at least -1, got {revision}")
    validate_journal_name(node.name, where=f"{where}.name")
    if missing := [path for path in REQUIRED if path not in node.values]:
        advice = [REQUIRED[path] for path in missing if len(path) == 1]
        if of_fragment := [REQUIRED[path] for path in missing if len(path) > 1]:
            advice.append(f"fragment: {{{', '.join(of_fragment)}}}")
        raise ProtocolError(
            where,
            f"journal {sv.shown(node.name)} lacks {', '.join('.'.join(path) for path in missing)}, for which "
            f"brokers have no default. Add to it, or to a directory above it: {'; '.join(advice)}",
        )
    spec = pb.JournalSpec(name=node.name)
    # Go always writes these messages, even if they are empty. Without them, a spec that is read and applied
    # again would differ from the broker's only in their presence.
    for duration in (spec.fragment.refresh_interval, spec.fragment.retention, spec.fragment.flush_interval):
        duration.SetInParent()
    _FORM.put(spec, node.values)
    validate_journal_spec(spec, where)
    return pb.ApplyRequest.Change(expect_mod_revision=revision, upsert=spec)


def format_journal_yaml(changes: Iterable[pb.ApplyRequest.Change]) -> str:
    """Return the tree of the changes, with shared values written once.

    :func:`parse_journal_yaml` returns the same changes for it, in ascending order of name.

    Raises:
        ProtocolError: there are no changes, or two for one journal.
    """
    leaves = sorted((_leaf(change) for change in changes), key=lambda leaf: leaf.name)
    names = [leaf.name for leaf in leaves]
    if not names or len(set(names)) < len(names):
        raise ProtocolError(ROOT, f"needs one or more journals, each once; got {names}")
    top = _tree(leaves)
    # This needs the complete tree: values move up as far as all journals below share them.
    _hoist(top)
    return dump_yaml(_written(top))


def changes_of_journals(journals: Iterable[pb.ListResponse.Journal]) -> list[pb.ApplyRequest.Change]:
    """Return changes that leave listed journals as they are, as the initial text in an editor of specs."""
    return [
        pb.ApplyRequest.Change(expect_mod_revision=journal.mod_revision, upsert=journal.spec)
        for journal in journals
    ]


@dataclass(slots=True)
class _Node:
    name: str
    values: Values = field(default_factory=dict)
    revision: int = 0
    delete: bool = False
    children: list[_Node] = field(default_factory=list)


def _leaf(change: pb.ApplyRequest.Change) -> _Node:
    if change.delete:
        return _Node(change.delete, revision=change.expect_mod_revision, delete=True)
    return _Node(change.upsert.name, _FORM.values_of(change.upsert), change.expect_mod_revision)


def _tree(leaves: list[_Node]) -> _Node:
    """Return the only leaf, or the directory that all leaves share, with a node for each of its entries."""
    if len(leaves) == 1:
        return leaves[0]
    # Names ascend, so all names share a prefix that the first and the last share.
    first, last, shared = leaves[0].name, leaves[-1].name, ""
    while (at := first.find("/", len(shared))) >= 0 and last.startswith(first[: at + 1]):
        shared = first[: at + 1]
    entries: dict[str, list[_Node]] = {}
    for leaf in leaves:
        entry, slash, _ = leaf.name.removeprefix(shared).partition("/")
        entries.setdefault(entry + slash, []).append(leaf)
    return _Node(shared, children=[_tree(group) for group in entries.values()])


def _hoist(node: _Node) -> None:
    """Move values that all children share into their parent. Deleted journals are ignored."""
    for child in node.children:
        # Bottom-up, so that a value that all share rises through all levels.
        _hoist(child)
    speaking = [child for child in node.children if not child.delete]
    if not speaking:
        return
    shared = sv.shared_values([child.values for child in speaking])
    # Suspension is not inherited, so it stays with each journal, even if all have the same.
    node.values = {path: value for path, value in shared.items() if path[0] != "suspend"}
    for child in speaking:
        child.values = {path: value for path, value in child.values.items() if path not in node.values}


def _written(node: _Node) -> dict[str, Any]:
    written: dict[str, Any] = {"delete": True} if node.delete else {}
    if node.name:
        written["name"] = node.name
    written |= _FORM.write(node.values)
    if node.revision:
        written["revision"] = node.revision
    if node.children:
        written["children"] = [_written(child) for child in node.children]
    return written
