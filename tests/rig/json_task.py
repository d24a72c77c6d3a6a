"""Reads a JSON record as a task of Spark does, without Spark and without a broker; a program.

The task has the bytes that the driver read to find the end of the last record. If the native decoder is
missing, the program prints the reason.
"""

from __future__ import annotations

import pickle
import sys

from pyspark.sql.types import LongType, StructType

from gazette_spark._formats.library import library
from gazette_spark._options.source import parse_options
from gazette_spark._planning.pieces import Piece
from gazette_spark.source import BatchReader, PiecePartition

options = parse_options({"brokerAddress": "http://localhost:1", "path": "a/", "format": "json"})
planned = BatchReader(options, StructType().add("id", LongType()))
task = PiecePartition(Piece("a/b", 0, 9, 9, starts_on_record=True, content=b'{"id":1}\n'))
reader, partition = pickle.loads(pickle.dumps((planned, task)))
(rows,) = reader.read(partition)
assert rows.column("id").to_pylist() == [1]
sys.stdout.write(f"{library().absence}\n")
