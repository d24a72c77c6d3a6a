"""Builds, parses, matches, combines and validates label sets and selectors.

A selector groups its labels by name. A label set matches if it satisfies every included name and no excluded
name. It satisfies a name if it has a value that matches one of the selector's values for that name: an empty
value matches any value, a prefix matches any value that starts with it, any other matches only its equal.

The text form of a selector is a comma-separated list of terms::

    k=v    k==v    k!=v    k    !k    k in (v1,v2)    k notin (v1,v2)    k not in (v1,v2)

with an optional single space between tokens. ``k:prefix`` in place of ``k`` matches values by prefix.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from gazette_spark.errors import ProtocolError
from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.protocol.names import validate_path_text, validate_token

CONTENT_TYPE = "content-type"
MESSAGE_TYPE = "app.gazette.dev/message-type"
MESSAGE_SUBTYPE = "app.gazette.dev/message-subtype"
MANAGED_BY = "app.gazette.dev/managed-by"
INSTANCE = "app.gazette.dev/instance"
REGION = "app.gazette.dev/region"

CONTENT_TYPE_NDJSON = "application/x-ndjson"
CONTENT_TYPE_CSV = "text/csv"
CONTENT_TYPE_PROTO_FIXED = "application/x-protobuf-fixed"
CONTENT_TYPE_RECOVERY_LOG = "application/x-gazette-recoverylog"

SINGLE_VALUED = frozenset({CONTENT_TYPE, INSTANCE, MANAGED_BY, MESSAGE_SUBTYPE, MESSAGE_TYPE, REGION})
"""Labels that may have only one value in a spec."""

NAME = "name"
"""Meta label of a journal: its name. Not stored in specs."""
PREFIX = "prefix"
"""Meta label in the selector of a list request, which matches names that start with its value."""
ID = "id"
"""Meta label of a shard: its id. Not stored in specs."""

NAME_BYTES = (2, 64)
"""Minimum and maximum length of a label's name."""
VALUE_BYTES = (0, 1024)
"""Minimum and maximum length of a label's value."""

# RFC 2045's token, limited to characters of a label's value. So parameters, which need a ';', are refused.
_MEDIA_TYPE = re.compile(r"[A-Za-z0-9\-_+.%]+(/[A-Za-z0-9\-_+.%]+)?")

_KEY = r" ?([\w\-+/.]{2,}(?::prefix)?)"
_VALUE = r" ?([\w\-+/.=%]*)"
_LIST = r" ?\(([^)]+)\)"
_END = r" ?(?:,|\Z)"

_TERMS: tuple[tuple[re.Pattern[str], bool, bool], ...] = (
    (re.compile(f"{_KEY} ?==?{_VALUE}{_END}"), False, False),
    (re.compile(f"{_KEY} ?!={_VALUE}{_END}"), True, False),
    (re.compile(f"{_KEY} in{_LIST}{_END}"), False, True),
    (re.compile(f"{_KEY} not ?in{_LIST}{_END}"), True, True),
    (re.compile(f"{_KEY}{_END}"), False, False),
    (re.compile(f" ?!{_KEY}{_END}"), True, False),
)
"""Forms of a term, in the order they are tried: pattern, whether it excludes, and whether it lists values.

The pattern's first group is the label's name. The second, if there is one, is the value or list.
"""

_ELEMENT = re.compile(_VALUE + _END)
"""One value of a list."""

_EXAMPLE = "app=clicks, region in (eu,us), !test, name:prefix=shop/"


def label_set(values: Mapping[str, str | Iterable[str]]) -> pb.LabelSet:
    """Return the label set with each name's value or values, sorted and without duplicates.

    >>> [(label.name, label.value) for label in label_set({"tag": ["b", "a"], "app": "x"}).labels]
    [('app', 'x'), ('tag', 'a'), ('tag', 'b')]
    """
    pairs = {(n, v) for n, texts in values.items() for v in ([texts] if isinstance(texts, str) else texts)}
    labels = pb.LabelSet(labels=[pb.Label(name=name, value=value) for name, value in sorted(pairs)])
    validate_label_set(labels)
    return labels


def labels_with_name(spec: pb.JournalSpec) -> pb.LabelSet:
    """Return the spec's labels and its ``name``, against which selectors of journals are matched."""
    return union(pb.LabelSet(labels=[pb.Label(name=NAME, value=spec.name)]), spec.labels)


def values_of(labels: pb.LabelSet, name: str) -> list[str]:
    """Return the values of a label, or an empty list if the set lacks it."""
    return [label.value for label in labels.labels if label.name == name]


def union(left: pb.LabelSet, right: pb.LabelSet) -> pb.LabelSet:
    """Return all labels of ``left``, and the labels of ``right`` whose names ``left`` lacks."""
    # By name, not by value: the left set replaces all values of a name, as in Gazette's UnionLabelSets.
    return _join(left, right, lambda mine, theirs: mine or theirs)


def subtract(left: pb.LabelSet, right: pb.LabelSet) -> pb.LabelSet:
    """Return the labels of ``left`` without the names that have the same values in ``right``."""
    return _join(left, right, lambda mine, theirs: [] if _values(mine) == _values(theirs) else mine)


