"""Plans what a batch reads, on the driver, and reads it, in tasks, from brokers or a fragment store."""
