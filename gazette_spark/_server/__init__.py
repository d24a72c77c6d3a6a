"""Shared by the broker and the consumer service: identity, tokens, TLS, ports, catalogs, assignments."""
