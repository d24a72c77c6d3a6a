"""Reading ranges of journals as Arrow record batches, without Spark."""
