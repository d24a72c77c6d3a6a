"""Declares options: each one once, with the field that has its parsed value.

The fields of a dataclass such as ``SourceOptions`` declare their options with :func:`option`. The parser of
the texts that Spark passes, the errors, the tables of the reference pages and the list of all options are
derived from these declarations. Spark passes names in lower case and values as text, so names match in any
case.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from gazette_spark.errors import OptionError

Use = Literal["stream", "batch"]

SPARK_OWN = frozenset(
    {"checkpointlocation", "comment", "external", "location", "owner", "provider", "queryname"}
)
"""Names that Spark adds, or that users set for Spark on the same reader or writer, with table properties."""

TARGET_OPTION = "dataFilesSecret"
"""Internal option for the files that tasks write: :func:`gazette_spark.ingest` sets it on a reader."""

_DECLARED = "options"


@dataclass(frozen=True, slots=True)
class Option:
    """One option. An empty name means the name of the declaring field, in camel case."""

    name: str
    parse: Callable[[str, str], Any]
    """Parser of the option's name and text; raises OptionError."""
    description: str
    default: str | None = None
    """Default as text; None for no default."""
    use: Use | None = None
    """The only use of the option; None for every use."""
    form: str | None = None
    """Allowed texts; None for the form that the parser's error shows."""
    section: str = ""
    """Heading in the reference; empty for that of the previous option."""
    shown_default: str | None = None
    """Default in the reference, if ``default`` does not express it."""

    @property
    def key(self) -> str:
        """The name in snake case."""
        return re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])|\.", "_", self.name).lower()


def option(
    parse: Callable[[str, str], Any],
    description: str,
    *,
    name: str = "",
    repr: bool = True,  # noqa: A002 - as in dataclasses.field.
    missing: Any = dataclasses.MISSING,  # noqa: ANN401 - of any option.
    **more: Any,  # noqa: ANN401 - the other fields of Option.
) -> Any:  # noqa: ANN401 - a field of any type.
    """Declare a field of a dataclass and its option. ``missing`` is the field's default in Python."""
    metadata = {_DECLARED: (Option(name, parse, description, **more),)}
    return dataclasses.field(default=missing, repr=repr, metadata=metadata)


def of_options(*options: Option) -> Any:  # noqa: ANN401 - a field of any type.
    """Declare a field that is made from several options, or from one that another class also declares."""
    return dataclasses.field(metadata={_DECLARED: options})


def options_of(parsed: type) -> tuple[Option, ...]:
    """Return the options that the fields of a dataclass declare, by section. Other fields declare none.

    In a section, options of the class itself come before inherited ones.
    """
    options: list[Option] = []
    section = ""
    bases = filter(dataclasses.is_dataclass, parsed.__bases__)
    inherited = {field.name for base in bases for field in dataclasses.fields(base)}
    for field in sorted(dataclasses.fields(parsed), key=lambda field: field.name in inherited):
        first, *rest = field.name.split("_")
        camel_case = first + "".join(map(str.capitalize, rest))
        for declared in field.metadata.get(_DECLARED, ()):
            section = declared.section or section
            options.append(dataclasses.replace(declared, name=declared.name or camel_case, section=section))
    sections = list(dict.fromkeys(option.section for option in options))
    return tuple(sorted(options, key=lambda option: sections.index(option.section)))


def option_texts(options: Mapping[str, str], table: Sequence[Option]) -> dict[str, str]:
    """Return the texts of a table's options by name in lower case, without Spark's own names.

    Raises:
        OptionError: an option is unknown to the table.
    """
    spark_own = {*SPARK_OWN, TARGET_OPTION.lower()}
    # Tables of a catalog repeat each option as "option.<name>".
    texts = {
        name: text
        for name, text in ((name.lower(), text) for name, text in options.items())
        if name not in spark_own and not name.startswith("option.")
    }
    names = {option.name.lower(): option.name for option in table}
    if "paths" in texts:
        raise OptionError("path", "several paths", "one path in load(); name more with option 'journals'")
    # Spark ignores unknown options. A misspelt `failOnDataLoss` must not be ignored, so every
    # unknown name is an error, with the nearest known one.
    for name in sorted(texts.keys() - names.keys()):
        nearest = difflib.get_close_matches(name, names, n=1)
        expected = f"{names[nearest[0]]!r}?" if nearest else f"one of {', '.join(names.values())}"
        raise OptionError(name, "an unknown option", expected)
    return texts


def parse_texts(
    texts: Mapping[str, str], table: Sequence[Option], use: Use | None, *, environ: Mapping[str, str]
) -> dict[str, Any]:
    """Parse the texts of a table's options, with the broker's address from the environment if needed.

    Returns:
        Each option's value by its key; None if it has neither a text nor a default.

    Raises:
        OptionError: a text is invalid for its option, or the option does not apply to this use.
    """
    # A store needs no broker, and Estuary's control plane names the brokers of a collection.
    needs_address = "fragmentstore" not in texts and "collection" not in texts
    if needs_address and not texts.get("brokeraddress") and "BROKER_ADDRESS" in environ:
        texts = {**texts, "brokeraddress": environ["BROKER_ADDRESS"]}
    values = parse_values(texts, table, use)
    if needs_address and values["broker_address"] is None:
        raise OptionError(
            "brokerAddress", "nothing", "http://host:port, or BROKER_ADDRESS in the environment"
        )
    return values


def parse_values(texts: Mapping[str, str], table: Sequence[Option], use: Use | None) -> dict[str, Any]:
    """Parse the texts of a table's options.

    Returns:
        Each option's value by its key, None where it has neither text nor default.

    Raises:
        OptionError: a text is invalid for its option, or the option has no meaning in this use.
    """
    values: dict[str, Any] = {}
    for option in table:
        text = texts.get(option.name.lower(), option.default)
        # Only a text that the user has set contradicts the use: defaults are the same for all uses.
        if option.use and use and option.use != use and option.name.lower() in texts:
            raise OptionError(option.name, f"a {use} query", f"to be used in a {option.use} query only")
        values[option.key] = None if text is None else option.parse(option.name, text)
    return values
