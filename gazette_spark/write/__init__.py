"""Rows to appends: which columns say what, which journal a row goes to, what a task does."""
