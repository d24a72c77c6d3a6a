"""Connects to brokers: routes, credentials, TLS, retries and statuses."""
