"""Converts rows to appends: finds the columns and each row's journal, and does the work of a task."""
