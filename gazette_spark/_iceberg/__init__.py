"""Iceberg tables through pyiceberg: columns and partitions, commits, and the sink."""
