"""Whatever fails, every row of a task that succeeds is in its journal, whole and at least once.

Rows go to the journals that the per-message mappings choose.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import grpc
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from gazette_spark._formats import encode
from gazette_spark._formats.arrays import value_bounds, value_octets
from gazette_spark._formats.encode import encoded
from gazette_spark._formats.framing import RowRefusal
from gazette_spark._formats.registry import framing_named
from gazette_spark._options.write import parse_write_options
from gazette_spark._write import task as task_module
from gazette_spark._write.columns import write_columns
from gazette_spark._write.task import (
    KeyMapping,
    Share,
    Targets,
    TaskWriter,
    open_service,
    shares_by_name,
)
from gazette_spark.broker import EmbeddedBroker, Faults
from gazette_spark.broker.settings import StorageSettings
from gazette_spark.client import AsyncAppend, Client
from gazette_spark.client._append.mappings import ModuloMapping, RendezvousMapping, fnv1a32, fnv1a32_each
from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.protocol.journal_specs import journal_spec
from tests.rig.examples import examples

RNG = np.random.default_rng(5)
FAULTS = Faults()
KEYS = st.lists(st.one_of(st.binary(max_size=12), st.binary(min_size=250, max_size=260)), max_size=40)
RECORDS = st.lists(st.binary(max_size=20), max_size=30)


def rows_of(shares: Sequence[Share], rows: int) -> dict[str, list[int]]:
    return {each.journal: list(range(rows)) if each.rows is None else each.rows.tolist() for each in shares}


@settings(deadline=None)
@given(KEYS, st.integers(0, 3))
def test_keys_are_hashed_as_one_by_one(keys: list[bytes], skip: int) -> None:
    column = pa.array(keys, pa.binary())[skip:]
    hashes = fnv1a32_each(value_octets(column), value_bounds(column))
    assert hashes.tolist() == [fnv1a32(key) for key in keys[skip:]]


@settings(deadline=None)
@given(KEYS, st.lists(st.text("abc/", min_size=1, max_size=4), min_size=1, max_size=9, unique=True))
@pytest.mark.parametrize(
    ("mapping", "reference"),
    [
        pytest.param("modulo", ModuloMapping, id="modulo"),
        pytest.param("rendezvous", RendezvousMapping, id="rendezvous"),
    ],
)
def test_keys_choose_as_the_client_does(
    mapping: str, reference: Any, keys: list[bytes], names: list[str]
) -> None:
    journals = sorted(names)
    listed = [pb.ListResponse.Journal(spec=pb.JournalSpec(name=name)) for name in journals]
    expected = reference(lambda key: key, listed)
    shares = rows_of(KeyMapping.of(journals, mapping).shares(pa.array(keys, pa.binary()), RNG), len(keys))
    found = {row: journal for journal, rows in shares.items() for row in rows}
    assert [found[row] for row in range(len(keys))] == [expected(key)[0] for key in keys]
    assert all(rows == sorted(rows) for rows in shares.values())


@settings(deadline=None)
@given(st.lists(st.sampled_from(["a", "b/c", "ü"]), max_size=30), st.integers(0, 3))
def test_rows_are_shared_out_by_name(names: list[str], skip: int) -> None:
    column = pa.array(names, pa.string())[skip:]
    shares = shares_by_name(column)
    assert not isinstance(shares, RowRefusal)
    expected: dict[str, list[int]] = {}
    for row, name in enumerate(names[skip:]):
        expected.setdefault(name, []).append(row)
    assert rows_of(shares, len(column)) == expected


@settings(deadline=None)
@given(
    st.sampled_from(["lines", "fixed", "csv"]),
    st.lists(st.one_of(st.binary(max_size=9), st.text('a",\n\r', max_size=6).map(str.encode)), max_size=9),
)
@example("csv", [b"a", b"", b'"'])
def test_what_is_made_of_values_is_read_as_them(framing: str, values: list[bytes]) -> None:
    """All values are written, or the first that cannot be read back alone is refused."""
    cut = framing_named(framing, 1 << 20).cut

    def read(made: bytes) -> list[bytes] | None:
        found = cut(made, 0)
        spans = zip(found.starts, found.ends, strict=True)
        return [made[start:end] for start, end in spans] if found.size == len(made) else None

    def alone(value: bytes) -> bool:
        return read(value + b"\n") == [value] if framing != "fixed" else True

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(encode, "CHUNK_BYTES", 24)
        made = encoded(pa.array(values, pa.binary()), framing_named(framing, 1 << 20))
        if isinstance(made, RowRefusal):
            assert made.index == [alone(value) for value in values].index(False)
        else:
            assert read(b"".join(made)) == values


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    root = tmp_path_factory.mktemp("faulty")
    with EmbeddedBroker(root, faults=FAULTS, storage=StorageSettings(fsync=False)) as broker:
        with Client(broker.endpoint, timeout_s=30) as opened:
            yield opened
        FAULTS.clear()


lost = st.tuples(st.just("lose_answer"), st.just(0))
broken = st.tuples(st.just("break"), st.integers(0, 60))
refused = st.tuples(st.just("refuse"), st.just(0))
orders = st.lists(st.one_of(lost, broken, refused), max_size=4)


def order(faults: list[tuple[str, int]]) -> None:
    FAULTS.clear()
    for kind, after_bytes in faults:
        if kind == "lose_answer":
            FAULTS.lose_answer()
        elif kind == "break":
            FAULTS.fail(grpc.StatusCode.UNAVAILABLE, rpc="Append", after_bytes=after_bytes)
        else:
            FAULTS.answer("NO_JOURNAL_PRIMARY_BROKER", rpc="Append")


_made = iter(range(1 << 30))


@settings(
    max_examples=examples(20), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(batches=st.lists(RECORDS, max_size=4), faults=orders, tries=st.lists(st.integers(0, 4), max_size=2))
def test_rows_are_in_their_journals_at_least_once(
    client: Client, batches: list[list[bytes]], faults: list[tuple[str, int]], tries: list[int]
) -> None:
    prefix = f"write/{next(_made)}/"
    client.create_journals(*(journal_spec(prefix + short) for short in ("a", "b")))
    options = parse_write_options({"path": prefix, "framing": "fixed"} | {"brokerAddress": client.endpoint})
    columns = write_columns([("value", "binary"), ("key", "binary")], options)
    order(faults)

    def run(batches: list[list[bytes]]) -> int:
        service = open_service(client, options)
        try:
            targets = Targets(client, options)
            task = TaskWriter(service, targets, options, columns, partition=0, rng=RNG)
            for rows in batches:
                column = pa.array(rows, pa.binary())
                task.write(pa.RecordBatch.from_arrays([column, column], ["value", "key"]))
            return sum(each.rows for each in task.finish().values())
        finally:
            service.close(abort=True)

    for size in tries:
        run(batches[:size])
    assert run(batches) == sum(map(len, batches))
    FAULTS.clear()
    exact = not tries and not any(kind == "lose_answer" for kind, _ in faults)
    found: Counter[bytes] = Counter()
    for short in ("a", "b"):
        head = client.write_head(prefix + short)
        with client.read(prefix + short, end_offset=head) as reader:
            content = reader.read() if head else b""
        cut = framing_named("fixed", 1 << 20).cut(content, 0)
        assert (cut.size, cut.skipped) == (len(content), ())
        there = [content[start:end] for start, end in zip(cut.starts, cut.ends, strict=True)]
        if exact:
            mine = set(there)
            assert there == [value for rows in batches for value in rows if value in mine]
        found.update(there)
    expected = Counter(value for rows in batches for value in rows)
    assert expected <= found
    assert set(found) <= set(expected)
    if exact:
        assert found == expected


def test_what_waits_is_bounded(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """A task accepts no more rows at the limit of bytes in flight; all of them arrive in the end."""
    monkeypatch.setattr(task_module, "PENDING_BYTES", 1000)
    journal = f"write/{next(_made)}"
    client.create_journals(journal_spec(journal))
    options = parse_write_options({"path": journal, "brokerAddress": client.endpoint})
    service = open_service(client, options)
    seen: list[int] = []
    append = service.append

    def noted(name: str, content: bytes) -> AsyncAppend:
        seen.append(service.pending_bytes + len(content))
        return append(name, content)

    monkeypatch.setattr(service, "append", noted)
    FAULTS.delay(0.05, rpc="Append", times=None)
    columns = write_columns([("value", "binary")], options)
    task = TaskWriter(service, Targets(client, options), options, columns, partition=0, rng=RNG)
    for number in range(40):
        column = pa.array([b"%099d" % number], pa.binary())
        task.write(pa.RecordBatch.from_arrays([column], ["value"]))
    done = task.finish()[journal]
    service.close()
    FAULTS.clear()
    assert (done.rows, done.bytes, done.end) == (40, 4000, 4000)
    assert max(seen) <= 1000
