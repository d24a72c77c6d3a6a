"""Reads YAML with all scalars as texts and with limits on its size, and writes YAML."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import chain
from typing import Any

import yaml

from gazette_spark.errors import ProtocolError
from gazette_spark.protocol.spec_values import shown

_MAX_NESTING = 140
"""Maximum depth of lists and mappings. Names need less, and Python's stack allows more."""

_MAX_NODES = 1_000_000
"""Maximum number of values with aliases expanded. Without it, a few lines could expand to any number."""


def load_yaml(text: str, where: str) -> object:
    """Return the texts, lists and mappings of a document.

    Raises:
        ProtocolError: the text is not YAML, has duplicate keys, or is too large. ``where`` names the text.
    """
    try:
        value: object = yaml.load(text, _TextLoader)  # noqa: S506 - a SafeLoader: it makes texts, lists and mappings
    except yaml.YAMLError as error:
        raise ProtocolError(where, f"cannot be read as YAML: {error}") from None
    if value is None or (isinstance(value, str) and not value.strip()):
        raise ProtocolError(
            where, "the YAML is empty; write specs to standard input, or name a file with them"
        )
    return value


def dump_yaml(document: object) -> str:
    """Return a document as YAML, with keys in their original order."""
    return yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=2**20)


class _TextLoader(yaml.SafeLoader):
    """Loads scalars as texts, and refuses duplicate keys and recursive structures."""

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self._nesting = 0
        self._sizes: dict[int, int] = {}
        """Number of nodes that a complete node expands to, by its id. Nodes live as long as the loader."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event: yaml.NodeEvent = self.peek_event()  # type: ignore[no-untyped-call]  # The stubs leave it out.
        # Without this check, deep nesting would raise a RecursionError in the parser.
        if self._nesting > _MAX_NESTING:
            raise _error(f"it is over {_MAX_NESTING} levels deep", event)
        self._nesting += 1
        node = super().compose_node(parent, index)
        self._nesting -= 1
        assert node is not None
        # An alias costs nothing to parse, but its node counts each time it is used: nine lines, each with
        # nine aliases of the line above, expand to 387 million values.
        if not isinstance(event, yaml.AliasEvent):
            inner: Iterable[yaml.Node] = node.value if isinstance(node, yaml.SequenceNode) else ()
            if isinstance(node, yaml.MappingNode):
                inner = chain.from_iterable(node.value)
            self._sizes[id(node)] = size = 1 + sum(self._sizes[id(child)] for child in inner)
            if size > _MAX_NODES:
                raise _error(f"its aliases expand to more than {_MAX_NODES} values", event)
        # The node is not complete yet, so the structure contains itself. Walking it would never end.
        elif id(node) not in self._sizes:
            raise _error(f"*{event.anchor} is an alias of a node above", event)
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:  # noqa: FBT001, FBT002 - overrides
        keys = Counter(key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode))
        # PyYAML silently takes the last one. In a file of specs, the first was probably meant as well.
        if repeated := sorted(key for key, times in keys.items() if times > 1):
            raise yaml.constructor.ConstructorError(
                None, None, f"keys occur twice: {shown(repeated)}", node.start_mark
            )
        return super().construct_mapping(node, deep=deep)


def _error(problem: str, event: yaml.NodeEvent) -> yaml.YAMLError:
    return yaml.composer.ComposerError(None, None, problem, event.start_mark)  # type: ignore[arg-type]  # libyaml's mark, in the stubs only.


def _text(loader: _TextLoader, node: yaml.ScalarNode) -> str:
    return str(loader.construct_scalar(node))


# Texts, because YAML 1.1 reads 007 as 7, "no" as false and 1_000 as 1000, which are wrong values of labels.
for _tag in ("bool", "int", "float", "timestamp"):
    _TextLoader.add_constructor(f"tag:yaml.org,2002:{_tag}", _text)
