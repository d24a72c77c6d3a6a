"""Stores: where the state of a shard is kept, with the checkpoint that produced it."""