def _join(
    left: pb.LabelSet,
    right: pb.LabelSet,
    choose: Callable[[list[pb.Label], list[pb.Label]], list[pb.Label]],
) -> pb.LabelSet:
    lefts, rights = _by_name(left), _by_name(right)
    names = sorted(lefts.keys() | rights.keys())
    return pb.LabelSet(
        labels=[label for name in names for label in choose(lefts.get(name, []), rights.get(name, []))]
    )


def _by_name(labels: pb.LabelSet) -> dict[str, list[pb.Label]]:
    groups: dict[str, list[pb.Label]] = {}
    for label in labels.labels:
        groups.setdefault(label.name, []).append(label)
    return groups


def _values(labels: Sequence[pb.Label]) -> list[str]:
    return [label.value for label in labels]


def selector_matches(selector: pb.LabelSelector, labels: pb.LabelSet) -> bool:
    """Return whether the selector matches the set, as the module's docstring defines it.

    The meta label ``prefix`` has no special meaning here; see :func:`expand_prefix`.
    """
    by_name = _by_name(labels)
    excluded = any(_satisfied(group, by_name) for group in _by_name(selector.exclude).values())
    return not excluded and all(_satisfied(group, by_name) for group in _by_name(selector.include).values())


def _satisfied(alternatives: list[pb.Label], by_name: Mapping[str, list[pb.Label]]) -> bool:
    # A set that lacks the name has no values, so even an empty value, which matches any, does not match.
    values = _values(by_name.get(alternatives[0].name, []))
    return any(
        label.value == "" or (value.startswith(label.value) if label.prefix else value == label.value)
        for label in alternatives
        for value in values
    )


def expand_prefix(selector: pb.LabelSelector) -> pb.LabelSelector:
    """Rewrite the meta label ``prefix`` as a prefix of ``name``, as brokers do when listing.

    So ``prefix=a/,name=b/c`` matches journals that match either: values of one label are alternatives.
    """
    include, exclude = (
        [
            pb.Label(name=NAME, value=label.value, prefix=True) if label.name == PREFIX else label
            for label in part.labels
        ]
        for part in (selector.include, selector.exclude)
    )
    return _selector(include, exclude)


def parse_selector(text: str) -> pb.LabelSelector:
    """Parse a selector's text form. An empty text matches everything.

    Raises:
        ProtocolError: the text is not a selector, or breaks a rule of label sets.
    """
    return _selector_of(list(_parse_terms(text)))


def parse_target_selector(text: str, kind: str = "journal", meta_label: str = NAME) -> pb.LabelSelector:
    """Parse the selector of an operation that changes the selected items.

    A shell's unset variable makes ``$X`` and ``name=$X`` select everything. So an empty text and an empty
    value are errors here. A label alone still matches any value: ``name`` selects every journal.

    Args:
        text: the selector.
        kind: kind of the items, for errors.
        meta_label: label that all items have: the name of a journal, the id of a shard.

    Raises:
        ProtocolError: the text is empty or gives a label an empty value, or :func:`parse_selector` raises it.
    """
    terms = list(_parse_terms(text)) if text.strip() else []
    every = f"to select every {kind}, write {meta_label!r}"
    if not terms:
        raise ProtocolError("LabelSelector", f"an empty one selects every {kind} ({every})")
    for term in terms:
        if "" in term.values and not term.is_bare:
            meant = f"an empty value selects any; write a value, or {term.key!r} alone for any"
            raise ProtocolError("LabelSelector", f"label {term.key!r} of {text!r}: {meant} ({every})")
    return _selector_of(terms)


def _selector_of(terms: Iterable[_Term]) -> pb.LabelSelector:
    parts: tuple[list[pb.Label], list[pb.Label]] = ([], [])
    for term in terms:
        name, prefix = term.key.removesuffix(":prefix"), term.key.endswith(":prefix")
        parts[term.excludes].extend(pb.Label(name=name, value=value, prefix=prefix) for value in term.values)
    selector = _selector(*parts)
    validate_selector(selector)
    return selector


def _selector(include: Iterable[pb.Label], exclude: Iterable[pb.Label]) -> pb.LabelSelector:
    """Sort the labels, drop duplicates, and omit an empty set."""
    sets = [
        [pb.Label(name=name, value=value, prefix=prefix) for name, value, prefix in sorted(distinct)]
        for distinct in ({(x.name, x.value, x.prefix) for x in part} for part in (include, exclude))
    ]
    included, excluded = (pb.LabelSet(labels=labels) if labels else None for labels in sets)
    return pb.LabelSelector(include=included, exclude=excluded)


@dataclass(frozen=True, slots=True)
class _Term:
    """One term of a selector's text."""

    key: str
    """The label's name, with ``:prefix`` if the term has it."""
    values: tuple[str, ...]
    excludes: bool
    is_bare: bool
    """Whether the term has no value, so that it matches any value."""


