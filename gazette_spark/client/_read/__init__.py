"""Reads journals through brokers and from fragment files, and finds their write heads and gaps."""
