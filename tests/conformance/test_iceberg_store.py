"""The format ``gazette_iceberg`` on a real S3 server: files, metadata and checkpoint are objects."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

from pyspark.sql.datasource import CaseInsensitiveDict

from gazette_spark import JournalOffsets
from gazette_spark._iceberg_format import IcebergFormat
from gazette_spark._ledger.iceberg_reader import open_catalog, table_state
from tests.rig.iceberg import NAME, ROWS, rows
from tests.rig.object_store import BUCKET, KEY_ID, SECRET, ObjectStore


def test_table_and_checkpoint_may_be_in_an_object_store(tmp_path: Path, object_store: ObjectStore) -> None:
    properties = {
        "type": "sql",
        "uri": f"sqlite:///{tmp_path}/catalog.db",
        "warehouse": f"s3://{BUCKET}/warehouse",
        "s3.endpoint": object_store.endpoint,
        "s3.access-key-id": KEY_ID,
        "s3.secret-access-key": SECRET,
        "s3.region": "us-east-1",
    }
    catalog = open_catalog(NAME.catalog, properties)
    catalog.create_namespace("shop")
    options = {f"catalog.{name}": text for name, text in properties.items()} | {
        "catalog": NAME.catalog,
        "table": NAME.identifier,
        "appId": "orders",
        "partitionBy": "bucket(2, n)",
        "checkpointLocation": f"s3a://{BUCKET}/checkpoint/",
    }

    def run(batch_id: int, begin: int, end: int) -> None:
        source = IcebergFormat(CaseInsensitiveDict(options))
        writer = pickle.dumps(source.streamWriter(ROWS, overwrite=False))
        messages: list[Any] = [pickle.loads(writer).write(iter([rows("a", begin, end)]))]
        committer = pickle.loads(pickle.dumps(source)).streamWriter(ROWS, overwrite=False)
        committer.commit(pickle.loads(pickle.dumps(messages)), batch_id)

    checkpoint = object_store.root / "checkpoint"
    (checkpoint / "offsets").mkdir(parents=True)
    (checkpoint / "metadata").write_text(json.dumps({"id": "query"}))
    for batch_id, end in enumerate((0, 8)):
        position = JournalOffsets({"a": end}, "pinned" if batch_id == 0 else "")
        text = ["v1", json.dumps({"batchTimestampMs": 1000 + batch_id}), position.to_json()]
        (checkpoint / "offsets" / str(batch_id)).write_text("\n".join(text))
        for _ in range(2):
            run(batch_id, 0, end)
    table = catalog.load_table(NAME.identifier)
    assert sorted(table.scan().to_arrow()["n"].to_pylist()) == [*range(8)]
    assert len(table.snapshots()) == 2
    assert {task.file.file_path.rpartition("/")[0] for task in table.scan().plan_files()} == {
        f"s3://{BUCKET}/warehouse/shop/orders/data/n_bucket={bucket}" for bucket in (0, 1)
    }
    entry = table_state(table, "orders", "t").entry
    assert entry is not None
    assert entry.read_through == {"a": 8}
