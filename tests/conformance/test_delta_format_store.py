"""The format ``gazette_delta`` on a real S3 server: table and checkpoint are objects."""

from __future__ import annotations

from pathlib import Path

from deltalake import DeltaTable

from gazette_spark._ledger.delta_reader import log_files
from gazette_spark._ledger.history import read_state
from tests.rig.object_store import BUCKET, ObjectStore
from tests.unit.table.test_delta_format import Stream


def test_table_and_checkpoint_may_be_in_an_object_store(tmp_path: Path, object_store: ObjectStore) -> None:
    """Each commit is a conditional PUT; if its answer is lost, the history shows whether it succeeded."""
    checkpoint = object_store.root / "checkpoint"
    options = {f"storage.{name.lower()}": value for name, value in object_store.options().items()}
    options |= {"path": f"s3a://{BUCKET}/orders", "checkpointLocation": f"s3a://{BUCKET}/checkpoint/"}
    stream = Stream(tmp_path, checkpoint=checkpoint, **options)
    object_store.lose_answer(f"{0:020}.json")
    stream.run(0, {}, {"a": 0})
    assert not object_store.loses_answer()
    (checkpoint / "state" / "0" / "0").mkdir(parents=True)
    (checkpoint / "state" / "0" / "0" / "1.delta").touch()
    object_store.lose_answer(f"{2:020}.json")
    stream.run(1, {"a": 0}, {"a": 2})
    assert not object_store.loses_answer()
    stream.repeat(1, {"a": 0}, {"a": 2})
    table = DeltaTable(f"s3://{BUCKET}/orders", storage_options=object_store.options())
    assert sorted(table.to_pyarrow_table()["n"].to_pylist()) == [0, 1]
    assert table.version() == 2
    assert {*object_store.requests("put if absent")} >= {
        f"orders/_delta_log/{version:020}.json" for version in range(3)
    }
    entry = read_state(lambda limit: [*log_files(table, limit)], "orders", table="t").entry
    assert entry is not None
    assert (entry.read_through, entry.stateful) == ({"a": 2}, True)
