"""Reads of a journal: through a broker, from fragment files, across errors; heads and gaps."""
