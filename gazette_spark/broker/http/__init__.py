"""Serves a broker's HTTP requests: the gateway to its journals, and its fragment files at signed URLs."""
