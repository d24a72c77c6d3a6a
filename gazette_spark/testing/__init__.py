"""What tests of pipelines need: brokers, a local Spark, oracles and faults. Shipped with the package."""
