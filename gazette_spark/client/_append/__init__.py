"""Appends to journals: one at a time, queued and batched, and the journals that keys are mapped to."""
