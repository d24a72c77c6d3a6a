"""For tests of pipelines: the batch loop without a JVM, a stub broker, broken networks, the oracle, kills."""
