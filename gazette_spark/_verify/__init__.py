"""Proves after the fact that a table matches its journals and its ledger."""
