"""The calls that a broker answers: list, apply, append, read, fragments."""
