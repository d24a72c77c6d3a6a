"""For tests of pipelines: the batch loop without a JVM, kills at failpoints, a pytest plugin."""
