"""On REST catalogs, Iceberg tables have each batch once, as on one in SQLite. The tests run in soak.

The catalog of Iceberg's own tests keeps a table's snapshots, so tests of ``test_iceberg_table.py`` run again
on it. Nessie, over a real S3 server, shows only the newest snapshot, so the ledger has just the table
property.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial

import httpx
import pytest

from gazette_spark.errors import FencedError, GapError
from gazette_spark.failpoints import calling
from tests.rig.iceberg import NAME, ROWS, IcebergStream, open_namespace
from tests.rig.iceberg_rest import running_nessie, running_rest_catalog
from tests.rig.object_store import ObjectStore
from tests.unit.iceberg.test_iceberg_table import (
    die_in_second_batch,
    met,
    race,
    test_a_batch_that_runs_again_writes_nothing,
    test_a_process_that_dies_in_the_commit_loses_and_doubles_nothing,
    test_a_rollback_between_decision_and_commit_is_a_conflict,
    test_a_rollback_takes_the_position_back,
    test_a_rollback_that_is_taken_back_changes_nothing,
    test_a_rollback_to_before_the_first_entry_says_where_rows_began,
    test_a_table_that_is_made_again_takes_no_files_of_the_old_one,
    test_a_zombie_that_kept_still_is_fenced,
    test_an_undone_entry_does_not_come_back_by_an_expiry,
    test_columns_that_change_after_the_decision_are_a_conflict,
    test_columns_that_change_while_a_batch_is_written_are_found,
    test_columns_that_the_table_lacks_are_refused_or_added,
    test_commits_of_others_are_tried_again,
    test_of_two_writers_that_decided_on_one_entry_one_commits,
    test_rewritten_files_keep_the_ledger,
    test_rows_and_entry_are_one_commit,
    test_the_entry_outlives_its_snapshot,
    test_two_threads_race_for_each_batch,
    test_what_does_not_continue_the_table_is_refused,
)

__all__ = [
    "test_a_batch_that_runs_again_writes_nothing",
    "test_a_process_that_dies_in_the_commit_loses_and_doubles_nothing",
    "test_a_rollback_between_decision_and_commit_is_a_conflict",
    "test_a_rollback_takes_the_position_back",
    "test_a_rollback_that_is_taken_back_changes_nothing",
    "test_a_rollback_to_before_the_first_entry_says_where_rows_began",
    "test_a_table_that_is_made_again_takes_no_files_of_the_old_one",
    "test_a_zombie_that_kept_still_is_fenced",
    "test_an_undone_entry_does_not_come_back_by_an_expiry",
    "test_columns_that_change_after_the_decision_are_a_conflict",
    "test_columns_that_change_while_a_batch_is_written_are_found",
    "test_columns_that_the_table_lacks_are_refused_or_added",
    "test_commits_of_others_are_tried_again",
    "test_of_two_writers_that_decided_on_one_entry_one_commits",
    "test_rewritten_files_keep_the_ledger",
    "test_rows_and_entry_are_one_commit",
    "test_the_entry_outlives_its_snapshot",
    "test_two_threads_race_for_each_batch",
    "test_what_does_not_continue_the_table_is_refused",
]

pytestmark = [pytest.mark.soak, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def rest_catalog(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    with running_rest_catalog(tmp_path_factory.mktemp("catalog")) as properties:
        yield properties


@pytest.fixture(scope="module")
def nessie(tmp_path_factory: pytest.TempPathFactory, s3_server: ObjectStore) -> Iterator[dict[str, str]]:
    with running_nessie(tmp_path_factory.mktemp("nessie"), s3_server) as properties:
        yield properties


@pytest.fixture
def stream(rest_catalog: dict[str, str]) -> IcebergStream:
    return begun(rest_catalog)


@pytest.fixture
def nessie_stream(nessie: dict[str, str]) -> IcebergStream:
    return begun(nessie)


def begun(properties: dict[str, str]) -> IcebergStream:
    catalog = open_namespace(properties)
    if catalog.table_exists(NAME.identifier):
        catalog.drop_table(NAME.identifier)
    made = IcebergStream(properties)
    made.run(0, 0, 5)
    made.run(1, 5, 10)
    return made


def test_nessie_shows_one_snapshot_and_the_ledger_goes_on(nessie_stream: IcebergStream) -> None:
    with calling("sink.before_write", lambda: nessie_stream.append_foreign(0, 1)):
        nessie_stream.run(2, 10, 12)
    nessie_stream.append_foreign(2)
    nessie_stream.other(seen=None).run(2, 10, 12)
    nessie_stream.run(3, 12, 13)
    assert len(nessie_stream.load().snapshots()) == 1
    assert nessie_stream.contents() == {"a": [*range(5, 13)], "other": [0, 1, 2]}
    with pytest.raises(GapError):
        nessie_stream.other(seen=None).run(4, 14, 15)
    nessie_stream.other(query="other", seen=None).run(4, 13, 14)
    with pytest.raises(FencedError, match="query other"):
        nessie_stream.run(4, 14, 15)


def test_of_two_writers_on_nessie_one_commits_each_batch(nessie_stream: IcebergStream) -> None:
    """In each of a hundred races, both writers decide before either commits."""
    rounds = 100
    writers = [nessie_stream.other(seen=None), nessie_stream.other(seen=None)]
    shape = writers[0].table.prepare(ROWS)[1]
    writers[1].table.prepare(ROWS)
    before = nessie_stream.load().last_sequence_number
    for batch_id in range(2, 2 + rounds):
        at, outcomes = threading.Barrier(2), list[str]()
        threads = [
            threading.Thread(target=race, args=(writer, batch_id, partial(met, at, shape), outcomes))
            for writer in writers
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(outcomes) == 2
        assert "fenced" in outcomes or len({*outcomes}) == 1
    assert nessie_stream.load().last_sequence_number == before + rounds
    entry = nessie_stream.entry()
    assert entry is not None
    assert entry.read_through == {"a": 10 + rounds}


@pytest.mark.parametrize("point", ["sink.before_write", "sink.after_write"])
def test_a_driver_that_dies_in_a_commit_on_nessie_loses_and_doubles_nothing(
    nessie_stream: IcebergStream, point: str
) -> None:
    die_in_second_batch(nessie_stream, point)
    successor = nessie_stream.other(seen=None)
    successor.run(2, 10, 20)
    successor.run(3, 20, 21)
    assert nessie_stream.contents() == {"a": [*range(5, 21)]}


def test_a_reset_of_nessies_branch_takes_the_position_back(
    nessie: dict[str, str], nessie_stream: IcebergStream
) -> None:
    branch = nessie["uri"].replace("/iceberg/main/", "/api/v2/trees/main")
    before = httpx.get(branch).json()["reference"]
    nessie_stream.run(2, 10, 20)
    newest = httpx.get(branch).json()["reference"]
    httpx.put(f"{branch}@{newest['hash']}", json=before).raise_for_status()
    with pytest.raises(GapError):
        nessie_stream.other(seen=None).run(3, 20, 30)
    successor = nessie_stream.other(query="next", seen=None)
    successor.run(0, 10, 10)
    successor.run(1, 10, 15)
    assert nessie_stream.contents() == {"a": [*range(5, 15)]}


def test_partitions_on_nessie(nessie: dict[str, str]) -> None:
    """The table is created with partitions. Nessie 0.99 cannot parse pyiceberg's request to add a column."""
    catalog = open_namespace(nessie)
    if catalog.table_exists(NAME.identifier):
        catalog.drop_table(NAME.identifier)
    partitioned = IcebergStream(nessie, options={"partition_by": ("bucket(2, n)",)})
    partitioned.run(0, 0, 0)
    partitioned.run(1, 0, 8)
    assert partitioned.contents() == {"a": [*range(8)]}
    assert {task.file.partition[0] for task in partitioned.load().scan().plan_files()} == {0, 1}
