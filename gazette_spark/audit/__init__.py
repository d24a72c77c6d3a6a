"""Proves after the fact that a table is what its journals and its ledger say."""
