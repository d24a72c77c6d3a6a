"""A table's committed offsets, and the decision about a batch: values in, decisions out."""
