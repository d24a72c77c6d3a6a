"""Stores a shard's state together with the checkpoint that produced it."""
