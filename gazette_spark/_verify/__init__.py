"""Proves afterwards that a table matches its journals and its ledger."""
