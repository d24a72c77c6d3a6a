"""Rows to appends: the columns that matter, the journal of a row, the work of a task."""
