"""Runs an embedded Gazette broker, or a local cluster, in this process, for development and tests."""

from gazette_spark._server.tls import ServerTls as ServerTls
from gazette_spark.broker.cluster import LocalBroker as LocalBroker
from gazette_spark.broker.cluster import LocalCluster as LocalCluster
from gazette_spark.broker.embedded import EmbeddedBroker as EmbeddedBroker
from gazette_spark.broker.faults import Faults as Faults
from gazette_spark.broker.settings import GatewaySettings as GatewaySettings
from gazette_spark.broker.settings import ServingSettings as ServingSettings
from gazette_spark.broker.settings import StorageSettings as StorageSettings
