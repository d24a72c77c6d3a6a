"""The ledger of a table's committed offsets, and the decision about a batch as a pure function of values."""
