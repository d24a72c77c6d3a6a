"""Helps to test pipelines: a batch loop without a JVM, a stub broker, the oracle, kills."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gazette_spark._exports import lazy_exports

if TYPE_CHECKING:
    from gazette_spark.testing.crash import CrashChild as CrashChild
    from gazette_spark.testing.micro_batch import MicroBatches as MicroBatches
    from gazette_spark.testing.stub_broker import StubBroker as StubBroker
    from gazette_spark.testing.table_watch import TableWatch as TableWatch
    from gazette_spark.testing.table_watch import batch_in_flight as batch_in_flight

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        "crash": ("CrashChild",),
        "micro_batch": ("MicroBatches",),
        "stub_broker": ("StubBroker",),
        "table_watch": ("TableWatch", "batch_in_flight"),
    },
)
