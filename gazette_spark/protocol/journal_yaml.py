"""Journals as YAML, in the form gazctl reads and writes: a tree that gives shared values once.

A node whose name is empty or ends in ``/`` is a directory and has children; any other is a journal. Names
are whole: a child's begins with its parent's, and children are in ascending order. A node inherits a value
that is missing or zero from the nearest node above that has it, for labels name by name::

    name: shop/
    replication: 1
    fragment: {length: 1048576, compression_codec: SNAPPY, refresh_interval: 1m0s, stores: ["file:///"]}
    children:
      - name: shop/clicks
        labels: [{name: content-type, value: application/x-ndjson}]
      - name: shop/orders
        revision: -1

``revision`` is the expected one: a missing one creates, -1 overwrites. ``delete: true`` includes the listed
children. ``suspend`` is not inherited. Scalars are read by their text, so ``value: 007`` is ``007``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import yaml

from gazette_spark.errors import ProtocolError
from gazette_spark.protocol import journal_values as jv
from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.protocol.journal_specs import validate_journal_name, validate_journal_spec
from gazette_spark.protocol.journal_values import Values

ROOT = "journals"
"""How errors name the top of the tree."""

_MAX_NESTING = 140
"""Levels of lists and mappings: more than names need, and fewer than Python's stack has."""

_MAX_NODES = 1_000_000
"""Values that a text may stand for, its aliases written out: a few lines of aliases make any number."""

_KEYS = ("name", *jv.SPEC_KEYS, "revision", "delete", "comment", "children")


def parse_journal_yaml(text: str) -> list[pb.ApplyRequest.Change]:
    """Return the change that each journal of the tree asks for, in ascending order of name.

    Raises:
        ProtocolError: the text is not YAML, no tree of journals, or a journal's spec is invalid.
    """
    try:
        top = yaml.load(text, _TextLoader)  # noqa: S506 - a SafeLoader: it makes texts, lists and mappings
    except yaml.YAMLError as error:
        raise ProtocolError(ROOT, f"cannot be read as YAML: {error}") from None
    return list(_changes(top, ROOT, _Above()))


