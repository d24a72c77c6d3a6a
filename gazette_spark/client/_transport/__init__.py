"""Channels to brokers: routes, credentials, TLS, retries and statuses."""
