"""Exports functions for journals' names, specs and YAML."""

from gazette_spark.protocol.journal_specs import (
    journal_spec,
    split_meta,
    validate_codec,
    validate_journal_name,
    validate_journal_spec,
    validate_store,
)
from gazette_spark.protocol.journal_yaml import format_journal_yaml, parse_journal_yaml

__all__ = [
    "format_journal_yaml",
    "journal_spec",
    "parse_journal_yaml",
    "split_meta",
    "validate_codec",
    "validate_journal_name",
    "validate_journal_spec",
    "validate_store",
]
