"""The embedded broker: a Gazette broker of one process, for development and tests."""

from gazette_spark.broker.embedded import EmbeddedBroker
from gazette_spark.broker.faults import Faults
from gazette_spark.broker.settings import GatewaySettings, ServingSettings, StorageSettings
from gazette_spark.broker.tls import ServerTls

__all__ = [
    "EmbeddedBroker",
    "Faults",
    "GatewaySettings",
    "ServerTls",
    "ServingSettings",
    "StorageSettings",
]
