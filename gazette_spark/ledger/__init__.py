"""What a table has committed, and what follows for a batch: values in, decisions out."""
