"""What an upsert requires of a batch, and its statement, are decided without Spark."""

from __future__ import annotations

import pickle
import sqlite3
from contextlib import closing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gazette_spark._delta.sql_names import quoted
from gazette_spark._delta.upsert import Upsert, free_name, keys_condition, merge_statement, order, rank
from gazette_spark.errors import OptionError, UpsertError

TYPES = {"id": "bigint", "name": "string", "gone": "boolean", "_journal": "string", "_offset": "bigint"}
ORIGIN = ("_journal", "_offset")


@pytest.mark.parametrize(
    ("arguments", "option"),
    [
        pytest.param({"keys": ()}, "upsert.keys", id="no key"),
        pytest.param({"keys": "id"}, "upsert.keys", id="a text"),
        pytest.param({"keys": {"id"}}, "upsert.keys", id="a set"),
        pytest.param({"keys": ("id", "id")}, "upsert.keys", id="a key twice"),
        pytest.param({"keys": ("id", "")}, "upsert.keys", id="an empty name"),
        pytest.param({"keys": ("id", None)}, "upsert.keys", id="no name"),
        pytest.param({"keys": ("id",), "leave_out": "x"}, "upsert.leave_out", id="leave out a text"),
        pytest.param({"keys": ("id",), "leave_out": ("id",)}, "upsert.leave_out", id="leave out a key"),
        pytest.param({"keys": ("id",), "delete_when": "id"}, "upsert.delete_when", id="delete by the key"),
        pytest.param(
            {"keys": ("id",), "delete_when": "at", "order_by": "at"},
            "upsert.delete_when",
            id="delete by the order",
        ),
        pytest.param(
            {"keys": ("id",), "order_by": "at", "leave_out": ["at"]},
            "upsert.leave_out",
            id="leave out the order",
        ),
    ],
)
def test_bad_arguments_are_refused(arguments: dict[str, object], option: str) -> None:
    with pytest.raises(OptionError) as caught:
        Upsert(**arguments)  # type: ignore[arg-type]  # Fields by name, of mixed types.
    assert caught.value.option == option


def test_lists_of_names_are_as_good_as_tuples() -> None:
    """Lists of names are copied, so a later change of them has no effect."""
    keys = ["id"]
    upsert = Upsert(keys)
    keys.append("name")
    assert upsert == Upsert(("id",))
    assert upsert.keys == ("id",)


@pytest.mark.parametrize(
    ("upsert", "types", "origin", "problem"),
    [
        pytest.param(Upsert(("id",), "gone"), TYPES, ORIGIN, None, id="fits"),
        pytest.param(
            Upsert(("id",), order_by="name"), {"id": "int", "name": "string"}, None, None, id="order by"
        ),
        pytest.param(Upsert(("key",)), TYPES, ORIGIN, "no column key; their columns are id, name", id="key"),
        pytest.param(Upsert(("ID",)), TYPES, ORIGIN, "no column ID", id="key in capitals"),
        pytest.param(Upsert(("id",), "del"), TYPES, ORIGIN, "no column del", id="flag"),
        pytest.param(Upsert(("id",), order_by="at"), TYPES, ORIGIN, "no column at", id="order"),
        pytest.param(Upsert(("id",), leave_out=("x", "y")), TYPES, ORIGIN, "no column x, y", id="left out"),
        pytest.param(
            Upsert(("id",), "name"),
            TYPES,
            ORIGIN,
            "delete_when='name' has the type string",
            id="no boolean",
        ),
        pytest.param(
            Upsert(("id",)),
            {"id": "int"},
            None,
            "columns _journal and _offset .* or Upsert .* order_by",
            id="no order",
        ),
    ],
)
def test_a_batch_fits_or_says_what_it_lacks(
    upsert: Upsert, types: dict[str, str], origin: tuple[str, str] | None, problem: str | None
) -> None:
    found = upsert.unfit(types, origin)
    if problem is None:
        assert found is None
        return
    assert found is not None
    with pytest.raises(UpsertError, match=f"(?s)table t, app id 'app', batch 7: .* by key: .*{problem}"):
        raise pickle.loads(pickle.dumps(UpsertError("t", "app", 7, found)))


def test_the_flag_and_what_is_left_out_are_not_stored() -> None:
    upsert = Upsert(("id",), "gone", leave_out=("_journal", "_offset"))
    assert upsert.stored(TYPES) == ("id", "name")
    assert Upsert(("id",)).stored(TYPES) == tuple(TYPES)


@pytest.mark.parametrize(
    ("upsert", "origin", "expected"),
    [
        pytest.param(
            Upsert(("id",)),
            ORIGIN,
            "`_journal` DESC NULLS LAST, `_offset` DESC NULLS LAST",
            id="journal, offset",
        ),
        pytest.param(Upsert(("id",), order_by="at"), None, "`at` DESC NULLS LAST", id="a column"),
        pytest.param(
            Upsert(("id",), order_by="at"),
            ORIGIN,
            "`at` DESC NULLS LAST, `_journal` DESC NULLS LAST, `_offset` DESC NULLS LAST",
            id="a column first",
        ),
    ],
)
def test_the_last_row_comes_first(upsert: Upsert, origin: tuple[str, str] | None, expected: str) -> None:
    assert order(upsert, origin) == expected
    assert rank(upsert, origin) == f"row_number() OVER (PARTITION BY `id` ORDER BY {expected})"


