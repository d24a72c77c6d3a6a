"""Lists Delta's table features, and what each lane of the sink does with a table that has one.

Spark's lane leaves features to Spark's writer, which supports them or refuses the write. The direct lane
(:mod:`gazette_spark._ingest`) commits files of plain rows. It accepts a table only if all its features are
listed here as having no requirements for such files.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Feature:
    """What the sink does with tables that have one feature."""

    takes_plain_files: bool = False
    """Whether the direct lane accepts the feature, unless the table's columns or properties use it: see
    :func:`gazette_spark._delta.file_commits.refusal`. Readers compute the change feed of appended files from
    the files themselves."""
    computes_columns: bool = False
    """Whether Spark's writer may compute columns that a batch lacks, so that a missing NOT NULL column is not
    refused."""
    since_writer_version: int | None = None
    """Writer version from which a table has the feature without naming it."""


FEATURES: Mapping[str, Feature] = {
    "allowColumnDefaults": Feature(computes_columns=True),
    "appendOnly": Feature(takes_plain_files=True, since_writer_version=2),
    "changeDataFeed": Feature(takes_plain_files=True, since_writer_version=4),
    "checkConstraints": Feature(takes_plain_files=True, since_writer_version=3),
    "columnMapping": Feature(takes_plain_files=True, since_writer_version=5),
    "deletionVectors": Feature(takes_plain_files=True),
    "generatedColumns": Feature(takes_plain_files=True, computes_columns=True, since_writer_version=4),
    "identityColumns": Feature(takes_plain_files=True, computes_columns=True, since_writer_version=6),
    "invariants": Feature(takes_plain_files=True, since_writer_version=2),
    "timestampNtz": Feature(takes_plain_files=True),
    "v2Checkpoint": Feature(takes_plain_files=True),
    "vacuumProtocolCheck": Feature(takes_plain_files=True),
}
"""Spark's lane leaves a feature that is not listed to Spark's writer. The direct lane refuses it, because it
may require anything of a writer."""

COMMITS_ELSEWHERE = re.compile("catalog|coordinated", re.IGNORECASE)
"""Features with such names may keep commits outside the log's directory for some time. Their names have
changed with each preview, so they are recognized by a part of the name."""

NAMED_FEATURES_VERSION = 7
"""Writer version from which a table names its features one by one."""


def refused_by_direct_lane(features: Collection[str]) -> list[str]:
    """Return the features that have, or may have, requirements for appended files."""
    return sorted(name for name in features if not FEATURES.get(name, Feature()).takes_plain_files)


def computes_columns(features: Collection[str]) -> bool:
    """Return whether a table may compute columns that a batch lacks."""
    return any(FEATURES.get(name, Feature()).computes_columns for name in features)


def keeps_commits_elsewhere(features: Collection[str]) -> bool:
    """Return whether the newest commits of a table may not yet be in its log's directory."""
    return any(COMMITS_ELSEWHERE.search(name) for name in features)


def writer_features(writer_version: int, named: Collection[str]) -> frozenset[str]:
    """Return the features that a table's protocol requires of its writers."""
    # With a lower version, a table has all features of its version, whether it uses them or not.
    if writer_version >= NAMED_FEATURES_VERSION:
        return frozenset(named)
    return frozenset(
        name
        for name, feature in FEATURES.items()
        if feature.since_writer_version is not None and feature.since_writer_version <= writer_version
    )
