"""One Iceberg table through pyiceberg: its columns and partitions, its commits, and the sink."""