class _TextLoader(yaml.SafeLoader):
    """Takes scalars by their text, and refuses a key that comes twice, and what would not end."""

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self._nesting = 0
        self._sizes: dict[int, int] = {}
        """By the id of each complete node: the nodes it stands for. The nodes live as long as the loader."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event: yaml.NodeEvent = self.peek_event()  # type: ignore[no-untyped-call]  # The stubs leave it out.
        if self._nesting > _MAX_NESTING:
            raise _error(f"it is over {_MAX_NESTING} levels deep", event)
        self._nesting += 1
        node = super().compose_node(parent, index)
        self._nesting -= 1
        assert node is not None
        if not isinstance(event, yaml.AliasEvent):
            self._sizes[id(node)] = size = self._size(node)
            if size > _MAX_NODES:
                raise _error(f"its aliases stand for more than {_MAX_NODES} values", event)
        elif id(node) not in self._sizes:
            raise _error(f"*{event.anchor} is an alias of a node above", event)
        return node

    def _size(self, node: yaml.Node) -> int:
        inner: Iterable[yaml.Node] = node.value if isinstance(node, yaml.SequenceNode) else ()
        if isinstance(node, yaml.MappingNode):
            inner = chain.from_iterable(node.value)
        return 1 + sum(self._sizes[id(each)] for each in inner)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:  # noqa: FBT001, FBT002 - overrides
        keys = Counter(key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode))
        if repeated := sorted(key for key, times in keys.items() if times > 1):
            raise yaml.constructor.ConstructorError(
                None, None, f"keys come twice: {jv.shown(repeated)}", node.start_mark
            )
        return super().construct_mapping(node, deep=deep)


def _error(problem: str, event: yaml.NodeEvent) -> yaml.YAMLError:
    return yaml.composer.ComposerError(None, None, problem, event.start_mark)  # type: ignore[arg-type]  # libyaml's mark, in the stubs only.


def _text(loader: _TextLoader, node: yaml.ScalarNode) -> str:
    return str(loader.construct_scalar(node))


for _tag in ("bool", "int", "float", "timestamp"):
    _TextLoader.add_constructor(f"tag:yaml.org,2002:{_tag}", _text)


@dataclass(frozen=True, slots=True)
class _Above:
    """Values that a node inherits from those above it."""

    name: str = ""
    values: Values = field(default_factory=dict)
    delete: bool = False


def _changes(found: object, where: str, above: _Above) -> Iterator[pb.ApplyRequest.Change]:
    node = jv.as_mapping(found, where, _KEYS)
    name = jv.read_text(node.get("name"), f"{where}.name")
    if not name.startswith(above.name):
        raise ProtocolError(
            f"{where}.name", f"must begin with its parent's {jv.shown(above.name)}, got {jv.shown(name)}"
        )
    own = jv.read_values(node, where)
    delete = above.delete if node.get("delete") is None else jv.read_bool(node["delete"], f"{where}.delete")
    revision = jv.read_int(node.get("revision"), f"{where}.revision")
    children = jv.as_list(node.get("children"), f"{where}.children")
    here = _Above(name, above.values | own, delete)
    if name and not name.endswith("/"):
        if children:
            raise ProtocolError(
                where, f"journal {jv.shown(name)} cannot have children; a directory's name ends in '/'"
            )
        yield _change(here, revision, where)
        return
    if revision or any(path[0] == "suspend" for path in own):
        raise ProtocolError(
            where, f"directory {jv.shown(name)} cannot have a revision or suspend; journals can"
        )
    yield from _changes_of(children, f"{where}.children", here)


def _changes_of(children: Sequence[Any], where: str, above: _Above) -> Iterator[pb.ApplyRequest.Change]:
    if not children:
        raise ProtocolError(where, f"directory {jv.shown(above.name)} needs one or more")
    names = [
        jv.read_text(each.get("name"), f"{where}[{at}].name") if isinstance(each, dict) else ""
        for at, each in enumerate(children)
    ]
    for at, child in enumerate(children):
        if at and not names[at - 1] < names[at]:
            before, after = jv.shown(names[at - 1]), jv.shown(names[at])
            raise ProtocolError(where, f"must ascend by name; {before} precedes {after}")
        yield from _changes(child, f"{where}[{at}]", above)


def _change(node: _Above, revision: int, where: str) -> pb.ApplyRequest.Change:
    if node.delete:
        validate_journal_name(node.name, where=f"{where}.name")
        if revision <= 0 and revision != -1:
            raise ProtocolError(f"{where}.revision", f"must be above 0, or -1, to delete {node.name!r}")
        return pb.ApplyRequest.Change(expect_mod_revision=revision, delete=node.name)
    if revision < -1:
        raise ProtocolError(f"{where}.revision", f"must be at least -1, got {revision}")
    spec = jv.spec_of_values(node.name, node.values)
    validate_journal_spec(spec, where)
    return pb.ApplyRequest.Change(expect_mod_revision=revision, upsert=spec)


def format_journal_yaml(changes: Iterable[pb.ApplyRequest.Change]) -> str:
    """Return the tree of the changes, with what journals share said once.

    :func:`parse_journal_yaml` reads it back as the same changes, in ascending order of name.

    Raises:
        ProtocolError: there are no changes, or two of one journal.
    """
    leaves = sorted((_leaf(change) for change in changes), key=lambda leaf: leaf.name)
    names = [leaf.name for leaf in leaves]
    if not names or len(set(names)) < len(names):
        raise ProtocolError(ROOT, f"needs one or more journals, each once; got {names}")
    top = _tree(leaves)
    _hoist(top)
    return yaml.safe_dump(_written(top), sort_keys=False, allow_unicode=True, width=2**20)


def changes_of_journals(journals: Iterable[pb.ListResponse.Journal]) -> list[pb.ApplyRequest.Change]:
    """Return the changes that do not change listed journals: the initial text of an editor of specs."""
    return [
        pb.ApplyRequest.Change(expect_mod_revision=each.mod_revision, upsert=each.spec) for each in journals
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
    return _Node(change.upsert.name, jv.values_of_spec(change.upsert), change.expect_mod_revision)


def _tree(leaves: list[_Node]) -> _Node:
    """Return the one leaf, or the directory that all share with a node for each of its entries."""
    if len(leaves) == 1:
        return leaves[0]
    # Names ascend, so a prefix that the first and the last share is shared by all.
    shared = _shared_directory(leaves[0].name, leaves[-1].name)
    entries: dict[str, list[_Node]] = {}
    for leaf in leaves:
        entry, slash, _ = leaf.name.removeprefix(shared).partition("/")
        entries.setdefault(entry + slash, []).append(leaf)
    return _Node(shared, children=[_tree(group) for group in entries.values()])


def _shared_directory(first: str, last: str) -> str:
    length = 0
    while (slash := first.find("/", length)) >= 0 and last.startswith(first[: slash + 1]):
        length = slash + 1
    return first[:length]


def _hoist(node: _Node) -> None:
    """Move values that all children share into their parent. Deleted journals do not count."""
    for child in node.children:
        _hoist(child)
    speaking = [child for child in node.children if not child.delete]
    if not speaking:
        return
    first, *others = (child.values for child in speaking)
    node.values = {
        path: value
        for path, value in first.items()
        if path[0] != "suspend" and all(path in other and other[path] == value for other in others)
    }
    for child in speaking:
        child.values = {path: value for path, value in child.values.items() if path not in node.values}


def _written(node: _Node) -> dict[str, Any]:
    written: dict[str, Any] = {"delete": True} if node.delete else {}
    if node.name:
        written["name"] = node.name
    written |= jv.write_values(node.values)
    if node.revision:
        written["revision"] = node.revision
    if node.children:
        written["children"] = [_written(child) for child in node.children]
    return written
