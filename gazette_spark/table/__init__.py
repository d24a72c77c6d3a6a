"""Delta tables through Spark, as the sink needs them: what one holds, and what one commit does to it."""
