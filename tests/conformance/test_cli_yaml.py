"""gazctl reads any tree of journals that we write as the same changes."""

from __future__ import annotations

import subprocess

import pytest
from google.protobuf import text_format
from hypothesis import given, settings
from hypothesis import strategies as st

from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.protocol.journal_yaml import format_journal_yaml
from tests.property.test_protocol_journals import TREE_NAMES, changes
from tests.rig.examples import examples
from tests.rig.gazctl import clean_environment, find_binaries


def read_by_gazctl(text: str) -> list[pb.ApplyRequest.Change]:
    """Return the changes that gazctl reads from a tree, for which it calls no broker."""
    done = subprocess.run(
        [str(find_binaries().gazctl), "journals", "apply", "--specs", "-", "--dry-run"],
        input=text.encode(),
        capture_output=True,
        timeout=60,
        check=False,
        env=clean_environment(),
    )
    assert done.returncode == 0, done.stderr
    request = text_format.Parse(done.stdout.decode(), pb.ApplyRequest())
    for change in request.changes:
        if not change.delete:
            # Gazctl's text leaves empty messages out.
            change.upsert.labels.SetInParent()
            for duration in ("refresh_interval", "retention", "flush_interval"):
                getattr(change.upsert.fragment, duration).SetInParent()
    return list(request.changes)


@pytest.mark.deployed_broker
@settings(deadline=None, max_examples=examples(40))
@given(st.data(), st.sets(TREE_NAMES, min_size=1, max_size=8))
def test_any_tree_is_read_by_gazctl(data: st.DataObject, names: set[str]) -> None:
    asked = [data.draw(changes(name)) for name in sorted(names)]
    in_order = sorted(asked, key=lambda change: change.delete or change.upsert.name)
    assert read_by_gazctl(format_journal_yaml(asked)) == in_order
