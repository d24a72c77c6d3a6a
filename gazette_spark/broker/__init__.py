"""The embedded broker: a Gazette broker of one process, for development and tests."""
