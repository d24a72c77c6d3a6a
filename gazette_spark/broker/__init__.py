"""The embedded broker: a Gazette broker of one process, for development and tests."""

from gazette_spark.broker.embedded import EmbeddedBroker

__all__ = ["EmbeddedBroker"]
