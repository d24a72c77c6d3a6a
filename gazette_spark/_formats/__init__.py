"""Framings and formats: bytes of journals to records, records to columns, and values to records."""
