"""Appends to journals, directly or in batches, and maps keys to journals."""
