"""What a batch reads: planned on the driver, read by tasks from brokers or from a fragment store."""
