"""Delta tables through Spark, as the sink needs them: a table's content, and the effect of one commit."""
