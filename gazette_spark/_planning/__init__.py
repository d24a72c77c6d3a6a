"""Plans on the driver what a batch reads, and reads it in tasks, from brokers or a fragment store."""