def test_a_row_takes_the_place_of_the_one_with_its_key() -> None:
    assert merge_statement("c.d.t", "v", ["id", "name"], Upsert(("Id",))) == (
        "MERGE INTO c.d.t AS old USING `v` AS new ON old.`id` = new.`id` "
        "WHEN MATCHED THEN UPDATE SET `name` = new.`name` "
        "WHEN NOT MATCHED THEN INSERT (`id`, `name`) VALUES (new.`id`, new.`name`)"
    )


def test_a_deletion_takes_a_row_away_and_brings_none_in() -> None:
    upsert = Upsert(("id", "at"), "gone", order_by="n")
    assert merge_statement("t", "v", ["id", "at", "gone", "n"], upsert) == (
        "MERGE INTO t AS old USING `v` AS new ON old.`id` = new.`id` AND old.`at` = new.`at` "
        "WHEN MATCHED AND (old.`n` IS NULL OR new.`n` >= old.`n`) AND new.`gone` THEN DELETE "
        "WHEN MATCHED AND (old.`n` IS NULL OR new.`n` >= old.`n`) THEN UPDATE SET `n` = new.`n` "
        "WHEN NOT MATCHED AND NOT new.`gone` "
        "THEN INSERT (`id`, `at`, `n`) VALUES (new.`id`, new.`at`, new.`n`)"
    )


def test_rows_of_keys_alone_are_only_brought_in() -> None:
    assert merge_statement("t", "v", ["id"], Upsert(("id",))) == (
        "MERGE INTO t AS old USING `v` AS new ON old.`id` = new.`id` "
        "WHEN NOT MATCHED THEN INSERT (`id`) VALUES (new.`id`)"
    )


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        pytest.param("a.b", "`a.b`", id="dot"),
        pytest.param("a`b``", "`a``b`````", id="backticks"),
        pytest.param("new", "`new`", id="as the alias"),
        pytest.param("'; DROP TABLE t", "`'; DROP TABLE t`", id="a statement"),
    ],
)
def test_names_are_quoted(name: str, expected: str) -> None:
    assert quoted(name) == expected
    statement = merge_statement("t", "v", [name, "gone"], Upsert((name,), "gone"))
    assert statement.count(f"old.{expected} = new.{expected}") == 1
    assert f"INSERT ({expected}) VALUES (new.{expected})" in statement


def test_a_free_name_is_none_of_the_columns() -> None:
    """Spark treats two names that differ in case as one."""
    assert free_name("n", ["a"]) == "n"
    assert free_name("n", ["N", "n_"]) == "n__"


def test_a_table_gets_columns_by_the_merge_itself() -> None:
    statement = merge_statement("t", "v", ["id"], Upsert(("id",)), add_columns=True)
    assert statement.startswith("MERGE WITH SCHEMA EVOLUTION INTO t AS old USING")


def test_a_complete_result_leaves_no_other_key() -> None:
    statement = merge_statement("t", "v", ["id", "n"], Upsert(("id",), order_by="n"), complete=True)
    assert statement == (
        "MERGE INTO t AS old USING `v` AS new ON old.`id` = new.`id` "
        "WHEN MATCHED THEN UPDATE SET `n` = new.`n` "
        "WHEN NOT MATCHED THEN INSERT (`id`, `n`) VALUES (new.`id`, new.`n`) "
        "WHEN NOT MATCHED BY SOURCE THEN DELETE"
    )


WORDS = st.sampled_from(["", "a", "b", "ab"])
KEYS = st.sets(st.tuples(WORDS, WORDS, WORDS), min_size=1)


@given(KEYS, KEYS)
def test_a_condition_selects_exactly_its_keys(
    listed: set[tuple[str, ...]], others: set[tuple[str, ...]]
) -> None:
    condition = keys_condition(("shard", "kind", "key"), listed)
    with closing(sqlite3.connect(":memory:")) as database:
        database.execute("CREATE TABLE rows (shard, kind, key)")
        database.executemany("INSERT INTO rows VALUES (?, ?, ?)", listed | others)
        selected = database.execute(f"SELECT * FROM rows WHERE {condition}").fetchall()
    assert sorted(selected) == sorted(listed)


def test_keys_of_few_shards_make_few_lists() -> None:
    """A condition must not grow by a term for each key."""
    keys = {(f"shard-{number % 2}", "state", f"{number:02}") for number in range(100)}
    checkpoints = {(f"shard-{number}", "checkpoint", "") for number in range(2)}
    condition = keys_condition(("shard", "kind", "key"), keys | checkpoints)
    assert (condition.count(" IN ("), condition.count("`shard` = ")) == (8, 2)