def _parse_terms(text: str) -> Iterator[_Term]:
    at = 0
    while at < len(text):
        for pattern, excludes, listed in _TERMS:
            if match := pattern.match(text, at):
                is_bare = pattern.groups == 1
                values = ("",) if is_bare else tuple(_parse_list(match[2])) if listed else (match[2],)
                yield _Term(match[1], values, excludes, is_bare)
                at = match.end()
                break
        else:
            problem = f"cannot parse {text[at:]!r} of {text!r}; an example is {_EXAMPLE!r}"
            raise ProtocolError("LabelSelector", problem)


def _parse_list(text: str) -> Iterator[str]:
    at = 0
    while at < len(text):
        match = _ELEMENT.match(text, at)
        if not match:
            raise ProtocolError("LabelSelector", f"cannot parse {text[at:]!r} of the list {text!r}")
        yield match[1]
        at = match.end()


def format_selector(selector: pb.LabelSelector) -> str:
    """Return the canonical text form, for which :func:`parse_selector` returns the same selector."""
    terms = []
    for excludes, part in enumerate((selector.include, selector.exclude)):
        by_key: dict[str, list[str]] = {}
        for label in part.labels:
            key = f"{label.name}:prefix" if label.prefix else label.name
            by_key.setdefault(key, []).append(label.value)
        for key, values in sorted(by_key.items()):
            # An empty value matches any value; its text form is the name alone.
            if values == [""]:
                terms.append(f"!{key}" if excludes else key)
            elif len(values) == 1:
                # Gazette itself writes "k==v" for the value "=v", but reads it as the value "v".
                equals = "==" if values[0].startswith("=") else "="
                terms.append(f"{key}{'!=' if excludes else equals}{values[0]}")
            else:
                terms.append(f"{key} {'notin' if excludes else 'in'} ({','.join(sorted(values))})")
    return ",".join(terms)


def validate_label_set(labels: pb.LabelSet, where: str = "labels", *, allow_prefix: bool = False) -> None:
    """Raise ProtocolError unless the labels are well formed, in order, and without duplicates.

    Args:
        labels: labels to check.
        where: path of the set, for the error.
        allow_prefix: whether labels may match by prefix, as in selectors.
    """
    previous: pb.Label | None = None
    for index, label in enumerate(labels.labels):
        at = f"{where}[{index}]"
        validate_token(f"{at}.name", label.name, *NAME_BYTES)
        validate_path_text(f"{at}.value", label.value, *VALUE_BYTES)
        if label.prefix and not allow_prefix:
            raise ProtocolError(f"{at}.prefix", "is allowed in selectors only")
        if previous is not None:
            # Brokers compare sets by walking through both in order, without sorting.
            if (previous.name, previous.value) >= (label.name, label.value):
                was, now = f"{previous.name}={previous.value}", f"{label.name}={label.value}"
                problem = f"labels must be unique and sorted by name and value; {was!r} precedes {now!r}"
                raise ProtocolError(at, problem)
            # In a selector an empty value matches any value, so a second value would have no effect.
            if previous.name == label.name and previous.value == "":
                raise ProtocolError(at, f"label {label.name!r} has an empty value and {label.value!r}")
        previous = label


def validate_selector(selector: pb.LabelSelector, where: str = "LabelSelector") -> None:
    """Raise ProtocolError unless both sets of the selector are well formed."""
    validate_label_set(selector.include, f"{where}.Include", allow_prefix=True)
    validate_label_set(selector.exclude, f"{where}.Exclude", allow_prefix=True)


def validate_journal_labels(labels: pb.LabelSet, where: str = "JournalSpec.labels") -> None:
    """Raise ProtocolError unless the labels are allowed in a JournalSpec."""
    validate_label_set(labels, where)
    _refuse_meta(labels, where, NAME, PREFIX)
    _check_single_valued(labels, where)
    for value in values_of(labels, CONTENT_TYPE):
        if not _MEDIA_TYPE.fullmatch(value):
            raise ProtocolError(where, f"label {CONTENT_TYPE!r} must be a MIME type, got {value!r}")
    names = _by_name(labels).keys()
    # A message type is meaningless without its framing, and so is a subtype without its type.
    for name, needed in ((MESSAGE_TYPE, CONTENT_TYPE), (MESSAGE_SUBTYPE, MESSAGE_TYPE)):
        if name in names and needed not in names:
            raise ProtocolError(where, f"label {name!r} also needs label {needed!r}")


def validate_shard_labels(labels: pb.LabelSet, where: str = "ShardSpec.labels") -> None:
    """Raise ProtocolError unless the labels are allowed in a ShardSpec."""
    validate_label_set(labels, where)
    _refuse_meta(labels, where, ID)
    _check_single_valued(labels, where)


def _refuse_meta(labels: pb.LabelSet, where: str, *names: str) -> None:
    for name in names:
        if values_of(labels, name):
            raise ProtocolError(
                where, f"cannot include label {name!r}, which selectors use for the spec itself"
            )


def _check_single_valued(labels: pb.LabelSet, where: str) -> None:
    for name in sorted(SINGLE_VALUED):
        if len(values := values_of(labels, name)) > 1:
            raise ProtocolError(where, f"label {name!r} takes one value, got {values}")
