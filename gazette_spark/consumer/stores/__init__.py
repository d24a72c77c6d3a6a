"""Stores for the state of a shard, together with the checkpoint that produced it."""
