"""The embedded broker: a Gazette broker of one process, for development and tests."""

from gazette_spark.broker.embedded import EmbeddedBroker as EmbeddedBroker
from gazette_spark.broker.faults import Faults as Faults
from gazette_spark.broker.settings import GatewaySettings as GatewaySettings
from gazette_spark.broker.settings import ServingSettings as ServingSettings
from gazette_spark.broker.settings import StorageSettings as StorageSettings
from gazette_spark.broker.tls import ServerTls as ServerTls
