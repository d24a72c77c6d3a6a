"""YAML whose scalars are texts, read within bounds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import chain
from typing import Any

import yaml

from gazette_spark.errors import ProtocolError
from gazette_spark.protocol.spec_values import shown

_MAX_NESTING = 140
"""Maximum depth of lists and mappings: more than names need, and less than Python's stack allows."""

_MAX_NODES = 1_000_000
"""Maximum number of values with aliases expanded: a few lines of aliases could make any number."""


def load_yaml(text: str, where: str) -> object:
    """Return the texts, lists and mappings of a document.

    Raises:
        ProtocolError: the text is not YAML, has a key twice, or stands for too much. Named by ``where``.
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
    """Return a document's text, its keys in their order."""
    return yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=2**20)


class _TextLoader(yaml.SafeLoader):
    """Loads scalars as their text, and refuses duplicate keys and endless structures."""

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self._nesting = 0
        self._sizes: dict[int, int] = {}
        """Number of nodes that a complete node expands to, by its id. The nodes live as long as the
        loader.
        """

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event: yaml.NodeEvent = self.peek_event()  # type: ignore[no-untyped-call]  # The stubs leave it out.
        # Python's own limit would end in a RecursionError somewhere within the parser.
        if self._nesting > _MAX_NESTING:
            raise _error(f"it is over {_MAX_NESTING} levels deep", event)
        self._nesting += 1
        node = super().compose_node(parent, index)
        self._nesting -= 1
        assert node is not None
        # An alias costs nothing to parse, and its node is counted each time it is used: nine lines that each
        # name the one above nine times stand for 387 million values.
        if not isinstance(event, yaml.AliasEvent):
            inner: Iterable[yaml.Node] = node.value if isinstance(node, yaml.SequenceNode) else ()
            if isinstance(node, yaml.MappingNode):
                inner = chain.from_iterable(node.value)
            self._sizes[id(node)] = size = 1 + sum(self._sizes[id(child)] for child in inner)
            if size > _MAX_NODES:
                raise _error(f"its aliases stand for more than {_MAX_NODES} values", event)
        # A node that is not complete yet: the structure contains itself, and would be walked for ever.
        elif id(node) not in self._sizes:
            raise _error(f"*{event.anchor} is an alias of a node above", event)
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:  # noqa: FBT001, FBT002 - overrides
        keys = Counter(key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode))
        # PyYAML takes the last one in silence. In a file of specs, the first was most likely meant as well.
        if repeated := sorted(key for key, times in keys.items() if times > 1):
            raise yaml.constructor.ConstructorError(
                None, None, f"keys occur twice: {shown(repeated)}", node.start_mark
            )
        return super().construct_mapping(node, deep=deep)


def _error(problem: str, event: yaml.NodeEvent) -> yaml.YAMLError:
    return yaml.composer.ComposerError(None, None, problem, event.start_mark)  # type: ignore[arg-type]  # libyaml's mark, in the stubs only.


def _text(loader: _TextLoader, node: yaml.ScalarNode) -> str:
    return str(loader.construct_scalar(node))


# As text, because YAML 1.1 reads 007 as 7, "no" as false and 1_000 as 1000, and a label's value is none of
# these.
for _tag in ("bool", "int", "float", "timestamp"):
    _TextLoader.add_constructor(f"tag:yaml.org,2002:{_tag}", _text)
