"""The calls a broker answers: list, apply, append, read, fragments; who may make them and where they go."""
