"""Answers a broker's calls: list, apply, append, read, fragments."""
